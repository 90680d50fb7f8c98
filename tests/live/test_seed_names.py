"""Seeds that are names: of several hosts, and of none."""

import sys
from pathlib import Path

import pytest

from tests.live.labs import NewLab, program
from tests.live.swarm import Process

JOIN = """
import p2p

with p2p.join() as peer:
    peer.wait_view()
"""


@pytest.mark.long
@pytest.mark.light
def test_a_name_of_several_hosts_is_refused_and_one_that_nobody_knows_is_named(new_lab: NewLab, tmp_path: Path) -> None:
    script, lab = tmp_path / "join.py", new_lab(2)
    script.write_text(JOIN)

    def run(host: int, seeds: str) -> Process:
        names = "printf '10.77.0.1 pods\\n10.77.0.2 pods\\n' >> /etc/hosts"
        shoal = f"exec {sys.executable} -m p2p.cli run -n 1 --seeds {seeds} {script}"
        return program(lab, host, "sh", "-c", f"{names}; {shoal}")

    refused, waiting = [run(host, "pods:7400") for host in range(2)], run(1, "nowhere.invalid:7400")
    for peer, (here, there) in zip(refused, (("10.77.0.1", "10.77.0.2"), ("10.77.0.2", "10.77.0.1")), strict=True):
        assert peer.end() == 2, peer.report()
        why = f"pods:7400 has 2 addresses, {here} of this machine and {there} of another"
        assert peer.stderr[-1].startswith(f"shoal: --seeds: {why}"), peer.report()
    waiting.expect_line(r"\[0\].* seed tcp://nowhere\.invalid:7400 has a name that nobody knew when .*", is_error=True)
    waiting.kill()
    waiting.end()

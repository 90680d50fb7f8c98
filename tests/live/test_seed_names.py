"""Seeds that are host names: of several hosts, and of none."""

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
    waiting.expect_line(
        r"\[0\].* seed tcp://nowhere\.invalid:7400 has a name that did not resolve when .*", is_error=True
    )
    waiting.kill()
    waiting.end()


STEPS = """
import numpy as np
import p2p

with p2p.join() as peer:
    for _ in range(5):
        peer.all_reduce(np.ones(10, np.float32))
    print("summed by", peer.world_size)
"""


def test_a_seed_whose_name_has_addresses_of_both_kinds_is_reached_by_who_has_no_way_to_one(
    new_lab: NewLab, tmp_path: Path
) -> None:
    script, lab = tmp_path / "steps.py", new_lab(2)
    script.write_text(STEPS)
    names = "printf '10.77.0.1 both\\nfd77::1 both\\n' >> /etc/hosts"
    shoal = f"exec {sys.executable} -m p2p.cli run -n 1 --min-peers 2 --seeds both:7400"
    commands = [f"ip -6 addr add fd77::1/128 dev lo; {shoal} --bind both:7400 {script}", f"{shoal} {script}"]
    peers = [program(lab, host, "sh", "-c", f"{names}; {command}") for host, command in enumerate(commands)]
    for peer in peers:
        peer.expect_line(r"\[0\] summed by 2")
        assert peer.end() == 0, peer.report()

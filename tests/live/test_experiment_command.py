import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from bench.here import ROOT
from p2p.forking.zygote import Child, Zygote
from tests.live.launches import SHOAL

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.light

SCRIPT = """
import os
import numpy as np
import p2p

print(os.environ["SHOAL_HOME"], flush=True)
with p2p.join() as peer:
    peer.wait_view()
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""

FILE = """
[run]
script = "script.py"
peers = 2

[[event]]
at_step = 20
do = "pause"
who = 0
for_s = 60
"""

Start = Callable[..., tuple[Child, IO[str]]]


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    """Starts `shoal experiment x.toml`, and reads its output."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with ExitStack() as stack:

        def run(text: str, *options: str) -> tuple[Child, IO[str]]:
            (tmp_path / "x.toml").write_text(text)
            source, sink = os.pipe()
            said = stack.enter_context(open(source))
            with open(sink, "wb"):
                arguments = ["experiment", "x.toml", *options]
                return zygote.start(SHOAL, arguments, ENVIRON, sink, sink, folder=tmp_path), said

        yield run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            FILE.replace("at_step", "at_stp"),
            "shoal: x.toml: line 7: unknown key at_stp in [[event]], did you mean at_step",
        ),
        (FILE.replace("script.py", "other.py"), "shoal: x.toml: line 3: the script "),
        (
            FILE.replace('script = "script.py"', 'command = ["no-such-program", "x"]'),
            "shoal: x.toml: line 3: there is no program no-such-program that can be run",
        ),
        (FILE.replace("peers = 2", 'peers = 2\nresident = "90000G"'), "shoal: x.toml: line 5: 2 peers with resident"),
        (FILE.replace("who = 0", "who = 2"), "shoal: x.toml: line 6: there is no peer 2: 2 have started by then"),
        (
            FILE + "[expect]\nstep_lost = 0\n",
            "shoal: x.toml: line 12: unknown figure step_lost, did you mean steps_lost",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line_and_code_2(start: Start, tmp_path: Path, text: str, says: str) -> None:
    """Also with `--dry-run`."""
    for options in ([], ["--dry-run"]):
        child, said = start(text, *options)
        (line,) = said.read().splitlines()
        assert line.startswith(says)
        assert child.wait() == 2
        assert not (tmp_path / "x-report").exists()


def test_a_dry_run_starts_nothing(start: Start, tmp_path: Path) -> None:
    child, said = start(FILE, "--dry-run")
    assert "pause peer 0 for 60 s" in said.read()
    assert child.wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py", "x.toml"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_after_a_signal_nobody_runs_or_is_stopped_and_there_is_a_report(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here")
    child, said = start(FILE)
    assert any("pause" in line for line in iter(said.readline, ""))
    if number == signal.SIGHUP:  # like a closed terminal, which accepts no more lines
        said.close()
    child.send_signal(number)
    text = "" if said.closed else said.read()
    assert child.wait() == 130
    assert said.closed or "interrupted: all peers are ended" in text
    assert "has not happened" not in text
    home = (tmp_path / "x-report" / "run-1" / "peer-0.log").read_text().splitlines()[0]
    assert not Path(home).exists()
    report = json.loads((tmp_path / "x-report" / "report.json").read_text())
    assert report["failures"] == ["a run was ended before its time"]
    account = json.loads((tmp_path / "x-report" / "run-1" / "run.json").read_text())
    for process in account["processes"]:
        with pytest.raises(ProcessLookupError):
            os.killpg(process["pid"], 0)

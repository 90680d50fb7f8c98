"""Experiments that fail in the middle, or are nearly empty: each ends, and the part that ran is reported."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench.here import environment
from p2p.experiment import command
from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import Evaluated, evaluate, failures
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans
from tests.live.test_full_disk import disk as disk

pytestmark = pytest.mark.light

SCRIPT = """
import sys
from contextlib import suppress
from pathlib import Path
import numpy as np
import p2p

with p2p.join() as peer:
    peer.wait_view()
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""

RUN = """
[run]
script = "script.py"
peers = 2
until_step = 10
limit_s = 40
"""


def conduct(folder: Path, text: str) -> tuple[Experiment, Evaluated]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "x.toml").write_text(text)
    experiment = Experiment.read(folder / "x.toml")
    assert ExperimentRunner(os.environ, print).run(experiment, plans(experiment, 0, 1), folder / "out")
    return experiment, evaluate(read_run(folder / "out" / "run-1"))


def test_a_run_in_which_nothing_is_done_ends_at_its_step(tmp_path: Path) -> None:
    experiment, evaluated = conduct(tmp_path, RUN)
    assert failures([evaluated], experiment.expect) == []
    assert evaluated.run.log is not None and evaluated.run.log.ended_by == "until"


LAB = """
[network]
hosts = 2
net = "delay=1ms"

[[event]]
at_step = 3
do = "link"
who = "host 0"
net = "delay=2ms"

[[event]]
at_step = 6
do = "link"
who = "host 0"
to = "host 1"
net = "jitter=5ms"
"""


@pytest.mark.usefixtures("namespaces")
def test_what_a_lab_refuses_in_the_middle_ends_the_run_with_a_report_of_what_ran(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "x.toml").write_text(RUN + LAB)
    said: list[str] = []
    out = tmp_path / "out"
    assert command.experiment(tmp_path / "x.toml", out, repeat=2, seed=0, is_dry=False, say=said.append) == 1
    assert any(line.startswith("all peers are ended: jitter=5ms is above delay=2ms") for line in said)
    assert "not as expected: a run was ended before its time" in said
    (run,) = json.loads((out / "report.json").read_text())["runs"]
    assert run["steps"] >= 3, "peers that are ended may not have written the last steps that they have shown"
    assert [each["at_step"] >= 0 for each in run["events"]] == [True, True]
    assert (out / "report.html").is_file()


FULL = """
import os, sys
from pathlib import Path
from p2p.experiment import command
from tests.live.test_full_disk import mount_disk

folder = Path(sys.argv[1])
mount_disk(folder)
for name in ("script.py", "x.toml"):
    (folder / name).write_text((folder.parent / name).read_text())
asked = {"repeat": 3, "seed": 0, "is_dry": False, "say": print}
print("code", command.experiment(folder / "x.toml", folder / "out", **asked))
(folder / "filler").unlink()
print("again", command.report(folder / "out", None, print))
print("left", *sorted(str(path.relative_to(folder)) for path in folder.glob("out/*")))
print("in run 2", *sorted(path.name for path in folder.glob("out/run-2/*.json*")))
"""

FILL = """
if sys.argv[1].endswith("run-2"):
    with suppress(OSError), open(Path(sys.argv[1]).parents[1] / "filler", "ab", buffering=0) as file:
        while file.write(bytes(997)):
            pass
"""


@pytest.mark.long
def test_runs_that_were_whole_before_the_disk_was_full_are_reported_and_one_line_says_that_it_is(disk: Path) -> None:
    (disk.parent / "script.py").write_text(SCRIPT + textwrap.indent(FILL, " " * 8))
    (disk.parent / "x.toml").write_text(RUN.replace("peers = 2", 'args = ["{run}"]\npeers = 2'))
    done = subprocess.run(
        [sys.executable, "-c", FULL, disk], env=environment(), capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert f"all peers are ended: {disk}/out/run-2/run.json: No space left on device" in said, done.stdout
    full = f"cannot write the report to {disk}/out/report.json: No space left on device; what ran is in {disk}/out, and"
    assert any(line.startswith(full) for line in said) and "code 1" in said, done.stdout
    assert f"{disk}/out/run-2 has no run.json, so it is left out: it ended before that was written" in said
    assert said[-3:] == [
        "again 1",
        "left out/experiment.toml out/report.html out/report.json out/run-1 out/run-2",
        "in run 2",
    ]

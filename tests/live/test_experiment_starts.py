"""How peers start by `[run]`, and which memory they keep resident, without the tests' own fork server."""

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from bench.here import environment
from p2p.errors import ExperimentError
from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import Evaluated, evaluate, failures
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans
from tests.cases import some_of

SCRIPT = """
import os, sys
import numpy as np
import p2p

print(f"parent {os.getppid()} named {__name__} given {sys.argv[1:]}", flush=True)
with p2p.join() as peer:
    peer.wait_view()
    pages = int(open("/proc/self/statm").read().split()[1])
    print(f"resident {pages * os.sysconf('SC_PAGE_SIZE')}", flush=True)
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""

FILE = """
[run]
{program}
args = ["a", "b c"]
peers = 2
until_s = 1
limit_s = 40
start = "{start}"
resident = "{resident}"

[[event]]
at_s = 0.2
do = "kill"
who = "rank 0"

[[event]]
after = "previous resumed"
do = "join"
"""
RESIDENT = 256 << 20
PROGRAMS = 'script = "peer_script.py"', 'module = "peer_script"'

SAYS_WHO_HAS_IMPORTED = """
import os, sys
is_there = "email.mime.text" in sys.modules
import slow_library
who = "its parent" if slow_library.IMPORTED_BY == os.getppid() else "itself"
print(f"imported by {who}, and email.mime.text {is_there}", flush=True)
"""


def conduct(folder: Path, text: str, script: str = SCRIPT) -> Evaluated:
    (folder / "peer_script.py").write_text(script)
    (folder / "x.toml").write_text(text)
    experiment = Experiment.read(folder / "x.toml")
    environ = {**environment(), "PYTHONPATH": f"{environment()['PYTHONPATH']}:{folder}"}
    assert ExperimentRunner(environ, print).run(experiment, plans(experiment, 0, 1), folder / "out")
    evaluated = evaluate(read_run(folder / "out" / "run-1"))
    assert failures([evaluated], experiment.expect) == []
    return evaluated


@pytest.mark.parametrize(("program", "start"), some_of([*product(PROGRAMS, ("fork", "exec"))], 0))
def test_peers_are_forks_or_programs_of_their_own_and_keep_what_was_asked_for(
    tmp_path: Path, start: str, program: str
) -> None:
    evaluated = conduct(tmp_path, FILE.format(program=program, start=start, resident="256M"))
    account = evaluated.run.log
    assert account is not None and len(account.processes) == 3
    said = [(tmp_path / "out" / "run-1" / f"peer-{index}.log").read_text() for index in range(3)]
    parents = {int(match.group(1)) for text in said for match in [re.search(r"parent (\d+)", text)] if match}
    assert len(parents) == 1 and (parents == {os.getpid()}) == (start == "exec")
    assert all("named __main__ given ['a', 'b c']" in text for text in said)
    assert all(int(found[1]) > RESIDENT for text in said for found in [re.search(r"resident (\d+)", text)] if found)
    assert sum("resident" in text for text in said) == 3
    for process in account.processes:
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    schedule = Experiment.read(tmp_path / "out" / "run-1" / "schedule.toml")
    assert (schedule.run.start, schedule.run.resident_bytes) == (start, RESIDENT)


def test_more_resident_memory_than_there_is_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "peer_script.py").write_text(SCRIPT)
    text = FILE.format(program='script = "peer_script.py"', start="exec", resident="90000G")
    (tmp_path / "x.toml").write_text(text)
    experiment = Experiment.read(tmp_path / "x.toml")
    with pytest.raises(ExperimentError, match=r"line 9: 2 peers with resident = 90000G keep 193273[0-9.]+ GB, and"):
        ExperimentRunner(environment(), print).run(experiment, plans(experiment, 0, 1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_fork_server_cannot_import_ends_the_run_with_its_word(tmp_path: Path) -> None:
    """Without this package the fork server cannot start."""
    (tmp_path / "peer_script.py").write_text(SCRIPT)
    (tmp_path / "p2p").mkdir()
    (tmp_path / "p2p" / "__init__.py").write_text("raise ImportError('another p2p')")
    (tmp_path / "x.toml").write_text(FILE.format(program='script = "peer_script.py"', start="fork", resident=""))
    experiment = Experiment.read(tmp_path / "x.toml")
    environ = {**environment(), "PYTHONPATH": str(tmp_path)}
    with pytest.raises(ExperimentError, match=r"\[run\] start = \"fork\": the fork server ended with 1"):
        ExperimentRunner(environ, print).run(experiment, plans(experiment, 0, 1), tmp_path / "out")


@pytest.mark.long
def test_peers_have_what_was_imported_before_they_were_forked(tmp_path: Path) -> None:
    (tmp_path / "slow_library.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    text = FILE.format(program='script = "peer_script.py"', start="fork", resident="")
    text = text.replace("resident", 'imports = ["slow_library", "email.mime.text"]\nresident')
    evaluated = conduct(tmp_path, text, SCRIPT.replace("import os, sys", SAYS_WHO_HAS_IMPORTED))
    account = evaluated.run.log
    assert account is not None
    said = [(tmp_path / "out" / "run-1" / f"peer-{index}.log").read_text() for index in range(3)]
    assert all("imported by its parent, and email.mime.text True" in text for text in said)
    schedule = Experiment.read(tmp_path / "out" / "run-1" / "schedule.toml")
    assert schedule.run.imports == ("slow_library", "email.mime.text")


@pytest.mark.parametrize(
    ("name", "says"),
    some_of(
        [
            ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
            ("broken_library", "RuntimeError: it does not like two lines"),
        ],
        1,
    ),
)
def test_what_cannot_be_imported_is_one_line_and_nothing_starts(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "peer_script.py").write_text(SCRIPT)
    (tmp_path / "broken_library.py").write_text('raise RuntimeError("it does not like\\n two lines")\n')
    text = FILE.format(program='script = "peer_script.py"', start="fork", resident="")
    (tmp_path / "x.toml").write_text(text.replace("resident", f'imports = ["{name}"]\nresident'))
    environ = {**environment(), "PYTHONPATH": f"{environment()['PYTHONPATH']}:{tmp_path}"}
    command = [sys.executable, "-m", "p2p", "experiment", "x.toml", "--out", "out"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"line 9: cannot import {name}: {says}; imports are installed modules" in line
    assert not (tmp_path / "out" / "run-1").exists()

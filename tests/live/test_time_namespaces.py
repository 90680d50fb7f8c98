"""Peers of one host with different monotonic clocks, since one is in a time namespace of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.here import environment
from p2p.errors import ExperimentError
from p2p.experiment.config import Experiment
from p2p.experiment.run.runner import ExperimentRunner, plans
from p2p.host.processes import Offsets, read_offsets
from p2p.host.registry import Registry
from p2p.status.local import Condition, read_swarms
from tests.p2p.telemetry.pages import A, B, identity, of_this_process, page, snapshot

HOUR = ("unshare", "--time", "--monotonic", "3600", "--boottime", "7200")
ROOT = Path(__file__).parents[2]
ENTERS = """
import sys
from pathlib import Path
import p2p
from p2p.host.registry import Registry
try:
    Registry(Path(sys.argv[1]), "pond").enter(sys.argv[2], 2)
except p2p.ShoalError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print("in", flush=True)
sys.stdin.read()
"""


def why_not() -> str:
    """Why this machine has no time namespaces; empty: it has."""
    try:
        tried = subprocess.run([*HOUR, "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return "there is no unshare"
    return "" if tried.returncode == 0 else f"no time namespace can be made: {tried.stderr.strip()}"


WHY_NOT = why_not()
pytestmark = [pytest.mark.light, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def enters(home: Path, peer_id: str, *before: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    command = [*before, sys.executable, "-c", ENTERS, str(home), peer_id]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ)


def test_who_has_other_clocks_than_a_peer_that_is_here_does_not_enter(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "pond")
    registry.enter(A, 1)
    assert read_offsets() == Offsets()
    with enters(tmp_path, B, *HOUR) as other:
        _, said = other.communicate(timeout=60)
    assert other.returncode == 1
    assert said == (
        f"RegistryError: process {os.getpid()} of swarm 'pond' has other clocks than this one, by its time namespace "
        "(monotonic +0 s, boottime +0 s; here monotonic +3600 s, boottime +7200 s): start all peers of a host in one "
        "time namespace\n"
    )
    living, _ = registry.read(apart_from="")
    assert [entry.peer_id for entry in living] == [A]  # not taken for dead, although start times look different there
    registry.leave()


def test_who_is_alone_with_its_clocks_founds_and_others_are_refused_until_it_is_dead(tmp_path: Path) -> None:
    with enters(tmp_path, A, *HOUR) as shifted:
        assert shifted.stdout is not None
        assert shifted.stdout.readline() == "in\n"
        with enters(tmp_path, B) as other:
            _, said = other.communicate(timeout=60)
        assert "(monotonic +3600 s, boottime +7200 s; here monotonic +0 s, boottime +0 s)" in said
        shifted.kill()
    registry = Registry(tmp_path, "pond")
    assert registry.enter(B, 2).others == ()
    registry.leave()


def test_a_process_that_has_unshared_its_clocks_for_its_children_is_told(tmp_path: Path) -> None:
    script = (
        "import ctypes, sys; assert not ctypes.CDLL(None, use_errno=True).unshare(0x80); " + "exec(sys.argv.pop(1))"
    )
    command = [sys.executable, "-c", script, ENTERS, str(tmp_path), A]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.stderr.startswith("RegistryError: this process has unshared its time namespace, and its clocks are not")
    assert done.stderr.count("\n") == 1


def test_a_peer_with_shifted_clocks_is_seen_as_old_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pond").mkdir()
    own = of_this_process()
    start = own["process_start"] + 7200 * os.sysconf("SC_CLK_TCK")
    offsets = {"monotonic_offset_ns": 3600 * 10**9, "boottime_offset_ns": 7200 * 10**9}
    made = page(tmp_path / "pond", identity(A, **{**own, "process_start": start}, **offsets))
    made.show(snapshot(made.identity, time_ns=time.monotonic_ns() + 3600 * 10**9))
    (looked,) = read_swarms(tmp_path, "pond", time.monotonic_ns)["pond"]
    assert looked.condition in (Condition.RUNNING, Condition.HANGS)
    assert looked.age_s < 3600


SHIFTED = """
import os, sys
if "SHIFTED" not in os.environ:
    os.environ["SHIFTED"] = "1"
    os.execvp("unshare", [*{command}, sys.executable, *sys.argv])
import numpy as np
import p2p
with p2p.join() as peer:
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""
EXPERIMENT = """
[run]
script = "shifted.py"
peers = 2
until_s = 5
limit_s = 40
start = "exec"
"""


def test_an_experiment_refuses_peers_by_whose_clocks_its_events_have_other_times(tmp_path: Path) -> None:
    (tmp_path / "shifted.py").write_text(SHIFTED.format(command=HOUR))
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    experiment = Experiment.read(tmp_path / "x.toml")
    with pytest.raises(ExperimentError) as refused:
        ExperimentRunner(environment(), print).run(experiment, plans(experiment, 0, 1), tmp_path / "out")
    assert "(monotonic +3600 s, boottime +7200 s; here monotonic +0 s, boottime +0 s)" in str(refused.value)
    assert str(refused.value).endswith("start `shoal experiment` in the time namespace of its peers")
    logs = list((tmp_path / "out").rglob("peer-*.log"))
    assert len(logs) == 2 and all("Traceback" not in each.read_text() for each in logs)

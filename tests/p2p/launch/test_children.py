"""Processes that cannot be started, and wrappers whose peer is gone."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from p2p.errors import LaunchError
from p2p.launch.children import Child
from p2p.launch.config import LaunchConfig
from p2p.launch.target import Target
from tests.p2p.host.few_files import few_files


@pytest.mark.parametrize("number", range(9))
def test_a_peer_for_which_no_files_are_left_is_not_started_and_leaves_none_open(tmp_path: Path, number: int) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    config = LaunchConfig(target=Target.script(script, ()), num_peers=1, swarm="pond", home=tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with few_files(number), pytest.raises(LaunchError, match=r"cannot start peer 0: .*: Too many open files"):
        Child.start(config, 0, {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_core_that_is_not_there_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    config = LaunchConfig(target=Target.script(script, ()), num_peers=1, swarm="pond", home=tmp_path)
    with pytest.raises(LaunchError, match=r"cannot start peer 0 on cores \[100000\]"):
        Child.start(config, 0, dict(os.environ), frozenset([100_000]))


def test_a_wrapper_whose_peer_has_left_hears_the_signals_itself(tmp_path: Path) -> None:
    target = Target.of_command(["sleep", "100"])
    child = Child.start(LaunchConfig(target=target, num_peers=1, swarm="pond", home=tmp_path), 0, dict(os.environ))
    with subprocess.Popen(["true"]) as left:
        left.wait()
    for elsewhere in (left.pid, os.getpid()):
        assert child.process(elsewhere) == child.pid
    child.signal(signal.SIGTERM, left.pid)
    child.wait()
    for output in child.outputs:
        output.close()
    assert child.reap() == -signal.SIGTERM

"""The fence, with real processes that are stopped and continued, and a simulated clock."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from p2p.launch.children import Child
from p2p.launch.fence import LOOK_S, Fence
from p2p.launch.places import Place


@pytest.fixture
def place() -> Iterator[Place]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    ours, theirs = socket.socketpair()
    with (
        theirs,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process,
    ):
        place = Place(0, "0")
        place.begin(Child(process, ours, theirs), 0.0)
        yield place
        process.kill()
        ours.close()


def stop(place: Place) -> None:
    assert place.child is not None
    os.kill(place.child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, place.child.pid, os.WSTOPPED)


def wake(place: Place) -> None:
    assert place.child is not None
    os.kill(place.child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, place.child.pid, os.WCONTINUED)


def test_who_is_stopped_is_named_once_when_the_time_is_over(place: Place) -> None:
    fence = Fence(2 * LOOK_S)
    assert not fence.look([place], 0.0)
    stop(place)
    found = [fence.look([place], number * LOOK_S) for number in range(1, 6)]
    assert found == [[], [], [place], [], []]


def test_who_was_woken_begins_anew(place: Place) -> None:
    fence = Fence(2 * LOOK_S)
    stop(place)
    assert not fence.look([place], 0.0) and not fence.look([place], LOOK_S)
    wake(place)
    assert not fence.look([place], 2 * LOOK_S)
    stop(place)
    assert [fence.look([place], number * LOOK_S) for number in range(3, 6)] == [[], [], [place]]


def test_time_in_which_the_launcher_did_not_run_counts_for_nothing(place: Place) -> None:
    fence = Fence(2 * LOOK_S)
    stop(place)
    assert not fence.look([place], 0.0)
    assert not fence.look([place], 3600.0)
    assert fence.look([place], 3600.0 + LOOK_S) == [place]


def test_without_a_limit_nobody_is_looked_at(place: Place) -> None:
    fence = Fence(None)
    stop(place)
    assert fence.deadline == float("inf") and not fence.look([place], 1e9)

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
from p2p.launch.peer_slots import PeerSlot


@pytest.fixture
def place() -> Iterator[PeerSlot]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    ours, theirs = socket.socketpair()
    with (
        theirs,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process,
    ):
        place = PeerSlot(0, "0")
        place.begin(Child(process, ours, theirs), 0.0)
        yield place
        process.kill()
        ours.close()


def stop(place: PeerSlot) -> None:
    assert place.child is not None
    os.kill(place.child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, place.child.pid, os.WSTOPPED)


def wake(place: PeerSlot) -> None:
    assert place.child is not None
    os.kill(place.child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, place.child.pid, os.WCONTINUED)


def test_who_is_stopped_is_named_once_when_the_time_is_over(place: PeerSlot) -> None:
    fence = Fence(2 * LOOK_S)
    assert not fence.poll([place], 0.0)
    stop(place)
    found = [fence.poll([place], number * LOOK_S) for number in range(1, 6)]
    assert found == [[], [], [place], [], []]


def test_who_was_woken_begins_anew(place: PeerSlot) -> None:
    fence = Fence(2 * LOOK_S)
    stop(place)
    assert not fence.poll([place], 0.0) and not fence.poll([place], LOOK_S)
    wake(place)
    assert not fence.poll([place], 2 * LOOK_S)
    stop(place)
    assert [fence.poll([place], number * LOOK_S) for number in range(3, 6)] == [[], [], [place]]


def test_time_in_which_the_launcher_did_not_run_counts_for_nothing(place: PeerSlot) -> None:
    fence = Fence(2 * LOOK_S)
    stop(place)
    assert not fence.poll([place], 0.0)
    assert not fence.poll([place], 3600.0)
    assert fence.poll([place], 3600.0 + LOOK_S) == [place]


def test_without_a_limit_nobody_is_looked_at(place: PeerSlot) -> None:
    fence = Fence(None)
    stop(place)
    assert fence.deadline == float("inf") and not fence.poll([place], 1e9)

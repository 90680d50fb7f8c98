"""The reactor: the order of its work, the threads that run it, and its end."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from p2p.loop.busy_poll import BusyPoll
from p2p.loop.reactor import DEVICE_LOOK_S, Reactor
from p2p.memory.shared_runner import RunState, SharedRunner
from p2p.net.transport import Polled
from p2p.step.notices import Notice, Withdrawn

NOTHING = Polled(control=False, data=False, fds=())
ROOT = Path(__file__).parents[3]
HANG_S = 20.0
"""Timeout, longer than any wait takes."""


class Diary:
    """Work that records its calls.

    Attributes:
        lines: the recorded calls, in order.
        at: further actions when a line is recorded.
        states: successive results of `advance`.
        data: the data that a call waits for.
        data_comes: whether data arrive while it sleeps.
        waits: threads that were about to sleep in a call, with the number of polls before.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}
        self.states: list[RunState] = []
        self.data: BusyPoll | None = None
        self.data_comes = False
        self.timeouts_s: list[float] = []
        self.waits: list[tuple[threading.Thread, int]] = []
        self.inbox: SimpleQueue[Notice] = SimpleQueue()
        self.woken = threading.Event()
        self.crashed: list[BaseException] = []
        self.reactor = Reactor(self, self.inbox, self.woken.set)

    def write(self, line: str) -> None:
        self.lines.append(line)
        if line in self.at:
            self.at[line]()

    def tell(self) -> None:
        self.inbox.put(Withdrawn(0))

    # Work

    def begin(self) -> None:
        self.write("begin")

    def next_deadline(self) -> float:
        return float("inf")

    def poll(self, timeout_s: float) -> Polled:
        self.timeouts_s.append(timeout_s)
        self.write("poll")
        if timeout_s > 0:
            self.woken.wait(HANG_S)
        self.woken.clear()
        return NOTHING

    def take_deaths(self, polled: Polled) -> None:
        self.write("deaths")

    def take(self, polled: Polled) -> None:
        self.write("take")

    def use_wait(self) -> None:
        self.waits.append((threading.current_thread(), len(self.timeouts_s)))

    def advance(self) -> RunState:
        self.write("advance")
        return self.states.pop(0) if self.states else RunState.IDLE

    def shared(self) -> SharedRunner | None:
        return None

    def busy_poll(self) -> BusyPoll | None:
        return self.data

    def wait_for_data(self, timeout_s: float) -> bool:
        self.write("wait for data")
        return self.data_comes

    def take_data(self) -> None:
        self.write("data")

    def crash(self, error: BaseException) -> None:
        self.crashed.append(error)

    def close(self) -> None:
        self.write("close")


@pytest.fixture
def diary() -> Iterator[Diary]:
    diary = Diary()
    yield diary
    if diary.reactor._thread.is_alive():
        diary.reactor.stop()


# Order


def test_a_turn_deals_with_deaths_then_with_commands_then_with_the_rest(diary: Diary) -> None:
    is_done = threading.Event()
    diary.at["begin"] = lambda: diary.reactor.post(lambda: diary.write("command"))
    diary.at["take"] = is_done.set
    diary.reactor.start()
    assert is_done.wait(HANG_S)
    assert diary.lines[: diary.lines.index("take") + 1] == ["begin", "advance", "poll", "deaths", "command", "take"]


def test_a_call_runs_what_was_posted_then_its_own_commands_then_goes_on_in_the_calling_thread(diary: Diary) -> None:
    diary.reactor.post(lambda: diary.write("posted"))
    threads: list[threading.Thread] = []
    commands = [lambda: diary.write("first"), lambda: threads.append(threading.current_thread()), diary.tell]
    assert diary.reactor.call(*commands, timeout_s=HANG_S) == Withdrawn(0)
    assert diary.lines[:3] == ["posted", "first", "advance"]
    assert threads == [threading.current_thread()]


def test_a_call_takes_turns_until_there_is_something_to_hear(diary: Diary) -> None:
    diary.at["take"] = diary.tell
    diary.woken.set()
    assert diary.reactor.call(timeout_s=HANG_S) == Withdrawn(0)
    assert diary.lines[:5] == ["advance", "poll", "deaths", "take", "advance"]


def test_others_are_heard_while_a_device_works_and_it_is_looked_at_again_soon(diary: Diary) -> None:
    diary.states = [RunState.DEVICE_PENDING] * 100_000
    diary.at["take"] = diary.tell
    diary.woken.set()
    assert diary.reactor.call(timeout_s=HANG_S) == Withdrawn(0)
    first = diary.lines.index("poll")
    assert diary.lines[:first] == ["advance"] * first and diary.timeouts_s[0] < 2 * DEVICE_LOOK_S


def test_a_call_that_hears_nothing_in_time_says_so(diary: Diary) -> None:
    with pytest.raises(Empty):
        diary.reactor.call(timeout_s=0.0)
    assert diary.lines[0] == "advance"


def test_who_is_busy_goes_on_without_a_wait_and_who_is_not_waits(diary: Diary) -> None:
    diary.states = [RunState.RUNNABLE, RunState.RUNNABLE, RunState.WAITING]
    diary.at["poll"] = diary.woken.set
    diary.at["take"] = diary.tell
    diary.reactor.call(timeout_s=HANG_S)
    assert diary.lines[:4] == ["advance", "advance", "advance", "poll"]
    assert diary.timeouts_s[0] > 0


def test_what_can_wait_is_done_by_a_call_that_is_about_to_sleep_and_by_nobody_else(diary: Diary) -> None:
    diary.states = [RunState.RUNNABLE, RunState.WAITING]
    diary.at["poll"] = diary.woken.set
    diary.at["take"] = diary.tell
    diary.reactor.call(timeout_s=HANG_S)
    assert diary.waits == [(threading.current_thread(), 0)] and diary.timeouts_s[0] > 0
    is_done = threading.Event()
    diary.at["take"] = is_done.set
    diary.reactor.start()
    assert is_done.wait(HANG_S) and diary.timeouts_s[1] > 0
    assert len(diary.waits) == 1, "the loop has slept, while others compute"


def test_others_are_heard_even_if_a_call_has_nothing_to_wait_for(diary: Diary) -> None:
    diary.reactor.call(diary.tell, timeout_s=HANG_S)
    assert diary.lines == ["advance", "poll", "deaths", "take"] and diary.timeouts_s == [0.0]


# Data of others


def test_a_call_takes_data_that_is_there_without_a_wait_for_all_sockets(diary: Diary) -> None:
    diary.data = BusyPoll(lambda: True)
    diary.at["data"] = diary.tell
    assert diary.reactor.call(timeout_s=HANG_S) == Withdrawn(0)
    assert diary.lines[:6] == ["advance", "poll", "deaths", "take", "advance", "data"]
    assert set(diary.timeouts_s) == {0.0}


def test_a_call_looks_for_data_for_a_while_and_then_waits_for_anything(diary: Diary) -> None:
    diary.data = BusyPoll(lambda: False)
    diary.at["poll"] = diary.woken.set
    diary.at["take"] = lambda: diary.tell() if diary.timeouts_s[-1] > 0 else None
    assert diary.reactor.call(timeout_s=HANG_S) == Withdrawn(0)
    assert "data" not in diary.lines


def test_who_waits_for_much_sleeps_for_data_alone_and_then_for_anything(diary: Diary) -> None:
    diary.data, diary.data_comes = BusyPoll(lambda: False), True
    diary.data.is_for_much = True

    def no_more() -> None:
        diary.data_comes = False
        diary.at = {"poll": diary.woken.set, "take": lambda: diary.tell() if diary.timeouts_s[-1] > 0 else None}

    diary.at["data"] = no_more
    assert diary.reactor.call(timeout_s=HANG_S) == Withdrawn(0)
    slept = diary.lines.index("wait for data")
    assert diary.lines[slept : slept + 3] == ["wait for data", "data", "advance"]
    assert any(timeout_s > 0 for timeout_s in diary.timeouts_s) and diary.lines.count("data") == 1


def test_who_has_looked_in_vain_several_times_sleeps_at_once_until_a_wait_is_short() -> None:
    data = BusyPoll(lambda: False)
    for _ in range(4):
        assert data.spins
        data.waited(is_long=True)
    assert not data.spins
    data.waited(is_long=False)
    assert data.spins
    data.is_for_much = True
    assert not data.spins


# End


def test_a_reactor_that_is_stopped_closes_its_work_and_says_that_it_has_ended(diary: Diary) -> None:
    diary.reactor.start()
    diary.reactor.stop()
    assert diary.lines[0] == "begin" and diary.lines[-1] == "close"
    assert diary.reactor.ended.is_set() and not diary.crashed


@pytest.mark.parametrize("where", ["begin", "deaths", "take", "advance"])
def test_an_error_ends_it_at_once_and_everything_is_closed(diary: Diary, where: str) -> None:
    def fail() -> None:
        raise ValueError(where)

    diary.at[where] = fail
    diary.woken.set()
    diary.reactor.start()
    assert diary.reactor.ended.wait(HANG_S)
    assert [str(error) for error in diary.crashed] == [where]
    assert diary.lines[-2:] == [where, "close"]


def test_a_reactor_whose_work_cannot_be_closed_has_ended_too_and_says_why(diary: Diary) -> None:
    def fail() -> None:
        raise ValueError("of the end")

    diary.at["close"] = fail
    diary.reactor.start()
    diary.reactor.stop()
    assert diary.reactor.ended.is_set() and [str(error) for error in diary.crashed] == ["of the end"]


def test_no_command_runs_behind_one_that_fails(diary: Diary) -> None:
    def fail() -> None:
        raise ValueError("of a command")

    diary.reactor.post(fail)
    diary.reactor.post(lambda: diary.write("behind"))
    diary.reactor.start()
    assert diary.reactor.ended.wait(HANG_S)
    assert [str(error) for error in diary.crashed] == ["of a command"]
    assert "behind" not in diary.lines


def test_an_error_in_a_call_is_told_like_any_other_and_nothing_is_driven_any_more(diary: Diary) -> None:
    def fail() -> None:
        diary.tell()
        raise ValueError("of a call")

    assert diary.reactor.call(fail, timeout_s=HANG_S) == Withdrawn(0)
    assert [str(error) for error in diary.crashed] == ["of a call"]
    with pytest.raises(Empty):
        diary.reactor.call(lambda: diary.write("another"), timeout_s=HANG_S)
    assert diary.lines == []


def test_a_handler_that_raises_in_a_wait_leaves_everything_in_order(diary: Diary) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    diary.at["poll"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        diary.reactor.call(timeout_s=HANG_S)
    assert not diary.crashed
    assert diary.reactor.call(diary.tell, lambda: diary.at.clear(), timeout_s=HANG_S) == Withdrawn(0)


def test_what_a_handler_posts_in_a_wait_leaves_the_turn_after_it_uninterruptible(diary: Diary) -> None:
    states: list[bool] = []
    diary.at["poll"] = lambda: diary.reactor.post(diary.tell)
    diary.at["deaths"] = lambda: states.append(diary.reactor.drive_lock.is_busy)
    diary.reactor.call(timeout_s=HANG_S)
    assert states == [True] and not diary.reactor.drive_lock.is_busy


def test_a_handler_that_raises_in_the_middle_of_a_turn_ends_it(diary: Diary) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    diary.at["take"] = interrupt
    diary.woken.set()
    with pytest.raises(KeyboardInterrupt):
        diary.reactor.call(timeout_s=HANG_S)
    assert [type(error) for error in diary.crashed] == [KeyboardInterrupt]


NO_THREAD = """
import resource
from p2p.errors import ShoalError
from tests.p2p.loop.test_reactor import Diary

diary = Diary()
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (6 << 20), -1))  # less than the stack of a thread
try:
    diary.reactor.start()
except ShoalError as error:
    print(error)
print(diary.lines, diary.reactor.ended.is_set())
"""


def test_where_no_thread_can_be_started_all_is_closed_and_an_error_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.splitlines() == [
        "this peer cannot run: no thread can be started: look at `ulimit -u`, `ulimit -v`, and pids.max of cgroups",
        "['close'] True",
    ], done.stderr

"""Permitted callers of a peer: one thread after the other, and none in a forked child."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from p2p.errors import ShoalError
from p2p.session.attempt import Attempt, OpenedBy
from p2p.session.callers import BACKWARD_CALL, Callers


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


@pytest.fixture
def callers(attempt: Attempt) -> Callers:
    return Callers(attempt)


@pytest.fixture
def other() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs a function in another thread, which stays alive, and passes on its exceptions."""
    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool:
        yield lambda run: (pool.submit(run).result(), None)[1]


def call(callers: Callers, what: str = "peer.all_reduce") -> None:
    with callers.call(what):
        pass


def open_step(callers: Callers, attempt: Attempt, by: OpenedBy, what: str) -> None:
    with callers.call(what):
        attempt.begin(by)
        callers.open_step()


Other = Callable[[Callable[[], object]], None]


def test_a_call_while_another_thread_is_in_one_raises_and_names_both(callers: Callers, other: Other) -> None:
    with (
        callers.call("peer.barrier"),
        pytest.raises(ShoalError, match=r"^peer\.all_reduce was .*'other_0', and peer\.barrier in thread 'MainThread'"),
    ):
        other(lambda: call(callers))
    other(lambda: call(callers))


def test_of_many_threads_that_call_at_once_one_is_in_it_at_a_time(callers: Callers) -> None:
    inside: list[int] = []
    most: list[int] = []
    refused: list[ShoalError] = []

    def run() -> None:
        for _ in range(500):
            try:
                with callers.call("peer.all_reduce"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except ShoalError as error:
                refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(most) + len(refused) == 8 * 500
    call(callers)


def test_a_call_within_a_call_of_the_same_thread_belongs_to_it(callers: Callers, other: Other) -> None:
    with callers.call("peer.all_reduce"):
        call(callers, "peer.wait_view")
        with pytest.raises(ShoalError, match=r"peer\.all_reduce in thread 'MainThread'"):
            other(lambda: call(callers))


def test_a_call_while_another_thread_has_a_step_open_raises_and_names_both(
    callers: Callers, attempt: Attempt, other: Other
) -> None:
    open_step(callers, attempt, OpenedBy.BLOCK, "peer.step")
    with pytest.raises(ShoalError, match=r"'other_0', and peer\.step in thread 'MainThread', which has a step open"):
        other(lambda: call(callers))
    call(callers)
    attempt.end()
    other(lambda: call(callers))


def test_results_that_were_handed_out_early_are_no_threads_own(
    callers: Callers, attempt: Attempt, other: Other
) -> None:
    open_step(callers, attempt, OpenedBy.EARLY, "peer.all_reduce")
    other(lambda: call(callers))


def test_the_step_of_a_thread_that_has_ended_may_be_closed_by_another(callers: Callers, attempt: Attempt) -> None:
    thread = threading.Thread(target=lambda: open_step(callers, attempt, OpenedBy.ASYNCHRONOUS, "peer.all_reduce"))
    thread.start()
    thread.join()
    call(callers)


# Backward passes


class Engine:
    """A stand-in for autograd: `current` is the number of the pass that the calling thread works on."""

    def __init__(self, callers: Callers, attempt: Attempt) -> None:
        self._callers, self._attempt = callers, attempt
        self._local = threading.local()
        self.held: Callable[[], None] | None = None

    def current(self) -> int:
        number: int = getattr(self._local, "number", -1)
        return number

    def work_on(self, number: int) -> None:
        """Let the calling thread work on this pass."""
        self._local.number = number

    def begin(self, number: int) -> None:
        self.work_on(number)
        open_step(self._callers, self._attempt, OpenedBy.BACKWARD, BACKWARD_CALL)
        self.held = self._callers.follow_pass(lambda: None, self.current)
        self._callers.check_pass()


@pytest.fixture
def engine(callers: Callers, attempt: Attempt) -> Engine:
    return Engine(callers, attempt)


def test_what_belongs_to_a_pass_may_come_from_several_threads(callers: Callers, engine: Engine, other: Other) -> None:
    engine.begin(7)

    def in_device_thread() -> None:
        engine.work_on(7)
        callers.check_pass()
        call(callers, BACKWARD_CALL)

    other(in_device_thread)


def test_what_belongs_to_no_pass_or_to_another_one_raises_while_it_is_under_way(
    callers: Callers, engine: Engine, other: Other
) -> None:
    engine.begin(7)
    for number in (-1, 8):
        other(lambda number=number: engine.work_on(number))  # type: ignore[misc]
        for check in (callers.check_pass, lambda: call(callers, BACKWARD_CALL)):
            with pytest.raises(ShoalError, match=r"loss\.backward .*'other_0', and loss\.backward .* 'MainThread'"):
                other(check)
    engine.work_on(9)  # a nested pass, of a checkpoint
    callers.check_pass()


def test_a_pass_that_has_raised_in_one_thread_may_be_taken_back_by_another(
    callers: Callers, attempt: Attempt, engine: Engine, other: Other
) -> None:
    other(lambda: engine.begin(7))
    with pytest.raises(ShoalError, match=r"a forward pass .*'MainThread', and loss\.backward in thread 'other_0'"):
        callers.check_pass("a forward pass")
    engine.held = None  # autograd releases the pass
    callers.check_pass("a forward pass")
    call(callers, "a forward pass")
    attempt.end()
    with callers.call(BACKWARD_CALL):  # the next pass has begun, but autograd does not report it yet
        attempt.begin(OpenedBy.BACKWARD)
        callers.open_step()
    with pytest.raises(ShoalError, match="has a step open"):
        other(lambda: call(callers))


# Forked children


def test_every_call_in_a_forked_child_raises_and_names_both_processes(callers: Callers) -> None:
    heard, said = os.pipe()
    if not (child := os.fork()):
        try:
            for check in (call, Callers.check_pass):
                with pytest.raises(
                    ShoalError, match=rf"in process {os.getpid()}, a forked child of process {os.getppid()}"
                ):
                    check(callers)
        except BaseException as error:
            os.write(said, str(error).encode())
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(child, 0)
    with os.fdopen(heard) as answer:
        assert answer.read() == ""
    assert not callers.is_fork
    call(callers)


class Stopped(Exception):
    """The exception of a handler of the script."""


@pytest.mark.parametrize(
    ("error", "acts", "is_interrupted"),
    [
        (KeyboardInterrupt(), True, True),
        (Stopped(), True, True),
        (KeyboardInterrupt(), False, False),
        (ShoalError("said so"), True, False),
        (ValueError("said so"), True, False),
        (None, True, False),
    ],
)
def test_a_call_that_ends_in_the_middle_of_what_it_does_is_told(
    attempt: Attempt, error: BaseException | None, acts: bool, is_interrupted: bool
) -> None:
    told: list[str] = []
    callers = Callers(attempt, lambda: told.append("interrupted"))

    def run() -> None:
        with callers.call("peer.all_reduce"), callers.call("loss.backward"):
            callers.num_acts += acts
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert told == ["interrupted"] * is_interrupted
    with pytest.raises(KeyboardInterrupt), callers.call("peer.barrier"):  # not affected by the call before
        raise KeyboardInterrupt
    assert told == ["interrupted"] * is_interrupted

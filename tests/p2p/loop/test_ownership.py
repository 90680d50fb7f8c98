"""Ownership of the loop: its own thread, or the training thread during a call; and when signal handlers may raise."""

import threading
from collections.abc import Callable

import pytest

from p2p.loop.ownership import DriveLock

LEAST = 5e-324


class Interruption(BaseException):
    """The exception of a signal handler."""


def no_interrupt() -> None:
    raise AssertionError("nobody drives")


def states(lock: DriveLock) -> tuple[bool, bool, bool]:
    return lock.is_wanted, lock.is_wanted_back, lock.is_busy


# Ownership


def test_a_lock_that_nobody_holds_is_taken_at_once() -> None:
    lock = DriveLock(no_interrupt)
    assert states(lock) == (False, False, False)
    with lock:
        assert states(lock) == (True, False, True)
        assert lock.hold().locked()
    assert states(lock) == (False, False, False) and not lock.hold().locked()


def test_the_loop_is_asked_for_the_lock_and_gives_it_at_the_end_of_its_turn() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def interrupt() -> None:
        seen.append(states(lock))
        lock.begin_wait()  # the loop's own thread is in the middle of its turn
        lock.end_wait()
        seen.append(states(lock))
        lock.hold().release()

    lock = DriveLock(interrupt)
    lock.hold().acquire()
    with lock:
        assert states(lock) == (True, False, True)
    assert seen == [(True, True, True)] * 2


def test_a_call_that_fails_gives_the_lock_back() -> None:
    lock = DriveLock(no_interrupt)
    with pytest.raises(ValueError, match="of the call"), lock:
        raise ValueError("of the call")
    assert states(lock) == (False, False, False) and not lock.hold().locked()


def test_who_drives_adds_numbers_near_zero_up_and_has_the_scripts_settings_back() -> None:
    import torch

    sums: list[float] = []

    def script() -> None:
        torch.set_flush_denormal(True)
        with DriveLock(no_interrupt):
            sums.append(LEAST + LEAST)
        sums.append(LEAST + LEAST)

    in_thread(script).join()
    assert sums == [2 * LEAST, 0.0]


def in_thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_the_loops_own_thread_stands_by_while_the_other_drives_and_comes_back_after_it() -> None:
    lock = DriveLock(no_interrupt)
    with lock:
        thread = in_thread(lock.stand_by)
    thread.join()
    assert not lock.is_wanted


def test_the_loops_own_thread_comes_back_when_something_is_posted_during_a_call() -> None:
    lock = DriveLock(no_interrupt)
    with lock:
        thread = in_thread(lock.stand_by)
        lock.post()
        thread.join()
        assert lock.is_wanted


def test_what_was_posted_and_seen_does_not_bring_the_loops_own_thread_back() -> None:
    lock = DriveLock(no_interrupt)
    came_back = threading.Event()

    def stand_by() -> None:
        lock.stand_by()
        came_back.set()

    lock.post()
    lock.seen()
    with lock:
        in_thread(stand_by)
        assert not came_back.wait(0.02)  # several times as long as the training thread keeps it
    assert came_back.wait()


# Signal handlers


def test_a_handler_may_raise_while_nobody_drives() -> None:
    lock = DriveLock(no_interrupt)
    assert not lock.defer(Interruption())
    with lock:
        pass


def test_what_a_handler_wants_to_raise_in_a_turn_is_raised_when_the_turn_waits() -> None:
    lock = DriveLock(no_interrupt)
    with pytest.raises(Interruption), lock:
        assert lock.defer(Interruption())
        lock.begin_wait()
    assert states(lock) == (False, False, False) and not lock.hold().locked()


def test_what_a_handler_wants_to_raise_in_the_last_turn_is_raised_after_the_call() -> None:
    lock, is_over = DriveLock(no_interrupt), False
    with pytest.raises(Interruption), lock:
        assert lock.defer(Interruption())
        is_over = True
    assert is_over and not lock.hold().locked()


def test_a_handler_may_raise_while_a_turn_waits_and_not_after_that() -> None:
    lock = DriveLock(no_interrupt)
    with pytest.raises(Interruption), lock:
        lock.begin_wait()
        assert states(lock) == (True, False, False) and not lock.defer(Interruption())
        lock.end_wait()
        assert states(lock) == (True, False, True) and lock.defer(Interruption())


def test_a_handler_does_not_raise_while_the_training_thread_waits_to_drive() -> None:
    def interrupt() -> None:
        assert lock.defer(Interruption())
        lock.hold().release()

    lock = DriveLock(interrupt)
    lock.hold().acquire()
    with pytest.raises(Interruption), lock:
        pass


def test_what_a_handler_wants_to_raise_behind_a_shield_is_raised_after_it_and_once() -> None:
    lock = DriveLock(no_interrupt)
    before = lock.shield()
    assert states(lock) == (False, False, True) and lock.defer(Interruption())
    with pytest.raises(Interruption):
        lock.unshield(before)
    lock.unshield(lock.shield())


def test_a_shield_within_a_shield_does_not_end_it() -> None:
    lock = DriveLock(no_interrupt)
    outer = lock.shield()
    lock.unshield(lock.shield())
    assert lock.defer(Interruption())
    lock.unshield(lock.shield())
    with pytest.raises(Interruption):
        lock.unshield(outer)
    assert states(lock) == (False, False, False)


def test_a_shield_in_a_turn_leaves_the_turn_as_it_was() -> None:
    lock = DriveLock(no_interrupt)
    with pytest.raises(Interruption), lock:
        before = lock.shield()
        assert states(lock) == (True, False, True) and lock.defer(Interruption())
        lock.unshield(before)
        assert states(lock) == (True, False, True)


def test_a_shield_in_a_wait_ends_with_the_wait_as_it_was() -> None:
    lock = DriveLock(no_interrupt)
    with lock:
        lock.begin_wait()
        before = lock.shield()
        assert states(lock) == (True, False, True)
        lock.unshield(before)
        assert states(lock) == (True, False, False)
        lock.end_wait()
        assert states(lock) == (True, False, True)

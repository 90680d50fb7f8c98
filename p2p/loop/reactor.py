"""A thread that drives what belongs to a peer, and lends it to the training thread for the length of a call.

Whoever drives polls the sockets and looks at the memory of others by turns. Nothing but the poll waits. A call that
waits for data frames looks for these alone at first, since the poll asks every socket and handle there is.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from ..errors import ShoalError
from ..host.threads import why_no_thread
from ..memory.shared_runner import BUSY, IDLE, UNDER_WAY, WAITING, RunState, SharedRunner
from ..net.transport import Polled
from ..step.notices import Notice
from .ownership import DriveLock

SPIN_S: Final = 200e-6
"""So long a peer looks again and again at the memory of others, or for their data, before it sleeps."""
NET_S: Final = 20e-3
"""Who sleeps looks again after this long, rung for or not."""
DEVICE_LOOK_S: Final = 1e-3
"""Who sleeps while a device of this peer works looks again after this long. The poll of the sockets knows no less."""
END_S: Final = 10.0
"""Whoever stops it waits so long: a file system or a lock may not answer."""
LOOK_S: Final = 0.01
"""Who waits for the loop's thread looks so often whether that has ended."""
LOOK_OUT_S: Final = 1e-3
"""So long the sockets may be left alone while there is other work."""
MUCH_DATA_S: Final = 4e-3
"""So much longer while data comes that takes long."""


class Waiting(Protocol):
    """What is waited for, and whether to look again before sleeping."""

    @property
    def spins(self) -> bool: ...

    def is_over(self) -> bool: ...

    def waited(self, *, is_long: bool) -> None: ...


class WaitingForData(Waiting, Protocol):
    """The same for data frames; if for many, they are waited for alone at first."""

    is_for_much: bool


class Work(Protocol):
    """What is driven."""

    def begin(self) -> None:
        """Before the first turn."""

    def next_deadline(self) -> float:
        """When there is something to do at the latest."""

    def poll(self, timeout_s: float) -> Polled:
        """Wait for the sockets, and do nothing about it yet: a signal's handler may raise."""

    def take_deaths(self, polled: Polled) -> None:
        """At once after the wait: a handle may be closed later, and its number given to another."""

    def take(self, polled: Polled) -> None:
        """Deal with all else that has arrived, and with what is due."""

    def use_wait(self) -> None:
        """A call is about to sleep: do a little of what can wait. It holds up nobody then."""

    def advance(self) -> RunState:
        """Go on with the operations that run."""

    def shared(self) -> SharedRunner | None:
        """What runs over the memory of others."""

    def listening(self) -> WaitingForData | None:
        """For data frames, if what runs goes on with these."""

    def wait_for_data(self, timeout_s: float) -> bool:
        """Wait for these alone, or for commands, and do nothing about it yet: whether there are any."""

    def take_data(self) -> None:
        """Deal with the data frames that have come."""

    def crash(self, error: BaseException) -> None:
        """Nothing can be driven any more."""

    def close(self) -> None:
        """After the last turn."""


class Reactor:
    """Runs commands and turns, in one thread at a time.

    Attributes:
        ended: set when everything is closed, or may be.
        drive_lock: who drives.
    """

    def __init__(self, work: Work, inbox: SimpleQueue[Notice], wake: Callable[[], None]) -> None:
        """Nothing runs before `start`. `inbox`: what a call waits for; `wake` makes the poll of the sockets return."""
        self.ended = threading.Event()
        self.drive_lock = DriveLock(wake)
        self._work = work
        self._inbox = inbox
        self._wake = wake
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_stopping = False
        self._next_look_out = 0.0
        self._thread = threading.Thread(target=self._run, name="shoal-loop", daemon=True)

    # The training thread's side.

    def start(self) -> None:
        """Begin to drive; if there is no thread for that, close everything, and raise ShoalError."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._work.close()
            self.ended.set()
            raise ShoalError(f"this peer cannot run: {why_no_thread()}") from error

    def stop(self, *, is_aside: bool = False) -> bool:
        """End the thread, and close everything. Whether it has ended within `END_S`."""
        self.post(self._end, is_aside=is_aside)
        self._thread.join(END_S)
        return not self._thread.is_alive()

    def post(self, command: Callable[[], None], *, is_aside: bool = False, is_urgent: bool = True) -> None:
        """Have `command` run by the loop thread, before whatever it does next.

        Args:
            command: what to run.
            is_aside: the caller is another than the training thread.
            is_urgent: wake the loop, which costs both threads 0.2 ms; else it looks at its next turn.
        """
        if is_aside:
            self._hand_over(command, is_urgent)
            return
        before = self.drive_lock.shield()
        try:
            self._hand_over(command, is_urgent)
        finally:
            self.drive_lock.unshield(before)

    def run(self, command: Callable[[], None]) -> None:
        """As `post`, and wait until that is done, `END_S` at most, and not if nothing is driven any more."""
        is_done = threading.Event()
        self.post(command)
        self.post(is_done.set)
        for _ in range(round(END_S / LOOK_S)):
            if is_done.wait(LOOK_S) or self.ended.is_set():
                return

    def _hand_over(self, command: Callable[[], None], is_urgent: bool) -> None:
        self._commands.put(command)
        if is_urgent:
            self.drive_lock.post()
            self._wake()

    def call(self, *commands: Callable[[], None], timeout_s: float) -> Notice:
        """Run `commands` and then the loop itself in the calling thread, until it has something to say.

        The same as `post` and a look into the inbox, without two changes of thread.

        Raises:
            Empty: nothing within `timeout_s`.
        """
        with self.drive_lock:
            try:
                deadline = time.monotonic() + timeout_s
                state = IDLE
                if not self._is_stopping:
                    while not self._commands.empty():  # what was posted before comes first
                        self._commands.get_nowait()()
                    for command in commands:
                        command()
                    state = self._go_on()
                while self._inbox.empty() and time.monotonic() < deadline and not self._is_stopping:
                    self._listen(state, deadline)
                    state = self._go_on()
                if time.monotonic() >= self._next_look_out and not self._is_stopping:
                    self._look(BUSY)  # others must be heard even if it is done
            except BaseException as error:
                is_signal = not isinstance(error, Exception)
                if self.drive_lock.is_busy or not is_signal:  # a handler that does not defer leaves things half done
                    self._crash(error)
                if is_signal:
                    raise
        return self._inbox.get(timeout=0)

    # The thread.

    def _run(self) -> None:
        try:
            with self.drive_lock.hold():
                try:
                    self._work.begin()
                except Exception as error:
                    self._crash(error)
            while not self._is_stopping:
                with self.drive_lock.hold():
                    self._drive()
                self.drive_lock.stand_by()
        finally:
            with self.drive_lock.hold():
                try:
                    self._work.close()
                except Exception as error:
                    self._crash(error)
                finally:
                    self.ended.set()

    def _drive(self) -> None:
        try:
            while not (self._is_stopping or self.drive_lock.is_wanted):
                self._look(self._go_on())
        except Exception as error:
            self._crash(error)

    def _end(self) -> None:
        """Drive nothing any more; a command."""
        self._is_stopping = True

    def _crash(self, error: BaseException) -> None:
        self._is_stopping = True
        self._work.crash(error)

    # A turn.

    def _go_on(self) -> RunState:
        """Go on with what runs, for a moment."""
        until = time.monotonic() + LOOK_OUT_S
        state = BUSY
        while state in (BUSY, UNDER_WAY) and time.monotonic() < until:
            if state is UNDER_WAY:
                os.sched_yield()
            state = self._work.advance()
            runner = self._work.shared() if state is WAITING else None
            if runner is not None and self._spin(runner.progress):
                state = BUSY
        return state

    def _spin(self, waiting: Waiting) -> bool:
        """Look again and again whether the others have come, for a while, unless that was in vain lately."""
        if not waiting.spins:
            return waiting.is_over()
        limit = time.monotonic() + SPIN_S
        while not (is_over := waiting.is_over()):
            if time.monotonic() >= limit or not self._commands.empty() or self.drive_lock.is_wanted_back:
                break
            os.sched_yield()  # there may be more peers than cores
        waiting.waited(is_long=not is_over)
        return is_over

    def _listen(self, state: RunState, limit: float) -> None:
        """As `_look`; where data is waited for, look for that first, and at all else when it is time."""
        listening = self._work.listening()
        if listening is None:
            self._look(state, limit)
        elif time.monotonic() >= self._next_look_out + (MUCH_DATA_S if listening.is_for_much else 0.0):
            self._look(BUSY)
        elif self._spin(listening) or (listening.is_for_much and self._sleep_for_data()):
            self._work.take_data()
        else:
            slept_s = self._look(state, limit)
            if not listening.spins:
                listening.waited(is_long=slept_s > SPIN_S)

    def _sleep_for_data(self) -> bool:
        """Wait for data alone, not for long: whether some has come. If not, there is more to look at."""
        self.drive_lock.begin_wait()
        has_come = self._work.wait_for_data(LOOK_OUT_S)
        self.drive_lock.end_wait()
        return has_come

    def _look(self, state: RunState, limit: float = math.inf) -> float:
        """Wait until something happens, `limit` at the latest, and deal with it; do not wait if there is more to do.

        Returns:
            How long it waited, in seconds.
        """
        if limit < math.inf and state in (IDLE, WAITING):
            self._work.use_wait()
        now = time.monotonic()
        deadline = min(self._work.next_deadline(), limit)
        runner = self._work.shared() if state is WAITING else None
        if state is BUSY:
            deadline = now
        elif state is UNDER_WAY:
            deadline = min(deadline, now + DEVICE_LOOK_S)
        elif runner is not None:  # the others know then that they have to ring
            deadline = min(deadline, now + NET_S) if runner.progress.doze() else now
        self.drive_lock.begin_wait()
        polled = self._work.poll(max(0.0, deadline - now))
        self.drive_lock.end_wait()
        self.drive_lock.seen()
        slept_s = time.monotonic() - now
        if runner is not None:
            runner.progress.wake()
            if not runner.progress.spins:
                runner.progress.waited(is_long=slept_s > SPIN_S)
        self._next_look_out = now + slept_s + LOOK_OUT_S
        self._work.take_deaths(polled)
        while not self._commands.empty():
            self._commands.get_nowait()()
        self._work.take(polled)
        return slept_s

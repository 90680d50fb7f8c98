"""Reactor: a thread that drives a peer's loop, and lends it to the training thread for the duration of a call.

The driver alternates between polling the sockets and reading the shared memory of others. Only the poll blocks. A call
that waits for data frames polls for these alone at first, since the full poll covers every socket and handle.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from ..errors import ShoalError
from ..host.floats import keep_subnormals
from ..host.threads import why_no_thread
from ..memory.shared_runner import BUSY, IDLE, UNDER_WAY, WAITING, RunState, SharedRunner
from ..net.transport import Polled
from ..step.notices import Notice
from .ownership import DriveLock

SPIN_S: Final = 200e-6
"""How long a peer spins on the memory of others, or on its data sockets, before it sleeps."""
NET_S: Final = 20e-3
"""Longest sleep, with or without a ring of the doorbell."""
DEVICE_LOOK_S: Final = 1e-3
"""Longest sleep while a device of this peer works; the shortest timeout of the poll."""
END_S: Final = 10.0
"""How long a stop waits for the thread: a file system or a lock may not respond."""
LOOK_S: Final = 0.01
"""Interval at which a caller that waits for the loop's thread checks whether that has ended."""
LOOK_OUT_S: Final = 1e-3
"""How long the sockets may go unpolled while there is other work."""
MUCH_DATA_S: Final = 4e-3
"""Additional time while large amounts of data arrive."""


class Waiting(Protocol):
    """A condition to wait for, and whether to spin before sleeping."""

    @property
    def spins(self) -> bool: ...

    def is_over(self) -> bool: ...

    def waited(self, *, is_long: bool) -> None: ...


class WaitingForData(Waiting, Protocol):
    """The same for data frames; if many are awaited, they are polled alone at first."""

    is_for_much: bool


class Work(Protocol):
    """The driven object."""

    def begin(self) -> None:
        """Called before the first turn."""

    def next_deadline(self) -> float:
        """The latest time of the next turn."""

    def poll(self, timeout_s: float) -> Polled:
        """Wait for the sockets, without processing anything yet: a signal handler may raise."""

    def take_deaths(self, polled: Polled) -> None:
        """Called right after the wait: a handle may be closed later, and its number reused."""

    def take(self, polled: Polled) -> None:
        """Process all other received frames, and due work."""

    def use_wait(self) -> None:
        """Called before a call sleeps: do a little deferrable work, which delays no one then."""

    def advance(self) -> RunState:
        """Advance the running operations."""

    def shared(self) -> SharedRunner | None:
        """The runner over shared memory, if there is one."""

    def busy_poll(self) -> WaitingForData | None:
        """Polling for data frames, if the running operations wait for these."""

    def wait_for_data(self, timeout_s: float) -> bool:
        """Wait for data frames or commands only, without processing them yet; whether data frames are pending."""

    def take_data(self) -> None:
        """Process the pending data frames."""

    def crash(self, error: BaseException) -> None:
        """Called when driving has failed for good."""

    def close(self) -> None:
        """Called after the last turn."""


class Reactor:
    """Runs commands and turns, in one thread at a time.

    Attributes:
        ended: set when all is closed, or may be.
        drive_lock: its holder drives.
    """

    def __init__(self, work: Work, inbox: SimpleQueue[Notice], wake: Callable[[], None]) -> None:
        """Idle until `start`. `inbox`: notices that calls wait for; `wake` makes the poll of the sockets return."""
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
        """Start driving; if no thread can be started, close all and raise ShoalError."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._work.close()
            self.ended.set()
            raise ShoalError(f"this peer cannot run: {why_no_thread()}") from error

    def stop(self, *, is_aside: bool = False) -> bool:
        """End the thread, and close all. Returns whether it has ended within `END_S`."""
        self.post(self._end, is_aside=is_aside)
        self._thread.join(END_S)
        return not self._thread.is_alive()

    def post(self, command: Callable[[], None], *, is_aside: bool = False, is_urgent: bool = True) -> None:
        """Have the loop thread run `command` before its next work.

        Args:
            command: what to run.
            is_aside: the caller is another than the training thread.
            is_urgent: wake the loop, which costs both threads 0.2 ms; else the command waits for its next turn.
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
        """As `post`, and wait until the command has run, at most `END_S`, or until the reactor has ended."""
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
        """Run `commands` and then the loop itself in the calling thread, until the inbox has a notice.

        The same as `post` and a wait for the inbox, without two thread switches.

        Raises:
            Empty: no notice within `timeout_s`.
        """
        with self.drive_lock:
            try:
                deadline = time.monotonic() + timeout_s
                state = IDLE
                if not self._is_stopping:
                    while not self._commands.empty():  # earlier commands come first
                        self._commands.get_nowait()()
                    for command in commands:
                        command()
                    state = self._go_on()
                while self._inbox.empty() and time.monotonic() < deadline and not self._is_stopping:
                    self._busy_poll(state, deadline)
                    state = self._go_on()
                if time.monotonic() >= self._next_look_out and not self._is_stopping:
                    self._look(BUSY)  # others must be heard even if this is done
            except BaseException as error:
                is_signal = not isinstance(error, Exception)
                if self.drive_lock.is_busy or not is_signal:  # a handler that does not defer leaves a turn half done
                    self._crash(error)
                if is_signal:
                    raise
        return self._inbox.get(timeout=0)

    # The thread.

    def _run(self) -> None:
        keep_subnormals()
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
        """Stop driving; a command."""
        self._is_stopping = True

    def _crash(self, error: BaseException) -> None:
        self._is_stopping = True
        self._work.crash(error)

    # A turn.

    def _go_on(self) -> RunState:
        """Advance the running operations for a moment."""
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
        """Poll for a while whether the wait is over, unless that was without success lately."""
        if not waiting.spins:
            return waiting.is_over()
        limit = time.monotonic() + SPIN_S
        while not (is_over := waiting.is_over()):
            if time.monotonic() >= limit or not self._commands.empty() or self.drive_lock.is_wanted_back:
                break
            os.sched_yield()  # there may be more peers than cores
        waiting.waited(is_long=not is_over)
        return is_over

    def _busy_poll(self, state: RunState, limit: float) -> None:
        """As `_look`; if data frames are awaited, poll for these first, and for all else when due."""
        listening = self._work.busy_poll()
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
        """Wait for data frames only, briefly; whether any have arrived. If not, the full poll is due."""
        self.drive_lock.begin_wait()
        has_come = self._work.wait_for_data(LOOK_OUT_S)
        self.drive_lock.end_wait()
        return has_come

    def _look(self, state: RunState, limit: float = math.inf) -> float:
        """Wait for an event, at most until `limit`, and process it; do not wait if there is more work.

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
        elif runner is not None:  # then the others know that they have to ring
            deadline = min(deadline, now + NET_S) if runner.progress.prepare_to_wait() else now
        self.drive_lock.begin_wait()
        polled = self._work.poll(max(0.0, deadline - now))
        self.drive_lock.end_wait()
        self.drive_lock.seen()
        slept_s = time.monotonic() - now
        if runner is not None:
            runner.progress.finish_wait()
            if not runner.progress.spins:
                runner.progress.waited(is_long=slept_s > SPIN_S)
        self._next_look_out = now + slept_s + LOOK_OUT_S
        self._work.take_deaths(polled)
        while not self._commands.empty():
            self._commands.get_nowait()()
        self._work.take(polled)
        return slept_s

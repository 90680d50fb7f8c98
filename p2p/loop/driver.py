"""A thread that drives what belongs to a peer, and lends it to the training thread for the length of a call.

Whoever drives looks at the sockets and at the memory of others by turns. Nothing but the poll of the sockets waits.
"""

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from ..memory.shared_runner import RunState, Sharing
from ..step.notices import Notice
from .ownership import DriveLock

SPIN_S: Final = 200e-6
"""So long a peer looks again and again at the memory of others before it sleeps."""
NET_S: Final = 20e-3
"""Who sleeps looks again after this long, rung for or not."""
LOOK_OUT_S: Final = 1e-3
"""So long the sockets may be left alone while there is other work."""


class Driver(ABC):
    """Runs commands and turns, in one thread at a time.

    Attributes:
        inbox: what the training thread should hear.
        ended: set when everything is closed, or may be.
        drive_lock: who drives.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Nothing runs before `start`. `wake` makes the poll of the sockets return."""
        self.inbox: SimpleQueue[Notice] = SimpleQueue()
        self.ended = threading.Event()
        self.drive_lock = DriveLock()
        self._wake = wake
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._next_look_out = 0.0
        self._dozes: float | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-loop", daemon=True)

    # What is driven.

    @abstractmethod
    def _begin(self) -> None:
        """Before the first turn."""

    @abstractmethod
    def _advance(self) -> RunState:
        """Go on with what runs over shared memory."""

    @property
    @abstractmethod
    def _sharing(self) -> Sharing | None:
        """What runs over shared memory."""

    @abstractmethod
    def _look(self, standing: RunState, limit: float = math.inf) -> None:
        """Wait until something happens, `limit` at the latest, and deal with it; do not wait if there is more to do."""

    @abstractmethod
    def _crash(self, error: BaseException) -> None:
        """Nothing can be driven any more."""

    @abstractmethod
    def _close(self) -> None:
        """After the last turn."""

    # The training thread's side.

    def start(self) -> None:
        """Begin to drive."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close everything."""
        self.post(self._stopping.set)
        self._thread.join(timeout=10.0)

    def post(self, command: Callable[[], None]) -> None:
        """Have `command` run by the loop thread, soon."""
        self.drive_lock.shield(True)
        try:
            self._commands.put(command)
            self.drive_lock.post()
            self._wake()
        finally:
            self.drive_lock.shield(False)

    def call(self, *commands: Callable[[], None], timeout_s: float) -> Notice:
        """Run `commands` and then the loop itself in the calling thread, until it has something to say.

        The same as `post` and a look into `inbox`, without two changes of thread.

        Raises:
            Empty: nothing within `timeout_s`.
        """
        with self.drive_lock.borrowed(interrupt=self._wake):
            try:
                deadline = time.monotonic() + timeout_s
                standing = RunState.IDLE
                if not self._stopping.is_set():
                    for command in commands:
                        command()
                    standing = self._go_on()
                while self.inbox.empty() and time.monotonic() < deadline and not self._stopping.is_set():
                    self._look(standing, deadline)
                    standing = self._go_on()
                if time.monotonic() >= self._next_look_out and not self._stopping.is_set():
                    self._look(RunState.BUSY)  # others must be heard even if it is done
            except BaseException as error:
                is_signal = not isinstance(error, Exception)
                if self.drive_lock.is_busy or not is_signal:  # a handler that does not defer leaves things half done
                    self._crash(error)
                if is_signal:
                    raise
        return self.inbox.get(timeout=0)

    # The thread.

    def _run(self) -> None:
        try:
            with self.drive_lock.hold():
                try:
                    self._begin()
                except Exception as error:
                    self._crash(error)
            while not self._stopping.is_set():
                with self.drive_lock.hold():
                    self._drive()
                self.drive_lock.stand_by()
        finally:
            with self.drive_lock.hold():
                self._close()
                self.ended.set()

    def _drive(self) -> None:
        try:
            while not (self._stopping.is_set() or self.drive_lock.is_wanted):
                self._look(self._go_on())
        except Exception as error:
            self._crash(error)

    def _go_on(self) -> RunState:
        """Go on with what runs over shared memory, for a moment."""
        until = time.monotonic() + LOOK_OUT_S
        standing = RunState.BUSY
        while standing is RunState.BUSY and time.monotonic() < until:
            standing = self._advance()
            if standing is RunState.WAITING and self._spin():
                standing = RunState.BUSY
        return standing

    def _spin(self) -> bool:
        """Look again and again whether the others have come, for a while, unless that was in vain lately."""
        sharing = self._sharing
        assert sharing is not None
        if not sharing.spins:
            return sharing.is_over()
        limit = time.monotonic() + SPIN_S
        while not (is_over := sharing.is_over()):
            if time.monotonic() >= limit or not self._commands.empty() or self.drive_lock.is_wanted_back:
                break
            os.sched_yield()  # there may be more peers than cores
        sharing.waited(is_long=not is_over)
        return is_over

    def _run_commands(self) -> None:
        while not self._commands.empty():
            self._commands.get_nowait()()

    def _sleep(self, standing: RunState, deadline: float) -> float:
        """How long to wait for something to happen, `deadline` at the latest; others know that they have to ring."""
        now = time.monotonic()
        if standing is RunState.BUSY:
            return 0.0
        if standing is RunState.WAITING and (sharing := self._sharing) is not None:
            self._dozes = now
            deadline = min(deadline, now + NET_S) if sharing.doze() else now
        return max(0.0, deadline - now)

    def _awake(self) -> None:
        """The wait is over."""
        now = time.monotonic()
        sharing, since = self._sharing, self._dozes
        if since is not None and sharing is not None:
            sharing.wake()
            if not sharing.spins:
                sharing.waited(is_long=now - since > SPIN_S)
        self._dozes = None
        self._next_look_out = now + LOOK_OUT_S

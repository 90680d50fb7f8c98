"""Which thread drives the loop: its own, or the training thread for the length of a call.

A call that runs in the training thread saves two thread switches. After it the loop's own thread stands by for a
moment, since calls come in rows; it resumes if none follows, or when a command is posted.

Either thread computes sums with the same bits: floating-point modes that a script sets for its own thread do not apply
to them (host/floats.py).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from ..host.floats import Settings, keep_subnormals, restore

STAND_BY_S = 0.005
"""How long the loop is left to the training thread after a call."""


class Drive(Enum):
    """State of the training thread towards the loop. Only that thread changes it."""

    NOTHING = auto()
    WANTED = auto()
    """The training thread waits until it may drive."""
    TURN = auto()
    """The training thread drives, and is in the middle of a turn."""
    WAIT = auto()
    """The training thread drives, and only waits for sockets: a signal handler may raise."""
    SHIELDED = auto()
    """The training thread does not drive, but holds an internal lock of Python, which a raising handler would leave
    locked."""


INTERRUPTIBLE = (Drive.NOTHING, Drive.WAIT)
SHIELDED = {Drive.NOTHING: Drive.SHIELDED, Drive.WAIT: Drive.TURN}
"""The shielded counterparts of these; all other states are busy already."""


class DriveLock:
    """Its holder may access what belongs to the loop: the training thread in a `with` block, the loop's by `hold`."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """Not held. `interrupt` ends the wait of the loop's own thread."""
        self._interrupt = interrupt
        self._held = threading.Lock()
        self._posted = threading.Event()
        self._drive = Drive.NOTHING
        self._driver = 0
        self._num_calls = 0
        self._deferred: BaseException | None = None
        self._settings: Settings | None = None
        """Of the script's thread, until the end of its call."""

    @property
    def is_wanted(self) -> bool:
        """Whether the training thread waits for it or holds it."""
        return self._drive in (Drive.WANTED, Drive.TURN, Drive.WAIT)

    @property
    def is_wanted_back(self) -> bool:
        """Whether the training thread waits for it."""
        return self._drive is Drive.WANTED

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread waits for it or holds it: a signal handler is running."""
        return self.is_wanted and self._driver == threading.get_ident()

    @property
    def is_busy(self) -> bool:
        """Whether the training thread must not be interrupted now."""
        return self._drive not in INTERRUPTIBLE

    def post(self) -> None:
        """Signal a posted command to the loop's own thread."""
        self._posted.set()

    def seen(self) -> None:
        """The driving thread has seen all posted commands."""
        if self._posted.is_set():  # clearing it takes a lock
            self._posted.clear()

    def hold(self) -> threading.Lock:
        """The lock, for the loop's own thread, until it is wanted."""
        return self._held

    def stand_by(self) -> None:
        """For the loop's own thread, after the lock was wanted: wait until it may drive again."""
        num_calls = -1
        while self.is_wanted or num_calls != self._num_calls:
            num_calls = self._num_calls
            if self._posted.wait(STAND_BY_S):
                self._posted.clear()  # the next driver finds it
                return

    def __enter__(self) -> None:
        """For the training thread: acquire it from the loop's own."""
        self._driver, self._drive = threading.get_ident(), Drive.WANTED
        try:
            if not self._held.acquire(blocking=False):
                self._interrupt()
                self._held.acquire()
            self._drive = Drive.TURN
        except BaseException:
            self._end()
            raise
        self._settings = keep_subnormals()

    def __exit__(self, *_: object) -> None:
        if self._settings is not None:
            restore(self._settings)
        self._num_calls += 1
        self._held.release()
        self._end()

    def _end(self) -> None:
        self._drive = Drive.NOTHING
        if self._deferred is not None:
            self._raise_deferred()

    def begin_wait(self) -> None:
        """The driver only waits now: a signal handler may raise."""
        if self._drive is Drive.TURN:
            self._drive = Drive.WAIT
            if self._deferred is not None:
                self._raise_deferred()

    def end_wait(self) -> None:
        """The wait is over."""
        if self._drive is Drive.WAIT:
            self._drive = Drive.TURN

    def shield(self) -> Drive:
        """For the training thread: no handler raises until `unshield`, which takes the returned value."""
        before, self._driver = self._drive, threading.get_ident()
        self._drive = SHIELDED.get(before, before)
        return before

    def unshield(self, before: Drive) -> None:
        """Restore the state `before`: the training thread may drive, and a handler in its wait may have posted."""
        self._drive = before
        if self._deferred is not None and not self.is_busy:
            self._raise_deferred()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """A block in which no handler raises; it raises at the end."""
        before = self.shield()
        try:
            yield
        finally:
            self.unshield(before)

    def defer(self, interruption: BaseException) -> bool:
        """For a signal handler: whether it must not raise now, in the middle of a turn. It is then raised later.

        False if the training thread is now another one than the handler's, for which the interruption is not meant.
        """
        is_late = self.is_busy and self._driver == threading.get_ident()
        if is_late:
            self._deferred = interruption
        return is_late

    def _raise_deferred(self) -> None:
        interruption, self._deferred = self._deferred, None
        if interruption is not None:
            raise interruption

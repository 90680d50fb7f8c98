"""Which thread drives the loop: its own, or the training thread for the length of a call.

A call that runs in the training thread saves two changes of thread. After it the loop's own thread stands by for a
moment, since calls come in rows; it comes back when none has come, or when something is posted.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STAND_BY_S = 0.005
"""How long the loop is left to the training thread after a call."""


class DriveLock:
    """Who holds it may touch what belongs to the loop."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._posted = threading.Event()
        self._is_wanted = False
        self._is_lent = False
        self._num_calls = 0
        self._is_busy = False
        self._deferred: BaseException | None = None

    @property
    def is_wanted(self) -> bool:
        """The training thread waits for it, or has it."""
        return self._is_wanted

    @property
    def is_wanted_back(self) -> bool:
        """The training thread waits for it."""
        return self._is_wanted and not self._is_lent

    @property
    def is_busy(self) -> bool:
        """The training thread is in the middle of a turn of the loop."""
        return self._is_busy

    def post(self) -> None:
        """Something is there for the loop's own thread."""
        self._posted.set()

    def seen(self) -> None:
        """Whoever drives has looked at what was posted."""
        self._posted.clear()

    def hold(self) -> threading.Lock:
        """For the loop's own thread, until it is wanted."""
        return self._held

    def stand_by(self) -> None:
        """For the loop's own thread, when it was wanted: wait until it may drive again."""
        num_calls = -1
        while self._is_wanted or num_calls != self._num_calls:
            num_calls = self._num_calls
            if self._posted.wait(STAND_BY_S):
                self._posted.clear()  # whoever drives next finds it
                return

    @contextmanager
    def borrowed(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """For the training thread; `interrupt` makes the loop's own thread look up."""
        self._is_busy = True
        try:
            self._is_wanted = True
            if not self._held.acquire(blocking=False):
                interrupt()
                self._held.acquire()
            self._is_lent = True
            try:
                yield
            finally:
                self._is_lent = False
                self._num_calls += 1
                self._held.release()
        finally:
            self._is_wanted = False
            self._is_busy = False
            self._raise_deferred()

    def begin_wait(self) -> None:
        """Whoever drives only waits now: a signal's handler may raise."""
        if self._is_lent:
            self._is_busy = False
            self._raise_deferred()

    def end_wait(self) -> None:
        """The wait is over."""
        if self._is_lent:
            self._is_busy = True

    def shield(self, is_on: bool) -> None:
        """For the training thread: no handler raises in between, where a lock of Python's own might stay locked."""
        self._is_busy = is_on
        if not is_on:
            self._raise_deferred()

    def defer(self, interruption: BaseException) -> bool:
        """For a signal's handler: whether it must not raise now, in the middle of a turn. It is raised later."""
        if self._is_busy:
            self._deferred = interruption
        return self._is_busy

    def _raise_deferred(self) -> None:
        interruption, self._deferred = self._deferred, None
        if interruption is not None:
            raise interruption

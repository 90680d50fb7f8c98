"""Which thread drives the loop: its own, or the training thread for the length of a call.

A call that runs in the training thread saves two changes of thread. After it the loop's own thread stands by for a
moment, since calls come in rows; it comes back when none has come, or when something is posted.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

STAND_BY_S = 0.005
"""How long the loop is left to the training thread after a call."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Their handlers raise in the training thread, and must not do so in the middle of a turn of the loop."""


class Baton:
    """Who holds it may touch what belongs to the loop."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._posted = threading.Event()
        self._is_wanted = False
        self._num_calls = 0
        self._mask: Iterable[int] | None = None

    @property
    def is_wanted(self) -> bool:
        """The training thread waits for it, or has it."""
        return self._is_wanted

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
        """For the training thread; `interrupt` makes the loop's own thread look up. Signals wait meanwhile."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._is_wanted = True
        if not self._held.acquire(blocking=False):
            interrupt()
            self._held.acquire()
        self._mask = mask
        try:
            yield
        finally:
            self._mask = None
            self._is_wanted = False
            self._num_calls += 1
            self._held.release()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @contextmanager
    def signals_let_in(self) -> Iterator[None]:
        """While the loop only waits, the training thread's signals may come."""
        if self._mask is None:
            yield
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

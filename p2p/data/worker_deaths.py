"""Deaths of DataLoader workers: reported to the script only while it waits for a batch.

torch raises an exception from its SIGCHLD handler, wherever the main thread happens to be: in the middle of an update,
of a fork (where the lock of `logging` would stay held), or of a turn of the peer's loop, which would then fail.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TORCH_HANDLERS: Final = "torch.utils.data._utils.signal_handling"


class WorkerDeaths:
    """Replaces torch's handler, calls it, and defers its exception until the script waits for a batch."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._missed: RuntimeError | None = None
        self._is_awaited = False

    def take_over(self) -> None:
        """Install the handler; call this after workers were started. Only the main thread learns of deaths."""
        handler = signal.getsignal(signal.SIGCHLD)
        is_torchs = callable(handler) and getattr(handler, "__module__", "") == TORCH_HANDLERS
        if is_torchs and threading.current_thread() is threading.main_thread():
            assert callable(handler)
            self._handler = handler
            signal.signal(signal.SIGCHLD, self._heard)

    @contextmanager
    def raised_here(self) -> Iterator[None]:
        """Context for the wait for a batch. Raises RuntimeError if a worker, of this or another loader, has died."""
        self._is_awaited = threading.current_thread() is threading.main_thread()
        try:
            if self._is_awaited and self._missed is not None:
                missed, self._missed = self._missed, None
                raise missed
            yield
        finally:
            self._is_awaited = False

    def forget(self) -> None:
        """Drop a deferred exception."""
        self._missed = None

    def _heard(self, number: int, frame: FrameType | None) -> None:
        assert self._handler is not None
        try:
            self._handler(number, frame)
        except RuntimeError as error:
            if self._is_awaited:
                raise
            self._missed = error


WORKER_DEATHS: Final = WorkerDeaths()
"""The instance of this process, since a signal has a single handler."""

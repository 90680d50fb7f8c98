"""When a script hears that a worker of a DataLoader has died: when it waits for a batch, and at no other moment.

torch says so by an exception out of its handler of SIGCHLD, so wherever the main thread happens to be: in the middle of
an update, of a fork (the lock of `logging` stays held then), or of a turn of the peer's loop, which would have failed.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TORCH_HANDLERS: Final = "torch.utils.data._utils.signal_handling"


class WorkerDeaths:
    """Takes the place of torch's handler, calls it, and keeps what it raises until somebody waits for a batch."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._missed: RuntimeError | None = None
        self._is_awaited = False

    def take_over(self) -> None:
        """To be called when workers have been started. Only the main thread is told of deaths."""
        handler = signal.getsignal(signal.SIGCHLD)
        is_torchs = callable(handler) and getattr(handler, "__module__", "") == TORCH_HANDLERS
        if is_torchs and threading.current_thread() is threading.main_thread():
            assert callable(handler)
            self._handler = handler
            signal.signal(signal.SIGCHLD, self._heard)

    @contextmanager
    def raised_here(self) -> Iterator[None]:
        """While a batch is waited for. Raises RuntimeError: a worker has died, of this loader or another one."""
        self._is_awaited = threading.current_thread() is threading.main_thread()
        try:
            if self._is_awaited and self._missed is not None:
                missed, self._missed = self._missed, None
                raise missed
            yield
        finally:
            self._is_awaited = False

    def forget(self) -> None:
        """Those workers are not waited for any more."""
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
"""Of this process: there is one handler of a signal."""

"""What the loop has for the training thread."""

import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from ..errors import ShoalError
from ..step.notices import Notice
from ..step.receipts import Moment

NUM_EXPLAINED: Final = 16


class Inbox:
    """Filled by whoever drives the loop, emptied by the training thread.

    Attributes:
        notices: in the order in which they happened.
        moments: when things happened; for whoever writes receipts.
        failure: why this peer cannot go on.
        explained: the last reasons for what happened to members, in words.
        crash: why the loop drives nothing any more: the same for whoever waits, or calls something later.
    """

    def __init__(self, *, keep_moments: bool) -> None:
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self.moments: SimpleQueue[Moment] = SimpleQueue()
        self.failure: ShoalError | None = None
        self.explained: deque[str] = deque(maxlen=NUM_EXPLAINED)
        self.crash: ShoalError | None = None
        self._keep_moments = keep_moments

    def tell(self, notice: Notice) -> None:
        """After an error that ends this peer there is no further one."""
        if isinstance(notice, ShoalError) and not notice.goes_on:
            if self.failure is not None:
                return
            self.failure = notice
        self.notices.put(notice)

    def tell_crash(self, error: BaseException) -> None:
        """The loop has failed with `error`."""
        self.crash = ShoalError(f"the loop of this peer failed: {error!r}; see the log, and start this peer again")
        self.crash.__cause__ = error
        self.failure = self.failure or self.crash
        self.notices.put(self.crash)

    def next(self, timeout: float) -> Notice:
        """Wait for a notice.

        Raises:
            Empty: none came within `timeout`, in seconds.
        """
        notice = self.notices.get(timeout=timeout)
        if notice is self.crash:
            self.notices.put(notice)  # there may be others who wait
        return notice

    def note(self, event: str, detail: str | int) -> None:
        """Remember when this happened."""
        if self._keep_moments:
            self.moments.put(Moment(time.monotonic(), event, detail))

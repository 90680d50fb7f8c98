"""What the loop has for the training thread."""

import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from gossip.effects import Diverged, Paused, Refused, Removed

from ..errors import JoinRefused, QuorumLost, RemovedFromView, ReplicasDiverged, ShoalError
from ..step.notices import Notice

NUM_EXPLAINED: Final = 16


class Inbox:
    """Filled by whoever drives the loop, emptied by the training thread.

    Attributes:
        notices: in the order in which they happened.
        failure: why this peer cannot go on.
        explained: the last reasons for what happened to members, in words, with their times (monotonic ns).
        crash: why the loop drives nothing any more: the same for whoever waits, or calls something later.
    """

    def __init__(self) -> None:
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self.failure: ShoalError | None = None
        self.explained: deque[tuple[int, str]] = deque(maxlen=NUM_EXPLAINED)
        self.crash: ShoalError | None = None

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

    def explain(self, reason: str) -> None:
        """Why something happened to members, for people."""
        self.explained.append((time.monotonic_ns(), reason))


def error_of(effect: Refused | Removed | Paused | Diverged, *, has_stalled: bool = False) -> ShoalError:
    """What the training thread raises when the core has this to say. `has_stalled`: as of `RemovedFromView`."""
    match effect:
        case Refused(refusal):
            return JoinRefused(refusal)
        case Removed(reason):
            return RemovedFromView(reason, has_stalled=has_stalled)
        case Paused(reason=reason):
            return QuorumLost(reason)
        case Diverged(step, reason):
            return ReplicasDiverged(step, reason)

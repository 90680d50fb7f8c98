"""Notices from the loop to the training thread."""

import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from gossip import Member
from gossip.effects import Diverged, Paused, Refused, Removed

from ..errors import JoinRefused, QuorumLost, RemovedFromView, ReplicasDiverged, ShoalError
from ..step.notices import Notice

NUM_EXPLAINED: Final = 16

OUT: Final = "is out: "
"""Of a member, before why."""
SILENT: Final = "silent for "
"""The reason of a member that is out and alive, by a peer that has heard the silence."""
DEAD: Final = "is dead: "
"""As the core says it of who it was told of by the kernel, or by a launcher."""
LONG_S: Final = 1.0
"""A silence. Who is out after a shorter one here was not heard by others, or not reliably."""


class Inbox:
    """Filled by the thread that drives the loop, emptied by the training thread.

    Attributes:
        notices: in the order in which they happened.
        failure: why this peer cannot continue.
        explained: the last explanations of events of members, with their times (monotonic ns).
        crash: why the loop has stopped: the same error for all waiting and later callers.
    """

    def __init__(self) -> None:
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self.failure: ShoalError | None = None
        self.explained: deque[tuple[int, str]] = deque(maxlen=NUM_EXPLAINED)
        self.crash: ShoalError | None = None

    def tell(self, notice: Notice) -> None:
        """Add a notice. After an error that ends this peer, further such errors are dropped."""
        if isinstance(notice, ShoalError) and not notice.is_recoverable:
            if self.failure is not None:
                return
            self.failure = notice
        self.notices.put(notice)

    def tell_crash(self, error: BaseException) -> None:
        """Report that the loop has failed with `error`."""
        self.crash = ShoalError(f"the loop of this peer failed: {error!r}; see the log, and start this peer again")
        self.crash.__cause__ = error
        self.failure = self.failure or self.crash
        self.notices.put(self.crash)

    def next(self, timeout: float) -> Notice:
        """Wait for a notice.

        Raises:
            Empty: none arrived within `timeout`, in seconds.
        """
        notice = self.notices.get(timeout=timeout)
        if notice is self.crash:
            self.notices.put(notice)  # for other callers that wait
        return notice

    def explain(self, reason: str) -> None:
        """Keep a human-readable reason of an event of members."""
        self.explained.append((time.monotonic_ns(), reason))

    def explain_out(self, member: Member, silent_s: float, *, is_dead: bool) -> None:
        """`member` is out, and has not left: it is dead, or was silent for `silent_s` here. Explains a death once."""
        if not is_dead:
            why = f"{SILENT}{silent_s:.1f} s" if silent_s >= LONG_S else "it has left, or not all others could hear it"
            self.explain(f"{member} {OUT}{why}")
        elif not any(reason.startswith(f"{member} {DEAD}") for _, reason in self.explained):
            self.explain(f"{member} {OUT}dead, as others have seen")


def error_of(effect: Refused | Removed | Paused | Diverged, *, has_stalled: bool = False) -> ShoalError:
    """The error that the training thread raises for this effect. `has_stalled`: as of `RemovedFromView`."""
    match effect:
        case Refused(refusal):
            return JoinRefused(refusal)
        case Removed(reason):
            return RemovedFromView(reason, has_stalled=has_stalled)
        case Paused(reason=reason):
            return QuorumLost(reason)
        case Diverged(step, reason):
            return ReplicasDiverged(step, reason)

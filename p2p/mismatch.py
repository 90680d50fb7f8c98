"""Finds out that members call one operation differently. Belongs to the loop thread.

Whoever sees a fingerprint that is not its own says in words what it has called, and so does everybody who hears of
another call than its own. So every member learns of both sides, and gives the step up.
"""

from collections.abc import Callable

from gossip import Member
from gossip.messages import Abort

from .operations import Operation

Lookup = Callable[[int, int], Operation | None]
"""What was submitted here as this operation of this step."""


class Mismatches:
    """What others say that they have called in the open step."""

    def __init__(self, submitted: Lookup) -> None:
        self._submitted = submitted
        self._heard: dict[int, dict[Member, str]] = {}
        self._is_settled = False

    def clear(self) -> None:
        """The step is over, or starts over."""
        self._heard, self._is_settled = {}, False

    def settle(self) -> None:
        """The step is given up in this view; what else is heard of it says nothing new."""
        self._heard, self._is_settled = {}, True

    def hear(self, source: Member, abort: Abort) -> None:
        """`source` objects: this is what it has called."""
        if not self._is_settled:
            self._heard.setdefault(abort.operation, {})[source] = abort.fingerprint

    def ours(self, step: int, index: int) -> Abort | None:
        """What this peer has called, in words for the others."""
        operation = self._submitted(step, index)
        return None if operation is None else Abort(step, index, operation.describe())

    def find(self, step: int) -> tuple[Abort, str] | None:
        """An operation of `step` that somebody calls differently: our side of it, and both sides in words."""
        for index, sides in self._heard.items():
            ours = self.ours(step, index)
            for source, theirs in sides.items():
                if ours is not None and theirs != ours.fingerprint:
                    reason = f"operation {index} of step {step} is {ours.fingerprint} here, {theirs} at peer {source}"
                    return ours, reason
        return None

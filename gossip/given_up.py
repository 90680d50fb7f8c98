"""Steps given up: what members say of one, and what one member knows of it. R15 and R16 of PROTOCOL.md.

A member that does not finish the open step as it was begun gives it up. Every member that knows of that says so in
READY, LEAVE and reports until a step commits, so that results finished of the step are committed nowhere. Leaves out:
the barrier that drops it (commit.py), and the view that this requires (reports.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce

LONGEST_REASON = 1_000
"""Most characters of the reason of a step given up: it is sent to all."""


class Cause(IntEnum):
    """Why a step is given up, and what scripts are told. Of causes told in one view, the greatest counts."""

    IN_USE = 0
    """Results were handed out before the commit, and members have come or gone: interrupted on all members, unless the
    barrier commits the step."""
    WITHDRAWN = 1
    """A member withdrew what it had submitted: the step is redone, and scripts are not told."""
    VOIDED = 2
    """A script continued without a step that the others have begun: interrupted on all members."""
    MISMATCH = 3
    """Members called different operations, and no side can stay: an error on all members."""
    DIVERGED = 4
    """Members have different parameters or results, and no side can stay: an error that ends all members."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A step that some member will not finish as it was begun.

    Void results are committed nowhere: the member that gave the step up had not finished it, or a barrier has dropped
    it.

    Attributes:
        step: the step.
        view_number: view of the give-up that scripts are told of.
        cause: cause of that give-up.
        reason: for people.
        void_until: results of the step finished in this view or before are void; 0: they count.
    """

    step: int
    view_number: int
    cause: Cause
    reason: str = ""
    void_until: int = 0


def graver(one: GivenUp | None, other: GivenUp | None) -> GivenUp | None:
    """Both combined: the later step; if equal, the greater `void_until`, and the latest of what scripts are told."""
    if one is None or other is None:
        return one or other
    if one.step != other.step:
        return max(one, other, key=lambda each: each.step)
    told = max(
        one, other, key=lambda each: (each.cause is not Cause.WITHDRAWN, each.view_number, each.cause, each.reason)
    )
    return replace(told, void_until=max(one.void_until, other.void_until))


def latest_view(given_up: GivenUp) -> int:
    """The latest view that `given_up` names."""
    return max(given_up.view_number, given_up.void_until)


class GivingUp:
    """Knowledge of one member about its open step being given up, and what its script was told.

    Attributes:
        known: what it tells others.
        is_in_use: results of the open step were handed out before its commit.
    """

    def __init__(self) -> None:
        self.known: GivenUp | None = None
        self.is_in_use = False
        self._told_of = 0

    def hear(self, given_up: GivenUp) -> None:
        """Take in `given_up`, of a step that is open here, or may be open at others already."""
        self.known = graver(self.known, given_up)

    def give_up(self, step: int, view_number: int, cause: Cause, reason: str) -> None:
        """This member does not finish `step` in this view. If results were only in use, earlier finishes count."""
        void_until = 0 if cause is Cause.IN_USE else view_number
        self.hear(GivenUp(step, view_number, cause, reason[:LONGEST_REASON], void_until))
        self.is_in_use = False

    def told(self, view_number: int) -> None:
        """The script knows of steps given up in this view and before."""
        self._told_of = view_number

    def news(self, step: int, since: int, said: Iterable[GivenUp]) -> GivenUp | None:
        """What to tell the script, once, of `step` being given up, from what a barrier has `said`.

        Of views before `since` only that founders differ: other causes do not concern a member without a seat then.
        """
        unknown = [each for each in said if each.step == step and each.view_number > self._told_of]
        fresh = [each for each in unknown if each.view_number >= since or each.cause is Cause.DIVERGED]
        gravest = reduce(graver, (each for each in fresh if each.cause is not Cause.WITHDRAWN), None)
        if gravest is not None:
            self.told(gravest.view_number)
        return gravest

    def keep_of(self, step: int) -> None:
        """Forget all but `step`, which is open now."""
        if self.known is not None and self.known.step != step:
            self.known = None

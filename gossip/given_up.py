"""A step that is given up: what is said of it, and what one member knows of it. R15 and R16 of PROTOCOL.md.

A member that does not finish the open step as it was begun gives it up. Whoever knows of that says so in READY, LEAVE
and reports until a step commits, so that what was finished of the step is committed nowhere. Leaves out: the barrier
that drops it (commit.py), and the view that it takes (reports.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce

LONGEST_REASON = 1_000
"""Characters of the reason for which a step is given up: it travels."""


class Cause(IntEnum):
    """Why a step is given up, and what scripts are told. Of what is told of one view the greatest cause counts."""

    IN_USE = 0
    """Results of it were handed out before its commit, and members have come or gone: it is interrupted for all,
    unless the barrier commits it."""
    WITHDRAWN = 1
    """A member took back what it had submitted: the step is done over, and nobody is told."""
    VOIDED = 2
    """A script went on without a step that the others have begun: interrupted for all."""
    MISMATCH = 3
    """Members called different operations, and no side of them can stay: an error for all."""
    DIVERGED = 4
    """Members have other parameters, or other results, and no side can stay: an error for all, which ends them."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A step that some member will not finish as it was begun.

    What is void is committed nowhere: who gave the step up had not finished it, or a barrier has dropped it.

    Attributes:
        step: the step.
        view_number: the view in which it was given up, of what scripts are told.
        cause: of that.
        reason: for people.
        void_until: what was finished of the step in this view, or before, is void; 0: it counts.
    """

    step: int
    view_number: int
    cause: Cause
    reason: str = ""
    void_until: int = 0


def graver(one: GivenUp | None, other: GivenUp | None) -> GivenUp | None:
    """What both say: of the later step; of one step, what either calls void, and the latest that scripts are told."""
    if one is None or other is None:
        return one or other
    if one.step != other.step:
        return max(one, other, key=lambda each: each.step)
    told = max(
        one, other, key=lambda each: (each.cause is not Cause.WITHDRAWN, each.view_number, each.cause, each.reason)
    )
    return replace(told, void_until=max(one.void_until, other.void_until))


def latest_view(given_up: GivenUp) -> int:
    """Of those that `given_up` speaks of."""
    return max(given_up.view_number, given_up.void_until)


class GivingUp:
    """What one member knows of its open step to be given up, and what its script was told.

    Attributes:
        known: what it says to others.
        is_in_use: results of the open step were handed out before its commit.
    """

    def __init__(self) -> None:
        self.known: GivenUp | None = None
        self.is_in_use = False
        self._told_of = 0

    def hear(self, given_up: GivenUp) -> None:
        """Of a step that is open here, or may be open at others already."""
        self.known = graver(self.known, given_up)

    def give_up(self, step: int, view_number: int, cause: Cause, reason: str) -> None:
        """This member does not finish `step` in this view; what is only in use may have been finished before."""
        void_until = 0 if cause is Cause.IN_USE else view_number
        self.hear(GivenUp(step, view_number, cause, reason[:LONGEST_REASON], void_until))
        self.is_in_use = False

    def told(self, view_number: int) -> None:
        """The script knows of what was given up in this view, and before."""
        self._told_of = view_number

    def news(self, step: int, since: int, said: Iterable[GivenUp]) -> GivenUp | None:
        """What the script is to be told of `step`, as a barrier has `said`, once.

        Of views before `since` only that founders differ: what was given up then is none of who had no seat yet.
        """
        unknown = [each for each in said if each.step == step and each.view_number > self._told_of]
        fresh = [each for each in unknown if each.view_number >= since or each.cause is Cause.DIVERGED]
        gravest = reduce(graver, (each for each in fresh if each.cause is not Cause.WITHDRAWN), None)
        if gravest is not None:
            self.told(gravest.view_number)
        return gravest

    def keep_of(self, step: int) -> None:
        """Forget what is not about `step`, which is open now."""
        if self.known is not None and self.known.step != step:
            self.known = None

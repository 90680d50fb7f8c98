"""Views that a joiner has heard of, and whether it may have had a seat in one without knowing.

A JOIN counts in the view that it names and in the next one, so it can lead to a seat in the two views after that. A
joiner names a later view only when it knows that it had no seat up to there; a member that has seen all views in
between tells it so. So each incarnation has at most one seat, and no member has to remember past seats.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from .messages import Head
from .swim import Swim
from .view import Member

MOST_LINEAGES = 64
"""Most lineages of one name that a joiner keeps."""


@dataclass(eq=False, slots=True)
class _Lineage:
    """One chain of views.

    Attributes:
        number: the latest view up to which this peer had no seat for certain; 0 before the first.
        in_doubt_since: since when no member could say so of the later views heard of.
    """

    number: int = 0
    in_doubt_since: float = math.inf


class KnownViews:
    """One joiner's knowledge of each lineage: its views, and the members that have seats in it."""

    def __init__(self) -> None:
        self._lineages: dict[bytes, _Lineage] = {}
        self._homes: dict[Member, _Lineage] = {}

    def number_for(self, member: Member) -> int:
        """The view that a JOIN to `member` names; 0: it has not answered yet."""
        home = self._homes.get(member)
        return 0 if home is None else home.number

    @property
    def has_any(self) -> bool:
        """Whether any view was heard of."""
        return bool(self._lineages)

    def number_of(self, lineage: bytes) -> int:
        """Number of the latest known view of `lineage`; 0: none."""
        known = self._lineages.get(lineage)
        return 0 if known is None else known.number

    def lives(self, swim: Swim, lineage: bytes) -> bool:
        """Whether a member with a seat in `lineage` (empty: in any) is alive as far as `swim` knows."""
        known = self._lineages.get(lineage)
        return any((not lineage or home is known) and swim.is_alive(member) for member, home in self._homes.items())

    def hear(self, now: float, source: Member, lineage: bytes, head: Head) -> bool:
        """`source` has a seat in `lineage`. Returns whether a JOIN may now name a later view there than before."""
        if lineage not in self._lineages and len(self._lineages) >= MOST_LINEAGES:
            return False
        home = self._homes[source] = self._lineages.setdefault(lineage, _Lineage())
        if head.view_number <= home.number:
            return False
        if 0 < home.number < head.absent_since - 1:
            home.in_doubt_since = min(now, home.in_doubt_since)
            return False
        home.number, home.in_doubt_since = head.view_number, math.inf
        return True

    def in_doubt_s(self, now: float, member: Member) -> float:
        """How long no member could say whether this peer had a seat in the lineage of `member`; 0: it had none."""
        home = self._homes.get(member)
        return 0.0 if home is None else max(0.0, now - home.in_doubt_since)

    def keep(self, members: Collection[Member]) -> None:
        """Forget the lineages of all members but `members`."""
        self._homes = {member: self._homes[member] for member in members if member in self._homes}

"""The views that a joiner has heard of, and whether it may have had a seat in one without knowing.

A JOIN counts in the view that it names and in the next one, so it can lead to a seat in the two views after that. A
joiner names a later view only when it knows that it had no seat up to there, which a member says that has seen all
views in between. So each incarnation has one seat at most, and nobody has to remember who had one.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from .messages import Head
from .swim import Swim
from .view import Member

MOST_LINEAGES = 64
"""Swarms of one name that a joiner gets to know."""


@dataclass(eq=False, slots=True)
class _Lineage:
    """One chain of views.

    Attributes:
        number: of the latest view up to which this peer had no seat for certain; 0 before the first.
        in_doubt_since: from then on nobody could say so of the views that were heard of later.
    """

    number: int = 0
    in_doubt_since: float = math.inf


class KnownViews:
    """What one joiner knows of the views of each lineage, and which members are in which."""

    def __init__(self) -> None:
        self._lineages: dict[bytes, _Lineage] = {}
        self._homes: dict[Member, _Lineage] = {}

    def number_for(self, member: Member) -> int:
        """The view that a JOIN to `member` names; 0: it has not answered yet."""
        home = self._homes.get(member)
        return 0 if home is None else home.number

    @property
    def has_any(self) -> bool:
        """Whether any was heard of."""
        return bool(self._lineages)

    def number_of(self, lineage: bytes) -> int:
        """The latest view there that is known; 0: none is."""
        known = self._lineages.get(lineage)
        return 0 if known is None else known.number

    def lives(self, swim: Swim, lineage: bytes) -> bool:
        """Whether somebody who has a seat in `lineage`, in any if it is empty, is alive as far as `swim` knows."""
        known = self._lineages.get(lineage)
        return any((not lineage or home is known) and swim.is_alive(member) for member, home in self._homes.items())

    def hear(self, now: float, source: Member, lineage: bytes, head: Head) -> bool:
        """`source` has a seat in this lineage. Whether a JOIN may name a later view there than before."""
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
        """For how long nobody could say whether this peer had a seat in the lineage of `member`; 0: it had none."""
        home = self._homes.get(member)
        return 0.0 if home is None else max(0.0, now - home.in_doubt_since)

    def keep(self, members: Collection[Member]) -> None:
        """Forget where all others have their seats."""
        self._homes = {member: self._homes[member] for member in members if member in self._homes}

"""Seniority: which members go when members differ, in parameters or in calls. The one rule, R17 of PROTOCOL.md.

Rank order is seniority, and the seats that existed when the first step was finished are *founders*. A pure function of
a view and of what its members have said. More knowledge never changes its result, so all members decide alike, whatever
each has heard first.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from .view import Member, Seat

What = TypeVar("What")

NOBODY: frozenset[Member] = frozenset()
"""No side can stay: all raise."""


def staying(seats: Sequence[Seat], founded_in: int, said: Mapping[Member, What]) -> frozenset[Member] | None:
    """Members that stay, of members that have said different things.

    1. The side with more than half of the seats stays, if it has the oldest member or more than half of the founders.
    2. Else, if not all members are founders, the side of the oldest one stays.
    3. Founders without a majority: `NOBODY` stays.

    Args:
        seats: of the view, in rank order.
        founded_in: number of the view in which the first step was finished; 0: it was not, so all are founders.
        said: what members have said so far. A member that differs and does not stay has to go.

    Returns:
        None: it depends on members that have not spoken.
    """
    members = [seat.member for seat in seats]
    oldest, founders = members[0], {seat.member for seat in seats if not founded_in or seat.since <= founded_in}
    sides: dict[What, set[Member]] = {}
    for member in members:
        if member in said:
            sides.setdefault(said[member], set()).add(member)
    silent = {member for member in members if member not in said}

    def wins(side: Collection[Member]) -> bool:
        has_founders = 2 * len(founders.intersection(side)) > len(founders)
        return 2 * len(side) > len(members) and (oldest in side or has_founders)

    for side in sides.values():
        if wins(side):
            return frozenset(side)
    if any(wins(silent | side) for side in (*sides.values(), NOBODY)):
        return None
    if len(founders) == len(members):
        return NOBODY
    return next((frozenset(side) for side in sides.values() if oldest in side), None)

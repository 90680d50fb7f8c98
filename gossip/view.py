"""Views: who takes part, agreed and in order (L2 of the membership).

A view is the bridge between names and numbers: `gossip` speaks of its members, `collectives` of the ranks that
they have in it. Each view is decided once, by a quorum of the members of the one before (agreement.py).

Leaves out: the quorum policy `live` with its acceptor records, several joiners at once, observers.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A running peer: its name and the incarnation drawn at process start. A restart is a new member."""

    peer_id: str
    incarnation: int

    def __str__(self) -> str:
        return self.peer_id


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a view, and the number of the view that admitted it."""

    member: Member
    since: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every fenced message carries: which view its sender has installed."""

    lineage: bytes
    number: int
    hash: bytes


NO_VIEW = Stamp(b"", 0, b"")


@dataclass(frozen=True)
class View:
    """The agreed, ordered members of one view.

    Attributes:
        lineage: 16 bytes, drawn by the founder; one chain of views.
        number: 1 for the founder's view, then consecutive.
        founding_size: step 0 is held until this many members take part.
        seats: one per rank, in rank order.
        parent: hash of the view before, empty in view 1.
    """

    lineage: bytes
    number: int
    founding_size: int
    seats: tuple[Seat, ...]
    parent: bytes

    def __post_init__(self) -> None:
        names = [seat.member.peer_id for seat in self.seats]
        if self.number < 1 or not names or len(set(names)) < len(names):
            raise ValueError(f"view {self.number} needs a number >= 1 and distinct members, has {names}")
        if any(not 1 <= seat.since <= self.number for seat in self.seats):
            raise ValueError(f"view {self.number} has a seat that is younger than the view: {self.seats}")

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return tuple(seat.member for seat in self.seats)

    @cached_property
    def stamp(self) -> Stamp:
        return Stamp(self.lineage, self.number, self.hash)

    @cached_property
    def hash(self) -> bytes:
        """16 bytes over a canonical encoding of every field."""
        digest = blake2b(digest_size=16)
        digest.update(b"%d:%b %d %d " % (len(self.lineage), self.lineage, self.number, self.founding_size))
        for seat in self.seats:
            name = seat.member.peer_id.encode()
            digest.update(b"%d:%b %d %d " % (len(name), name, seat.member.incarnation, seat.since))
        digest.update(self.parent)
        return digest.digest()

    def since(self, member: Member) -> int | None:
        """Number of the view that admitted `member`; None where it has no seat."""
        return next((seat.since for seat in self.seats if seat.member == member), None)


def founding_view(founder: Member, lineage: bytes, founding_size: int) -> View:
    """View 1 of a new lineage: the founder alone."""
    return View(lineage, 1, founding_size, (Seat(founder, 1),), b"")


def is_quorum(members: Collection[Member], view: View) -> bool:
    """Whether `members` may decide the successor of `view`: more than half of it, or half with rank 0.

    Any two quorums of a view share a member, so at most one successor is decided.
    """
    present = [member for member in view.members if member in members]
    doubled = 2 * len(present)
    return doubled > len(view.members) or (doubled == len(view.members) and view.members[0] in present)


@dataclass(frozen=True, slots=True)
class Decision:
    """Who should be in the next view, and why."""

    successor: View | None
    """None: keep the current view."""
    reason: str
    quorum_lost: bool = False
    """Too few members are alive to decide anything in this view, now or later."""


def propose_view(
    view: View,
    *,
    dead: Collection[Member],
    leaving: Collection[Member],
    joiners: Sequence[Member],
    restart: str = "",
) -> Decision:
    """Who should be in the view after `view`. Survivors keep their order, at most one joiner is appended.

    A leaving member still votes, a dead one cannot. A joiner replaces an older incarnation of itself.

    Args:
        view: the installed view.
        dead: members that are gone for good.
        leaving: members that said LEAVE.
        joiners: those who ask for a seat, the first to be admitted first.
        restart: why the same members should start over in a new view, if they should.
    """
    living = [member for member in view.members if member not in dead]
    joiner = next((j for j in joiners if j not in dead and _is_newer(j, view)), None)
    replaced = {member for member in view.members if joiner and member.peer_id == joiner.peer_id}
    staying = [s for s in view.seats if s.member in living and s.member not in leaving and s.member not in replaced]
    gone = [str(seat.member) for seat in view.seats if seat not in staying]
    count = f"{len(living)} of {len(view.members)} members of view {view.number} are alive"
    if not gone and joiner is None and not restart:
        return Decision(None, count)
    if not is_quorum(living, view):
        return Decision(None, f"{count}, no majority", quorum_lost=True)
    if not staying:
        return Decision(None, f"{count}, and all of them leave")
    reasons = [count]
    reasons += [f"without {', '.join(gone)}"] if gone else []
    reasons += [f"with {joiner}"] if joiner else []
    reasons += [restart] if restart else []
    number = view.number + 1
    seats = (*staying, Seat(joiner, number)) if joiner else tuple(staying)
    return Decision(View(view.lineage, number, view.founding_size, seats, view.hash), "; ".join(reasons))


def _is_newer(joiner: Member, view: View) -> bool:
    """An older incarnation never ejects a newer one, and a member has its seat already."""
    return all(joiner.incarnation > m.incarnation for m in view.members if m.peer_id == joiner.peer_id)

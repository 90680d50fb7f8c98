"""Views: the agreed, ordered members that take part (L2 of the membership).

A view is the bridge between names and numbers: `gossip` knows its members, `collectives` the ranks that they have in
it. Each view is decided once, by a quorum of the members of the one before (agreement.py).

Leaves out: weights, and a committee of voters for more than some hundred members.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from hashlib import blake2b


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A running peer: its name and the incarnation drawn at process start. A restart is a new member."""

    peer_id: str
    incarnation: int

    def __str__(self) -> str:
        return self.peer_id

    def __hash__(self) -> int:
        return hash(self.peer_id)  # a str caches its hash


@dataclass(frozen=True, slots=True)
class Contact:
    """Addresses of a peer, and its process as known to the kernel of its host.

    Attributes:
        control, data: addresses for peers of its own host.
        host: the host whose kernel knows `pid`; the same text on the same host, and on no other.
        remote_control, remote_data: addresses for peers of other hosts; empty: they cannot reach it.
    """

    control: str
    data: str
    pid: int
    process_start: int
    host: str = ""
    remote_control: str = ""
    remote_data: str = ""

    @property
    def seed(self) -> str:
        """Control address of the peer, as it would stand in a list of seeds."""
        return self.remote_control or self.control


NOWHERE = Contact("", "", 0, 0)
"""Contact of a peer that died before it was discovered."""

NO_NUMERICS = bytes(8)
"""The numerics class of a peer that names none."""


HARDWARE_BYTES = 4
"""Leading bytes of a numerics class: the hardware that computes."""


def is_akin(one: bytes, other: bytes) -> bool:
    """Whether peers of these numerics classes compute the same bits from the same numbers."""
    return one[:HARDWARE_BYTES] == other[:HARDWARE_BYTES]


def wrong_numerics(numerics: bytes) -> ValueError:
    """The error for a numerics class of another length than 8 bytes."""
    return ValueError(f"a numerics class has {len(NO_NUMERICS)} bytes, this one has {len(numerics)}")


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a view.

    Attributes:
        member: the member.
        since: number of the view that admitted it.
        contact: where it is reached; a peer that receives a view may not know all of its members.
        numerics: 8 bytes, its numerics class, as its JOIN had it.

    Raises:
        ValueError: `numerics` has another length.
    """

    member: Member
    since: int
    contact: Contact = NOWHERE
    numerics: bytes = NO_NUMERICS

    def __post_init__(self) -> None:
        if len(self.numerics) != len(NO_NUMERICS):
            raise wrong_numerics(self.numerics)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identity of the view that the sender of a message has installed; every fenced message carries one."""

    lineage: bytes
    number: int
    hash: bytes


class Policy(IntEnum):
    """Which members may decide the successor of a view. The founder chooses the policy of the lineage."""

    MAJORITY = 0
    """More than half of the members, or half with rank 0."""
    LIVE = 1
    """The same, or all survivors if the others are proven dead and their acceptor records were read."""


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
        policy: which members may decide the next view; the same in all views of a lineage.
        founder: peer_id of the first member, so that two swarms that meet can name their founders.
    """

    lineage: bytes
    number: int
    founding_size: int
    seats: tuple[Seat, ...]
    parent: bytes
    policy: Policy = Policy.MAJORITY
    founder: str = ""

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
        founder = self.founder.encode()
        head = len(self.lineage), self.lineage, self.number, self.founding_size, self.policy, len(founder), founder
        digest.update(b"%d:%b %d %d %d %d:%b %d " % (*head, len(self.seats)))
        for seat in self.seats:
            name = seat.member.peer_id.encode()
            digest.update(b"%d:%b %d %d " % (len(name), name, seat.member.incarnation, seat.since))
            contact = seat.contact
            places = contact.control, contact.data, contact.host, contact.remote_control, contact.remote_data
            for place in map(str.encode, places):
                digest.update(b"%d:%b " % (len(place), place))
            digest.update(b"%d %d %b " % (contact.pid, contact.process_start, seat.numerics))
        digest.update(self.parent)
        return digest.digest()

    @cached_property
    def is_mixed(self) -> bool:
        """Whether the members are of several numerics classes."""
        return len({seat.numerics for seat in self.seats}) > 1

    def numerics_of(self, member: Member) -> bytes | None:
        """Numerics class of `member`; None if it has no seat."""
        return next((seat.numerics for seat in self.seats if seat.member == member), None)

    @cached_property
    def _since(self) -> dict[Member, int]:
        return {seat.member: seat.since for seat in self.seats}

    def since(self, member: Member) -> int | None:
        """Number of the view that admitted `member`; None if it has no seat."""
        return self._since.get(member)


def feeder_of(observer: Member, view: View, numerics: bytes = NO_NUMERICS) -> Member:
    """The feeder of `observer` in `view`: all members compute the same one; the next view has another.

    A member of the numerics class that the JOIN of the observer named, else of the same hardware, if there is one.
    Members that this view has admitted come last: they may be observers themselves until the barrier is complete.
    """
    own = [seat for seat in view.seats if seat.numerics == numerics]
    akin = own or [seat for seat in view.seats if is_akin(seat.numerics, numerics)]
    seats = [seat for seat in akin or view.seats if seat.since < view.number] or akin or view.seats
    return seats[(sum(observer.peer_id.encode()) + view.number) % len(seats)].member


MOST_MEMBERS = 100
"""An acceptor record, which holds two views, must fit into its page."""

LAST_VIEW = 2**24 - 1
"""Greatest view number, since hosts keep it in 24 bits; no chain gets that long. It may be decided, but is not
installed."""


def founding_view(founder: Seat, lineage: bytes, founding_size: int, policy: Policy = Policy.MAJORITY) -> View:
    """View 1 of a new lineage: the founder alone."""
    return View(lineage, 1, founding_size, (founder,), b"", policy, founder.member.peer_id)


def is_quorum(members: Collection[Member], view: View) -> bool:
    """Whether `members` may decide the successor of `view`: more than half of it, or half including rank 0.

    Any two quorums of a view share a member, so at most one successor is decided.
    """
    present = [member for member in view.members if member in members]
    doubled = 2 * len(present)
    return doubled > len(view.members) or (doubled == len(view.members) and view.members[0] in present)


def can_decide(living: Collection[Member], witnessed: Collection[Member], view: View) -> bool:
    """Whether `living` are enough to decide the successor of `view`, under its policy.

    Args:
        living: members that take part.
        witnessed: members that are proven dead, and whose acceptor records were read after their death.
        view: the installed view.
    """
    if is_quorum(living, view):
        return True
    if view.policy is not Policy.LIVE or not living:
        return False
    return all(member in living or member in witnessed for member in view.members)


@dataclass(frozen=True, slots=True)
class Joiner:
    """A peer that asks for a seat; attributes as in `Seat`."""

    contact: Contact
    numerics: bytes = NO_NUMERICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Reasons to replace a view.

    Attributes:
        gone: members that cannot be reached, or are dead.
        proven: those of `gone` that never come back.
        witnessed: those of `proven` whose acceptor records were read.
        leaving: members that said LEAVE. They still vote.
        joiners: peers that ask for a seat and may have one, in order of admission.
        redo_reason: why the same members should restart the step in a new view; empty: they should not.
    """

    gone: Collection[Member] = ()
    proven: Collection[Member] = ()
    witnessed: Collection[Member] = ()
    leaving: Collection[Member] = ()
    joiners: Mapping[Member, Joiner] = field(default_factory=dict)
    redo_reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The proposed next view, if any, and the reason."""

    successor: View | None
    """None: keep the current view."""
    reason: str
    quorum_lost: bool = False
    """Too few members are available to decide now."""
    is_final: bool = False
    """There will never be enough: the missing members are dead."""


def propose_view(view: View, change: Change) -> Decision:
    """Propose the view after `view`, or none, with the reason.

    Survivors keep their order. Joiners are appended, at most as many as survivors, so that the survivors alone are a
    quorum of the next view.
    """
    living = [member for member in view.members if member not in change.gone]
    staying = [seat for seat in view.seats if seat.member in living and seat.member not in change.leaving]
    admitted = _admissible(view, change)[: max(0, min(len(staying), MOST_MEMBERS - len(staying)))]
    leaving = [str(seat.member) for seat in view.seats if seat not in staying]
    count = f"{len(living)} of {len(view.members)} members of view {view.number} are here"
    if not leaving and not admitted and not change.redo_reason:
        return Decision(None, count)
    if not can_decide(living, change.witnessed, view):
        rest = [member for member in view.members if member not in change.proven]
        is_final = not can_decide(rest, change.witnessed, view)
        return Decision(None, f"{count}, {_why_too_few(view, change)}", quorum_lost=True, is_final=is_final)
    if not staying:
        return Decision(None, f"{count}, and none of them stays")
    if view.number + 1 >= LAST_VIEW:
        must = bool(leaving or change.redo_reason)  # joiners alone do not pause the view: they get no seat
        return Decision(None, f"{count}, and no view has a greater number", quorum_lost=must, is_final=must)
    reasons = [count]
    reasons += [f"without {', '.join(leaving)}"] if leaving else []
    reasons += [f"with {', '.join(map(str, admitted))}"] if admitted else []
    reasons += [change.redo_reason] if change.redo_reason else []
    number = view.number + 1
    known = [(joiner, change.joiners[joiner]) for joiner in admitted]
    seats = (*staying, *(Seat(member, number, joiner.contact, joiner.numerics) for member, joiner in known))
    successor = View(view.lineage, number, view.founding_size, seats, view.hash, view.policy, view.founder)
    return Decision(successor, "; ".join(reasons))


def _admissible(view: View, change: Change) -> list[Member]:
    """Latest incarnation of each joiner whose name has no seat: an older incarnation with a seat must go first."""
    latest: dict[str, Member] = {}
    for joiner in change.joiners:
        latest[joiner.peer_id] = max(joiner, latest.get(joiner.peer_id, joiner))
    seated = {member.peer_id for member in view.members}
    return [joiner for name, joiner in latest.items() if name not in seated]


def _why_too_few(view: View, change: Change) -> str:
    if view.policy is Policy.MAJORITY:
        return "no majority"
    gone = [member for member in view.members if member in change.gone and member not in change.witnessed]
    silent = ", ".join(str(member) for member in gone if member not in change.proven)
    unread = ", ".join(str(member) for member in gone if member in change.proven)
    why = [f"no proof that {silent} died, and is not stopped or cut off"] if silent else []
    why += [f"what {unread} had agreed to before it died cannot be read"] if unread else []
    return f"no majority, and {', and '.join(why)}"

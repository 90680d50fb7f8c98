"""Roster: one claim per known peer_id, and tombstones of those whose claims were forgotten."""

from collections.abc import Callable
from dataclasses import replace

from .claim import Claim, State
from .claim_digests import Buckets
from .view import NOWHERE, Member

MOST_TOMBSTONES = 4096


class Roster:
    """All valid claims, this peer's own included.

    Claims about lost or gone members are forgotten in time, but older claims may still circulate. So a tombstone stays,
    with the claim that they have to override. At most the latest `MOST_TOMBSTONES` are kept.
    """

    def __init__(self, me: Claim, known: tuple[Claim, ...], is_held: Callable[[str], bool]) -> None:
        self._name = me.member.peer_id
        self._is_held = is_held
        self._claims = {claim.member.peer_id: claim for claim in known} | {self._name: me}
        self._buckets = Buckets(self._claims)
        self._tombstones: dict[str, Claim] = {}
        self._neighbours: tuple[Member, ...] | None = None
        self._alive: tuple[Member, ...] | None = None
        self._lost: tuple[Member, ...] | None = None

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, peer_id: str) -> Claim | None:
        return self._claims.get(peer_id)

    def others(self) -> tuple[Claim, ...]:
        return tuple(claim for name, claim in self._claims.items() if name != self._name)

    def put(self, claim: Claim) -> None:
        """Store `claim`, instead of any other about the same peer_id."""
        name = claim.member.peer_id
        old = self._claims.get(name)
        self._claims[name] = claim
        self._buckets.add(name)
        if old is None or old.member != claim.member or _place(old) != _place(claim):
            self.regroup()
            self._tombstones.pop(name, None)

    def forget(self, name: str) -> None:
        """Replace the claim about a lost or gone member by a tombstone."""
        self._bury(self._claims[name])
        self.regroup()

    def drop_living(self) -> tuple[Member, ...]:
        """Replace the claims about all members that are not gone for good by tombstones. Returns the members."""
        dropped = [c for c in self.others() if c.state < State.LEFT]
        for claim in dropped:
            self._bury(replace(claim, state=State.ALIVE))
        self.regroup()
        return tuple(claim.member for claim in dropped)

    def _bury(self, claim: Claim) -> None:
        name = claim.member.peer_id
        del self._claims[name]
        self._buckets.drop(name)
        self._tombstones[name] = replace(claim, contact=NOWHERE, accuser="")
        if len(self._tombstones) > MOST_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def tombstone(self, peer_id: str) -> Claim | None:
        """The last claim about a forgotten member."""
        return self._tombstones.get(peer_id)

    def regroup(self) -> None:
        """The set of members held down has changed."""
        self._neighbours = self._alive = self._lost = None

    def neighbours(self) -> tuple[Member, ...]:
        """Alive or suspect, held down or not."""
        if self._neighbours is None:
            self._neighbours = tuple(c.member for c in self.others() if c.state <= State.SUSPECT)
        return self._neighbours

    def alive(self) -> tuple[Member, ...]:
        """Alive or suspect, and not held down."""
        if self._alive is None:
            self._alive = tuple(m for m in self.neighbours() if not self._is_held(m.peer_id))
        return self._alive

    def lost(self) -> tuple[Member, ...]:
        if self._lost is None:
            self._lost = tuple(c.member for c in self.others() if c.state is State.LOST)
        return self._lost

    def is_neighbour(self, member: Member) -> bool:
        claim = self._claims.get(member.peer_id)
        return claim is not None and claim.member == member and claim.state <= State.SUSPECT

    def digests(self) -> tuple[bytes, ...]:
        return self._buckets.digests(self._claims)

    def bucket(self, number: int) -> tuple[Claim, ...]:
        return tuple(self._claims[name] for name in self._buckets.names(number))


def _place(claim: Claim) -> State:
    """Sort of a claim: claims with the same value keep a peer in the same of the lists above."""
    return State.ALIVE if claim.state is State.SUSPECT else claim.state

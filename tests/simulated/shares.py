"""States of several donors in a simulated swarm (S27, S28): slices of parameters are the chunks.

The production machines (p2p.catchup) decide which donor gives which chunks after which step, and which are requested
again. Chunks arrive in any order, and links lose some.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from gossip import Member
from gossip.progress import NOTHING_DONE
from p2p.catchup.chunk_tracker import ChunkTracker
from p2p.catchup.shares import ShareRequests, chunks_of, donors_of
from p2p.net.parcels import Chunk, ShareRequest

from .parameters import NUM_SLICES, Parameters

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .catchup import Snapshot
    from .peer import Peer

LOOK_S = 0.3
CHUNKS = tuple(chunks_of([(2, NUM_SLICES)], 1))
Slice = tuple[bytes, bytes]
"""Truth and bits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A data frame: a chunk of the state of `first` after `step`; None: the sender sends no more."""

    source: Member
    first: Member
    step: int
    chunk: Chunk | None
    slice: Slice = (b"", b"")


@dataclass(frozen=True, slots=True)
class Query:
    """A data frame: `observer` needs these chunks from their first donor."""

    observer: Member
    step: int
    chunks: tuple[Chunk, ...]


def digest_of(slice: Slice) -> bytes:
    """Digest of truth and bits."""
    return blake2b(b"/".join(slice), digest_size=16).digest()


def slice_of(state: Parameters, chunk: Chunk) -> Slice:
    """The slice of a chunk."""
    return state.truths[chunk.segment], state.bits[chunk.segment]


class Shares:
    """Shares of one peer: those that it gives as one of several donors, and those that it gathers."""

    def __init__(self, peer: "Peer", world: "Simulation") -> None:
        self.wishes = ShareRequests()
        self._peer = peer
        self._world = world
        self._kept: dict[Member, tuple[int, Parameters]] = {}
        self._gathered: dict[Member, tuple[ChunkTracker, dict[Chunk, Slice]]] = {}
        self._bases: dict[Member, Snapshot] = {}

    # Giving

    def split(self, member: Member, snapshot: "Snapshot") -> "Snapshot":
        """The part of a snapshot that the first donor sends itself; asks the other donors, if there are any."""
        peer, world = self._peer, self._world
        if not world.plan.shares or peer.view is None:
            return snapshot
        host = world.peers[member].claim.contact.host
        donors = donors_of(peer.view, peer.member, host, peer.core.has_state)
        if len(donors) == 1:
            return snapshot
        state = snapshot.state
        self._kept[member] = snapshot.step, state
        world.invariants.gives(peer.member, snapshot.step, state)
        world.invariants.seen["states of several donors"] += 1
        for number, donor in enumerate(donors[1:], 1):
            other = world.peers[donor]
            wish = ShareRequest(peer.member, member, snapshot.step, number, len(donors), 1)
            world.network.send_data(peer, other, other.catch_up.shares.take_wish, wish)
        self._send(member, snapshot.step, peer.member, state, CHUNKS[:: len(donors)])
        digests = tuple([digest_of(slice_of(state, chunk)) for chunk in CHUNKS])
        return replace(snapshot, state=Parameters(), donors=donors, digests=digests)

    def take_wish(self, wish: ShareRequest) -> None:
        """Receive a wish of a member of this view."""
        peer = self._peer
        if peer.core.seated and peer.view is not None and peer.view.since(wish.first) is not None:
            self.wishes.ask(wish)
            self.serve()

    def serve(self) -> None:
        """Send the chunks that are due, or a notice that they will not come."""
        if not self.wishes.waiting:
            return
        done, state = self._peer.done, self._peer.training.state
        is_withheld = self._peer.catch_up.is_own(done + 1)
        for wish, is_given in self.wishes.due(done, is_complete=not is_withheld, is_withheld=is_withheld):
            chunks = CHUNKS[wish.number :: wish.num_shares] if is_given else ()
            self._world.invariants.seen["shares given" if is_given else "shares declined"] += 1
            self._send(wish.observer, wish.step, wish.first, state, chunks)

    def take_query(self, query: Query) -> None:
        """Answer a query of an observer that got a state of which this peer is the first donor."""
        step, state = self._kept.get(query.observer, (NOTHING_DONE, Parameters()))
        if step == query.step and query.chunks:
            self._world.invariants.seen["chunks given again"] += len(query.chunks)
            self._send(query.observer, step, self._peer.member, state, query.chunks)

    def _send(self, member: Member, step: int, first: Member, state: Parameters, chunks: tuple[Chunk, ...]) -> None:
        other, me = self._world.peers[member], self._peer.member
        pieces = [Piece(me, first, step, chunk, slice_of(state, chunk)) for chunk in chunks]
        for piece in (*pieces, Piece(me, first, step, None)):
            self._world.network.send_data(self._peer, other, other.catch_up.shares.take_piece, piece)

    # Gathering

    def take_base(self, snapshot: "Snapshot") -> None:
        """Receive the first donor's part of a state."""
        first, now = snapshot.donor, self._peer.now()
        gathering, slices = self._gathering(first, snapshot.step)
        if gathering.step != snapshot.step or gathering.knows:
            del self._gathered[first]
            gathering, slices = self._gathering(first, snapshot.step)
        self._bases[first] = snapshot
        for chunk in gathering.begin(now, snapshot.donors, dict(zip(CHUNKS, snapshot.digests, strict=True))):
            del slices[chunk]
        self._look(first)

    def take_piece(self, piece: Piece) -> None:
        """Receive a chunk; its state may have been requested from another donor."""
        peer = self._peer
        if peer.core.seated or not peer.core.state_segment_arrived(peer.now(), piece.first, piece.step):
            return
        gathering, slices = self._gathering(piece.first, piece.step)
        if gathering.step < piece.step and not gathering.knows:
            del self._gathered[piece.first]
            gathering, slices = self._gathering(piece.first, piece.step)
        if gathering.step != piece.step:
            return
        if piece.chunk is None:
            gathering.over(piece.source)
        elif gathering.came(peer.now(), piece.source, piece.chunk, digest_of(piece.slice)):
            slices[piece.chunk] = piece.slice
        self._look(piece.first)

    def forget(self, member: Member) -> None:
        """Drop all data of a member that is gone."""
        self.wishes.forget(member)
        self._kept.pop(member, None)
        self._gathered.pop(member, None)
        for first, (gathering, _) in list(self._gathered.items()):
            gathering.over(member)
            self._look(first)

    def clear(self) -> None:
        """Drop all gathered chunks after a state was loaded."""
        self._gathered = {}

    def _gathering(self, first: Member, step: int) -> tuple[ChunkTracker, dict[Chunk, Slice]]:
        if first not in self._gathered:
            self._gathered[first] = ChunkTracker(self._peer.now(), first, step), {}
            self._world.clock.after(LOOK_S, self._peer, "looks for chunks", self._look_again, first)
        return self._gathered[first]

    def _look_again(self, first: Member) -> None:
        if first in self._gathered:
            self._look(first)
            self._world.clock.after(LOOK_S, self._peer, "looks for chunks", self._look_again, first)

    def _look(self, first: Member) -> None:
        if first not in self._gathered:
            return
        peer, checks = self._peer, self._world.invariants
        gathering, slices = self._gathered[first]
        for source in gathering.odd.values():
            checks.differs(peer.member, source, first, gathering.step)
        if missing := gathering.missing(peer.now()):
            other = self._world.peers[first]
            query = Query(peer.member, gathering.step, tuple(missing))
            self._world.network.send_data(peer, other, other.catch_up.shares.take_query, query)
        if gathering.is_complete or gathering.is_void:
            del self._gathered[first]
        if gathering.is_complete:
            truths, bits = zip(*(slices[chunk] for chunk in CHUNKS), strict=True)
            state = Parameters(truths, bits)
            checks.gathered(peer.member, first, gathering.step, state)
            peer.catch_up.take_whole(replace(self._bases.pop(first), state=state))

"""States from several donors: their chunks, until all have come. chunk_tracker.py decides what is requested again."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossip import Member

from ..errors import RemoteProtocolError
from ..host.prefaulted_memory import Bytes
from ..net.parcels import Chunk, Parcel, ParcelSegment, Raw, StateRecord, check, read_share
from ..net.trees import Slot, unpack_tree
from .chunk_tracker import ChunkTracker
from .rooms import Room
from .shares import chunks_of, unpack_parts

logger = logging.getLogger("p2p")

DIGEST_BYTES = 16


@dataclass(slots=True, eq=False)
class _Coming:
    """One state. `base`: what its first donor alone sends. `named`: differing chunks that were logged.

    `parts`: memory of `room` for the chunks, by part; chunks that cannot be written there yet are kept in `chunks`.
    """

    gathering: ChunkTracker
    chunks: dict[Chunk, bytes] = field(default_factory=dict)
    base: Parcel | None = None
    parts: dict[int, Bytes] = field(default_factory=dict)
    room: Room | None = None
    named: set[Chunk] = field(default_factory=set)


class MultiDonorStates:
    """The states in flight to one observer, by their first donors, which the caller has asked for them."""

    def __init__(
        self, ask: Callable[[Member, int, Sequence[Chunk]], None], room: Callable[[], Room | None] = lambda: None
    ) -> None:
        """An observer to which no state is in flight.

        Args:
            ask: takes a first donor, a step, and chunks to send again; no chunks: nothing more is needed.
            room: returns the current memory for a state; None: there is none.
        """
        self._ask, self._room = ask, room
        self._coming: dict[Member, _Coming] = {}
        self._firsts: dict[Member, Member] = {}

    def first_of(self, source: Member, segment: ParcelSegment) -> Member | None:
        """The first donor of the state of which `source` sends a share.

        Raises:
            RemoteProtocolError: the first segment of the share does not say.
        """
        if (segment.part, segment.index) == (0, 0):
            self._firsts[source] = read_share(segment).first
        return self._firsts.get(source)

    def receive(self, now: float, source: Member, first: Member, segment: ParcelSegment) -> list[Parcel]:
        """Take a segment of a share of the state of `first`. Returns the state once it is complete.

        Raises:
            RemoteProtocolError: the segment was damaged in transit.
        """
        coming = self._coming.get(first)
        if coming is None or (coming.gathering.step < segment.step and not coming.gathering.knows):
            coming = self._coming[first] = _Coming(ChunkTracker(now, first, segment.step))
        if coming.gathering.step != segment.step:
            return []
        if segment.part:
            check(segment)
            chunk = Chunk(segment.part, segment.index)
            if coming.gathering.came(now, source, chunk, segment.digest):
                self._keep(first, coming, chunk, segment.payload)
        if segment.is_final:
            coming.gathering.over(source)
        return self.look(now)

    def begin(self, now: float, first: Member, base: Parcel) -> list[Parcel]:
        """Take what the first donor alone sends. Returns the state once it is complete.

        Raises:
            RemoteProtocolError: its record contradicts itself.
        """
        record = base.record
        assert isinstance(record, StateRecord)
        chunks = _chunks_in(record, len(base.parts))
        digests = [
            record.chunk_digests[i : i + DIGEST_BYTES] for i in range(0, len(record.chunk_digests), DIGEST_BYTES)
        ]
        coming = self._coming.get(first)
        if coming is None or coming.gathering.step != base.step or coming.gathering.knows:
            coming = self._coming[first] = _Coming(ChunkTracker(now, first, base.step))
        coming.base = base
        for chunk in coming.gathering.begin(now, record.donors, dict(zip(chunks, digests, strict=True))):
            del coming.chunks[chunk]
        room = coming.room = self._room()
        sizes = unpack_parts(record.shared)
        try:
            coming.parts = {part: np.empty(n, np.uint8) if room is None else room.reserve(n) for part, n in sizes}
        except (MemoryError, OverflowError, ValueError):  # numpy has no arrays of 2^63 bytes
            del self._coming[first]
            num_bytes = sum(n for _, n in sizes)
            raise RemoteProtocolError(
                f"{first} gives a state of {num_bytes} bytes, for which there is no memory"
            ) from None
        early, coming.chunks = coming.chunks, {}
        for chunk, payload in early.items():
            self._keep(first, coming, chunk, payload)
        logger.info("%d donors give the state after step %d, asked of %s", len(record.donors), base.step, first)
        return self.look(now)

    def look(self, now: float) -> list[Parcel]:
        """Request chunks that do not arrive. Returns states that are complete."""
        whole: list[Parcel] = []
        for first, coming in list(self._coming.items()):
            gathering = coming.gathering
            self._name(coming)
            if missing := gathering.missing(now):
                logger.info("%d chunks of the state after step %d are asked of %s", len(missing), gathering.step, first)
                self._ask(first, gathering.step, missing)
            is_whole = coming.base is not None and self._settle(first, coming) and gathering.is_complete
            if is_whole or gathering.is_void:
                del self._coming[first]
                self._ask(first, gathering.step, ())
            if is_whole:
                whole.append(_composed(coming))
        return whole

    def forget(self, member: Member) -> None:
        """`member` is gone: its share is requested from the first donor; if it is the first, drop its state."""
        self._firsts.pop(member, None)
        self._coming.pop(member, None)
        for coming in self._coming.values():
            coming.gathering.over(member)

    def clear(self) -> None:
        """Drop all states, and tell their donors."""
        for first, coming in self._coming.items():
            self._ask(first, coming.gathering.step, ())
        self._coming, self._firsts = {}, {}

    def _keep(self, first: Member, coming: _Coming, chunk: Chunk, payload: Raw) -> None:
        """Copy a chunk to its place, if that is known, and can be written without page faults; else keep it aside."""
        if coming.base is None:
            coming.chunks[chunk] = bytes(payload)
            return
        record = coming.base.record
        assert isinstance(record, StateRecord)
        start = chunk.segment * record.chunk_bytes
        into = coming.parts[chunk.part][start : start + record.chunk_bytes]
        if len(into) != len(payload):
            del self._coming[first]
            raise RemoteProtocolError(f"a chunk of {len(payload)} bytes came for {len(into)} of part {chunk.part}")
        if coming.room is None or coming.room.reaches(into):
            into[:] = np.frombuffer(payload, np.uint8)
        else:
            coming.chunks[chunk] = bytes(payload)

    def _settle(self, first: Member, coming: _Coming) -> bool:
        """Move chunks that were kept aside to their places. Returns whether all are there."""
        while coming.chunks:
            chunk, payload = next(iter(coming.chunks.items()))
            del coming.chunks[chunk]
            self._keep(first, coming, chunk, payload)
            if chunk in coming.chunks:
                return False
        return True

    def _name(self, coming: _Coming) -> None:
        """Log chunks that differ: one of two replicas is damaged."""
        for chunk, source in coming.gathering.odd.items():
            if chunk not in coming.named and coming.base is not None:
                coming.named.add(chunk)
                logger.warning(
                    "chunk %d of %s is not the same at %s and %s in the state after step %d: the replica of one of "
                    "them is damaged; it is taken from %s, which was asked for the state",
                    chunk.segment,
                    _name_of(coming.base, chunk),
                    source,
                    coming.gathering.first,
                    coming.gathering.step,
                    coming.gathering.first,
                )


def _chunks_in(record: StateRecord, num_parts: int) -> list[Chunk]:
    """The chunks that `record` names."""
    try:
        parts = unpack_parts(record.shared)
    except ValueError as error:
        raise RemoteProtocolError(f"a state of several donors: {error}") from None
    numbers = [number for number, _ in parts]
    is_sound = record.chunk_bytes > 0 and record.donors and numbers == sorted(set(numbers))
    most = len(record.chunk_digests) // DIGEST_BYTES
    if not is_sound or not all(1 < n <= num_parts + len(parts) for n in numbers):
        raise RemoteProtocolError(f"a state of {len(record.donors)} donors with the parts {numbers[:8]} of {num_parts}")
    num_chunks = sum(-(-size // record.chunk_bytes) for _, size in parts)
    if num_chunks * DIGEST_BYTES != len(record.chunk_digests):
        raise RemoteProtocolError(f"a state of {num_chunks} chunks with digests of {most}")
    return chunks_of(parts, record.chunk_bytes)


def _composed(coming: _Coming) -> Parcel:
    """The state as one donor would have sent it."""
    base = coming.base
    assert base is not None
    others, shared = iter(base.parts), coming.parts
    numbers = range(1, len(base.parts) + len(shared) + 1)
    return replace(base, parts=[shared[number].data if number in shared else next(others) for number in numbers])


def _name_of(base: Parcel, chunk: Chunk) -> str:
    """Of the tensor that a chunk is of, in the tree of the state."""
    try:
        tree = unpack_tree(bytes(base.parts[0]))
    except RemoteProtocolError:
        tree = None
    return next((path for path, slot in _slots(tree, "") if slot == Slot(chunk.part - 2)), f"tensor {chunk.part - 2}")


def _slots(node: Any, path: str) -> Iterator[tuple[str, Slot]]:
    if isinstance(node, Slot):
        yield path, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else ()
    for key, value in items:
        yield from _slots(value, f"{path}.{key}" if path else str(key))

"""A copy of the state after a step, as parcels: whole, or as the first of several donors sends it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xxhash

from gossip import Member

from ..net.parcels import Chunk, PackedState, Parcel, Raw, RunInBackground, ShareRecord, ShareRequest, StateRecord
from .frozen import FrozenDiffer, digest_of
from .rooms import Room
from .shares import LEAST_BYTES, MOST_CHUNKS, MOST_PARTS, chunks_of, pack_parts

_FIRST_TENSOR = 2
"""Parts 0 and 1 are record and tree."""


def left_out_of(state: PackedState) -> set[int]:
    """Numbers of the tensors that the receiver has already."""
    return {*state.frozen} if state.known else set()


def shared_parts(state: PackedState) -> list[tuple[int, int]]:
    """The parts that several donors can share, with their lengths in bytes, apart from those left out."""
    left_out = left_out_of(state)
    sizes = [(index, memoryview(state.tensors[index]).nbytes) for index in state.replicated if index not in left_out]
    return [(index + _FIRST_TENSOR, size) for index, size in sizes if size >= LEAST_BYTES]


def chunks_for(state: PackedState, wish: ShareRequest) -> list[Chunk]:
    """The chunks of a share."""
    return chunks_of(shared_parts(state), wish.chunk_bytes)[wish.number :: wish.num_shares]


def sizes_for(state: PackedState, wish: ShareRequest) -> list[int]:
    """Sizes of the chunks of a share, in bytes; empty if they would be too many."""
    if not is_worth_sharing(state, wish.chunk_bytes, 0):
        return []
    return [len(_slice(state.tensors, chunk, wish.chunk_bytes)) for chunk in chunks_for(state, wish)]


def sizes_of(state: PackedState) -> list[int]:
    """Sizes of the tensors in bytes, without those left out."""
    left_out = left_out_of(state)
    return [memoryview(each).nbytes for number, each in enumerate(state.tensors) if number not in left_out]


def share_of(state: PackedState, wish: ShareRequest, room: Room | None = None) -> Parcel:
    """The share of `state` that another donor has asked for; `state` does not change meanwhile.

    Copies only the share, into `room`; in a separate thread where the state is lent for that long.

    Raises:
        ValueError: it is asked for in too many chunks.
    """
    if not is_worth_sharing(state, wish.chunk_bytes, 0):
        raise ValueError(f"chunks of {wish.chunk_bytes} bytes are too many")
    chunks = chunks_for(state, wish)
    payloads: Sequence[Raw] = [_slice(state.tensors, chunk, wish.chunk_bytes) for chunk in chunks]
    is_whole = state.is_whole
    if is_whole is None:
        payloads, is_whole = _copies_of(payloads, state.run_in_background, _nothing, room, _always)
    return Parcel(wish.step, ShareRecord(wish.first), payloads, is_whole, chunks=chunks)


def declined(wish: ShareRequest) -> Parcel:
    """The answer that there will be no share."""
    return Parcel(wish.step, ShareRecord(wish.first), [])


class StateCopy:
    """An immutable copy of a state. Parcels refer to it, so it lives as long as one of them is in flight.

    Attributes:
        step: the state is that after this step.
        state: the copy.
    """

    def __init__(
        self, step: int, state: PackedState, chunk_bytes: int, *, is_shared: bool, room: Room | None = None
    ) -> None:
        """Copy `state` into `room`, unless it is a copy already; in a separate thread where it is lent for that long.

        `is_shared`: several donors will give it, so digests of its chunks are needed.
        """
        self.step = step
        self._parts, self._chunk_bytes = shared_parts(state), chunk_bytes
        self._chunks = chunks_of(self._parts, chunk_bytes)
        self._digests = b""
        self._is_unlike = False
        self.state = state
        if state.is_whole is None:
            then = self._digest if is_shared else _nothing
            is_wanted = partial(self._is_like, state) if left_out_of(state) else _always
            tensors, is_whole = _copies_of(self._sent(), state.run_in_background, then, room, is_wanted)
            self.state = replace(state, tensors=tensors, is_whole=is_whole, run_in_background=None)

    def is_whole(self) -> bool:
        """Whether the copy is complete; not at once, where a thread makes it.

        Raises:
            MemoryShort, FrozenDiffer: the copy will never be complete.
        """
        is_whole = self.state.is_whole is None or self.state.is_whole()
        if self._is_unlike:
            raise FrozenDiffer
        return is_whole

    def _is_like(self, state: PackedState) -> bool:
        """Whether `state`, which is lent meanwhile, has the frozen parameters of the requester."""
        parts = [(number, len(state.tensors[number])) for number in state.frozen]
        self._is_unlike = digest_of(parts, (state.tensors[number] for number in state.frozen)) != state.known
        return not self._is_unlike

    def whole(self, record: StateRecord) -> Parcel:
        """The whole state, apart from tensors left out."""
        return Parcel(self.step, self._told(record), [self.state.tree, *self._sent()], self.is_whole)

    def _told(self, record: StateRecord) -> StateRecord:
        return replace(record, frozen=self.state.known if self.state.frozen else b"")

    def _sent(self) -> list[Raw]:
        left_out = left_out_of(self.state)
        return [b"" if number in left_out else each for number, each in enumerate(self.state.tensors)]

    def shared(self, record: StateRecord, donors: Sequence[Member]) -> list[Parcel]:
        """Parcels of the first of several `donors`: what it alone sends, with digests of all chunks; then its share."""

        def seal() -> StateRecord:
            shared = pack_parts(self._parts)
            told = replace(record, donors=(*donors,), shared=shared, chunk_bytes=self._chunk_bytes)
            return replace(self._told(told), chunk_digests=self._all())

        parts = dict(self._parts)
        own = [each for number, each in enumerate(self._sent(), _FIRST_TENSOR) if number not in parts]
        base = Parcel(self.step, record, [self.state.tree, *own], self.is_whole, seal)
        return [base, self.share(donors[0], self._chunks[:: len(donors)])]

    def share(self, first: Member, chunks: Iterable[Chunk]) -> Parcel:
        """`chunks`, without names that are no chunk of this state."""
        known = [chunk for chunk in chunks if self._has(chunk)]
        payloads = [_slice(self.state.tensors, chunk, self._chunk_bytes) for chunk in known]
        return Parcel(self.step, ShareRecord(first), payloads, self.is_whole, chunks=known)

    def _has(self, chunk: Chunk) -> bool:
        size = dict(self._parts).get(chunk.part, 0)
        return chunk.segment * self._chunk_bytes < size

    def _all(self) -> bytes:
        """Digests of all chunks, in order. Reads the state once, unless that was done while it was copied."""
        if not self._digests:
            self._digest(self.state.tensors)
        return self._digests

    def _digest(self, tensors: Sequence[Raw]) -> None:
        payloads = (_slice(tensors, chunk, self._chunk_bytes) for chunk in self._chunks)
        self._digests = b"".join([xxhash.xxh3_128_digest(payload) for payload in payloads])


def chunk_bytes_of(state: PackedState, segment_bytes: int) -> int:
    """Size of a chunk: a segment, or so many that the digests of all chunks fit into a record.

    The same whatever is left out, so that chunks of a dropped copy are chunks of the next one, too.
    """
    num_segments = sum(-(-size // segment_bytes) for _, size in shared_parts(replace(state, known=b"")))
    return int(segment_bytes * 2 ** math.ceil(math.log2(max(1.0, num_segments / MOST_CHUNKS * 2))))


def is_worth_sharing(state: PackedState, chunk_bytes: int, least_bytes: int) -> bool:
    """Whether several donors save more time than asking them takes, and all digests fit into a record."""
    parts = shared_parts(state)
    fits = len(parts) < MOST_PARTS and sum(-(-size // chunk_bytes) for _, size in parts) < MOST_CHUNKS
    return fits and sum(size for _, size in parts) >= least_bytes


def _slice(tensors: Sequence[Raw], chunk: Chunk, chunk_bytes: int) -> memoryview:
    start = chunk.segment * chunk_bytes
    return memoryview(tensors[chunk.part - _FIRST_TENSOR]).cast("B")[start : start + chunk_bytes]


def copied(buffer: Raw) -> Raw:
    """A copy of `buffer`; releases the interpreter lock meanwhile."""
    return np.frombuffer(buffer, np.uint8).copy().data if len(buffer) else b""


def _copies_of(
    buffers: Sequence[Raw],
    aside: RunInBackground | None,
    then: Callable[[Sequence[Raw]], None],
    room: Room | None,
    is_wanted: Callable[[], bool],
) -> tuple[Sequence[Raw], Callable[[], bool] | None]:
    """Copies of `buffers`, and, if `aside` makes them in a thread, a function that says whether they are complete.

    The copying thread first asks `is_wanted`, and copies nothing if not; it passes the copies to `then`.
    """
    sizes = [len(buffer) for buffer in buffers]
    rooms = [np.empty(size, np.uint8) if room is None else room.take(size) for size in sizes]

    def copy() -> None:
        wanted = buffers if is_wanted() else ()
        for room, buffer in zip(rooms, wanted, strict=False):
            if len(buffer):
                room[:] = np.frombuffer(buffer, np.uint8)

    made = [room.data for room in rooms]
    if aside is None:
        copy()
        return made, None
    return made, aside(copy, lambda: then(made))


def _always() -> bool:
    return True


def _nothing(tensors: Sequence[Raw]) -> None:
    pass

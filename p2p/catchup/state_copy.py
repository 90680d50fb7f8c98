"""A copy of the state after a step, as parcels: whole, or as the first of several donors sends it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from gossip import Member

from ..net.parcels import Chunk, PackedState, Parcel, ShareRecord, StateRecord, Wish
from .shares import LEAST_BYTES, MOST_CHUNKS, MOST_PARTS, chunks_of, pack_parts

Buffer = bytes | memoryview

_FIRST_TENSOR = 2
"""Parts 0 and 1 are record and tree."""


def shared_parts(state: PackedState) -> list[tuple[int, int]]:
    """The parts that several donors can share, with their lengths in bytes."""
    sizes = [(index, memoryview(state.tensors[index]).nbytes) for index in state.replicated]
    return [(index + _FIRST_TENSOR, size) for index, size in sizes if size >= LEAST_BYTES]


def share_of(state: PackedState, wish: Wish) -> Parcel:
    """The share of `state`, which nobody changes now, that another donor has asked for; only that is copied.

    Raises:
        ValueError: it is asked for in too many chunks.
    """
    if not is_worth_sharing(state, wish.chunk_bytes, 0):
        raise ValueError(f"chunks of {wish.chunk_bytes} bytes are too many")
    chunks = chunks_of(shared_parts(state), wish.chunk_bytes)[wish.number :: wish.num_shares]
    payloads: list[Buffer] = [_slice(state.tensors, chunk, wish.chunk_bytes) for chunk in chunks]
    if state.is_whole is None:
        payloads = [copied(payload) for payload in payloads]
    return Parcel(wish.step, ShareRecord(wish.first), payloads, state.is_whole, chunks=chunks)


def declined(wish: Wish) -> Parcel:
    """There will be no share."""
    return Parcel(wish.step, ShareRecord(wish.first), [])


class StateCopy:
    """What nobody changes any more. Parcels refer to it, so that it lives as long as one of them is under way.

    Attributes:
        step: after which it is.
        state: the copy.
    """

    def __init__(self, step: int, state: PackedState, chunk_bytes: int) -> None:
        """Copy `state`, unless it is a copy."""
        self.step = step
        tensors = [*state.tensors] if state.is_whole else [*map(copied, state.tensors)]
        self.state = replace(state, tensors=tensors)
        self._parts, self._chunk_bytes = shared_parts(state), chunk_bytes
        self._chunks = chunks_of(self._parts, chunk_bytes)
        self._digests = b""

    def is_whole(self) -> bool:
        """Whether it is there, which a copy of what a device holds is not at once."""
        return self.state.is_whole is None or self.state.is_whole()

    def whole(self, record: StateRecord) -> Parcel:
        """All of it."""
        return Parcel(self.step, record, [self.state.tree, *self.state.tensors], self.is_whole)

    def shared(self, record: StateRecord, donors: Sequence[Member]) -> list[Parcel]:
        """What the first of several `donors` sends: what it alone does, with the digests of all chunks; its share."""

        def seal() -> StateRecord:
            shared = pack_parts(self._parts)
            return replace(
                record, donors=(*donors,), shared=shared, chunk_bytes=self._chunk_bytes, chunk_digests=self._all()
            )

        parts = dict(self._parts)
        own = [t for number, t in enumerate(self.state.tensors, _FIRST_TENSOR) if number not in parts]
        base = Parcel(self.step, record, [self.state.tree, *own], self.is_whole, seal)
        return [base, self.share(donors[0], self._chunks[:: len(donors)])]

    def share(self, first: Member, chunks: Iterable[Chunk]) -> Parcel:
        """Those chunks, apart from what is none."""
        known = [chunk for chunk in chunks if self._has(chunk)]
        payloads = [_slice(self.state.tensors, chunk, self._chunk_bytes) for chunk in known]
        return Parcel(self.step, ShareRecord(first), payloads, self.is_whole, chunks=known)

    def _has(self, chunk: Chunk) -> bool:
        size = dict(self._parts).get(chunk.part, 0)
        return chunk.segment * self._chunk_bytes < size

    def _all(self) -> bytes:
        """Digests of all chunks, in order. Reads the state once."""
        if not self._digests:
            payloads = (_slice(self.state.tensors, chunk, self._chunk_bytes) for chunk in self._chunks)
            self._digests = b"".join([xxhash.xxh3_128_digest(payload) for payload in payloads])
        return self._digests


def chunk_bytes_of(state: PackedState, segment_bytes: int) -> int:
    """A segment, or as many as it takes for a record to have room for the digests of all chunks."""
    num_segments = sum(-(-size // segment_bytes) for _, size in shared_parts(state))
    return int(segment_bytes * 2 ** math.ceil(math.log2(max(1.0, num_segments / MOST_CHUNKS * 2))))


def is_worth_sharing(state: PackedState, chunk_bytes: int, least_bytes: int) -> bool:
    """Whether several donors are quicker than one by more than it takes to ask them, and a record has room for it."""
    parts = shared_parts(state)
    fits = len(parts) < MOST_PARTS and sum(-(-size // chunk_bytes) for _, size in parts) < MOST_CHUNKS
    return fits and sum(size for _, size in parts) >= least_bytes


def _slice(tensors: Sequence[Buffer], chunk: Chunk, chunk_bytes: int) -> memoryview:
    start = chunk.segment * chunk_bytes
    return memoryview(tensors[chunk.part - _FIRST_TENSOR]).cast("B")[start : start + chunk_bytes]


def copied(buffer: Buffer) -> Buffer:
    """The same bytes in memory of their own; the interpreter is free meanwhile."""
    return np.frombuffer(buffer, np.uint8).copy().data if len(buffer) else b""

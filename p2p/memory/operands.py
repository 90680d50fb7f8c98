"""Memory that the ranks of a view lend each other for one operation, found through their boards, and validated.

A reference (board.py, `Reference`) names the operation by its fingerprint, the region of the input, and where the
result begins. It is read after its lender's progress and before its tag: if the tag is that of the view, the reference
was written for this operation. The digests of the chunks of a lent result follow the board, as far as their owner has
reduced these chunks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives import Array, split_by_weight
from collectives.program import Program, Source
from collectives.programs import MOST_CHUNKS

from ..errors import RemoteProtocolError
from .arena import DIGESTS_OFFSET, TABLE_BYTES, Memory, Region
from .board import Reference

DIGEST_BYTES: Final = 16
TABLE: Final = Region(DIGESTS_OFFSET, MOST_CHUNKS * DIGEST_BYTES)
assert TABLE.length <= TABLE_BYTES


class Interrupted(Exception):
    """The operation cannot be completed in this view: a view is installed, here or at a rank that was read."""


class Differs(Exception):
    """A rank calls another operation. Nothing of it was read.

    Attributes:
        rank: which one.
        fingerprint: of what it calls.
    """

    def __init__(self, rank: int, fingerprint: bytes) -> None:
        super().__init__(f"rank {rank} calls another operation, {fingerprint.hex()}")
        self.rank, self.fingerprint = rank, fingerprint


@dataclass(frozen=True, slots=True)
class RankInView:
    """Which view, and the rank of this peer in it."""

    rank: int
    view_number: int
    tag: int


class OwnOperands(NamedTuple):
    """One operation as this rank calls it; `lent_result`, `result` or both say where its result goes.

    Attributes:
        fingerprint: 16 bytes; the same on all ranks if they call the same.
        input: in the own arena; only read.
        lent_result: in the own arena: where others copy from. For programs that lend a result.
        result: one-dimensional, anywhere; None: the result is what is lent.
        ahead_bytes: how many further bytes could be handled in one piece here.
        places: for a gather, where in `result` the input of each rank goes; otherwise the chunks of the program share
            input and result.
    """

    fingerprint: bytes
    input: Region
    dtype: npt.DTypeLike
    lent_result: Region | None = None
    result: Array | None = None
    ahead_bytes: int = 0
    places: tuple[slice, ...] | None = None


class Operands:
    """The inputs and results of all ranks in one operation.

    Attributes:
        result: of this rank.
        lent: the own result as others see it, partial sums too; None if the program lends none.
        target: where sums are written: what is lent, if that is.
        bounds: of the chunks in a result.
        input_bounds: of the chunks in an input.
    """

    def __init__(
        self, program: Program, mine: OwnOperands, memories: Sequence[Memory], in_view: RankInView, turn: int
    ) -> None:
        """Say on the own board what is lent."""
        self._memories, self._in_view, self._turn, self._mine = memories, in_view, turn, mine
        own, region = memories[in_view.rank], mine.lent_result
        self._inputs = {in_view.rank: own.array(mine.input, mine.dtype)}
        self._found: dict[int, Reference] = {}
        self.lent = own.array(Region(region.offset, mine.input.length), mine.dtype) if region is not None else None
        result = self.lent if mine.result is None else mine.result
        assert result is not None, "the result has to go somewhere"
        assert self.lent is not None or not program.lends_results, "others copy from the result: lend it"
        self.result: Array = result
        self.target: Array = result if self.lent is None else self.lent
        if mine.places is None:
            self.bounds = self.input_bounds = chunk_bounds(result.size, program.chunks)
        else:
            self.bounds = mine.places
            self.input_bounds = (slice(0, self._inputs[in_view.rank].size),) * program.num_chunks
        assert program.num_chunks <= MOST_CHUNKS, f"{program.num_chunks} chunks"
        result_offset = 0 if region is None else region.offset
        own.board.lend(turn, Reference(mine.fingerprint, *mine.input, result_offset, mine.ahead_bytes))

    def read(self, sources: Iterable[Source], chunk: int) -> list[Array]:
        """The summands of `chunk`, of ranks that have published them."""
        arrays: list[Array] = []
        for rank, is_result in sources:
            if is_result:
                arrays.append(self.lent_result(rank)[self.bounds[chunk]])
            else:
                arrays.append(self.input(rank)[self.input_bounds[chunk]])
        return arrays

    def input(self, rank: int) -> Array:
        """The whole input of `rank`, which has published that it lends it."""
        found = self._inputs.get(rank)
        if found is None:
            lent = self._lent_by(rank)
            found = self._inputs[rank] = self._array(
                rank, Region(lent.input_offset, lent.input_bytes), self._mine.dtype
            )
            if found.size != self._inputs[self._in_view.rank].size:
                raise RemoteProtocolError(f"rank {rank} lends {lent.input_bytes} bytes for the same operation")
        return found

    def lent_result(self, rank: int) -> Array:
        """The whole result of `rank`, as far as it has published it."""
        return self._array(rank, Region(self._lent_by(rank).result_offset, self._mine.input.length), self._mine.dtype)

    def ahead_bytes(self) -> int:
        """How much of what follows all can do in one go. All have published what they lend."""
        others = (self._lent_by(rank) for rank in range(len(self._memories)) if rank != self._in_view.rank)
        return min([self._mine.ahead_bytes, *(lent.ahead_bytes for lent in others)])

    def check_calls(self, ranks: Sequence[int]) -> None:
        """Of `ranks`, which have begun: whether they call the same.

        Raises:
            Interrupted: one has left the view.
            Differs: one calls something else.
        """
        for rank in ranks:
            self._lent_by(rank)

    def read_digest(self, rank: int, chunk: int) -> bytes:
        """Of a chunk of the result of `rank`, which it has published."""
        return bytes(self._memories[rank].array(TABLE, np.uint8)[_digest_place(chunk)].data)

    def write_digest(self, chunk: int, digest: bytes) -> None:
        """Of a chunk of the own result, before it is published."""
        table = self._memories[self._in_view.rank].array(TABLE, np.uint8)
        table[_digest_place(chunk)] = np.frombuffer(digest, np.uint8)

    def check_tags(self, ranks: Iterable[int]) -> None:
        """After a read of the memory of `ranks`: whether it was still lent.

        Raises:
            Interrupted: it may have been written meanwhile.
        """
        for rank in ranks:
            if self._memories[rank].board.tag[0] != self._in_view.tag:
                raise Interrupted(f"rank {rank} has left the view: what was read of it is void")

    def _lent_by(self, rank: int) -> Reference:
        if (known := self._found.get(rank)) is not None:
            return known
        lent = self._memories[rank].board.lent(self._turn)
        self.check_tags((rank,))
        if lent.fingerprint != self._mine.fingerprint:
            raise Differs(rank, lent.fingerprint)
        self._found[rank] = lent
        return lent

    def _array(self, rank: int, region: Region, dtype: npt.DTypeLike) -> Array:
        try:
            return self._memories[rank].array(region, dtype)
        except ValueError as error:
            raise RemoteProtocolError(f"rank {rank} lends what it does not have: {error}") from None


def _digest_place(chunk: int) -> slice:
    return slice(chunk * DIGEST_BYTES, (chunk + 1) * DIGEST_BYTES)


@lru_cache(maxsize=1024)
def chunk_bounds(size: int, chunks: tuple[float, ...]) -> tuple[slice, ...]:
    """The slice of each chunk in an array of `size` elements, given the weights of chunks."""
    return tuple(split_by_weight(size, chunks))

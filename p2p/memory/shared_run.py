"""One operation over shared memory, and the pieces that it is cut into. A piece of a gather is a part of all inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

from collectives import Array, MissingSegment, Reduction, as_bits, scale
from collectives.program import Program

from .exchange import DigestFunction


@dataclass(frozen=True, slots=True)
class Pieces:
    """How long pieces are: the same at all members of a view."""

    first_bytes: int = 4 << 20
    """The first one of an operation, and any of which something has to be copied into a slot, or out of one."""

    long_bytes: int = 64 << 20


PIECES: Final = Pieces()
"""Of the protocol (PROTOCOL.md)."""


class Piece(NamedTuple):
    """The part of an operation that is carried out at once.

    Attributes:
        program: of this rank.
        of_input: the part of the input.
        result: where the result of the piece lies.
        places: of the ranks' inputs in `result`, for a gather.
    """

    program: Program
    of_input: slice
    result: Array
    places: tuple[slice, ...] | None


class SharedRun:
    """One operation over shared memory.

    Attributes:
        done: the result is complete.
        fingerprint: what all ranks must have in common; 16 bytes.
        is_raw: whether this rank adds its input unchanged.
        digest_of: digests each chunk of the next piece, if not each for itself: of a gather, whose chunks are the
            inputs of the ranks, together with the pieces before.
    """

    def __init__(
        self,
        program_of: Callable[[slice], Program],
        fingerprint: bytes,
        input: Array,
        result: Array,
        reduction: Reduction,
        *,
        weight: float | None = None,
        checked: int = 0,
    ) -> None:
        """An operation that reads and writes nothing before its first piece.

        Args:
            program_of: the program of this rank for a piece of the input.
            fingerprint: as above.
            input: one-dimensional, contiguous; only read.
            result: likewise, memory of its own; for a gather `input` of each rank, one behind the other.
            reduction: how inputs are reduced.
            weight: the input is multiplied by it first; 0 makes zeros of anything.
            checked: which of the chunks, in turns, this rank digests as it holds it.
        """
        self.fingerprint = fingerprint
        self.done = False
        self.checked = checked
        self._program_of, self._weight, self.is_raw = program_of, weight, weight is None
        self.reduction, self.dtype = reduction, input.dtype
        self._raw, self.input, self.result = input, as_bits(input), as_bits(result)
        self._start = self._stop = 0
        self._digests: list[bytes] = []
        is_gather = self.input.size < self.result.size
        self._inputs = range(0, self.result.size, self.input.size) if is_gather else None
        self.digest_of: list[DigestFunction] | None = None
        if self._inputs is not None:
            self.digest_of = [_running_digest() for _ in self._inputs]

    def piece(self, num_bytes: int) -> Piece:
        """The next piece, of so many bytes of the input at most."""
        self._stop = min(self._start + num_bytes // self.input.itemsize, self.input.size)
        of_input = slice(self._start, self._stop)
        program = self._program_of(of_input)
        if self._inputs is None:
            return Piece(program, of_input, self.result[of_input], None)
        places = tuple([slice(start + self._start, start + self._stop) for start in self._inputs])
        return Piece(program, of_input, self.result, places)

    def fill(self, of_input: slice, slot: Array) -> None:
        """Write a piece of what this rank adds into `slot`."""
        if self._weight is None:
            slot[:] = self.input[of_input]
        elif self._weight == 0:
            slot.fill(0)  # not 0 x input, which may be NaN
        else:
            scale(self._raw[of_input], self._weight, slot.view(self._raw.dtype))

    def end_piece(self, digests: Sequence[bytes]) -> None:
        """The piece is complete, with these digests of its chunks."""
        if self._inputs is not None:
            self._digests.clear()  # they cover the pieces before, too
        self._digests += digests
        self._start = self._stop
        self.done = self._stop == self.input.size

    def digest(self) -> bytes:
        """The digests of all chunks of the result, in order.

        A sum has the chunks of each piece, so beyond the first piece they depend on the pieces; by messages it has
        those of the whole. A gather has the input of each rank, as by messages, however long it is.
        """
        return b"".join(self._digests)

    def missing(self, late: Sequence[int], piece_bytes: int) -> tuple[MissingSegment, ...]:
        """Ranks that are waited for, and with which piece, if all pieces had `piece_bytes`."""
        piece, num_pieces = (-(-size * self.input.itemsize // piece_bytes) for size in (self._start, self.input.size))
        return tuple(MissingSegment(rank, 0, piece, max(1, num_pieces)) for rank in late)


def _running_digest() -> DigestFunction:
    """Digests what it was given so far, as if it had come in one go."""
    digest = xxhash.xxh3_128()

    def add(data: memoryview) -> bytes:
        digest.update(data)
        return digest.digest()

    return add

"""Codecs of fixed rate: encode a vector of float32 into a payload, and add a payload to a vector.

The length of a payload depends only on the number of elements and the codec, so an exchange of payloads is an
`all_gather`. Encoding may differ between peers; decoding a payload gives the same bits on any processor: values are
multiplied by the weight, then added, and each operation rounds to float32 (PROTOCOL.md, "Payloads").

Vectors are processed in pieces that stay in a core's cache.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from collectives.dense import LOST, Float32, Int4, Sign
from collectives.elements import Array
from collectives.sparse import Sparse

PIECE: Final = 65536
"""Elements that are encoded or added at once; a multiple of each format's `length`."""


class Format(Protocol):
    """The encoding of whole blocks."""

    @property
    def length(self) -> int:
        """Elements of a block."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a block."""

    def encode(self, blocks: Array, rows: Array, num_elements: int) -> None:
        """Write the bytes of each of `blocks` into its row.

        Args:
            blocks: (blocks, length) of float32, finite.
            rows: (blocks, num_bytes) of uint8, written.
            num_elements: of all blocks, without the zeros that pad the last one.
        """

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        """Add `weight` times the decoded `rows` to `blocks`."""

    def check(self, rows: Array) -> tuple[int, str] | None:
        """The first invalid row, and what is wrong with it; None: all are valid."""


class Codec:
    """One of `CODECS`.

    Attributes:
        name: key in `CODECS`.
        keeps_residual: a sender adds the residual of a payload to its next one, since much would never be sent else.
        lost: elements of at most this magnitude are always dropped, and not kept in the residual.
        block_length: elements of a block. A payload may be cut between blocks, and its parts used separately.
        block_bytes: bytes of an encoded block.
    """

    def __init__(self, name: str, form: Format, *, keeps_residual: bool, lost: float = 0.0) -> None:
        """A codec with this name for the format `form`."""
        self.name = name
        self.keeps_residual = keeps_residual
        self.lost = lost
        self.block_length = form.length
        self.block_bytes = form.num_bytes
        self._form = form

    def num_bytes(self, count: int) -> int:
        """The length of the payload of `count` elements."""
        return -(-count // self.block_length) * self.block_bytes

    def encode(self, values: Array) -> Array:
        """Encode `values` as closely as the format allows, with ties to the first or the even one.

        Args:
            values: contiguous float32, one dimension.

        Returns:
            `num_bytes(values.size)` of uint8.

        Raises:
            ValueError: a value is NaN or infinity.
        """
        _check_vector(values)
        payload = np.empty(self.num_bytes(values.size), np.uint8)
        with np.errstate(all="ignore"):  # overrides the script's settings: overflow and underflow are well-defined here
            for begin, end, rows in self._pieces(values.size, payload):
                piece = values[begin:end]
                if not (is_finite := np.isfinite(piece)).all():
                    first = begin + int(np.argmin(is_finite))
                    raise ValueError(f"element {first} of {values.size} is {values[first]}, and cannot be encoded")
                self._form.encode(self._blocks(piece), rows, piece.size)
        return payload

    def add(self, payload: Array, weight: float, out: Array) -> None:
        """Add `weight` times the decoded `payload` to `out`.

        A payload that `check` refuses may add anything to any element, but does no other harm.

        Args:
            payload: uint8, of length `num_bytes(out.size)`.
            weight: rounded to float32 first.
            out: contiguous float32, one dimension; changed in place.
        """
        _check_vector(out)
        self._check_length(payload, out.size)
        factor = np.float32(weight)
        with np.errstate(all="ignore"):
            for begin, end, rows in self._pieces(out.size, payload):
                piece = out[begin:end]
                blocks = self._blocks(piece)
                self._form.add(rows, factor, blocks)
                if blocks.size > piece.size:  # a padded copy
                    piece[:] = blocks.ravel()[: piece.size]

    def check(self, payload: Array) -> str | None:
        """What is wrong with `payload`, in words; None: it is valid. Depends only on its bytes: the same at all peers.

        Args:
            payload: uint8, of whole blocks.
        """
        num_blocks, rest = divmod(payload.size, self.block_bytes)
        if rest:
            raise ValueError(f"{payload.size} bytes are not whole blocks of {self.name}, {self.block_bytes} each")
        for begin, _, rows in self._pieces(num_blocks * self.block_length, payload):
            if (found := self._form.check(rows)) is not None:
                row, what = found
                return f"block {begin // self.block_length + row} of {num_blocks}, {self.name}: {what}"
        return None

    def _pieces(self, count: int, payload: Array) -> Iterator[tuple[int, int, Array]]:
        """(begin, end, rows) of each piece."""
        rows = payload.reshape(-1, self.block_bytes)
        whole = count - count % self.block_length  # whole blocks are processed in place
        for begin in range(0, whole, PIECE):
            end = min(begin + PIECE, whole)
            yield begin, end, rows[begin // self.block_length : end // self.block_length]
        if whole < count:
            yield whole, count, rows[-1:]

    def _blocks(self, piece: Array) -> Array:
        if piece.size % self.block_length:
            piece = np.concatenate([piece, np.zeros(-piece.size % self.block_length, np.float32)])
        return piece.reshape(-1, self.block_length)

    def _check_length(self, payload: Array, count: int) -> None:
        if payload.dtype != np.uint8 or payload.shape != (self.num_bytes(count),):
            wanted = f"uint8 of shape {(self.num_bytes(count),)}"
            found = f"{payload.dtype} of shape {payload.shape}"
            raise ValueError(f"a payload of {count} elements of {self.name} is {wanted}, not {found}")


def _check_vector(values: Array) -> None:
    if values.dtype != np.float32 or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError(f"a vector of float32 is needed, contiguous, not {values.dtype} of shape {values.shape}")


def _named(*codecs: Codec) -> Mapping[str, Codec]:
    return MappingProxyType({codec.name: codec for codec in codecs})


CODECS: Final = _named(
    Codec("float32", Float32(), keeps_residual=False),
    Codec("int4", Int4(), keeps_residual=False, lost=LOST),
    Codec("sign", Sign(), keeps_residual=True),
    Codec("sparse16", Sparse(16), keeps_residual=True),
    Codec("sparse64", Sparse(64), keeps_residual=True),
)
"""Codecs by name, from most to fewest bytes."""


def codec_of(name: str) -> Codec:
    """The codec with this name.

    Raises:
        ValueError: there is no such codec.
    """
    if name not in [*CODECS]:  # a list, so that unhashable values are refused, too
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, is {name!r}")
    return CODECS[name]

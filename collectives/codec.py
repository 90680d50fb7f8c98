"""Codecs of fixed rate: how a vector of float32 becomes a payload, and is added to another one.

The length of a payload depends on the number of elements and on the codec alone, so an exchange of payloads is an
`all_gather`. Encoding is this peer's business; what a payload says is the same for all, bit for bit, on any processor:
values are multiplied by the weight, then added, each rounded to float32 by itself (PROTOCOL.md, "Payloads").

Works through pieces that stay in a core's cache.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from collectives.dense import LOST, Float32, Int4, Sign
from collectives.elements import Array
from collectives.sparse import Sparse

PIECE: Final = 65536
"""Elements that are encoded or added at one go; a multiple of each format's `length`."""


class Format(Protocol):
    """What the bytes of whole blocks mean."""

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
            num_elements: of all blocks, without the zeros that fill up the last one.
        """

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        """Add `weight` times what `rows` say to `blocks`."""

    def check(self, rows: Array) -> tuple[int, str] | None:
        """The first row that nobody may use, and what is wrong with it."""


class Codec:
    """One of `CODECS`.

    Attributes:
        name: what people call it.
        keeps_residual: a sender adds what a payload leaves out to what it sends next, or much would never be sent.
        lost: an element whose magnitude is not above is always left out, and not kept either.
        block_length: elements. A payload may be cut between blocks, and its parts be used by themselves.
        block_bytes: what they become.
    """

    def __init__(self, name: str, form: Format, *, keeps_residual: bool, lost: float = 0.0) -> None:
        """Give `form` a name."""
        self.name = name
        self.keeps_residual = keeps_residual
        self.lost = lost
        self.block_length = form.length
        self.block_bytes = form.num_bytes
        self._form = form

    def num_bytes(self, count: int) -> int:
        """Of the payload of `count` elements."""
        return -(-count // self.block_length) * self.block_bytes

    def encode(self, values: Array) -> Array:
        """A payload that says `values` as well as it can, ties to the first or the even one.

        Args:
            values: contiguous float32, one dimension.

        Returns:
            `num_bytes(values.size)` of uint8.

        Raises:
            ValueError: a value is NaN or infinity.
        """
        _check_vector(values)
        payload = np.empty(self.num_bytes(values.size), np.uint8)
        with np.errstate(all="ignore"):  # whatever the script has set: too large and too small ones have a meaning here
            for begin, end, rows in self._pieces(values.size, payload):
                piece = values[begin:end]
                if not (is_finite := np.isfinite(piece)).all():
                    first = begin + int(np.argmin(is_finite))
                    raise ValueError(f"element {first} of {values.size} is {values[first]}, and cannot be encoded")
                self._form.encode(self._blocks(piece), rows, piece.size)
        return payload

    def add(self, payload: Array, weight: float, out: Array) -> None:
        """Add `weight` times the values that `payload` says to `out`, which has so many elements.

        What `check` refuses may add anything to any element, and does no other harm.

        Args:
            payload: uint8, of the length that `out` needs.
            weight: is rounded to float32 first.
            out: contiguous float32, one dimension; is changed in place.
        """
        _check_vector(out)
        self._check_length(payload, out.size)
        factor = np.float32(weight)
        with np.errstate(all="ignore"):
            for begin, end, rows in self._pieces(out.size, payload):
                piece = out[begin:end]
                blocks = self._blocks(piece)
                self._form.add(rows, factor, blocks)
                if blocks.size > piece.size:  # a copy, filled up
                    piece[:] = blocks.ravel()[: piece.size]

    def check(self, payload: Array) -> str | None:
        """What is wrong with `payload`, in words, or None: a function of its bytes, so the same at all peers.

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
        """The first element, the one behind the last, and the rows."""
        rows = payload.reshape(-1, self.block_bytes)
        whole = count - count % self.block_length  # what fills whole blocks is used where it is
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
"""By name, from the most bytes to the least."""


def codec_of(name: str) -> Codec:
    """The codec that is called so.

    Raises:
        ValueError: none is.
    """
    if name not in [*CODECS]:  # what can be no key is refused, too
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, is {name!r}")
    return CODECS[name]

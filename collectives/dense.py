"""Codecs that encode every element: completely, in 4 bits, or by its sign.

`int4` and `sign` have blocks of 256 elements, after a float16 scale.
"""

from typing import Final

import numpy as np

from collectives.elements import Array
from collectives.scales import LEAST, find_unusable, folded, put_scales, rounded_up, scales_of

BLOCK: Final = 256
HALF: Final = BLOCK // 2
ZERO_POINT: Final = 8
"""The code of zero in `int4`; codes of -7 to 7 are written; code 0, for -8, is only read."""
MOST: Final = np.float32(7)
LOST: Final = float(LEAST) / 2
"""`int4` encodes a block as zeros if no magnitude is above this."""


class Float32:
    """The elements unchanged."""

    length = 1
    num_bytes = 4

    def encode(self, blocks: Array, rows: Array, num_elements: int) -> None:
        rows[:] = blocks.astype("<f4", copy=False).view(np.uint8)

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        values = rows.view("<f4") * weight
        blocks += values

    def check(self, rows: Array) -> tuple[int, str] | None:
        values = rows.view("<f4")[:, 0]
        if (is_finite := np.isfinite(values)).all():
            return None
        first = int(np.argmin(is_finite))
        return first, f"it is {values[first]}"


class Int4:
    """A block's elements as multiples of its scale, which is a seventh of the largest magnitude.

    Each is at most half a scale off, however small the elements are: a subnormal scale is rounded up, so that no
    element is clipped at seven times the scale, and the largest becomes 0 only if its magnitude is at most `LOST`.
    """

    length = BLOCK
    num_bytes = 2 + HALF

    def encode(self, blocks: Array, rows: Array, num_elements: int) -> None:
        scales = put_scales(rounded_up(np.abs(blocks).max(1, keepdims=True) / MOST), rows)
        scaled = blocks * _reciprocals(scales)
        np.clip(scaled, -MOST, MOST, out=scaled)
        np.rint(scaled, out=scaled)
        pairs = scaled[:, HALF:] * np.float32(16)
        pairs += scaled[:, :HALF]
        pairs += np.float32(17 * ZERO_POINT)
        np.copyto(rows[:, 2:], pairs, casting="unsafe")

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        codes = np.empty(blocks.shape, np.uint8)
        np.bitwise_and(rows[:, 2:], 15, out=codes[:, :HALF])
        np.right_shift(rows[:, 2:], 4, out=codes[:, HALF:])
        values = codes.astype(np.float32)
        values -= np.float32(ZERO_POINT)
        values *= scales_of(rows, 1)
        values *= weight
        blocks += values

    def check(self, rows: Array) -> tuple[int, str] | None:
        return find_unusable(rows, 1)


class Sign:
    """A block's elements as plus or minus its scale, which is the mean of their magnitudes."""

    length = BLOCK
    num_bytes = 2 + BLOCK // 8

    def encode(self, blocks: Array, rows: Array, num_elements: int) -> None:
        numbers = np.full((len(blocks), 1), np.float32(BLOCK))
        numbers[-1] -= blocks.size - num_elements
        put_scales(folded(np.abs(blocks))[:, None] / numbers, rows)
        rows[:, 2:] = np.packbits(blocks < 0, axis=1, bitorder="little")

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        values = np.unpackbits(rows[:, 2:], axis=1, bitorder="little").astype(np.float32)
        values *= np.float32(-2)
        values += np.float32(1)
        values *= scales_of(rows, 1) * weight  # the same bits as multiplying in sequence: the other factor is 1 or -1
        blocks += values

    def check(self, rows: Array) -> tuple[int, str] | None:
        return find_unusable(rows, 1)


def _reciprocals(scales: Array) -> Array:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)

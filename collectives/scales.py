"""The float16 scales of a block: finite and not negative, stored before its codes."""

from typing import Final

import numpy as np

from collectives.elements import Array

LARGEST: Final = np.float32(65504)
"""Larger scales are cut to this."""
LARGEST_BITS: Final = 0x7BFF
LEAST: Final = np.float32(2.0**-24)
"""The smallest positive scale. Subnormal scales, those below `NORMAL`, are multiples of it."""
NORMAL: Final = np.float32(2.0**-14)


def put_scales(scales: Array, rows: Array) -> Array:
    """Round `scales`, write them into the first bytes of `rows`, and return the rounded ones, as float32.

    Args:
        scales: (blocks, scales of a block) of float32, not negative; infinity if too large for float32.
        rows: uint8.
    """
    halves = np.minimum(scales, LARGEST).astype("<f2")
    rows[:, : 2 * scales.shape[1]] = halves.view(np.uint8)
    return halves.astype(np.float32)


def rounded_up(scales: Array) -> Array:
    """Scales with subnormal ones rounded up to the next multiple of `LEAST`, so that only zero becomes zero."""
    return np.maximum(scales, np.ceil(np.minimum(scales, NORMAL) / LEAST) * LEAST)


def bits_of(rows: Array, number: int) -> Array:
    """The first `number` scales of each row, as integers, which sort like the scales."""
    return np.ascontiguousarray(rows[:, : 2 * number]).view("<u2")


def scales_of(rows: Array, number: int) -> Array:
    """The first `number` scales of each row, as float32."""
    return bits_of(rows, number).view("<f2").astype(np.float32)


def find_unusable(rows: Array, number: int) -> tuple[int, str] | None:
    """The first row with a scale that is negative (minus zero, too), infinity or NaN, and what is wrong with it."""
    bits = bits_of(rows, number)
    if not (bits > LARGEST_BITS).any():
        return None
    row, place = (int(each[0]) for each in np.nonzero(bits > LARGEST_BITS))
    return row, f"scale {place} is {bits[row, place : place + 1].view('<f2')[0]}"


def folded(values: Array) -> Array:
    """The sums of rows whose length is a power of two: the second half is added to the first, until one is left.

    This order of additions is fixed on every compiler and processor.
    """
    half = values.shape[1] // 2
    sums = values[:, :half] + values[:, half:]
    while half > 1:
        half //= 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]

"""Codecs that encode the largest of 16, or of 64, consecutive elements, in one byte.

From its low bits on, a byte has the place in the group, the sign, and a level between the two scales of the block of
4096 elements; levels are rounded to float16. No index can be out of range, and no bits cross bytes.
"""

from functools import cache
from typing import Final

import numpy as np

from collectives.elements import Array
from collectives.scales import bits_of, find_unusable, folded, put_scales, scales_of

BLOCK: Final = 4096


class Sparse:
    """The largest of `group` consecutive elements."""

    length = BLOCK

    def __init__(self, group: int) -> None:
        """`group`: 16, with 8 levels, or 64, with 2."""
        self._group = group
        self._place_bits = group.bit_length() - 1
        self._num_levels = 1 << (7 - self._place_bits)
        self.num_bytes = 4 + BLOCK // group

    def encode(self, blocks: Array, rows: Array, num_elements: int) -> None:
        groups = blocks.reshape(-1, self._group)
        places = np.abs(groups).argmax(1)
        values = groups.ravel()[_firsts(len(groups), self._group) + places].reshape(len(blocks), -1)
        sizes = np.abs(values)
        number = (num_elements - 1) % BLOCK // self._group + 1
        low, high = np.hsplit(put_scales(self._scales(sizes, number), rows), 2)
        levels = _nearest(sizes, low, high, self._num_levels - 1)
        sent = levels << 1
        sent |= values < 0
        sent <<= self._place_bits
        sent |= places.reshape(sent.shape).astype(np.uint8)
        rows[:, 4:] = sent

    def add(self, rows: Array, weight: np.float32, blocks: Array) -> None:
        sent = rows[:, 4:]
        kinds = (sent >> self._place_bits).astype(np.intp)
        kinds += _firsts(len(rows), 2 * self._num_levels)[:, None]
        products = (self._values(rows) * weight).ravel()[kinds.ravel()]
        where = (sent & (self._group - 1)).astype(np.intp).ravel()
        where += _firsts(where.size, self._group)
        blocks.reshape(-1)[where] += products

    def check(self, rows: Array) -> tuple[int, str] | None:
        if (found := find_unusable(rows, 2)) is not None:
            return found
        bits = bits_of(rows, 2)
        if not (wrong := bits[:, 0] > bits[:, 1]).any():
            return None
        first = int(np.argmax(wrong))
        low, high = bits[first].view("<f2")
        return first, f"scale 0 is {low}, above scale 1, {high}"

    def _scales(self, sizes: Array, number: int) -> Array:
        """Scales of each block: minimum and maximum; with two levels the means of the smaller and the larger half.

        Args:
            sizes: (blocks, groups of a block), zeros for groups that pad the last block.
            number: of the other groups of the last block. Its halves consist of these; the middle one is in the larger.
        """
        if self._num_levels > 2:
            return np.stack([sizes.min(1), sizes.max(1)], 1)
        ordered = np.sort(sizes, 1).reshape(len(sizes), 2, -1)
        half, large = ordered.shape[2], number - number // 2
        last = ordered[-1].ravel()
        last[:half] = last[half - large : 2 * half - large]
        last[half : 2 * half - large] = 0
        numbers = np.full((len(sizes), 2), np.float32(half))
        numbers[-1] = max(number // 2, 1), large
        means = folded(ordered.reshape(-1, half)).reshape(-1, 2) / numbers
        means[-1, 0] = means[-1].min()  # with equal sizes, the order of addition may make it slightly larger
        return means

    def _values(self, rows: Array) -> Array:
        """The value of each level and sign of a block: + and - in turn, from the lowest level to the highest."""
        low, high = np.hsplit(scales_of(rows, 2), 2)
        levels = (high - low) * np.arange(self._num_levels, dtype=np.float32)
        levels /= np.float32(self._num_levels - 1)
        levels += low
        levels = levels.astype(np.float16).astype(np.float32)
        return np.stack([levels, -levels], 2).reshape(len(rows), -1)


def _nearest(sizes: Array, low: Array, high: Array, top: int) -> Array:
    """The nearest of the levels 0 to `top`."""
    span = high - low
    scaled = sizes - low
    scaled *= np.divide(np.float32(top), span, out=np.zeros_like(span), where=span > 0)
    np.rint(scaled, out=scaled)
    return np.clip(scaled, 0, top, out=scaled).astype(np.uint8)


@cache
def _firsts(number: int, group: int) -> Array:
    """The index of the first element of each group."""
    return np.arange(0, number * group, group, dtype=np.intp)

"""What is summed: whole numbers, whose sum is exact in any order, and once what is not, to compare bits."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

Array = npt.NDArray[Any]


class Values(NamedTuple):
    """Numbers are below `num`, and moved by less than `shifts`: of 64 peers, sums are exact in the type."""

    num: int
    shifts: int
    """Prime, as `num` is, so that ranks, positions and turns never fall into step."""


VALUES: Final = Values(251, 61)
HALF_VALUES: Final = Values(13, 11)


def values_of(dtype: str) -> Values:
    return HALF_VALUES if dtype == "float16" else VALUES


def contribution(index: int, count: int, dtype: str = "float32", start: int = 0) -> Array:
    """What peer `index` has from position `start` on: another number at each peer and at neighbouring positions."""
    return np.resize(np.roll(_pattern(index, dtype), -start), count)


def total(num_peers: int, count: int, dtype: str, start: int = 0) -> Array:
    """What all of them add up to there."""
    patterns = [_pattern(index, dtype) for index in range(num_peers)]
    return np.resize(np.roll(np.sum(patterns, axis=0, dtype=dtype), -start), count)


def _pattern(index: int, dtype: str) -> Array:
    """It begins anew after so many positions as there are values."""
    num = values_of(dtype).num
    return ((np.arange(num) * 7 + index * 31) % num).astype(dtype)


def rounding(index: int, count: int, dtype: str) -> Array:
    """What peer `index` adds where bits are compared: of floats, sums depend on the order of additions."""
    drawn = np.random.default_rng([index, count]).standard_normal(count, np.float32)
    return (drawn * 8).astype(dtype)


def digest(array: Array) -> str:
    return xxhash.xxh3_64(array.tobytes()).hexdigest()

"""What is summed: whole numbers, whose sum is exact in any order, and once what is not, to compare bits."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from collectives import BFLOAT16

Array = npt.NDArray[Any]


class Values(NamedTuple):
    """Numbers are below `num`, and moved by less than `shifts`: of 64 peers, sums are exact in the type."""

    num: int
    shifts: int
    """Prime, as `num` is, so that ranks, positions and turns never fall into step."""


VALUES: Final = Values(251, 61)
HALF_VALUES: Final = Values(13, 11)
BFLOAT16_VALUES: Final = Values(3, 2)
"""It has all whole numbers up to 256."""


def values_of(dtype: str) -> Values:
    return {"float16": HALF_VALUES, "bfloat16": BFLOAT16_VALUES}.get(dtype, VALUES)


def element_type(dtype: str) -> np.dtype[Any]:
    """As numpy has it, or as operations take what numpy has not."""
    return BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def as_type(values: Array, dtype: str) -> Array:
    """Of numbers that numpy has; what bfloat16 has no bits for is cut off."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def numbers(array: Array) -> Array:
    """To compute with: bfloat16 as float32."""
    if array.dtype != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def put_shifted(values: Array, shift: int, into: Array) -> None:
    """Each is `shift` more there."""
    if values.dtype == BFLOAT16:
        into[...] = as_type(numbers(values) + np.float32(shift), "bfloat16")
    else:
        np.add(values, values.dtype.type(shift), out=into)


def as_tensor(array: Array) -> Any:
    """One of torch, over the same memory. Imports torch."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def contribution(index: int, count: int, dtype: str = "float32", start: int = 0) -> Array:
    """What peer `index` has from position `start` on: another number at each peer and at neighbouring positions."""
    return np.resize(np.roll(_pattern(index, dtype), -start), count)


def total(num_peers: int, count: int, dtype: str, start: int = 0) -> Array:
    """What all of them add up to there."""
    patterns = [numbers(_pattern(index, dtype)) for index in range(num_peers)]
    whole = np.sum(patterns, axis=0, dtype=patterns[0].dtype)
    return np.resize(as_type(np.roll(whole, -start), dtype), count)


def _pattern(index: int, dtype: str) -> Array:
    """It begins anew after so many positions as there are values."""
    num = values_of(dtype).num
    return as_type((np.arange(num) * 7 + index * 31) % num, dtype)


def rounding(index: int, count: int, dtype: str) -> Array:
    """What peer `index` adds where bits are compared: of floats, sums depend on the order of additions."""
    drawn = np.random.default_rng([index, count]).standard_normal(count, np.float32)
    return as_type(drawn * 8, dtype)


def digest(array: Array) -> str:
    return xxhash.xxh3_64(array.tobytes()).hexdigest()

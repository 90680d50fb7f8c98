"""Test arrays: integers, whose sum is exact in any order; and, to compare bits, floats whose sum is not."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from collectives import BFLOAT16

Array = npt.NDArray[Any]


class Values(NamedTuple):
    """Range of test numbers: below `num`, shifted by less than `shifts`. Sums over 64 peers are exact in the type."""

    num: int
    shifts: int
    """Prime, like `num`, so that ranks, positions and turns have no common period."""


VALUES: Final = Values(251, 61)
HALF_VALUES: Final = Values(13, 11)
BFLOAT16_VALUES: Final = Values(3, 2)
"""bfloat16 represents all integers up to 256."""


def values_of(dtype: str) -> Values:
    return {"float16": HALF_VALUES, "bfloat16": BFLOAT16_VALUES}.get(dtype, VALUES)


def element_type(dtype: str) -> np.dtype[Any]:
    """The numpy dtype; for bfloat16, which numpy lacks, the dtype that operations accept."""
    return BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def as_type(values: Array, dtype: str) -> Array:
    """Cast an array of a numpy type; for bfloat16 the mantissa is truncated."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def numbers(array: Array) -> Array:
    """The array in a type that numpy computes with: bfloat16 becomes float32."""
    if array.dtype != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def put_shifted(values: Array, shift: int, into: Array) -> None:
    """Write `values` plus `shift` into `into`."""
    if values.dtype == BFLOAT16:
        into[...] = as_type(numbers(values) + np.float32(shift), "bfloat16")
    else:
        np.add(values, values.dtype.type(shift), out=into)


def as_tensor(array: Array) -> Any:
    """A torch tensor over the same memory. Imports torch."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def contribution(index: int, count: int, dtype: str = "float32", start: int = 0) -> Array:
    """The input of peer `index` from position `start` on; it differs between peers and neighbouring positions."""
    return np.resize(np.roll(_pattern(index, dtype), -start), count)


def total(num_peers: int, count: int, dtype: str, start: int = 0) -> Array:
    """The sum of all peers' contributions from position `start` on."""
    patterns = [numbers(_pattern(index, dtype)) for index in range(num_peers)]
    whole = np.sum(patterns, axis=0, dtype=patterns[0].dtype)
    return np.resize(as_type(np.roll(whole, -start), dtype), count)


def _pattern(index: int, dtype: str) -> Array:
    """One period of the contribution: as many positions as there are values."""
    num = values_of(dtype).num
    return as_type((np.arange(num) * 7 + index * 31) % num, dtype)


def rounding(index: int, count: int, dtype: str) -> Array:
    """The input of peer `index` for comparing bits: sums of floats depend on the order of additions."""
    drawn = np.random.default_rng([index, count]).standard_normal(count, np.float32)
    return as_type(drawn * 8, dtype)


def digest(array: Array) -> str:
    return xxhash.xxh3_64(array.tobytes()).hexdigest()

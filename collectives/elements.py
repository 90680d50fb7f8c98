"""The types of elements that can be reduced, as numpy arrays.

numpy has no bfloat16. Its bits travel in arrays of `BFLOAT16`, a type of its own, so that no layer takes them for whole
numbers, and no array needs a second word beside it that says what it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

BFLOAT16: Final[DType] = np.dtype([("bfloat16", np.uint16)])

FLOATS: Final[Mapping[DType, str]] = MappingProxyType(
    {
        np.dtype(np.float64): "float64",
        np.dtype(np.float32): "float32",
        np.dtype(np.float16): "float16",
        BFLOAT16: "bfloat16",
    }
)
TYPES: Final[Mapping[DType, str]] = MappingProxyType(
    {
        **FLOATS,
        **{np.dtype(each): each.__name__ for each in (np.int64, np.int32, np.int16, np.int8, np.uint8)},
        np.dtype(np.bool_): "bool",
    }
)
"""All types, by name."""


def type_name(dtype: DType) -> str:
    """What people call an element type.

    Raises:
        TypeError: it is none of `TYPES`, or of another byte order than this machine's.
    """
    if dtype not in TYPES:
        raise TypeError(f"the type of elements must be one of {', '.join(TYPES.values())}, is {dtype}")
    return TYPES[dtype]


def is_half(dtype: DType) -> bool:
    """Whether sums are made in float32: a half type has too few bits for that."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def carried(array: Array) -> Array:
    """The same memory, as what numpy copies best: the bits, if it is a half type."""
    return array.view(np.uint16) if array.itemsize == 2 and is_half(array.dtype) else array

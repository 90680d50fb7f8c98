"""The element types that can be reduced, as numpy dtypes.

numpy has no bfloat16. Its bits are stored in arrays of `BFLOAT16`, a separate dtype, so that no layer mistakes them for
integers, and no array needs its type passed beside it.
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
    """The name of an element type.

    Raises:
        TypeError: it is not one of `TYPES`, or has not this machine's byte order.
    """
    if dtype not in TYPES:
        raise TypeError(f"the type of elements must be one of {', '.join(TYPES.values())}, is {dtype}")
    return TYPES[dtype]


def is_half(dtype: DType) -> bool:
    """Whether `dtype` is a 16-bit float, whose sums are computed in float32."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def as_bits(array: Array) -> Array:
    """A view of the same memory that numpy copies fastest: of the bits, for a half type."""
    return array.view(np.uint16) if array.itemsize == 2 and is_half(array.dtype) else array

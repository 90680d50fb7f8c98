"""The tensors of a checkpoint: in a safetensors file, and as the raw bytes of a state.

In the file elements are in index order, so that other programs can read it; in a state they are in memory order.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from .tree import Row

Bytes = npt.NDArray[np.uint8]

INTEGERS: Final = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
KNOWN: Final = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64")
"""Types of the format; a tensor of another type is written as bytes."""

WRITE_ERRORS: Final = (OSError, SafetensorError, MemoryError)
READ_ERRORS: Final = (SafetensorError, OSError, KeyError, ValueError, TypeError)


def write(path: Path, names: Sequence[str], rows: Sequence[Row], parts: Sequence[Bytes]) -> None:
    """Write tensors, with elements in index order. Releases the GIL meanwhile.

    Raises:
        OSError, SafetensorError: the file cannot be written.
    """
    specs = {}
    for name, (shape, dtype, _), part in zip(names, rows, parts, strict=True):
        is_known = dtype in KNOWN
        specs[name] = TensorSpec(
            dtype=dtype if is_known else "uint8",
            shape=shape if is_known else [part.size],
            data_ptr=part.ctypes.data,
            data_len=part.size,
        )
    serialize_file(specs, path, {"format": "pt"})


def read(path: Path, names: Sequence[str]) -> Iterator[Bytes]:
    """The bytes of each tensor, in the order of `names`; mapped, not copied. Imports torch.

    Raises:
        one of READ_ERRORS: the file is damaged, lacks a tensor, or has another one.
    """
    import torch

    with safe_open(path, framework="pt") as file:
        if unknown := set(file.keys()) - set(names):
            raise ValueError(f"tensor {min(unknown)} is not in the manifest")
        for name in names:
            flat = file.get_tensor(name).reshape(-1)
            yield flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def in_index_order(part: Bytes, row: Row) -> Bytes:
    """Convert bytes from memory order to index order; a copy if these differ."""
    shape, _, strides = row
    if strides is None or not part.size:
        return part
    elements, steps = _elements(part, shape, strides)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, shape, steps)).reshape(-1).view(np.uint8)


def in_memory_order(part: Bytes, row: Row) -> Bytes:
    """The inverse of `in_index_order`."""
    shape, _, strides = row
    if strides is None or not part.size:
        return part
    result = np.empty_like(part)
    elements, steps = _elements(result, shape, strides)
    np.lib.stride_tricks.as_strided(elements, shape, steps)[...] = part.view(elements.dtype).reshape(shape)
    return result


def _elements(part: Bytes, shape: Sequence[int], strides: Sequence[int]) -> tuple[npt.NDArray[Any], list[int]]:
    size = part.size // math.prod(shape)
    kind = f"u{size}" if size in (1, 2, 4, 8) else f"V{size}"
    return part.view(kind), [stride * size for stride in strides]

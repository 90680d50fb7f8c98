"""How the elements of a tensor lie in memory: gradients and states keep the order of dimensions.

Kernels that walk memory (fused optimizers) need parameters, gradients and moments that lie alike (channels_last,
transposed weights).
"""

from collections.abc import Sequence
from typing import Final

import torch

DEVICES: Final = ("cpu", "cuda")
"""Where a model may be; as a whole, on one of them."""


def dense_strides(tensor: torch.Tensor) -> list[int] | None:
    """The strides of a tensor whose elements fill memory without a gap, in another order than that of its indices.

    None: its elements lie in the order of its indices, or with gaps; then those of a gradient lie in that order, too.
    """
    strides = list(tensor.stride())
    if not tensor.numel() or strides == _in_order(tensor.shape) or not is_dense(tensor.shape, strides):
        return None
    return strides


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill memory without a gap, each in a place of its own."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_overlapping(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as those of an expanded tensor do."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * max(size - 1, 0)
    return False


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension, as they lie in memory; a view where they lie without a gap."""
    if dense_strides(tensor) is None:
        return tensor.contiguous().reshape(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def laid_out(flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
    """A view of contiguous `flat`, of so many elements, with what `dense_strides` returned."""
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _in_order(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]

"""Memory order of a tensor's elements, which gradients and states keep.

Kernels that iterate over memory (fused optimizers) need parameters, gradients and moments in the same order
(channels_last, transposed weights).
"""

from collections.abc import Sequence
from typing import Final

import torch

DEVICES: Final = ("cpu", "cuda")
"""Types of devices that a model may be on, as a whole."""


def dense_strides(tensor: torch.Tensor) -> list[int] | None:
    """The strides of a dense tensor whose memory order differs from the order of its indices.

    None: its elements lie in index order, or with gaps; a gradient then lies in index order.
    """
    strides = list(tensor.stride())
    if not tensor.numel() or strides == _in_order(tensor.shape) or not is_dense(tensor.shape, strides):
        return None
    return strides


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill memory without gaps or overlaps."""
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
    """All elements in one dimension, in memory order; a view if there are no gaps."""
    if dense_strides(tensor) is None:
        return tensor.contiguous().reshape(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def laid_out(flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
    """A view of contiguous `flat` with this shape and the strides from `dense_strides`."""
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _in_order(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]

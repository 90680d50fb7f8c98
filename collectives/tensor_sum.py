"""The reduction of chunks with torch, on any device: the bits of `reducer`, with a single NaN pattern.

Each operation must round separately, so fused kernels are avoided, and the divisor of a mean is a tensor: CUDA
multiplies by the reciprocal of a Python number. The bits of a NaN depend on the processor, so all NaNs become the one
of `Reduction.has_one_nan`.

Left out: integers, `min` and `max`.
"""

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from collectives.elements import FLOATS, DType, type_name
from collectives.reduction import Reduction

_NANS: Final = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


def can_add(reduction: Reduction, dtype: DType) -> bool:
    """Whether `add_tensors` supports this reduction of arrays of this type."""
    return reduction.op in ("sum", "mean") and dtype in FLOATS


def torch_type(dtype: DType) -> torch.dtype:
    """The equivalent of a type of `FLOATS` in torch."""
    found = getattr(torch, type_name(dtype))
    assert isinstance(found, torch.dtype)
    return found


def add_tensors(parts: Iterator[Tensor], reduction: Reduction, *, completes: bool) -> Tensor:
    """Reduce `parts` in their order, like `Reducer`; a single part is returned unchanged.

    Args:
        parts: one or more, of one type, length and device. The first may be written; at most two are used at a time.
        reduction: allowed by `can_add`.
        completes: whether this is the result of all ranks.
    """
    total = first = next(parts)
    is_alone, is_half = True, first.dtype in _NANS
    for part in parts:
        if is_alone and is_half:
            total = first.float()
        is_alone = False
        total.add_(part.float() if is_half else part)
    if is_alone:
        return first
    if completes and reduction.op == "mean":
        _divide(total, reduction.num_inputs)
    is_nan = total.isnan()
    if not is_half:
        return total.masked_fill_(is_nan, math.nan)
    rounded = total.to(first.dtype)
    rounded.view(torch.int16).masked_fill_(is_nan, _NANS[first.dtype])
    return rounded


def _divide(total: Tensor, num_inputs: int) -> None:
    """Divide a mean, like `Reduction.complete`."""
    if num_inputs & (num_inputs - 1):
        total.div_(torch.full((), num_inputs, dtype=total.dtype, device=total.device))
    else:
        total.mul_(1 / num_inputs)

"""Arithmetic of half types: widened to float32, reduced there, rounded once.

torch widens and rounds: five to ten times faster than numpy, which has no bfloat16. It is imported on first use, since
that takes seconds. Blocks are small enough to stay in a core's cache, and for torch to start no threads: this runs
concurrently with a backward pass.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from collectives.elements import BFLOAT16, Array, DType, as_bits, is_half
from collectives.reduction import Reduction

BLOCK: Final = 32768
"""Elements of a block. torch uses several threads for more."""


class Reducer(Protocol):
    """Reduces `arrays`, in their order, into `out`, which may be the first of them."""

    def __call__(self, arrays: Sequence[Array], out: Array, /, *, completes: bool = True) -> None: ...


class Widening:
    """Reduces arrays of one half type, given as their bits: `as_bits` makes uint16 of them."""

    def __init__(self, dtype: DType, max_length: int) -> None:
        """Allocate scratch memory, for arrays of at most `max_length` elements."""
        import torch

        is_bfloat = dtype == BFLOAT16
        self._nan = np.uint16(0x7FC0 if is_bfloat else 0x7E00)
        length = min(max_length, BLOCK)
        self._sum, self._next = np.empty((2, length), np.float32)
        self._half = np.empty(length, np.uint16)
        with torch.inference_mode(mode=False):  # or nobody outside of the one of the script could write them
            self._wide_tensors = torch.from_numpy(self._sum), torch.from_numpy(self._next)
            halves = torch.from_numpy(self._half.view(np.int16))
            self._half_tensor = halves.view(torch.bfloat16 if is_bfloat else torch.float16)

    def reduce(self, reduction: Reduction, arrays: Sequence[Array], out: Array, *, completes: bool) -> None:
        """Reduce `arrays` in their order into `out`, which may be one of them.

        Args:
            reduction: of float32.
            arrays: one or more, of the length of `out`, aligned or not.
            out: written.
            completes: whether the result is that of all ranks.
        """
        combine = reduction.combine(self._sum.dtype)
        for block in _blocks(out.size):
            size = block.stop - block.start
            total, following = self._sum[:size], self._next[:size]
            self._widen(arrays[0][block], 0)
            for array in arrays[1:]:
                self._widen(array[block], 1)
                combine(total, following, out=total)
            if completes:
                reduction.complete(total)
            self._round(out[block])

    def scale(self, array: Array, factor: float, out: Array) -> None:
        """Multiply by `factor`, rounded to float32; products are rounded to float32, then to the half type."""
        for block in _blocks(out.size):
            self._widen(array[block], 0)
            total = self._sum[: block.stop - block.start]
            np.multiply(total, np.float32(factor), out=total)
            self._round(out[block])

    def _widen(self, bits: Array, into: int) -> None:
        self._half[: bits.size] = bits
        self._wide_tensors[into][: bits.size].copy_(self._half_tensor[: bits.size])

    def _round(self, bits: Array) -> None:
        """Round the sum to nearest, ties to even; all NaNs to the same one."""
        self._half_tensor[: bits.size].copy_(self._wide_tensors[0][: bits.size])
        bits[:] = self._half[: bits.size]
        nans = np.isnan(self._sum[: bits.size])
        if nans.any():
            bits[nans] = self._nan


def reducer(reduction: Reduction, dtype: DType) -> Reducer:
    """A function that reduces arrays into `out`, completely or as a partial result.

    The bits are those of `MessageRun`; a single array is copied. Half types are given as views by `as_bits`. For one
    thread at a time.

    Args:
        reduction: allowed by `check_reduction`.
        dtype: of the arrays.
    """
    widening = Widening(dtype, BLOCK) if is_half(dtype) else None
    combine = reduction.combine(np.dtype(np.float32) if widening else dtype)

    @np.errstate(all="ignore")  # whatever the script has set: infinities are for it to find, as in torch
    def reduce(arrays: Sequence[Array], out: Array, /, *, completes: bool = True) -> None:
        if len(arrays) == 1:
            out[:] = arrays[0]
            return
        if widening is not None:
            widening.reduce(reduction, arrays, out, completes=completes)
            return
        total = arrays[0]
        for array in arrays[1:]:
            combine(total, array, out=out)
            total = out
        if completes:
            reduction.complete(out)

    return reduce


@np.errstate(all="ignore")
def scale(array: Array, factor: float, out: Array) -> None:
    """Write `array` times `factor` into `out`; both have one floating-point type, to which factor and products round.

    For a half type, the factor is rounded to float32.
    """
    if is_half(array.dtype):
        Widening(array.dtype, array.size).scale(as_bits(array), factor, as_bits(out))
    else:
        np.multiply(array, array.dtype.type(factor), out=out)


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))

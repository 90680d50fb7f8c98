"""Elementwise reductions over ranks: sum, mean, minimum and maximum.

`min` and `max` are `minimum` and `maximum` of IEEE 754-2019: any NaN makes the element NaN, as in numpy, and -0 is less
than +0, which numpy leaves open. With a single NaN pattern that is associative, so every algorithm leaves the same
bits. The sum of two NaNs has the bits of one of them: which one depends on the processor and on the place in the
segment, so ranks with equal processors agree, but algorithms may differ, unless `has_one_nan`. Half types have only one
NaN.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from collectives.elements import FLOATS, Array, DType, type_name

OPS: Final = ("sum", "mean", "min", "max")


class Combine(Protocol):
    """Reduces two arrays into a third, which may be one of them."""

    def __call__(self, left: Array, right: Array, /, *, out: Array) -> Any: ...


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the inputs of all ranks become one result."""

    op: str = "sum"
    """One of `OPS`. Integer sums wrap around; for bool, sum and `max` are `or`, and `min` is `and`."""

    num_inputs: int = 1
    """The divisor of a mean."""

    has_one_nan: bool = False
    """All NaNs of a sum or mean become the same one; otherwise different processors may leave different ones."""

    def combine(self, dtype: DType) -> Combine:
        """The function that reduces two arrays of `dtype`, which is no half type."""
        if self.op in ("sum", "mean"):
            return np.add
        if dtype in FLOATS:
            return _least if self.op == "min" else _greatest
        return np.minimum if self.op == "min" else np.maximum

    def complete(self, values: Array) -> None:
        """Finish the reduced elements in place: divide a mean, unify NaNs. Not for half types."""
        if self.op == "mean":
            divisor = values.dtype.type(self.num_inputs)
            if self.num_inputs & (self.num_inputs - 1):
                np.divide(values, divisor, out=values)
            else:  # a power of two: the same bits in half the time
                np.multiply(values, 1 / divisor, out=values)
        if (self.has_one_nan or self.op in ("min", "max")) and values.dtype.kind == "f":
            values[np.isnan(values)] = np.nan


SUM: Final = Reduction()


def check_reduction(op: str, dtype: DType) -> None:
    """Check that the reduction exists.

    Raises:
        ValueError: the operation is unknown.
        TypeError: the type cannot be reduced, or not by this operation.
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, is {op!r}")
    name = type_name(dtype)
    if op == "mean" and dtype not in FLOATS:
        raise TypeError(f"the mean of {name} is no {name}: take the sum, or convert to a floating-point type first")


def _least(left: Array, right: Array, /, *, out: Array) -> None:
    _choose(np.minimum, np.bitwise_or, left, right, out)


def _greatest(left: Array, right: Array, /, *, out: Array) -> None:
    _choose(np.maximum, np.bitwise_and, left, right, out)


def _choose(ufunc: np.ufunc, of_signs: np.ufunc, left: Array, right: Array, out: Array) -> None:
    """Apply `ufunc`, with `of_signs` deciding the sign of two zeros."""
    zeros = np.flatnonzero((left == 0) & (right == 0))
    bits = f"i{out.itemsize}"
    signed = of_signs(left[zeros].view(bits), right[zeros].view(bits)) if zeros.size else None
    ufunc(left, right, out=out)
    if signed is not None:
        out[zeros] = signed.view(out.dtype)

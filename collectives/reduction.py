"""What becomes of the elements that the ranks have in one place: their sum, mean, least or greatest.

`min` and `max` are `minimum` and `maximum` of IEEE 754-2019: any NaN makes the element NaN, as in numpy, and -0 is less
than +0, which numpy leaves open. With all NaNs made the same one, that is associative, so every algorithm leaves the
same bits. The sum of two NaNs is a NaN whose bits are one of theirs: which one depends on the processor and on the
place in the segment, so it is the same for ranks whose processors are, and may differ between algorithms, unless
`has_one_nan`. Half types have one NaN only.
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
    """Of `OPS`. A sum wraps around in whole numbers; in bool it is `or`, and so is `max`; `min` is `and`."""

    num_inputs: int = 1
    """What a mean is divided by."""

    has_one_nan: bool = False
    """Each NaN of a sum or a mean becomes the same one: where processors differ, which of several it has may, too."""

    def combine(self, dtype: DType) -> Combine:
        """What reduces two arrays of `dtype`, no half type."""
        if self.op in ("sum", "mean"):
            return np.add
        if dtype in FLOATS:
            return _least if self.op == "min" else _greatest
        return np.minimum if self.op == "min" else np.maximum

    def complete(self, values: Array) -> None:
        """What is done to the reduced elements, of no half type, in place."""
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
    """Whether there is such a reduction.

    Raises:
        ValueError: the operation is unknown.
        TypeError: the type cannot be reduced, or not like this.
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
    """`ufunc`, and of two zeros that of the right sign."""
    zeros = np.flatnonzero((left == 0) & (right == 0))
    bits = f"i{out.itemsize}"
    signed = of_signs(left[zeros].view(bits), right[zeros].view(bits)) if zeros.size else None
    ufunc(left, right, out=out)
    if signed is not None:
        out[zeros] = signed.view(out.dtype)

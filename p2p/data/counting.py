"""Operation 0 of a training step: which samples each member adds, and how many."""

import operator
from typing import Any, Final

import numpy as np

from ..step.collective import AllGather
from ..step.operation import Operation
from ..step.receipts import Counts

ONLY_COUNTS: Final = AllGather(is_counts=True)

MOST_SAMPLES: Final = 1 << 48
"""Per peer and step: sums of these are exact in float64, too."""


def whole_number(samples: Any) -> int:
    """Check a number of samples given by a script.

    Raises:
        TypeError, ValueError: not a valid number.
    """
    try:
        number = int(samples) if isinstance(samples, float) and samples.is_integer() else operator.index(samples)
    except TypeError:
        raise TypeError(f"the number of samples must be a whole number, is {samples!r}") from None
    if not 0 <= number <= MOST_SAMPLES:
        raise ValueError(f"the number of samples must be at least 0 and at most {MOST_SAMPLES}, is {number}")
    return number


def counts_operation(counts: Counts, collective: AllGather = ONLY_COUNTS) -> Operation:
    """Operation 0 for this peer's `counts`."""
    row = np.array(counts, np.int64)
    return Operation(collective, row, row, row.shape, "one-shot")

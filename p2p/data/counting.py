"""Operation 0 of a step of training: who adds which samples, and how many."""

from typing import Final

import numpy as np

from ..step.collective import AllGather
from ..step.operation import Operation
from ..step.receipts import Counts

ONLY_COUNTS: Final = AllGather(is_counts=True)


def count_samples(counts: Counts, collective: AllGather = ONLY_COUNTS) -> Operation:
    """For this peer's `counts`."""
    row = np.array(counts, np.int64)
    return Operation(collective, row, row, row.shape, "one-shot")

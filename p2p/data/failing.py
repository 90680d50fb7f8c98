"""Which sample of a batch cannot be loaded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .sampler import MIN_LOCAL_BATCH


@dataclass(frozen=True, slots=True)
class Failing:
    """What came of loading the samples of a batch one by one.

    Attributes:
        index: of the first that failed, into the dataset; None: each of them can be loaded.
        error: that it raised.
        good: a few that can be loaded.
    """

    index: int | None
    error: Exception | None
    good: list[int]


def find_failing(dataset: Any, indices: Iterable[int], others: Iterable[int]) -> Failing:
    """Load samples in this process until one of `indices` has failed and enough for a batch have not.

    Args:
        dataset: that a worker could not load a batch of.
        indices: of the batch.
        others: where to look for good ones, if there are too few among them.
    """
    failing, error, good = None, None, list[int]()
    mine = dict.fromkeys(indices)
    for index in dict.fromkeys([*mine, *others]):
        if (failing is not None and len(good) >= MIN_LOCAL_BATCH) or (failing is None and index not in mine):
            break
        try:
            dataset[index]
        except Exception as cause:
            if failing is None and index in mine:
                failing, error = index, cause
        else:
            good.append(index)
    return Failing(failing, error, good[:MIN_LOCAL_BATCH])

"""Search for the sample of a batch that cannot be loaded."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ShoalError
from .sampler import MIN_LOCAL_BATCH


@dataclass(frozen=True, slots=True)
class Failing:
    """Result of loading the samples of a batch one by one.

    Attributes:
        index: of the first that failed, into the dataset; None: all can be loaded.
        why: its error as text. (The exception itself would keep the workers alive.)
        good: a few that can be loaded.
    """

    index: int | None
    why: str
    good: list[int]


def find_failing(load: Callable[[list[int]], Any], indices: Iterable[int], others: Iterable[int]) -> Failing:
    """Load samples one by one until one of `indices` has failed and enough for a batch have not.

    Args:
        load: loads the first of these, with the next ones as a forecast; may raise any exception.
        indices: of the batch.
        others: further candidates for good ones.
    """
    failing, why, good = None, "", list[int]()
    mine = dict.fromkeys(indices)
    candidates = list(dict.fromkeys([*mine, *others]))
    for number, index in enumerate(candidates):
        if (failing is not None and len(good) >= MIN_LOCAL_BATCH) or (failing is None and index not in mine):
            break
        try:
            load(candidates[number:])
        except ShoalError:  # not caused by a sample
            raise
        except Exception as cause:
            if failing is None and index in mine:
                failing = index
                why = f"{type(cause).__name__}: {cause}".strip().splitlines()[-1]  # follows a worker's traceback
        else:
            good.append(index)
    return Failing(failing, why, good[:MIN_LOCAL_BATCH])

"""How long sums have taken here, by algorithm and size: what prices are compared with. Belongs to the loop.

Only of those that had the links to themselves: no other one ran when they began, nor until their result was there. What
is counted is the wait for the slowest, too; so of all members the one that waits least knows best.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final

from collectives.algorithms import SHARES
from collectives.price_table import CANDIDATES, SIZES_BYTES, nearest_size

from ..step.open_step import OpenStep
from ..step.operation import Operation
from ..step.run import Run
from ..step.runner import MessageRunner

NUM_KEPT: Final = 15
"""Of which the median counts."""

FEWEST: Final = 5
"""Of fewer none does."""

KEPT_S: Final = 60.0


class Durations:
    """Of one peer."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], deque[tuple[float, float]]] = {}
        self._began: tuple[Operation, float] | None = None
        self._run: Run | None = None
        self._num_started = self._num_complete = 0

    def watch(self, now: float, open_step: OpenStep) -> None:
        """Operations may have begun or ended since this was called last, by messages."""
        run, submission = open_step.run, open_step.submission
        if run is not self._run or run is None or run.num_complete < self._num_complete:
            self._run, self._began, self._num_started, self._num_complete = run, None, 0, 0
        if run is None or submission is None or not isinstance(run.runner, MessageRunner):
            return
        operations = submission.operations
        for index in range(self._num_complete, run.num_complete):
            if self._began is not None and operations[index] is self._began[0]:
                self._add(operations[index], now, now - self._began[1])
                self._began = None
        for index in range(self._num_started, run.num_started):
            if _counts(operations[index]):
                is_alone = not any(map(_counts, operations[run.num_complete : index]))
                self._began = (operations[index], now) if is_alone else None
        self._num_started, self._num_complete = run.num_started, run.num_complete

    def _add(self, operation: Operation, now: float, took_s: float) -> None:
        key = operation.ran.partition(SHARES)[0], nearest_size(operation.input.nbytes)
        self._samples.setdefault(key, deque(maxlen=NUM_KEPT)).append((now, took_s))

    def forget(self) -> None:
        """The members are others now."""
        self._samples.clear()
        self._began = None

    def medians(self, now: float) -> Mapping[tuple[str, int], float]:
        """In seconds, of what is chosen from. What was measured long ago has no say: it may be otherwise by now."""
        found = {}
        for key, samples in self._samples.copy().items():  # which has no tuples to make: nobody comes between
            recent = [took_s for at, took_s in list(samples) if now - at <= KEPT_S]
            if len(recent) >= FEWEST and key[0] in CANDIDATES:
                found[key] = median(recent)
        return found


def _counts(operation: Operation) -> bool:
    """Whether it is a sum that takes something of the links; those of a few numbers do not."""
    return operation.collective.is_priced and operation.input.nbytes >= SIZES_BYTES[0]

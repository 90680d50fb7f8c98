"""How long sums have taken here, by algorithm and size: what prices are compared with. Belongs to the loop.

Only of those that had the links to themselves: no other one ran when they began, nor until their result was there. What
is counted is the wait for the slowest, too; so of all members the one that waits least knows best.
An algorithm that is not taken any more is remembered by what it took over what the prices of that time said.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final, NamedTuple

from collectives.algorithms import SHARES
from collectives.price_table import CANDIDATES, SIZES_BYTES, PriceTable, nearest_size

from ..step.agreed_rows import Table
from ..step.open_step import OpenStep
from ..step.operation import Operation
from ..step.run import Run
from ..step.runner import MessageRunner

NUM_KEPT: Final = 15
"""Of which the median counts."""

FEWEST: Final = 5
"""Of fewer none does."""

KEPT_S: Final = 60.0
"""So long what was measured counts as it is; links may be others by then."""

REMEMBERED_S: Final = 600.0
"""So long it counts over what was expected, so that what was tried, and is slow, is not tried again and again."""


Key = tuple[str, int]
"""Algorithm and size."""


class Sample(NamedTuple):
    """One sum. `expected_s`: by the prices that were used then; 0: none were."""

    at: float
    took_s: float
    expected_s: float


class Durations:
    """Of one peer."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[Sample]] = {}
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
                operation, began = self._began
                key = operation.ran.partition(SHARES)[0], nearest_size(operation.input.nbytes)
                self.add(key, now, now - began, expected_s(open_step.agreed.table(run.view), key))
                self._began = None
        for index in range(self._num_started, run.num_started):
            if _counts(operations[index]):
                is_alone = not any(map(_counts, operations[run.num_complete : index]))
                self._began = (operations[index], now) if is_alone else None
        self._num_started, self._num_complete = run.num_started, run.num_complete

    def add(self, key: Key, now: float, took_s: float, expected_s: float = 0.0) -> None:
        """A sum had the links to itself, and is over."""
        self._samples.setdefault(key, deque(maxlen=NUM_KEPT)).append(Sample(now, took_s, expected_s))

    def forget(self) -> None:
        """The members are others now."""
        self._samples.clear()
        self._began = None

    def medians(self, now: float, table: Table | None = None) -> Mapping[Key, float]:
        """In seconds, of what is chosen from; what was measured a while ago, as a factor of the price in `table`."""
        found = {}
        for key, kept in self._samples.copy().items():  # which has no tuples to make: nobody comes between
            if key[0] not in CANDIDATES:
                continue
            samples = list(kept)
            recent = [each.took_s for each in samples if now - each.at <= KEPT_S]
            factors = [
                each.took_s / each.expected_s for each in samples if each.expected_s and now - each.at <= REMEMBERED_S
            ]
            if len(recent) >= FEWEST:
                found[key] = median(recent)
            elif len(factors) >= FEWEST and (price_s := expected_s(table, key)):
                found[key] = median(factors) * price_s
        return found


def expected_s(table: Table | None, key: Key) -> float:
    """What the model says, in the prices that are used; 0: there are none."""
    return table.predicted.get(key, 0) / 1e9 if isinstance(table, PriceTable) else 0.0


def _counts(operation: Operation) -> bool:
    """Whether it is a sum that takes something of the links; those of a few numbers do not."""
    return operation.collective.is_priced and operation.input.nbytes >= SIZES_BYTES[0]

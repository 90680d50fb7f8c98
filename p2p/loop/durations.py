"""Measured durations of sums, by algorithm and size, for comparison with prices. Belongs to the loop.

Only sums that had the links to themselves count: no other sum was running when they began, or until their result was
complete. The wait for the slowest member counts, too; so of all members the one that waits least has the best value. An
algorithm that is no longer used is remembered by the ratio of its duration to the price at that time.
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
"""Samples kept; their median counts."""

FEWEST: Final = 5
"""Samples needed for a median."""

KEPT_S: Final = 60.0
"""How long a measured duration counts as it is; after that, links may have changed."""

REMEMBERED_S: Final = 600.0
"""How long its ratio to the expected duration counts, so that an algorithm that proved slow is not tried repeatedly."""


Key = tuple[str, int]
"""Algorithm and size."""


class Sample(NamedTuple):
    """One sum. `expected_s`: by the prices in use then; 0: there were none."""

    at: float
    took_s: float
    expected_s: float


class Durations:
    """Measured durations of one peer."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[Sample]] = {}
        self._began: tuple[Operation, float] | None = None
        self._run: Run | None = None
        self._num_started = self._num_complete = 0

    def watch(self, now: float, open_step: OpenStep) -> None:
        """Update after operations over messages may have begun or ended."""
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
        """Record a finished sum that had the links to itself."""
        self._samples.setdefault(key, deque(maxlen=NUM_KEPT)).append(Sample(now, took_s, expected_s))

    def forget(self) -> None:
        """Drop all samples: the members have changed."""
        self._samples.clear()
        self._began = None

    def medians(self, now: float, table: Table | None = None) -> Mapping[Key, float]:
        """Medians in seconds, of candidate algorithms; older measurements count as a factor of the price in `table`."""
        found = {}
        for key, kept in self._samples.copy().items():  # creates no tuples, so no other thread can interrupt it
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
    """The duration that the model predicts with the prices in use; 0: no prices."""
    return table.predicted.get(key, 0) / 1e9 if isinstance(table, PriceTable) else 0.0


def _counts(operation: Operation) -> bool:
    """Whether this is a sum large enough to load the links."""
    return operation.collective.is_priced and operation.input.nbytes >= SIZES_BYTES[0]

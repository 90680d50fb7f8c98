"""Pacing: which size is measured next, for how many rounds, and when to stop. Pure; runs on the first peer only.

Sizes take turns, some rounds each, so that the rounds of a size are spread over the run, and vary as much as it does.
All samples are kept. Stopping as soon as an interval is narrow makes it look a little narrower than it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..plan import Plan
from ..results.bootstrap import Floats, resample
from ..results.crossings import Pair, compare_pair
from ..results.sentence import SURE

FEW_ROUNDS: Final = 5
"""Rounds of a batch; each size gets one batch, whatever the time limit."""
MOST_ROUNDS: Final = 1000
NUM_RESAMPLES: Final = 500


@dataclass(frozen=True, slots=True)
class Batch:
    """The next rounds of all peers, at the size with index `size_index`."""

    size_index: int
    num_warmup: int
    num_rounds: int


@dataclass
class Pacer:
    """Chooses batches; begins with one of each size."""

    plan: Plan
    _times_s: dict[int, Floats] = field(default_factory=dict)

    def take(self, place: int, times_s: Floats) -> None:
        """Add the times of a finished batch: the slowest peer's, by contender and round."""
        before = self._times_s.get(place, np.empty((len(times_s), 0)))
        self._times_s[place] = np.concatenate([before, times_s], axis=1)

    def next(self, elapsed_s: float) -> Batch | None:
        """The next batch; None: the run is over."""
        plan = self.plan
        if len(self._times_s) < len(plan.sizes_bytes):
            return Batch(len(self._times_s), plan.num_warmup, min(plan.num_iters or FEW_ROUNDS, FEW_ROUNDS))
        left_s = math.inf if plan.duration_s is None else plan.duration_s - elapsed_s
        rounds = {place: self._num_rounds(place, left_s) for place in self._wanted()}
        possible = [place for place, number in rounds.items() if number]
        if not possible:
            return None
        place = min(possible, key=self._spent)
        return Batch(place, 0, rounds[place])

    def _num_rounds(self, place: int, left_s: float) -> int:
        """Rounds of that size in its next batch; 0: none."""
        times_s = self._times_s[place]
        round_s, done = float(times_s.sum(axis=0).mean()), int(times_s.shape[1])
        enough = (self.plan.num_iters or MOST_ROUNDS) - done
        return max(0, int(min(FEW_ROUNDS, enough, left_s / round_s)))

    def _spent(self, place: int) -> float:
        """What a size has used so far: seconds if sizes share a duration and no other run takes turns, else rounds."""
        times_s = self._times_s[place]
        plan = self.plan
        by_rounds = plan.until is not None or plan.duration_s is None or plan.turns is not None
        return times_s.shape[1] if by_rounds else float(times_s.sum())

    def _wanted(self) -> list[int]:
        """Places of the sizes that need more rounds."""
        places = list(range(len(self.plan.sizes_bytes)))
        if self.plan.until is None:
            return places
        pair = self._pair()
        if pair.share < SURE:
            return places
        wide = [crossing.at_bytes for crossing in pair.crossings]
        wide = [at for at in wide if at.high - at.low > self.plan.until * at.value]
        return [
            place
            for place in places
            for at in wide
            if self._size(place + 1) >= at.low and self._size(place - 1) <= at.high
        ]

    def _size(self, place: int) -> int:
        sizes = self.plan.sizes_bytes
        return sizes[min(max(place, 0), len(sizes) - 1)]

    def _pair(self) -> Pair:
        names = self.plan.algorithms[:2]
        times_s: Mapping[str, list[Floats]] = {
            name: [self._times_s[place][index] for place in range(len(self.plan.sizes_bytes))]
            for index, name in enumerate(names)
        }
        return compare_pair(resample(self.plan.sizes_bytes, times_s, num=NUM_RESAMPLES), *names)

"""The elastic sampler: which samples a peer adds to a step, folded over receipts.

Samples form one stream: position p is sample p mod N of a permutation of its own for each epoch p div N. Each step's
global batch is planned from what the receipts before it say, so every member plans the same; what was planned and is
on no receipt is planned again. So each position is counted exactly once.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..step.receipts import Receipt

Plan = dict[str, tuple[int, int]]
"""Per peer_id: first position and number of positions."""

UNCOUNTED = 2
"""Samples given to a peer that counts for nothing: enough for any layer that needs a batch."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What is used up after a step.

    Attributes:
        position: the first position that was never planned.
        returned: (first, number) of positions that were planned and not counted, in order.
        contributors: members on the step's receipt, in rank order; the next batch is split over them.
    """

    position: int = 0
    returned: tuple[tuple[int, int], ...] = ()
    contributors: tuple[str, ...] = ()


class ElasticSampler:
    """Plans steps: a pure function of the state after the step before. The same arguments on every peer."""

    def __init__(self, *, num_samples: int, global_batch: int, epochs: int, seed: int) -> None:
        if num_samples < 1 or global_batch < 1 or epochs < 1:
            raise ValueError(
                "num_samples, global_batch and epochs must be at least 1, "
                f"are {num_samples}, {global_batch} and {epochs}"
            )
        self._num_samples = num_samples
        self._global_batch = global_batch
        self._end = num_samples * epochs
        self._seed = seed
        self._permutations: dict[int, npt.NDArray[np.int64]] = {}

    def is_exhausted(self, state: SamplerState) -> bool:
        """Whether every position was counted."""
        return state.position >= self._end and not state.returned

    def plan(self, state: SamplerState) -> Plan:
        """Split the next global batch over the members of the last receipt, in their order.

        A member is given one contiguous range: one that came back, or else fresh positions.
        """
        count = len(state.contributors)
        share = -(-self._global_batch // max(count, 1))
        num_again = min(count, self._global_batch // share)  # more of them could exceed the batch
        again = [(first, min(number, share)) for first, number in state.returned[:num_again]]
        num_fresh = count - len(again)
        left = min(self._global_batch - sum(number for _, number in again), self._end - state.position)
        bounds = [state.position + left * i // max(num_fresh, 1) for i in range(num_fresh + 1)]
        fresh = [(start, stop - start) for start, stop in pairwise(bounds)]
        slices = zip(state.contributors, again + fresh, strict=True)
        return {peer_id: part for peer_id, part in slices if part[1] > 0}

    def indices(self, plan: Plan, peer_id: str) -> npt.NDArray[np.int64]:
        """Indices into the dataset: of the peer's own part, or a few of the first part that do not count."""
        first, number = plan.get(peer_id) or (min(plan.values())[0], UNCOUNTED)
        positions = np.arange(first, first + number)
        return np.array([self._permutation(p // self._num_samples)[p % self._num_samples] for p in positions.tolist()])

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._permutations:
            self._permutations = {e: p for e, p in self._permutations.items() if e >= epoch - 1}
            self._permutations[epoch] = np.random.default_rng([self._seed, epoch]).permutation(self._num_samples)
        return self._permutations[epoch]


def fold(state: SamplerState, receipt: Receipt) -> SamplerState:
    """The state after the step of `receipt`: what lies before its last counted position, not counted, comes back."""
    counted = [(c.first_sample, c.num_samples) for c in receipt.contributions if c.first_sample >= 0 and c.num_samples]
    contributors = tuple([entry.peer_id for entry in receipt.contributions])
    if not counted:
        return SamplerState(state.position, state.returned, contributors)
    position = max(state.position, *(first + number for first, number in counted))
    pool = [*state.returned, (state.position, position - state.position)]
    for part in counted:
        pool = [rest for entry in pool for rest in _without(entry, part)]
    return SamplerState(position, tuple(sorted(part for part in pool if part[1])), contributors)


def length(dataset: Any) -> int:
    """Number of samples of a dataset, which may be a tuple of parallel parts."""
    return len(dataset[0]) if isinstance(dataset, tuple) else len(dataset)


def take(dataset: Any, indices: npt.NDArray[np.int64]) -> Any:
    """The samples at `indices`, of each part of a dataset that is a tuple."""
    return tuple(part[indices] for part in dataset) if isinstance(dataset, tuple) else dataset[indices]


def _without(entry: tuple[int, int], part: tuple[int, int]) -> list[tuple[int, int]]:
    """What of the range `entry` is not in the range `part`."""
    first, last = entry[0], entry[0] + entry[1]
    start, stop = max(first, part[0]), min(last, part[0] + part[1])
    if start >= stop:
        return [entry]
    return [(first, start - first), (stop, last - stop)]

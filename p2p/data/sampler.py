"""The elastic sampler: which samples each peer adds to a step, folded over receipts.

Samples form one stream: position p is sample p mod N of the permutation of epoch p div N. The global batch of each step
is planned from the receipts before it, so all members plan the same; positions that were planned and are on no receipt
are planned again first. So each position is counted exactly once, and no batch is larger than `global_batch`, or
`batch_per_peer` for each member, except the last of an epoch by less than `MIN_LOCAL_BATCH`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .ranges import Ranges, count, cut, difference, each, union

MIN_LOCAL_BATCH = 2
"""Smallest size of a non-empty slice: BatchNorm, for one, cannot train with a single sample."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Samples used up after a step.

    Attributes:
        position: the first position from which on none was counted.
        returned: positions before it that were planned and not counted.
        num_steps: number of steps folded so far.
        failed: positions that could not be loaded, with the peer_ids that tried, once per attempt.
        poisoned: positions that were not counted and are not tried again.
        quotas: for timed rounds, the most samples that a member may receive in the next one, by peer_id.
    """

    position: int = 0
    returned: Ranges = ()
    num_steps: int = 0
    failed: tuple[tuple[int, tuple[str, ...]], ...] = ()
    poisoned: tuple[int, ...] = ()
    quotas: tuple[tuple[str, int], ...] = ()


class Slice(NamedTuple):
    """Part of one member: `length` samples of the global batch, from index `start` on."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A step's global batch, and the slices that it is cut into."""

    batch: Ranges
    slices: dict[str, Slice]

    def positions(self, part: Slice) -> Ranges:
        """Positions of `part` in the stream."""
        return cut(self.batch, part.start, part.length)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Plans steps: a pure function of the samples used up, and of the members on a receipt. Equal on all peers.

    Attributes:
        num_samples: of the dataset.
        global_batch: samples per step, over all members.
        batch_per_peer: instead, samples per step and member: a step has more if the receipt before has more members.
        epochs: passes over the dataset.
        seed: of the order of samples.
        shuffle: each epoch has its own order; else all have that of the dataset.
        drop_last: skip the last samples of an epoch, if they do not fill a global batch; not those returned by dead
            members.
        max_attempts: a sample is set aside after this many peers, or all members, could not load it.
    """

    num_samples: int
    global_batch: int = 0
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    max_attempts: int = 2
    batch_per_peer: int | None = None

    def batch_of(self, num_members: int) -> int:
        """Samples of a step with `num_members` members."""
        return self.global_batch if self.batch_per_peer is None else self.batch_per_peer * max(num_members, 1)

    def epoch(self, state: SamplerState) -> int:
        """The current epoch, or the one about to begin; `epochs`, when all are over."""
        return min((*(first for first, _ in state.returned), state.position)) // self.num_samples

    def skip_to(self, state: SamplerState, epoch: int) -> SamplerState:
        """The state without any samples left before `epoch`."""
        start = max(state.position, epoch * self.num_samples)
        before = union([(0, epoch * self.num_samples)])
        return replace(state, position=start, returned=difference(state.returned, before))

    def drop_tail(self, state: SamplerState) -> SamplerState:
        """The state without the dropped rest of an epoch."""
        epoch = self.epoch(state)
        return state if epoch == self.epochs or self._left(state, epoch) else self.skip_to(state, epoch + 1)

    def plan(self, state: SamplerState, members: Sequence[str]) -> Plan:
        """Cut the next global batch into slices, in the order of `members`; if too small for all, members take turns.

        The batch has samples of one epoch; it is empty when all epochs are over.
        """
        left = self.left(state)
        whole = self.batch_of(len(members))
        size = min(whole, count(left))
        if count(left) - size < min(MIN_LOCAL_BATCH, whole):
            size = count(left)  # the rest would be too small a batch for any member
        batch = cut(left, 0, size)
        chosen = choose(members, size, state.num_steps)
        bounds = [size * i // len(chosen) for i in range(len(chosen) + 1)] if chosen else []
        slices = {name: Slice(bounds[i], bounds[i + 1] - bounds[i]) for i, name in enumerate(chosen)}
        return avoid_failing_again(Plan(batch, slices), state)

    def update_quotas(
        self, state: SamplerState, plan: Plan, used: Mapping[str, int], members: Sequence[str]
    ) -> SamplerState:
        """`state` after a step with this plan: unchanged, whatever each member has used."""
        return state

    def fold(
        self, state: SamplerState, counted: Ranges, failures: Sequence[tuple[int, str]], members: Sequence[str]
    ) -> SamplerState:
        """The state after a step of `members` with these counted positions and failures to load.

        Args:
            state: before the step.
            counted: positions.
            failures: positions, each with the peer_id that could not load it.
            members: peer_ids, on the receipt.
        """
        failed = dict(state.failed)
        for position, who in failures:
            failed[position] = (*failed.get(position, ()), who)
        aside = [position for position, who in failed.items() if self._is_hopeless(who, members)]
        after = fold(state, union([*counted, *((position, 1) for position in aside)]))
        done = {*aside, *(p for p in failed if any(first <= p < first + number for first, number in counted))}
        still = tuple(sorted((p, who) for p, who in failed.items() if p not in done))
        return replace(after, failed=still, poisoned=(*state.poisoned, *aside))

    def _is_hopeless(self, who: Sequence[str], members: Sequence[str]) -> bool:
        return len(who) >= self.max_attempts and (len({*who}) >= self.max_attempts or {*members} <= {*who})

    def left(self, state: SamplerState) -> Ranges:
        """Uncounted positions of the current epoch; empty if all are over."""
        epoch = self.epoch(state)
        return self._left(state, epoch) if epoch < self.epochs else ()

    def _left(self, state: SamplerState, epoch: int) -> Ranges:
        """Uncounted positions of the current epoch `epoch`: returned ones, then fresh ones."""
        end = (epoch + 1) * self.num_samples - (self.num_samples % self.global_batch if self.drop_last else 0)
        fresh = max(0, end - state.position)
        return union([*(each for each in state.returned if each[0] < end), (state.position, fresh)])


def fold(state: SamplerState, counted: Ranges) -> SamplerState:
    """The state after a step that has counted these positions; skipped ones are returned."""
    position = max([state.position, *(first + number for first, number in counted)])
    pool = union([*state.returned, (state.position, position - state.position)])
    return replace(state, position=position, returned=difference(pool, counted), num_steps=state.num_steps + 1)


def choose(members: Sequence[str], size: int, turn: int) -> list[str]:
    """The members that receive a part of `size` samples: all, or, if these are too few, some by turns."""
    number = min(len(members), max(size // MIN_LOCAL_BATCH, 1)) if size else 0
    first = turn * number % len(members) if number < len(members) else 0
    return [members[(first + i) % len(members)] for i in range(number)]


def avoid_failing_again(plan: Plan, state: SamplerState) -> Plan:
    """Swap the slice of a member that could not load one of its samples with that of a member that has not tried it."""
    slices = dict(plan.slices)
    for position, who in state.failed:
        place = next((i for i, p in enumerate(each(plan.batch)) if p == position), -1)
        owner = next((name for name, part in slices.items() if part.start <= place < part.start + part.length), "")
        other = next((name for name in slices if name not in who), "")
        if owner in who and other:
            slices[owner], slices[other] = slices[other], slices[owner]
    return Plan(plan.batch, slices)


class Order:
    """The samples at positions of a stream. Keeps the permutations of two epochs, 8 bytes per sample each."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._permutations: dict[int, npt.NDArray[np.int64]] = {}

    def indices(self, positions: Ranges) -> list[int]:
        """Indices into the dataset."""
        size = self._sampler.num_samples
        if not self._sampler.shuffle:
            return [p % size for p in each(positions)]
        found: list[int] = []
        for first, number in positions:
            while number:
                epoch, place = divmod(first, size)
                taken = min(number, size - place)
                found += self._permutation(epoch)[place : place + taken].tolist()
                first, number = first + taken, number - taken
        return found

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._permutations:
            self._permutations = {e: p for e, p in self._permutations.items() if abs(e - epoch) == 1}
            generator = np.random.default_rng([self._sampler.seed, epoch])
            self._permutations[epoch] = generator.permutation(self._sampler.num_samples)
        return self._permutations[epoch]

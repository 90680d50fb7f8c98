"""The elastic sampler: which samples each peer adds to a step, folded over receipts.

Samples form one stream: position p is sample p mod N of a permutation of its own for each epoch p div N. Each step's
global batch is planned from what the receipts before it say, so every member plans the same; what was planned and is
on no receipt is planned again, first of all. So each position is counted exactly once, and no batch is larger than
`global_batch`, or `batch_per_peer` for each member, but the last of an epoch by less than `MIN_LOCAL_BATCH`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .ranges import Ranges, count, cut, difference, each, union

MIN_LOCAL_BATCH = 2
"""A slice has so many samples or none: BatchNorm, for one, cannot train with a single one."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What is used up after a step.

    Attributes:
        position: the first position that was never counted, nor was any after it.
        returned: positions before it that were planned and not counted.
        num_steps: that have counted samples, or would have.
        failed: positions that could not be loaded, with the peer_ids of who has tried, once for each attempt.
        aside: positions that nobody tries again, and that were not counted.
        grants: where rounds end by time, how many samples a member may be given in the next one, by peer_id.
    """

    position: int = 0
    returned: Ranges = ()
    num_steps: int = 0
    failed: tuple[tuple[int, tuple[str, ...]], ...] = ()
    aside: tuple[int, ...] = ()
    grants: tuple[tuple[str, int], ...] = ()


class Slice(NamedTuple):
    """What one member adds to a step: so many samples from the `start`-th of the global batch on."""

    start: int
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A step's global batch, and the slices that it is cut into."""

    batch: Ranges
    slices: dict[str, Slice]

    def positions(self, part: Slice) -> Ranges:
        """In the stream."""
        return cut(self.batch, part.start, part.number)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Plans steps: a pure function of what is used up, and of the members on a receipt. Equal on all peers.

    Attributes:
        num_samples: of the dataset.
        global_batch: samples per step, over all members.
        batch_per_peer: in place of that, of each member: a step has more where the receipt before has more members.
        epochs: passes over the dataset.
        seed: of the order of samples.
        shuffle: each epoch has an order of its own; else all have that of the dataset.
        drop_last: the last samples of an epoch, which would not fill a global batch, are left out. What the dead leave
            behind of the others is not.
        max_attempts: a sample that so many peers could not load, or all that there are, is set aside.
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
        """Samples of a step of so many members."""
        return self.global_batch if self.batch_per_peer is None else self.batch_per_peer * max(num_members, 1)

    def epoch(self, state: SamplerState) -> int:
        """The one under way, or the one that begins; `epochs`, when all are over."""
        return min((*(first for first, _ in state.returned), state.position)) // self.num_samples

    def skip_to(self, state: SamplerState, epoch: int) -> SamplerState:
        """As if nothing before `epoch` were left."""
        start = max(state.position, epoch * self.num_samples)
        before = union([(0, epoch * self.num_samples)])
        return replace(state, position=start, returned=difference(state.returned, before))

    def settle(self, state: SamplerState) -> SamplerState:
        """Without what is left of an epoch and dropped."""
        epoch = self.epoch(state)
        return state if epoch == self.epochs or self._left(state, epoch) else self.skip_to(state, epoch + 1)

    def plan(self, state: SamplerState, members: Sequence[str]) -> Plan:
        """Cut the next global batch into slices, in the order of `members`; who is left out takes turns.

        It has samples of one epoch; is empty when all epochs are over.
        """
        left = self.left(state)
        whole = self.batch_of(len(members))
        size = min(whole, count(left))
        if count(left) - size < min(MIN_LOCAL_BATCH, whole):
            size = count(left)  # the rest would be a batch too small for anybody
        batch = cut(left, 0, size)
        chosen = choose(members, size, state.num_steps)
        bounds = [size * i // len(chosen) for i in range(len(chosen) + 1)] if chosen else []
        slices = {name: Slice(bounds[i], bounds[i + 1] - bounds[i]) for i, name in enumerate(chosen)}
        return avoid_failing_again(Plan(batch, slices), state)

    def grant(self, state: SamplerState, plan: Plan, used: Mapping[str, int], members: Sequence[str]) -> SamplerState:
        """`state`, after a step that was planned so: how much each has used of that changes nothing here."""
        return state

    def fold(
        self, state: SamplerState, counted: Ranges, failures: Sequence[tuple[int, str]], members: Sequence[str]
    ) -> SamplerState:
        """The state after a step of `members` that has counted these positions, and in which some could not be loaded.

        Args:
            state: before the step.
            counted: positions.
            failures: positions, each with the peer_id of who could not load it.
            members: peer_ids, on the receipt.
        """
        failed = dict(state.failed)
        for position, who in failures:
            failed[position] = (*failed.get(position, ()), who)
        aside = [position for position, who in failed.items() if self._is_hopeless(who, members)]
        after = fold(state, union([*counted, *((position, 1) for position in aside)]))
        done = {*aside, *(p for p in failed if any(first <= p < first + number for first, number in counted))}
        still = tuple(sorted((p, who) for p, who in failed.items() if p not in done))
        return replace(after, failed=still, aside=(*state.aside, *aside))

    def _is_hopeless(self, who: Sequence[str], members: Sequence[str]) -> bool:
        return len(who) >= self.max_attempts and (len({*who}) >= self.max_attempts or {*members} <= {*who})

    def left(self, state: SamplerState) -> Ranges:
        """What is not counted of the epoch that is under way; nothing, if all are over."""
        epoch = self.epoch(state)
        return self._left(state, epoch) if epoch < self.epochs else ()

    def _left(self, state: SamplerState, epoch: int) -> Ranges:
        """What is not counted of `epoch`, which is the one under way: what came back, then fresh samples."""
        end = (epoch + 1) * self.num_samples - (self.num_samples % self.global_batch if self.drop_last else 0)
        fresh = max(0, end - state.position)
        return union([*(each for each in state.returned if each[0] < end), (state.position, fresh)])


def fold(state: SamplerState, counted: Ranges) -> SamplerState:
    """The state after a step that has counted these positions; what it has passed over comes back."""
    position = max([state.position, *(first + number for first, number in counted)])
    pool = union([*state.returned, (state.position, position - state.position)])
    return replace(state, position=position, returned=difference(pool, counted), num_steps=state.num_steps + 1)


def choose(members: Sequence[str], size: int, turn: int) -> list[str]:
    """Who is given a part of `size` samples: all, or, where these are too few, some by turns."""
    number = min(len(members), max(size // MIN_LOCAL_BATCH, 1)) if size else 0
    first = turn * number % len(members) if number < len(members) else 0
    return [members[(first + i) % len(members)] for i in range(number)]


def avoid_failing_again(plan: Plan, state: SamplerState) -> Plan:
    """Who could not load a sample is given the slice of somebody who has not tried yet, and the other way round."""
    slices = dict(plan.slices)
    for position, who in state.failed:
        place = next((i for i, p in enumerate(each(plan.batch)) if p == position), -1)
        owner = next((name for name, part in slices.items() if part.start <= place < part.start + part.number), "")
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

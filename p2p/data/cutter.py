"""Cutting of a peer's part of a global batch into the batches that the script receives."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..given import check_numbers, check_whole
from .prefetch import Indices
from .ranges import count
from .sample_tracker import SampleTracker
from .sampler import MIN_LOCAL_BATCH, Order, Plan, Sampler, SamplerState, Slice, fold
from .timed import TimedSampler


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts one peer's part of a global batch into micro-batches or inner steps.

    Attributes:
        sampler: has planned the batch.
        order: of its samples.
        max_local_batch: most samples in one part.
        inner_steps: parts of a round, if the global batch is that of a round.
    """

    sampler: Sampler
    order: Order
    max_local_batch: int | None
    inner_steps: int | None = None

    def cut(self, plan: Plan, peer_id: str) -> list[Indices]:
        """Indices of samples, in micro-batches of about equal size.

        A peer that adds no samples, or a single one, receives the fewest that layers such as BatchNorm accept. In a
        round it receives them as often as the others have batches, so that its schedules keep pace with theirs.
        """
        part = plan.slices.get(peer_id) or Slice(0, MIN_LOCAL_BATCH)
        indices = self.order.indices(plan.positions(part))
        if len(indices) < MIN_LOCAL_BATCH:
            indices *= MIN_LOCAL_BATCH
        num_parts = self._num_parts(len(indices), plan)
        if peer_id not in plan.slices:
            return [indices] * (num_parts if self.inner_steps else 1)  # timed: one, which ends before the others'
        bounds = [len(indices) * i // num_parts for i in range(num_parts + 1)]
        return [indices[start:stop] for start, stop in pairwise(bounds)]

    def _num_parts(self, size: int, plan: Plan) -> int:
        if isinstance(self.sampler, TimedSampler):
            inner = self.sampler.inner_batch(len(plan.slices))
            return max(1, min(-(-size // inner), size // MIN_LOCAL_BATCH))
        if self.inner_steps is None:
            return -(-size // (self.max_local_batch or size))
        if not plan.slices:
            return 1
        smallest = min(part.length for part in plan.slices.values())
        return max(1, min(self.num_inner_steps(count(plan.batch), len(plan.slices)), smallest // MIN_LOCAL_BATCH))

    @property
    def num_steps(self) -> int:
        """Steps of an epoch without deaths, if all global batches have one size; in rounds, steps of `optimizer`."""
        whole, rest = divmod(self.sampler.num_samples, self.sampler.global_batch)
        joins = whole > 0 and rest < min(MIN_LOCAL_BATCH, self.sampler.global_batch)
        if self.inner_steps is not None:
            return whole * self.inner_steps + (0 if joins else self.num_inner_steps(rest, 1))
        return whole + (not joins and not (whole and self.sampler.drop_last))

    def num_inner_steps(self, size: int, num_members: int) -> int:
        """Inner steps of a round of `size` samples: fewer than usual at the end of an epoch."""
        assert self.inner_steps is not None
        return min(self.inner_steps, -(-size * self.inner_steps // self.sampler.batch_of(num_members)))

    def explain_shorter(self, plan: Plan, num_parts: int) -> str:
        """Message if a round has fewer inner steps than configured, because of many members; else empty."""
        size, members = count(plan.batch), len(plan.slices)
        if self.inner_steps is None or size < self.sampler.batch_of(members) or num_parts >= self.inner_steps:
            return ""
        return (
            f"rounds have {num_parts} inner steps instead of {self.inner_steps}: {members} members share {size} "
            f"samples, and a batch needs at least {MIN_LOCAL_BATCH}. Pass global_batch={MIN_LOCAL_BATCH * members} or "
            "more on every peer (reported once)"
        )

    def ahead(self, state: SamplerState, members: Sequence[str], peer_id: str) -> Iterator[Indices]:
        """Batches of the peer after the step that follows `state`, if all of that step counts, and so on.

        Empty for timed rounds: how much of one is used is known only when it has ended.
        """
        if isinstance(self.sampler, TimedSampler):
            return
        plan = self.sampler.plan(state, members)
        while plan.batch:
            state = self.sampler.drop_tail(fold(state, plan.batch))
            plan = self.sampler.plan(state, members)
            if plan.batch:
                yield from self.cut(plan, peer_id)


def check_rounds(
    inner_steps: int | None,
    round_s: float | None,
    share: SampleTracker,
    max_local_batch: int | None,
    *,
    drop_last: bool,
) -> None:
    """Raise ValueError unless a loader with these arguments suits the way its model is trained."""
    check_length(inner_steps, round_s)
    if inner_steps is None and round_s is None:
        return
    name = "round_s" if inner_steps is None else "inner_steps"
    if share.rounds is None:
        raise ValueError(f"{name} needs a model that is trained in rounds: wrap it in p2p.DiLoCo first")
    if max_local_batch is not None or drop_last:
        raise ValueError(
            "max_local_batch and drop_last cannot be used with rounds: accumulate gradients in the script, and expect "
            "fewer inner steps in the last round of an epoch"
        )


def check_is_enough(global_batch: int, members: Collection[str]) -> None:
    """Raise ValueError, before a peer trains, if members of rounds would have no sample in an inner step.

    Members that join later make batches smaller.
    """
    if global_batch < len(members):
        raise ValueError(
            f"global_batch is {global_batch}, but there are {len(members)} members with this one, and each needs a "
            f"sample in every inner step: pass global_batch={len(members)} or more on every peer"
        )


def check_length(inner_steps: int | None, round_s: float | None) -> None:
    """Check the length of a round: inner steps, seconds, or neither, if it is configured elsewhere.

    Raises:
        TypeError, ValueError: an invalid value, or both are given.
    """
    check_whole(inner_steps=inner_steps)
    check_numbers(round_s=round_s)
    if inner_steps is not None and round_s is not None:
        raise ValueError(
            f"inner_steps is {inner_steps} and round_s is {round_s:g}, but a round ends after a number of steps or "
            "after a time, not both: pass one of them"
        )
    if inner_steps is not None and inner_steps < 1:
        raise ValueError(f"inner_steps must be at least 1, is {inner_steps}")
    if round_s is not None and not 0 < round_s < math.inf:
        raise ValueError(f"round_s must be above 0 and finite, is {round_s}")

"""Timed rounds: how many samples each member receives for a round, from the receipts of earlier rounds.

Speeds are not exchanged. A member receives somewhat more samples than it used in its last counted round; unused ones
return to the stream, so that too many cost nothing, and too few leave a member idle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

from .ranges import count, cut
from .sampler import MIN_LOCAL_BATCH, Plan, Sampler, SamplerState, Slice, avoid_failing_again, choose

MARGIN: Final = 5, 4
"""Factor on the samples that a member has used, if some of its range were left, as a fraction."""
GROWTH: Final = 2
"""The factor if it has used all: its capacity is then only known to be no less."""
FIRST: Final = 1024
"""Most inner batches per member as long as no receipt gives a number."""


@dataclass(frozen=True, slots=True)
class TimedSampler(Sampler):
    """Plans rounds of which each member uses as much as it can in the time. `global_batch` is that of an inner step."""

    def inner_batch(self, num_members: int) -> int:
        """Samples of one member in one inner step."""
        return max(MIN_LOCAL_BATCH, self.batch_of(num_members) // max(num_members, 1))

    def plan(self, state: SamplerState, members: Sequence[str]) -> Plan:
        """Slices that `members` may use in the next round, in their order; shares of the rest, if not enough is left.

        The plan has samples of one epoch; it is empty when all epochs are over.
        """
        left = self.left(state)
        total = count(left)
        if not (total and members):
            return Plan((), {})
        wishes = self._wishes(state, members, total)
        if total - sum(wishes.values()) < MIN_LOCAL_BATCH:  # the rest would be too small a batch for any member
            chosen = choose(members, total, state.num_steps)
            parts = _share_out(total, [wishes[name] for name in chosen])
            wishes = dict(zip(chosen, parts, strict=True))
        bounds = pairwise(accumulate(wishes.values(), initial=0))
        slices = {name: Slice(first, end - first) for name, (first, end) in zip(wishes, bounds, strict=True)}
        return avoid_failing_again(Plan(cut(left, 0, sum(wishes.values())), slices), state)

    def _wishes(self, state: SamplerState, members: Sequence[str], total: int) -> dict[str, int]:
        """Samples for each member, in whole inner batches; a new member receives the mean of the others."""
        inner = self.inner_batch(len(members))
        known = dict(state.quotas)
        others = [known[name] for name in members if name in known] or [*known.values()]
        mean = sum(others) // len(others) if others else min(total // len(members), FIRST * inner)
        return {name: max(1, -(-known.get(name, mean) // inner)) * inner for name in members}

    def update_quotas(
        self, state: SamplerState, plan: Plan, used: Mapping[str, int], members: Sequence[str]
    ) -> SamplerState:
        """`state` with the grants of `members` for further rounds; `used`: samples of `plan`, by the receipt."""
        known = dict(state.quotas)
        for name, number in used.items():
            if number:
                part = plan.slices.get(name)  # None: members have changed since it was handed out
                is_all = part is not None and number == part.length
                above = max(known.get(name, 0), GROWTH * number)
                known[name] = above if is_all else -(-MARGIN[0] * number // MARGIN[1])
        return replace(state, quotas=tuple((name, known[name]) for name in members if name in known))


def _share_out(total: int, wishes: Sequence[int]) -> list[int]:
    """Parts of `total` in proportion to `wishes`, none below `MIN_LOCAL_BATCH` unless `total` is."""
    spare = total - MIN_LOCAL_BATCH * len(wishes)
    if spare < 0:
        return [total]
    ends = [spare * end // sum(wishes) for end in accumulate(wishes, initial=0)]
    return [MIN_LOCAL_BATCH + end - first for first, end in pairwise(ends)]

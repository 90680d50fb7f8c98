"""Rounds that end by time, planned for members of any speed that join and leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from p2p.data.cutter import Cutter
from p2p.data.ranges import count, each, union
from p2p.data.sampler import MIN_LOCAL_BATCH, Order, Plan, SamplerState
from p2p.data.timed import TimedSampler

speeds = st.floats(0.1, 400)
"""Samples in the time of one round."""
turns = st.lists(st.tuples(st.integers(0, 63), st.lists(speeds, max_size=2)), max_size=40)
"""Per round: the members that die in it, as bits, and the speeds of admitted joiners."""


@dataclass
class Run:
    """Members that each use the samples that they can, and are informed only by receipts."""

    sampler: TimedSampler
    speeds: dict[str, float]
    state: SamplerState = field(default_factory=SamplerState)
    counted: list[int] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    """Members that have not used all of a range, so that all know their speeds."""
    names: "numbers[int]" = field(default_factory=lambda: numbers(100))

    def round(self, deaths: int, joiners: Sequence[float]) -> None:
        members = [*self.speeds]
        inner = self.sampler.inner_batch(len(members))
        plan = self.sampler.plan(self.state, members)
        check(plan, self.sampler, members)
        wanted = {name: (int(speed / inner) + 1) * inner for name, speed in self.speeds.items()}
        self.check_shares(plan, wanted)
        dying = [name for bit, name in enumerate(members) if deaths >> bit & 1][: len(members) - 1]
        used = {name: self.use(plan, name, inner) for name in members if name not in dying}
        positions = {name: plan.positions(plan.slices[name]._replace(length=used[name])) for name in used if used[name]}
        done = union(part for parts in positions.values() for part in parts)
        self.shown |= {name for name in used if name in plan.slices and used[name] < plan.slices[name].length}
        self.speeds = {name: self.speeds[name] for name in used}
        self.state = self.sampler.update_quotas(self.state, plan, used, [*used])
        self.state = self.sampler.drop_tail(self.sampler.fold(self.state, done, [], [*used]))
        self.speeds |= {f"{next(self.names)}": speed for speed in joiners}
        self.counted += each(done)

    def use(self, plan: Plan, name: str, inner: int) -> int:
        """Number of samples in the batches that this member has begun when its time is over."""
        if name not in plan.slices:
            return 0
        sizes = [len(part) for part in Cutter(self.sampler, Order(self.sampler), None).cut(plan, name)]
        sizes = sizes if sum(sizes) == plan.slices[name].length else [plan.slices[name].length]
        assert max(sizes) <= max(inner, MIN_LOCAL_BATCH + 1)
        done = 0
        while sizes and done <= self.speeds[name]:
            done += sizes.pop(0)
        return done

    def check_shares(self, plan: Plan, wanted: Mapping[str, int]) -> None:
        left = count(self.sampler.left(self.state))
        if set(wanted) <= self.shown and left >= 3 * sum(wanted.values()):
            for name, number in wanted.items():
                assert name in plan.slices and plan.slices[name].length >= 0.95 * number, (name, number, plan.slices)


def check(plan: Plan, sampler: TimedSampler, members: Sequence[str]) -> None:
    """Check that slices are the batch, each sample once, of one epoch, and none too small for a layer to train on."""
    batch = [*each(plan.batch)]
    assert sorted(p for part in plan.slices.values() for p in each(plan.positions(part))) == batch
    assert batch and set(plan.slices) <= set(members)
    assert len({p // sampler.num_samples for p in batch}) == 1
    assert all(part.length >= MIN_LOCAL_BATCH for part in plan.slices.values()) or len(batch) == 1


def train(kind: type[TimedSampler], sizes: tuple[int, int], founders: Sequence[float], history: Any) -> Run:
    run = Run(kind(sizes[0], sizes[1], epochs=2, shuffle=False), {f"{i}": speed for i, speed in enumerate(founders)})
    for deaths, joiners in history:
        if run.sampler.epoch(run.state) < 2:
            run.round(deaths, joiners if len(run.speeds) < 7 else ())
    for _ in range(40 + 2 * sizes[0]):
        if run.sampler.epoch(run.state) < 2:
            run.round(0, ())
    assert run.sampler.epoch(run.state) == 2
    assert sorted(run.counted) == list(range(2 * sizes[0]))
    return run


@given(st.tuples(st.integers(1, 4000), st.integers(1, 40)), st.lists(speeds, min_size=1, max_size=5), turns)
@settings(deadline=None)
@example((4000, 8), [50.0, 10.0], [(0, ())] * 3 + [(0, (400.0,))] + [(0, ())] * 6 + [(1, ())])
def test_each_position_counts_once_and_nobody_waits_for_samples_at_any_speeds(
    sizes: tuple[int, int], founders: list[float], history: list[tuple[int, list[float]]]
) -> None:
    train(TimedSampler, sizes, founders, history)


class Equal(TimedSampler):
    """Mutant: all members get equally many samples."""

    def update_quotas(
        self, state: SamplerState, plan: Plan, used: Mapping[str, int], members: Sequence[str]
    ) -> SamplerState:
        mean = sum(used.values()) // len(used)
        return replace(state, quotas=tuple((name, mean) for name in members))


class Tight(TimedSampler):
    """Mutant: members get as many samples as they used in the round before, and no more."""

    def update_quotas(
        self, state: SamplerState, plan: Plan, used: Mapping[str, int], members: Sequence[str]
    ) -> SamplerState:
        return replace(state, quotas=tuple((name, used[name] // 2) for name in members if used[name]))


class Whole(TimedSampler):
    """Mutant: the rest of a range is not given again."""

    def fold(self, state: SamplerState, *given: Any) -> SamplerState:
        return replace(TimedSampler.fold(self, state, *given), returned=())


class Crossing(TimedSampler):
    """Mutant: a round also takes samples of the next epoch."""

    def left(self, state: SamplerState) -> Any:
        return union([*state.returned, (state.position, 2 * self.num_samples - state.position)])


@pytest.mark.parametrize("mutant", [Equal, Tight, Whole, Crossing])
def test_a_plan_that_keeps_somebody_waiting_or_loses_samples_is_noticed(mutant: type[TimedSampler]) -> None:
    @given(st.lists(speeds, min_size=2, max_size=4), turns)
    @settings(deadline=None, max_examples=60, phases=[Phase.generate], database=None, derandomize=True)
    def run(founders: list[float], history: list[tuple[int, list[float]]]) -> None:
        train(mutant, (4000, 8), founders, history)

    with pytest.raises(AssertionError):
        run()


def test_a_member_is_given_a_quarter_more_than_it_has_used_and_a_newcomer_the_mean() -> None:
    sampler = TimedSampler(100_000, 40)
    plan = sampler.plan(SamplerState(), "ab")
    assert {name: part.length for name, part in plan.slices.items()} == {"a": 20_480, "b": 20_480}
    state = sampler.update_quotas(SamplerState(), plan, {"a": 400, "b": 60}, "ab")
    assert state.quotas == (("a", 500), ("b", 75))
    plan = sampler.plan(state, "ab")
    assert {name: part.length for name, part in plan.slices.items()} == {"a": 500, "b": 80}, "whole batches of 20"
    plan = sampler.plan(state, "abc")
    assert plan.slices["c"].length == 299, "batches of 13, and 287 are the mean"
    state = sampler.update_quotas(state, plan, {"a": 0, "b": 78, "c": 13}, "abc")
    assert state.quotas == (("a", 500), ("b", 150 + 6), ("c", 17)), "b has used all of it, a nothing: it skipped"
    assert sampler.update_quotas(state, sampler.plan(state, "abc"), {"c": 13}, "c").quotas == (("c", 17),)


def test_where_too_little_is_left_shares_are_as_the_wishes_and_who_used_a_small_one_up_is_no_slower() -> None:
    sampler = TimedSampler(60, 4, epochs=2)
    state = replace(SamplerState(), quotas=(("a", 80), ("b", 40)))
    plan = sampler.plan(state, "ab")
    assert plan.slices == {"a": (0, 39), "b": (39, 21)}
    state = sampler.fold(sampler.update_quotas(state, plan, {"a": 39, "b": 21}, "ab"), plan.batch, [], "ab")
    assert state.quotas == (("a", 80), ("b", 42)) and sampler.epoch(state) == 1
    tiny = sampler.plan(replace(state, position=117), "abc")
    assert len(tiny.slices) == 1 and count(tiny.batch) == 3


def test_batches_of_a_round_are_those_of_an_inner_step_and_who_looks_on_has_one() -> None:
    sampler = TimedSampler(1000, 8, shuffle=False)
    cutter = Cutter(sampler, Order(sampler), None)
    plan = sampler.plan(replace(SamplerState(), quotas=(("a", 20), ("b", 7))), "ab")
    assert [len(part) for part in cutter.cut(plan, "a")] == [4] * 5
    assert [len(part) for part in cutter.cut(plan, "b")] == [4] * 2
    assert [len(part) for part in cutter.cut(plan, "c")] == [MIN_LOCAL_BATCH]
    assert not list(cutter.ahead(SamplerState(), "ab", "a")), "what a round uses is not known before its end"

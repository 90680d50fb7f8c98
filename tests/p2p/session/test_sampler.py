from collections import Counter
from dataclasses import astuple, dataclass, field
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.session.sampler import UNCOUNTED, ElasticSampler, Plan, SamplerState, fold, take
from p2p.step.receipts import UNKNOWN_SAMPLE, Contribution, Receipt

sizes = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 3))
"""Samples, global batch, epochs."""

histories = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2)), max_size=30)
"""Per step: who of the members dies in it, as bits, and how many joiners it admits."""


def receipt(*contributions: tuple[str, int, int]) -> Receipt:
    """Of members by name, first sample and number of samples."""
    return Receipt(
        lineage="",
        view_number=1,
        step=0,
        contributions=tuple(Contribution(name, 1, first, number, number) for name, first, number in contributions),
        algorithms=("",),
        digest="",
        state_digest="",
    )


@dataclass
class Run:
    """Members that each plan and fold for themselves, and what they have counted."""

    num_samples: int
    global_batch: int
    epochs: int
    members: dict[str, tuple[ElasticSampler, SamplerState]] = field(default_factory=dict)
    counted: list[int] = field(default_factory=list)
    """Positions, in order."""
    used: list[int] = field(default_factory=list)
    """The samples at these positions."""
    names: "count[int]" = field(default_factory=count)

    def sampler(self) -> ElasticSampler:
        return ElasticSampler(num_samples=self.num_samples, global_batch=self.global_batch, epochs=self.epochs, seed=3)

    def found(self, size: int) -> None:
        """Step 0: nothing is planned, and all are on its receipt."""
        names = [f"{next(self.names)}" for _ in range(size)]
        after = fold(SamplerState(), receipt(*((name, UNKNOWN_SAMPLE, 0) for name in names)))
        self.members = {name: (self.sampler(), after) for name in names}

    def is_over(self) -> bool:
        (over,) = {sampler.is_exhausted(state) for sampler, state in self.members.values()}
        return over

    def step(self, deaths: int, num_joiners: int) -> None:
        """One step: all plan, some die, one at least does not, joiners see the end of it."""
        for _ in range(num_joiners):  # a joiner is given the state before the step, as plain values
            _, state = next(iter(self.members.values()))
            self.members[f"{next(self.names)}"] = self.sampler(), SamplerState(*astuple(state))
        plans = [sampler.plan(state) for sampler, state in self.members.values()]
        assert all(plan == plans[0] for plan in plans)
        plan = plans[0]
        self.check(plan)
        dying = [name for bit, name in enumerate(self.members) if deaths >> bit & 1][: len(self.members) - 1]
        for name in dying:
            del self.members[name]
        contributions = []
        for name, (sampler, _) in self.members.items():
            first, number = plan.get(name, (UNKNOWN_SAMPLE, 0))
            contributions.append((name, first, number))
            self.counted += range(first, first + number)
            self.used += sampler.indices(plan, name)[:number].tolist()
        done = receipt(*contributions)
        self.members = {name: (own, fold(state, done)) for name, (own, state) in self.members.items()}

    def check(self, plan: Plan) -> None:
        """Parts are of positions that exist, and share none; together they are at most a global batch."""
        positions = [p for first, number in plan.values() for p in range(first, first + number)]
        assert plan and all(number > 0 for _, number in plan.values())
        assert len(set(positions)) == len(positions) <= self.global_batch
        assert 0 <= min(positions) <= max(positions) < self.num_samples * self.epochs


@given(sizes, st.integers(1, 5), histories)
@settings(deadline=None)
def test_each_position_is_counted_exactly_once_whoever_comes_and_goes(
    size: tuple[int, int, int], num_founders: int, history: list[tuple[int, int]]
) -> None:
    run = Run(*size)
    run.found(num_founders)
    for deaths, num_joiners in history:
        if run.is_over():
            break
        run.step(deaths, num_joiners)
    while not run.is_over():
        before = len(run.counted)
        run.step(0, 0)
        assert len(run.counted) > before
    num_samples, _, epochs = size
    assert sorted(run.counted) == list(range(num_samples * epochs))
    assert Counter(run.used) == dict.fromkeys(range(num_samples), epochs)


@given(sizes, st.integers(1, 6))
@settings(deadline=None)
def test_while_nobody_comes_or_goes_the_stream_is_used_in_order_in_full_batches(
    size: tuple[int, int, int], num_members: int
) -> None:
    run = Run(*size)
    run.found(num_members)
    num_samples, global_batch, epochs = size
    for start in range(0, num_samples * epochs, global_batch):
        assert len(run.counted) == start
        run.step(0, 0)
    assert run.is_over() and run.counted == list(range(num_samples * epochs))
    ends = [epoch * num_samples for epoch in range(epochs + 1)]
    assert all(sorted(run.used[ends[i] : ends[i + 1]]) == list(range(num_samples)) for i in range(epochs))


@given(st.integers(1, 30), st.integers(1, 8))
def test_members_get_equal_parts_within_one_sample(global_batch: int, num_members: int) -> None:
    run = Run(1000, global_batch, 1)
    run.found(num_members)
    sampler, state = run.members["0"]
    numbers = [sampler.plan(state).get(name, (0, 0))[1] for name in run.members]
    assert sum(numbers) == global_batch and max(numbers) - min(numbers) <= 1


@given(st.integers(1, 30), st.integers(1, 20), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=20))
def test_what_comes_back_never_makes_a_batch_larger(
    global_batch: int, num_members: int, gaps_and_numbers: list[tuple[int, int]]
) -> None:
    run = Run(1000, global_batch, 1)
    run.found(num_members)
    sampler, state = run.members["0"]
    returned, position = [], 0
    for gap, number in gaps_and_numbers:
        returned.append((position + gap, number))
        position += gap + number
    run.check(sampler.plan(SamplerState(position, tuple(returned), state.contributors)))


def test_the_samples_of_a_lost_peer_come_back_and_those_of_the_others_do_not() -> None:
    sampler = ElasticSampler(num_samples=100, global_batch=9, epochs=1, seed=0)
    state = SamplerState(position=0, contributors=("a", "b", "c"))
    plan = sampler.plan(state)
    assert plan == {"a": (0, 3), "b": (3, 3), "c": (6, 3)}
    state = fold(state, receipt(("a", 0, 3), ("c", 6, 3)))
    assert state == SamplerState(position=9, returned=((3, 3),), contributors=("a", "c"))
    plan = sampler.plan(state)
    assert plan == {"a": (3, 3), "c": (9, 6)}
    assert fold(state, receipt(("a", 3, 3), ("c", 9, 6), ("d", UNKNOWN_SAMPLE, 0))) == SamplerState(
        position=15, contributors=("a", "c", "d")
    )


def test_a_step_between_a_batch_and_its_receipt_changes_nothing() -> None:
    state = SamplerState(position=0, contributors=("a", "b"))
    between = fold(state, receipt(("a", UNKNOWN_SAMPLE, 0), ("b", UNKNOWN_SAMPLE, 0)))
    assert fold(between, receipt(("a", 0, 4), ("b", 4, 4))) == SamplerState(position=8, contributors=("a", "b"))


def test_a_step_that_was_not_planned_uses_nothing_up() -> None:
    before = SamplerState(position=9, returned=((3, 3),), contributors=("a", "c"))
    after = fold(before, receipt(("a", UNKNOWN_SAMPLE, 1), ("d", UNKNOWN_SAMPLE, 1)))
    assert after == SamplerState(position=9, returned=((3, 3),), contributors=("a", "d"))


@given(sizes, st.integers(0, 2**32 - 1), st.integers(0, 99))
def test_a_peer_that_counts_for_nothing_gets_the_first_samples_of_the_batch(
    size: tuple[int, int, int], seed: int, position: int
) -> None:
    num_samples, global_batch, epochs = size
    sampler = ElasticSampler(num_samples=num_samples, global_batch=global_batch, epochs=epochs, seed=seed)
    state = SamplerState(position=position % (num_samples * epochs), contributors=("a", "b"))
    plan = sampler.plan(state)
    uncounted = sampler.indices(plan, "joiner")
    assert len(uncounted) == UNCOUNTED and all(0 <= index < num_samples for index in uncounted)
    shared = min(UNCOUNTED, plan["a" if "a" in plan else "b"][1])
    owner = min(plan, key=lambda name: plan[name])
    assert uncounted[:shared].tolist() == sampler.indices(plan, owner)[:shared].tolist()


def test_seeds_and_epochs_shuffle_anew() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ElasticSampler(num_samples=50, global_batch=50, epochs=2, seed=seed)
        return [int(index) for index in sampler.indices({"a": (50 * epoch, 50)}, "a")]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(each) == list(range(50)) for each in orders)
    assert len({tuple(each) for each in orders}) == 4
    assert order(0, 1) == orders[1]


@pytest.mark.parametrize("wrong", ["num_samples", "global_batch", "epochs"])
def test_sizes_below_one_are_refused(wrong: str) -> None:
    sizes = {"num_samples": 5, "global_batch": 5, "epochs": 5, "seed": 0} | {wrong: 0}
    with pytest.raises(ValueError, match="must be at least 1"):
        ElasticSampler(**sizes)


def test_samples_are_taken_from_each_part_of_a_dataset() -> None:
    inputs, targets = np.arange(10) * 2, np.arange(10) * 3
    chosen = take((inputs, targets), np.array([4, 1]))
    assert [part.tolist() for part in chosen] == [[8, 2], [12, 3]]
    assert take(inputs, np.array([4, 1])).tolist() == [8, 2]

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from p2p.data.ranges import Ranges, union
from p2p.data.sampler import MIN_LOCAL_BATCH, Order, Plan, Sampler, SamplerState, fold

common = {"num_samples": st.integers(1, 40), "epochs": st.integers(1, 3), "seed": st.just(3), "shuffle": st.booleans()}
of_all = st.builds(Sampler, global_batch=st.integers(1, 30), **common)
samplers = of_all | st.builds(Sampler, batch_per_peer=st.integers(MIN_LOCAL_BATCH, 9), **common)
histories = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2)), max_size=30)
"""Per step: the members that die in it, as bits, and the number of admitted joiners."""


def positions(ranges: Ranges) -> list[int]:
    return [p for first, number in ranges for p in range(first, first + number)]


@dataclass
class Run:
    """Members that each plan and fold independently, and their counts."""

    sampler: Sampler
    members: list[str]
    states: dict[str, SamplerState] = field(default_factory=dict)
    counted: list[int] = field(default_factory=list)
    """Positions, in the order of their steps."""
    batches: list[int] = field(default_factory=list)
    """Sizes of the global batches."""
    names: "count[int]" = field(default_factory=lambda: count(100))

    def __post_init__(self) -> None:
        self.states = dict.fromkeys(self.members, SamplerState())

    @property
    def state(self) -> SamplerState:
        (state,) = set(self.states.values())
        return self.sampler.drop_tail(state)

    def is_over(self) -> bool:
        return self.sampler.epoch(self.state) == self.sampler.epochs

    def step(self, deaths: int, num_joiners: int) -> None:
        """One step: all plan, some die, at least one survives, joiners see its end."""
        plan = self.sampler.plan(self.state, self.members)
        check(plan, self.sampler, self.members)
        dying = [name for bit, name in enumerate(self.members) if deaths >> bit & 1][: len(self.members) - 1]
        self.members = [name for name in self.members if name not in dying]
        parts = [plan.positions(plan.slices[name]) for name in self.members if name in plan.slices]
        counted = union(part for each in parts for part in each)
        after = fold(self.state, counted)
        self.members += [f"{next(self.names)}" for _ in range(num_joiners)]
        self.states = dict.fromkeys(self.members, after)
        self.counted += positions(counted)
        self.batches.append(len(positions(plan.batch)))


def check(plan: Plan, sampler: Sampler, members: list[str]) -> None:
    """Check that slices are the batch, each sample once, of one epoch, and none too small for a layer to train on."""
    whole = sampler.global_batch if sampler.batch_per_peer is None else sampler.batch_per_peer * len(members)
    batch, small = positions(plan.batch), min(MIN_LOCAL_BATCH, whole)
    assert sorted(p for part in plan.slices.values() for p in positions(plan.positions(part))) == batch
    assert 0 < len(batch) < whole + small and set(plan.slices) <= set(members)
    assert len({p // sampler.num_samples for p in batch}) == 1
    numbers = [part.length for part in plan.slices.values()]
    assert max(numbers) - min(numbers) <= 1
    assert min(numbers) >= MIN_LOCAL_BATCH or numbers == [1]


@given(samplers, st.integers(1, 5), histories)
@settings(deadline=None)
def test_each_sample_is_counted_exactly_once_an_epoch_whoever_comes_and_goes(
    sampler: Sampler, num_founders: int, history: list[tuple[int, int]]
) -> None:
    run = Run(sampler, [f"{i}" for i in range(num_founders)])
    order = Order(sampler)
    for deaths, num_joiners in history:
        if run.is_over():
            break
        run.step(deaths, num_joiners)
    while not run.is_over():
        run.step(0, 0)
    assert sorted(run.counted) == list(range(sampler.num_samples * sampler.epochs))
    used = Counter(order.indices(tuple((p, 1) for p in sorted(run.counted))))
    assert used == dict.fromkeys(range(sampler.num_samples), sampler.epochs)
    epochs = [p // sampler.num_samples for p in run.counted]
    assert epochs == sorted(epochs), "an epoch begins when the one before is over"


@given(samplers, st.integers(1, 6))
@settings(deadline=None)
def test_while_nobody_comes_or_goes_epochs_are_used_in_full_batches(sampler: Sampler, num_members: int) -> None:
    run = Run(sampler, [f"{i}" for i in range(num_members)])
    while not run.is_over():
        run.step(0, 0)
    assert run.counted == list(range(sampler.num_samples * sampler.epochs))
    per_epoch = len(run.batches) // sampler.epochs
    assert all(
        size >= sampler.batch_of(num_members) for i, size in enumerate(run.batches) if i % per_epoch < per_epoch - 1
    )


@given(of_all, st.integers(1, 4), histories)
@settings(deadline=None)
def test_what_does_not_fill_a_batch_is_dropped_if_the_script_says_so(
    sampler: Sampler, num_members: int, history: list[tuple[int, int]]
) -> None:
    assume(sampler.num_samples >= sampler.global_batch)
    run = Run(replace(sampler, drop_last=True), [f"{i}" for i in range(num_members)])
    for deaths, num_joiners in history:
        if run.is_over():
            break
        run.step(deaths, num_joiners)
    while not run.is_over():
        run.step(0, 0)
    used = sampler.num_samples // sampler.global_batch * sampler.global_batch
    epochs = range(sampler.epochs)
    assert sorted(run.counted) == [epoch * sampler.num_samples + i for epoch in epochs for i in range(used)]


def test_the_samples_of_a_lost_peer_are_the_first_of_the_next_batch() -> None:
    sampler = Sampler(100, 9)
    plan = sampler.plan(SamplerState(), "abc")
    assert plan.slices == {"a": (0, 3), "b": (3, 3), "c": (6, 3)}
    state = fold(SamplerState(), ((0, 3), (6, 3)))
    assert state == SamplerState(position=9, returned=((3, 3),), num_steps=1)
    plan = sampler.plan(state, "ac")
    assert plan.batch == ((3, 3), (9, 6)) and plan.slices == {"a": (0, 4), "c": (4, 5)}
    assert plan.positions(plan.slices["a"]) == ((3, 3), (9, 1))
    assert fold(state, plan.batch) == SamplerState(position=15, num_steps=2)


def test_a_batch_per_peer_grows_with_the_members_on_the_receipt_and_shrinks_with_them() -> None:
    sampler = Sampler(100, batch_per_peer=4)
    plan = sampler.plan(SamplerState(), "abc")
    assert plan.slices == {"a": (0, 4), "b": (4, 4), "c": (8, 4)}
    state = fold(SamplerState(), ((0, 4), (8, 4)))  # b is gone
    plan = sampler.plan(state, "ac")
    assert plan.batch == ((4, 4), (12, 4)) and plan.slices == {"a": (0, 4), "c": (4, 4)}
    plan = sampler.plan(fold(state, plan.batch), "acde")
    assert [part.length for part in plan.slices.values()] == [4, 4, 4, 4]


def test_members_take_turns_where_a_batch_is_too_small_for_all() -> None:
    sampler = Sampler(100, 4)
    state, turns = SamplerState(), []
    for _ in range(3):
        plan = sampler.plan(state, "abc")
        turns.append("".join(plan.slices))
        state = fold(state, plan.batch)
    assert turns == ["ab", "ca", "bc"]


def test_a_single_sample_joins_the_last_batch_of_its_epoch() -> None:
    sampler = Sampler(17, 8, epochs=2)
    state, sizes = SamplerState(), []
    while sampler.epoch(state) < 2:
        plan = sampler.plan(state, "ab")
        sizes.append([part.length for part in plan.slices.values()])
        state = fold(state, plan.batch)
    assert sizes == [[4, 4], [4, 5]] * 2


def test_an_epoch_can_be_left_out() -> None:
    sampler = Sampler(10, 4, epochs=3)
    state = fold(SamplerState(), ((0, 2),))
    state = fold(state, ((4, 2),))
    assert state.returned == ((2, 2),) and sampler.epoch(state) == 0
    state = sampler.skip_to(state, 1)
    assert sampler.epoch(state) == 1 and sampler.plan(state, "a").batch == ((10, 4),)
    assert sampler.skip_to(state, 1) == state, "once"


def test_seeds_and_epochs_shuffle_anew_and_a_dataset_in_its_order_stays_so() -> None:
    orders = {
        (seed, epoch): Order(Sampler(50, 50, epochs=2, seed=seed)).indices(((50 * epoch, 50),))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert all(sorted(each) == list(range(50)) for each in orders.values())
    assert len({tuple(each) for each in orders.values()}) == 4
    assert orders[0, 1] == Order(Sampler(50, 50, epochs=2)).indices(((50, 50),))
    assert Order(Sampler(50, 50, epochs=2, shuffle=False)).indices(((60, 3),)) == [10, 11, 12]


# Samples that cannot be loaded


@given(samplers, st.integers(1, 5), histories, st.sets(st.integers(0, 39), max_size=5), st.integers(1, 3))
@settings(deadline=None)
def test_a_sample_that_nobody_can_load_is_set_aside_and_all_others_count_once(
    sampler: Sampler, num_members: int, history: list[tuple[int, int]], poison: set[int], max_attempts: int
) -> None:
    sampler = replace(sampler, max_attempts=max_attempts, shuffle=False)
    members, state, counted = [f"{i}" for i in range(num_members)], SamplerState(), list[int]()
    attempts: dict[int, list[str]] = {}
    names, turns = count(100), iter(history)
    for _ in range(2000):
        if sampler.epoch(state := sampler.drop_tail(state)) == sampler.epochs:
            break
        plan = sampler.plan(state, members)
        deaths, num_joiners = next(turns, (0, 0))
        left = [name for i, name in enumerate(members) if not deaths >> i & 1] or members[:1]
        failures, parts = [], []
        for name in left:
            part = plan.positions(plan.slices[name]) if name in plan.slices else ()
            bad = [p for p in positions(part) if p % sampler.num_samples in poison]
            if bad:
                failures.append((bad[0], name))
                attempts.setdefault(bad[0], []).append(name)
            else:
                parts.append(part)
        done = union(part for each in parts for part in each)
        counted += positions(done)
        state = sampler.fold(state, done, failures, left)
        members = [*left, *(f"{next(names)}" for _ in range(num_joiners))]
    else:
        pytest.fail(f"never over: {state}")
    expected = range(sampler.num_samples * sampler.epochs)
    assert sorted(counted) == [p for p in expected if p % sampler.num_samples not in poison]
    assert sorted(state.poisoned) == [p for p in expected if p % sampler.num_samples in poison] and not state.failed
    assert all(len(who) >= max_attempts for who in attempts.values())


def test_who_could_not_load_a_sample_is_not_given_it_again() -> None:
    sampler = Sampler(100, 6)
    state = sampler.fold(SamplerState(), ((2, 2), (4, 2)), [(1, "a")], "abc")
    assert state == SamplerState(6, ((0, 2),), 1, failed=((1, ("a",)),))
    plan = sampler.plan(state, "abc")
    assert plan.slices == {"a": (2, 2), "b": (0, 2), "c": (4, 2)}
    assert sampler.fold(state, plan.batch, [], "abc").failed == (), "b could"
    hopeless = sampler.fold(state, (), [(1, "b")], "abc")
    assert hopeless.poisoned == (1,) and hopeless.failed == () and hopeless.returned == ((0, 1),)

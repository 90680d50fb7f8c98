"""How a round's part is cut into batches: equally many at each member and each observer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.data.cutter import Cutter
from p2p.data.ranges import count, each
from p2p.data.sampler import MIN_LOCAL_BATCH, Order, Sampler, SamplerState, fold


@given(
    st.integers(2, 400),
    st.integers(2, 24),
    st.integers(1, 12),
    st.integers(1, 5),
    st.booleans(),
)
def test_all_have_as_many_batches_in_a_round_and_each_sample_is_in_one(
    num_samples: int, batch: int, inner_steps: int, num_members: int, is_per_peer: bool
) -> None:
    sampler = Sampler(num_samples, batch * inner_steps, shuffle=False)
    if is_per_peer:
        sampler = Sampler(num_samples, batch_per_peer=batch * inner_steps, shuffle=False)
    cutter = Cutter(sampler, Order(sampler), None, inner_steps)
    members = [chr(ord("a") + number) for number in range(num_members)]
    state, used = SamplerState(), list[int]()
    while (plan := sampler.plan(state, members)).batch:
        parts = {name: cutter.cut(plan, name) for name in plan.slices}
        assert len({len(cut) for cut in (*parts.values(), cutter.cut(plan, "somebody else"))}) == 1
        assert all(len(cut) <= inner_steps for cut in parts.values())
        for name, cut in parts.items():
            indices = [index for part in cut for index in part]
            mine = list(each(plan.positions(plan.slices[name])))
            assert indices in (mine, mine * MIN_LOCAL_BATCH)
            assert all(len(part) >= MIN_LOCAL_BATCH for part in cut)
            used += mine
        assert {len(part) for part in cutter.cut(plan, "somebody else")} <= {MIN_LOCAL_BATCH}
        (num_parts,) = {len(cut) for cut in parts.values()}
        is_enough = is_per_peer or batch >= MIN_LOCAL_BATCH * num_members
        is_short = num_parts < inner_steps and count(plan.batch) >= sampler.batch_of(num_members)
        assert bool(cutter.explain_shorter(plan, num_parts)) == is_short <= (not is_enough)
        if count(plan.batch) == sampler.batch_of(num_members) and is_enough:
            assert {len(cut) for cut in parts.values()} == {inner_steps}
        state = sampler.drop_tail(fold(state, plan.batch))
    assert sorted(used) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [1, 39, 40, 41, 42, 43, 201])
def test_an_epoch_of_rounds_has_as_many_inner_steps_as_its_length_says(num_samples: int) -> None:
    sampler = Sampler(num_samples, 20, shuffle=False)
    cutter, members, state = Cutter(sampler, Order(sampler), None, 5), ["a"], SamplerState()
    num_steps = 0
    while sampler.epoch(state) == 0:
        plan = sampler.plan(state, members)
        num_steps += len(cutter.cut(plan, "a"))
        state = sampler.drop_tail(sampler.fold(state, plan.batch, [], members))
    assert cutter.num_steps == num_steps

"""The operations of a step with shared memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, OPS
from p2p.errors import OperationMismatch, RemoteProtocolError
from p2p.memory.board import Reference
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Segment
from p2p.step.operation import Operation
from tests.p2p.memory.machine import SMALL_PIECES, Machine
from tests.p2p.step.group import (
    SharedGroup,
    all_reduce,
    counts,
    enter,
    gather,
    inputs_of,
    new_view,
    other_calls,
    run_step,
    shared_view,
    submit_all,
    submit_weighted,
    weighted,
)

seeds = st.integers(0, 2**32 - 1)
algorithms = st.sampled_from([None, *ALGORITHMS])


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(4)
    yield machine
    machine.host.close()


# Sums


@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.sampled_from([0, 1, 5, 100]), algorithms, st.sampled_from(OPS)), min_size=1, max_size=5),
    seeds,
)
@settings(deadline=None)
def test_a_step_of_several_operations_has_the_bits_of_the_message_path_and_one_digest(
    machine: Machine, world_size: int, calls: list[tuple[int, str | None, str]], seed: int
) -> None:
    group, other = shared_view(machine, world_size, seed), new_view(world_size, seed)
    inputs = [inputs_of(world_size, length) for length, _, _ in calls]

    def of(me: int) -> list[Operation]:
        return [all_reduce(inputs[i][me], algorithm, op) for i, (_, algorithm, op) in enumerate(calls)]

    operations, expected = [of(me) for me in range(world_size)], [of(me) for me in range(world_size)]
    submit_all(group, operations)
    submit_all(other, expected)
    for each in (*group.all, *other.all):
        each.close(b"state")
    group.deliver()
    other.deliver()
    assert group.finished() == other.finished()
    for me in range(world_size):
        assert [o.result.tobytes() for o in operations[me]] == [o.result.tobytes() for o in expected[me]]
        assert not group.all[me].open_step.explain_missing(range(world_size))
    assert [commit.operations for commit in group.commit()] == operations


@given(st.integers(2, 4), seeds)
@settings(deadline=None)
def test_what_is_not_weighted_keeps_its_place_behind_what_waits_for_the_counts(
    machine: Machine, world_size: int, seed: int
) -> None:
    group = shared_view(machine, world_size, seed)
    means = [[weighted(np.full(9, float(me), np.float32)) for _ in range(2)] for me in range(world_size)]
    greatest = [all_reduce(np.full(5, me), op="max") for me in range(world_size)]
    submit_all(group, [[counts(1), means[me][0], greatest[me], means[me][1]] for me in range(world_size)])
    for each in group.all:
        each.close()
    group.deliver()
    group.finished()
    for me in range(world_size):
        assert (greatest[me].result == world_size - 1).all()
        assert all(np.allclose(mean.result, (world_size - 1) / 2) for mean in means[me])


def test_nothing_goes_by_message(machine: Machine) -> None:
    group = shared_view(machine, 3)
    submit_all(group, [[all_reduce(np.arange(100), name) for name in (None, *ALGORITHMS)] for _ in range(3)])
    for each in group.all:
        each.close()
    group.deliver()
    group.finished()
    assert group.num_sent == 0


def test_steps_follow_each_other_in_one_view(machine: Machine) -> None:
    group = shared_view(machine, 3)
    for step in range(5):
        operations = [
            [all_reduce(np.full(40, step + me), name) for name in (None, "ring", "direct")] for me in range(3)
        ]
        submit_all(group, operations)
        for each in group.all:
            each.close()
        group.deliver()
        assert [commit.receipt.step for commit in group.commit()] == [step] * 3
        assert all((operation.result == 3 * step + 3).all() for mine in operations for operation in mine)


def test_other_results_have_another_digest(machine: Machine) -> None:
    digests = set()
    for value in (1.0, 2.0):
        operations = [all_reduce(np.full(50, value, np.float32)) for _ in range(2)]
        digests.add(run_step(shared_view(machine, 2), *operations).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("num_bytes", [8, 64 << 10, (64 << 10) + 8, 200_000])
def test_a_gather_has_the_result_and_the_digest_of_the_message_path_however_long_it_is(
    machine: Machine, num_bytes: int
) -> None:
    values, finished = inputs_of(3, num_bytes // 8, np.int64), []
    for group in (shared_view(machine, 3), new_view(3)):
        operations = [gather(own) for own in values]
        finished.append(run_step(group, *operations).digest)
        assert all(np.array_equal(operation.result, np.concatenate(values)) for operation in operations)
    assert finished[0] == finished[1]


# Weights


numbers_of_samples = st.lists(st.integers(0, 9), min_size=2, max_size=4)
equal_numbers = st.tuples(st.integers(0, 9), st.integers(2, 4)).map(lambda drawn: [drawn[0]] * drawn[1])


@given(numbers_of_samples | equal_numbers, st.booleans(), seeds)
@settings(deadline=None)
def test_weighted_sums_have_the_bits_of_the_message_path(
    machine: Machine, numbers: list[int], is_half: bool, seed: int
) -> None:
    dtype = np.dtype(np.float16 if is_half else np.float32)
    gradients = [each.astype(dtype) / dtype.type(7) for each in inputs_of(len(numbers), 100)]
    for gradient, number in zip(gradients, numbers, strict=True):
        if number == 0:
            gradient[:50] = np.nan
    results = []
    for group in (shared_view(machine, len(numbers), seed), new_view(len(numbers), seed)):
        operations = submit_weighted(group, numbers, gradients)
        group.deliver()
        for commit in group.commit():
            contributions = [entry.samples for entry in commit.receipt.contributions]
            assert contributions == [((10 * me, number),) for me, number in enumerate(numbers)]
        results.append([operation.result.tobytes() for operation in operations])
    assert results[0] == results[1] and len(set(results[0])) == 1


@pytest.mark.parametrize("numbers", [[4, 4, 4], [4, 4, 2]])
def test_gradients_in_the_arena_that_count_alike_are_read_where_they_are(machine: Machine, numbers: list[int]) -> None:
    group = shared_view(machine, len(numbers))
    gradients = [machine.place(me, np.full(100, me + 1, np.float32)) for me in range(len(numbers))]
    operations = submit_weighted(group, numbers, gradients)
    group.deliver()
    group.finished()
    mean = np.average([1.0, 2.0, 3.0], weights=numbers)
    for arena, gradient, operation in zip(machine.host.arenas, gradients, operations, strict=False):
        region = arena.region_of(gradient)
        lent = {arena.board.lent(turn).input_offset for turn in (0, 1)}
        assert region is not None and (region.offset in lent) is (len(set(numbers)) == 1)
        assert np.allclose(operation.result, mean)
    assert [gradient[0] for gradient in gradients] == [1.0, 2.0, 3.0]


def test_what_is_weighted_waits_for_the_counts(machine: Machine) -> None:
    group, gradients = shared_view(machine, 2), inputs_of(2, 50)
    one, other = group.all
    one.submit(counts(1), weighted(gradients[0]))
    group.deliver()
    waits = "waits for segment 0 of 1 of operation {} from peer you"
    assert one.open_step.explain_missing(["me", "you"]) == waits.format(0)
    other.submit(counts(3))
    group.deliver()
    assert one.open_step.explain_missing(["me", "you"]) == waits.format(1)
    other.submit(weighted(gradients[1]))
    group.deliver()
    assert not one.open_step.explain_missing(["me", "you"])


# Another view in the middle


@given(st.integers(2, 4), st.integers(0, 40), st.booleans(), st.data(), seeds)
@settings(deadline=None)
def test_another_view_runs_the_step_again_from_untouched_inputs_with_shared_memory_or_without(
    machine: Machine, world_size: int, num_turns: int, shares: bool, data: st.DataObject, seed: int
) -> None:
    group = SharedGroup(machine, world_size, seed)
    group.install(*range(world_size), shares=data.draw(st.booleans()))
    group.activate()
    inputs = [inputs_of(world_size, length) for length in (0, 10, 150)]
    calls = [data.draw(algorithms) for _ in inputs]
    operations = [[all_reduce(inputs[i][me].copy(), calls[i]) for i in range(3)] for me in range(world_size)]
    submitted = [data.draw(st.integers(0, 3)) for _ in group.all]
    for me, each in enumerate(group.all):
        each.submit(*operations[me][: submitted[me]])
    group.deliver(num_turns)
    survivors = data.draw(st.lists(st.sampled_from(range(world_size)), min_size=1, unique=True))
    group.install(*survivors, shares=shares)
    for me in survivors:
        group.activate(me)
        group.all[me].submit(*operations[me][submitted[me] :])
        group.all[me].close()
    group.deliver()
    group.finished()
    for me in survivors:
        for values, operation in zip(inputs, operations[me], strict=True):
            assert operation.input.tobytes() == values[me].tobytes()
            assert (operation.result == sum(values[other] for other in survivors)).all()


def test_who_sees_that_another_has_left_waits_for_the_view_that_follows(machine: Machine) -> None:
    group = shared_view(machine, 3)
    for each in group.all[1:]:
        each.submit(all_reduce(np.arange(100)))
        each.advance()
    machine.host.arenas[2].board.install(0)
    one = group.all[0]
    one.submit(all_reduce(np.arange(100)))
    assert [one.advance() for _ in range(3)] == [RunState.IDLE] * 3
    one.close()
    assert not one.asked and not one.told


def test_each_piece_is_progress(machine: Machine) -> None:
    group = shared_view(machine, 2)
    one, other = group.all
    for each in group.all:
        each.submit(all_reduce(np.ones(3 * SMALL_PIECES.first_bytes // 8)))
    assert (one.open_step.progress(), one.open_step.progress()) == ((0, 1, 0), None)
    told = []
    while (0, 1, 1) not in told:
        other.advance()
        one.advance()
        told.append(one.open_step.progress())
    assert told.count((0, 1, 0)) > 1


# Mismatches


@pytest.mark.parametrize("other", other_calls("direct"), ids=Operation.describe)
@pytest.mark.parametrize("first", [0, 1])
def test_an_operation_that_somebody_calls_differently_is_given_up_by_all_and_not_summed(
    machine: Machine, other: Operation, first: int
) -> None:
    group = shared_view(machine, 2)
    mine = all_reduce(np.arange(10))
    calls = [(0, mine), (1, replace(other))]
    for me, operation in (calls[first], calls[1 - first]):
        group.all[me].submit(operation)
        group.all[me].close()
        group.deliver()
    assert {*group.mismatched} == {0, 1}
    assert [each.finish for each in group.all] == [None, None]
    assert (mine.result == 77).all()


def call_differently(machine: Machine, names: Sequence[str], length: int, seed: int) -> SharedGroup:
    """One operation by these algorithms, submitted in any order."""
    group = shared_view(machine, len(names), seed)
    operations = [all_reduce(np.arange(length), name) for name in names]
    for me in group.rng.sample(range(len(names)), len(names)):
        group.all[me].submit(operations[me])
        group.all[me].close()
        group.deliver(group.rng.randrange(5))
    group.deliver()
    return group


@given(st.integers(2, 4), st.integers(0, 100), st.data(), seeds)
@settings(deadline=None)
def test_who_calls_something_else_than_most_goes_and_without_a_majority_all_give_up_whoever_reads_whom(
    machine: Machine, world_size: int, length: int, data: st.DataObject, seed: int
) -> None:
    """In rings and trees not every member reads every other."""
    names = data.draw(st.lists(st.sampled_from(sorted(ALGORITHMS)), min_size=world_size, max_size=world_size))
    assume(len(set(names)) > 1)
    group = call_differently(machine, names, length, seed)
    most, number = Counter(names).most_common(1)[0]
    everybody, minority = set(range(world_size)), {rank for rank, name in enumerate(names) if name != most}
    has_majority = 2 * number > world_size
    assert {*group.mismatched} == (set() if has_majority else everybody)
    assert group.parted == (minority if has_majority else set())


def test_the_operation_that_differs_is_named(machine: Machine) -> None:
    group = shared_view(machine, 2)
    for each, length in zip(group.all, (10, 11), strict=True):
        each.submit(all_reduce(np.arange(5)), all_reduce(np.arange(5), "ring"), all_reduce(np.arange(length)))
    group.deliver()
    one, other = (
        f"all_reduce sum of int64 [{length}] by size at peer {name}" for length, name in ((10, "a"), (11, "b"))
    )
    assert group.mismatched[0].startswith(f"operation 2 of step 0 is {one}") and other in group.mismatched[0]
    assert group.mismatched[1].startswith(f"operation 2 of step 0 is {other}") and one in group.mismatched[1]


def test_after_a_step_is_given_up_the_next_works_in_another_view(machine: Machine) -> None:
    group = call_differently(machine, ["ring", "tree"], 10, seed=0)
    assert [each.advance() for each in group.all] == [RunState.IDLE] * 2
    enter(group, 0, 1)
    for each in group.all:
        assert [type(notice) for notice in each.told] == [OperationMismatch]
        each.attempt += 1
    operations = [all_reduce(np.arange(12)) for _ in group.all]
    run_step(group, *operations)
    assert all((operation.result == 2 * np.arange(12)).all() for operation in operations)


def test_a_member_that_lends_what_it_does_not_have_is_not_summed(machine: Machine) -> None:
    group = shared_view(machine, 2)
    one, other = group.all
    other.submit(all_reduce(np.arange(10)))
    other.advance()
    board = machine.host.arenas[1].board
    board.lend(0, Reference(board.lent(0).fingerprint, 1 << 40, 80))
    mine = all_reduce(np.arange(10))
    one.submit(mine)
    with pytest.raises(RemoteProtocolError, match="rank 1 lends what it does not have"):
        one.advance()
    assert one.advance() is RunState.IDLE
    assert (mine.result == 77).all()


@pytest.mark.parametrize("is_early", [False, True])
def test_a_frame_of_an_operation_over_shared_memory_is_refused(machine: Machine, is_early: bool) -> None:
    group = shared_view(machine, 2)
    one, other = group.all
    operations = [all_reduce(np.arange(10)) for _ in group.all]
    other.submit(operations[1])
    other.advance()
    frame = Segment(0, 1, 0, 0, machine.host.arenas[1].board.lent(0).fingerprint, bytes(80))
    if is_early:
        assert one.open_step.receive(frame) == []
    one.submit(operations[0])
    if not is_early:
        with pytest.raises(RemoteProtocolError, match="operation 0 came as a frame, and is one of shared memory"):
            one.open_step.receive(frame)
    assert one.open_step.num_refused == is_early
    for each in group.all:
        each.close()
    group.deliver()
    group.finished()
    assert all((operation.result == 2 * np.arange(10)).all() for operation in operations)

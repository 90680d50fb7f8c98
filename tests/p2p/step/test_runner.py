"""The operations of a step by messages: results, views, and the messages."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, OPS
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Segment
from p2p.step.operation import Operation, task_of
from p2p.step.runner import MessageRunner
from tests.p2p.step.group import (
    Array,
    all_reduce,
    counts,
    gather,
    inputs_of,
    new_view,
    run_step,
    submit_all,
    submit_weighted,
    weighted,
)

seeds = st.integers(0, 2**32 - 1)
world_sizes = st.integers(1, 5)


# Sums


@given(world_sizes, st.lists(st.sampled_from([0, 1, 5, 100]), min_size=1, max_size=4), st.booleans(), seeds)
@settings(deadline=None)
def test_a_step_of_several_operations_gives_every_rank_the_sums_and_one_digest(
    world_size: int, lengths: list[int], is_float: bool, seed: int
) -> None:
    group = new_view(world_size, seed)
    inputs = [inputs_of(world_size, length, np.float32 if is_float else np.int64) for length in lengths]
    operations = [[all_reduce(values[me]) for values in inputs] for me in range(world_size)]
    submit_all(group, operations)
    for each in group.all:
        each.close(b"state")
    group.deliver()
    finish = group.finished()
    assert (finish.step, finish.state_digest, finish.num_operations) == (0, b"state", len(lengths))
    for me, commit in enumerate(group.commit()):
        assert commit.operations == operations[me]
        assert all((o.result == sum(inputs[i])).all() for i, o in enumerate(operations[me]))
        assert not group.all[me].told


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(world_sizes, st.integers(0, 200), seeds)
@settings(deadline=None, max_examples=20)
def test_every_algorithm_leaves_equal_bits_and_equal_digests_and_is_named_on_the_receipt(
    algorithm: str, world_size: int, length: int, seed: int
) -> None:
    group = new_view(world_size, seed)
    rng = np.random.default_rng(seed)
    operations = [all_reduce(rng.standard_normal(length).astype(np.float32), algorithm) for _ in group.all]
    run_step(group, *operations)
    assert len({operation.result.tobytes() for operation in operations}) == 1
    assert {commit.receipt.algorithms for commit in group.commit()} == {(algorithm,)}


@pytest.mark.parametrize("op", OPS)
def test_a_reduction_is_over_the_members_of_the_view_that_finishes_the_step(op: str) -> None:
    group = new_view(4)
    operations = [all_reduce(np.full(50, 2.0**me, np.float16), op=op) for me in range(4)]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(operation)
        each.close()
    group.deliver(3)
    group.install(2, 0)
    group.activate()
    group.deliver()
    group.finished()
    expected = {"sum": 5.0, "mean": 2.5, "min": 1.0, "max": 4.0}[op]
    assert all((operations[me].result == expected).all() for me in (0, 2))


def test_other_results_have_another_digest() -> None:
    digests = {run_step(new_view(2), *[all_reduce(np.full(50, value)) for _ in range(2)]).digest for value in (1, 2)}
    assert len(digests) == 2


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_gather_has_the_input_of_each_rank_in_its_place(length: int) -> None:
    group, inputs = new_view(3), inputs_of(3, length)
    operations = [gather(values) for values in inputs]
    run_step(group, *operations)
    assert all(np.array_equal(operation.result, np.concatenate(inputs)) for operation in operations)
    assert {commit.receipt.algorithms for commit in group.commit()} == {("one-shot",)}


# Sequences of steps


def test_steps_follow_each_other_in_one_view() -> None:
    group = new_view(3)
    for step in range(5):
        operations = [[all_reduce(np.full(40, step + me)) for _ in range(2)] for me in range(3)]
        submit_all(group, operations)
        for each in group.all:
            each.close()
        group.deliver()
        assert [commit.receipt.step for commit in group.commit()] == [step] * 3
        assert all((operation.result == 3 * step + 3).all() for mine in operations for operation in mine)


def test_a_step_that_some_commit_before_another_view_and_some_at_its_barrier_leaves_them_in_step() -> None:
    group = new_view(2)
    early, late = group.all
    finish, view = run_step(group, *[all_reduce(np.arange(10)) for _ in group.all]), group.view
    early.commit(finish, view)
    group.install(0, 1)
    late.commit(finish, view)
    group.activate()
    operations = [all_reduce(np.arange(20)) for _ in group.all]
    assert run_step(group, *operations).step == 1
    assert all((operation.result == 2 * np.arange(20)).all() for operation in operations)


# Finish


def test_a_step_is_finished_when_it_is_closed_and_complete() -> None:
    group = new_view(2)
    one, other = group.all
    one.submit(all_reduce(np.arange(10)))
    one.close()
    other.submit(all_reduce(np.arange(10)))
    assert one.finish is None
    group.deliver()
    assert one.finish is not None
    assert other.finish is None
    other.close()
    assert other.finish == one.finish


def test_a_step_without_operations_is_finished_when_it_is_closed_by_nobody() -> None:
    """Step 0: the cores finish it."""
    group = new_view(2)
    group.deliver()
    assert [each.finish for each in group.all] == [None, None]


def test_what_is_missing_is_named() -> None:
    group = new_view(3)
    for me in (0, 1):
        group.all[me].submit(all_reduce(np.arange(16), "one-shot"))
    assert group.all[2].open_step.explain_missing("abc") == ""
    group.deliver()
    waits = "waits for segment 0 of 2 of operation 0 from peer c (and 1 more)"
    assert group.all[0].open_step.explain_missing("abc") == waits
    assert "from peer of rank 2" in group.all[0].open_step.explain_missing("ab")
    group.all[2].submit(all_reduce(np.arange(16), "one-shot"))
    group.deliver()
    assert group.all[0].open_step.explain_missing("abc") == ""


# Another view in the middle


@given(st.integers(2, 5), st.integers(0, 60), st.data(), seeds)
@settings(deadline=None)
def test_another_view_runs_the_step_again_from_untouched_inputs(
    world_size: int, num_segments: int, data: st.DataObject, seed: int
) -> None:
    group = new_view(world_size, seed)
    inputs = [inputs_of(world_size, length) for length in (0, 10, 150)]
    operations = [[all_reduce(values[me].copy()) for values in inputs] for me in range(world_size)]
    submitted = [data.draw(st.integers(0, 3)) for _ in group.all]
    for me, each in enumerate(group.all):
        each.submit(*operations[me][: submitted[me]])
    group.deliver(num_segments)
    survivors = data.draw(st.lists(st.sampled_from(range(world_size)), min_size=1, unique=True))
    group.install(*survivors)
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


# Weights


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), seeds)
@settings(deadline=None)
def test_weighted_sums_are_the_mean_over_all_samples(numbers: list[int], seed: int) -> None:
    group = new_view(len(numbers), seed)
    gradients = inputs_of(len(numbers), 100)
    operations = submit_weighted(group, numbers, gradients)
    group.deliver()
    expected = sum(g.astype(np.float64) * n for g, n in zip(gradients, numbers, strict=True)) / sum(numbers)
    for commit in group.commit():
        contributions = [entry.samples for entry in commit.receipt.contributions]
        assert contributions == [((10 * me, number),) for me, number in enumerate(numbers)]
        assert len(commit.receipt.algorithms) == 1
    assert all(np.allclose(operation.result, expected, rtol=1e-5, atol=1e-4) for operation in operations)
    assert len({operation.result.tobytes() for operation in operations}) == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_weighted_means_keep_their_type_and_are_rounded_to_it(dtype: type) -> None:
    group = new_view(2)
    operations = submit_weighted(group, [1, 3], [np.full(50, value, dtype) for value in (3.0, 5.0)])
    group.deliver()
    group.finished()
    assert all((operation.result == 4.5).all() and operation.result.dtype == dtype for operation in operations)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_gradients_that_count_for_nothing_are_zeros_whatever_they_are(poison: float) -> None:
    group = new_view(3)
    gradients = [np.full(50, value, np.float32) for value in (4.0, poison, 1.0)]
    operations = submit_weighted(group, [1, 0, 2], gradients)
    group.deliver()
    assert all((operation.result == 2.0).all() for operation in operations)


def test_where_nobody_counts_the_sum_is_zeros() -> None:
    group = new_view(2)
    operations = submit_weighted(group, [0, 0], inputs_of(2, 50))
    group.deliver()
    group.finished()
    assert all((operation.result == 0).all() for operation in operations)


@pytest.mark.parametrize("algorithm", ["one-shot", "direct"])
def test_equal_shares_are_added_as_they_are_and_divided_once(algorithm: str) -> None:
    group, rng = new_view(4), np.random.default_rng(0)
    gradients = [rng.standard_normal(100).astype(np.float32) for _ in group.all]
    operations = submit_weighted(group, [5, 3, 3, 3], gradients, algorithm)
    group.deliver(9)
    group.install(1, 2, 3)
    group.activate()
    group.deliver()
    group.finished()
    mean = ((gradients[1] + gradients[2]) + gradients[3]) / np.float32(3)
    assert {operation.result.tobytes() for operation in operations[1:]} == {mean.tobytes()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_gradients_of_a_half_type_do_not_overflow_on_their_way(algorithm: str) -> None:
    group = new_view(3)
    gradients = [np.full(50, 60000, np.float16) for _ in group.all]
    operations = submit_weighted(group, [2, 2, 2], gradients, algorithm)
    group.deliver()
    assert all(np.allclose(operation.result, 60000, rtol=2e-3) for operation in operations)


def test_weights_are_those_of_the_view_that_finishes_the_step() -> None:
    group = new_view(3)
    gradients = [np.full(50, value, np.float32) for value in (3.0, 9.0, 100.0)]
    operations = submit_weighted(group, [2, 1, 1], gradients)
    group.deliver(7)
    group.install(1, 0)
    group.activate()
    group.deliver()
    for commit in group.commit():
        assert [entry.num_samples for entry in commit.receipt.contributions] == [1, 2]
    assert all(np.allclose(operations[me].result, 5.0) for me in (0, 1))
    assert [gradient[0] for gradient in gradients] == [3.0, 9.0, 100.0]


def test_nothing_that_is_weighted_is_sent_before_the_counts_are_known_nor_what_is_called_behind_it() -> None:
    group, gradients = new_view(2), inputs_of(2, 50)
    one, other = group.all
    one.submit(counts(1))
    num_sent = group.num_sent
    one.submit(weighted(gradients[0]), all_reduce(np.arange(3)))
    group.deliver()
    assert group.num_sent == num_sent
    other.submit(counts(3))
    group.deliver()
    assert group.num_sent > num_sent
    other.submit(weighted(gradients[1]), all_reduce(np.arange(3)))
    for each in group.all:
        each.close()
    group.deliver()
    group.finished()


# The runner alone


def runs_of(values: Sequence[Array], algorithm: str) -> tuple[list[MessageRunner], list[Operation]]:
    """Runners that have each started one operation; their messages are in `outgoing`."""
    operations, runners = [all_reduce(each, algorithm) for each in values], [MessageRunner(64) for _ in values]
    for rank, (runner, operation) in enumerate(zip(runners, operations, strict=True)):
        runner.start(0, task_of(operation, bytes(16), rank, (0,) * len(values), None, 0))
    return runners, operations


def pass_on(source: int, runners: Sequence[MessageRunner]) -> None:
    """Deliver a rank's outgoing messages to all others."""
    sent, runners[source].outgoing = runners[source].outgoing, []
    for index, (rank, transfer, segment, payload) in sent:
        runners[rank].receive(index, Segment(0, source, transfer, segment, bytes(16), payload.tobytes()))


def test_a_chunk_is_digested_while_the_others_are_on_their_way() -> None:
    """The chunk is still in the cache, and the runner is otherwise idle."""
    runners, operations = runs_of(inputs_of(2, 16), "direct")
    pass_on(1, runners)
    pass_on(0, runners)
    assert [runner.advance() for runner in runners] == [RunState.IDLE] * 2
    assert not runners[0].is_complete(0)
    operations[0].result[0] += 1
    pass_on(1, runners)
    assert runners[0].is_complete(0) and runners[0].digest(0) == runners[1].digest(0)


@pytest.mark.parametrize("operation", [all_reduce(np.zeros(3)), weighted(np.zeros(3), "ring")], ids=Operation.describe)
def test_what_is_added_is_what_lies_ready_for_it(operation: Operation) -> None:
    """The ready input may be a copy of the script's tensor."""
    task = task_of(operation, bytes(16), 0, (0,), np.array([[0, 5, 5]]), 0)
    runner = MessageRunner(64)
    runner.start(0, replace(task, input=np.ones(3)))
    assert operation.result.tolist() == [1, 1, 1]


def test_the_next_step_begins_with_operation_0() -> None:
    (runner,), _ = runs_of(inputs_of(1, 20), "ring")
    runner.end_step()
    runner.start(0, task_of(all_reduce(np.arange(3)), bytes(16), 0, (0,), None, 0))
    assert runner.is_complete(0) and not runner.missing(0)

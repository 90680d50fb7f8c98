from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, BFLOAT16, OPS
from p2p.errors import RemoteProtocolError
from p2p.net.frames import Segment
from p2p.step.operation import overwrite
from p2p.step.operations import Operation
from tests.p2p.step.group import (
    SEGMENT_BYTES,
    Group,
    all_reduce,
    counts,
    inputs_of,
    new_view,
    other_calls,
    submit_weighted,
    weighted,
)

Array = npt.NDArray[Any]

seeds = st.integers(0, 2**32 - 1)
world_sizes = st.integers(1, 5)


# Sums.


@given(world_sizes, st.lists(st.sampled_from([0, 1, 5, 100]), min_size=1, max_size=4), st.booleans(), seeds)
@settings(deadline=None)
def test_a_step_of_several_operations_gives_every_rank_the_sums_and_one_digest(
    world_size: int, lengths: list[int], is_float: bool, seed: int
) -> None:
    group = new_view(world_size, seed)
    inputs = [inputs_of(world_size, length, np.float32 if is_float else np.int64) for length in lengths]
    operations = [[all_reduce(inputs[i][me]) for i in range(len(lengths))] for me in range(world_size)]
    turns = [me for me in range(world_size) for _ in lengths]
    group.rng.shuffle(turns)  # nobody waits for the others before it submits
    submitted = [0] * world_size
    for me in turns:
        group.all[me].submit(4, operations[me][submitted[me]])
        submitted[me] += 1
        group.deliver(group.rng.randrange(5))
    for each in group.all:
        each.close(4, b"state")
    group.deliver()
    step, _, state_digest = group.finished()
    assert (step, state_digest) == (4, b"state") and not group.mismatched
    for me in range(world_size):
        assert all((o.result == sum(inputs[i])).all() for i, o in enumerate(operations[me]))
        assert not group.all[me].missing()
        assert group.all[me].end() == operations[me]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(world_sizes, st.integers(0, 200), seeds)
@settings(deadline=None, max_examples=20)
def test_every_algorithm_leaves_equal_bits_and_equal_digests(
    algorithm: str, world_size: int, length: int, seed: int
) -> None:
    group = new_view(world_size, seed)
    rng = np.random.default_rng(seed)
    operations = [all_reduce(rng.standard_normal(length).astype(np.float32), algorithm) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    group.deliver()
    group.finished()
    assert len({operation.result.tobytes() for operation in operations}) == 1
    assert {operation.ran for operation in operations} == {algorithm}


@pytest.mark.parametrize("op", OPS)
def test_a_reduction_is_over_the_members_of_the_view_that_finishes_the_step(op: str) -> None:
    group = new_view(4)
    operations = [all_reduce(np.full(50, 2.0**me, np.float16), op=op) for me in range(4)]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    group.deliver(3)
    group.install(2, 0)
    group.activate()
    group.deliver()
    group.finished()
    expected = {"sum": 5.0, "mean": 2.5, "min": 1.0, "max": 4.0}[op]
    assert all((operations[me].result == expected).all() for me in (0, 2))


def test_what_is_called_is_said_in_words() -> None:
    values = np.zeros(6, BFLOAT16)
    operation = Operation("all_reduce", values, values.copy(), (2, 3), None, op="max")
    assert operation.describe() == "all_reduce max of bfloat16 [2, 3] by size"
    assert weighted(np.zeros(2)).describe() == "all_reduce weighted mean of float64 [2] by size"
    assert counts(1).describe() == "all_gather of int64 [2] by one-shot"


def test_other_results_have_another_digest() -> None:
    digests = set()
    for value in (1.0, 2.0):
        group = new_view(2)
        for each in group.all:
            each.submit(0, all_reduce(np.full(50, value, np.float32)))
            each.close(0, b"")
        group.deliver()
        digests.add(group.finished()[1])
    assert len(digests) == 2


def test_steps_follow_each_other_in_one_view() -> None:
    group = new_view(3)
    for step in range(5):
        operations = [all_reduce(np.full(40, step + me, np.int64)) for me in range(3)]
        for each, operation in zip(group.all, operations, strict=True):
            each.submit(step, operation)
            each.close(step, b"")
        group.deliver()
        assert group.finished()[0] == step
        assert all((operation.result == 3 * step + 3).all() for operation in operations)
        group.end()


def test_segments_of_a_step_that_is_not_open_yet_are_kept() -> None:
    group = new_view(2)
    early, late = [all_reduce(np.arange(100)) for _ in range(2)], [all_reduce(np.arange(100)) for _ in range(2)]
    for operation in early:
        group.all[0].submit(0, operation)
    group.all[0].close(0, b"")
    group.deliver()
    for operation in late:
        group.all[1].submit(0, operation)
    group.all[1].close(0, b"")
    group.deliver()
    group.finished()
    assert all((operation.result == 2 * np.arange(100)).all() for operation in (*early, *late))


def test_segments_that_come_before_the_view_is_active_here_are_kept() -> None:
    group = Group(2, seed=0)
    group.install(0, 1)
    operations = [all_reduce(np.arange(100)) for _ in range(2)]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    group.activate(0)
    group.deliver()
    assert [each.finished() for each in group.all] == [None, None]
    group.activate(1)
    group.deliver()
    group.finished()
    assert (operations[0].result == 2 * np.arange(100)).all()


# When a step is finished.


def test_a_step_is_finished_when_it_is_closed_and_complete() -> None:
    group = new_view(2)
    one, other = group.all
    assert one.finished() is None
    one.submit(0, all_reduce(np.arange(10)))
    one.close(0, b"")
    other.submit(0, all_reduce(np.arange(10)))
    assert one.finished() is None
    group.deliver()
    assert one.finished() is not None
    assert other.finished() is None
    other.close(0, b"")
    assert other.finished() == one.finished()
    one.install()
    assert one.finished() is None


def test_what_is_missing_is_named() -> None:
    group = new_view(3)
    for me in (0, 1):
        group.all[me].submit(0, all_reduce(np.arange(2 * SEGMENT_BYTES // 8)))
    group.deliver()
    assert [(operation, peer) for operation, peer, *_ in group.all[0].missing()] == [(0, 2), (0, 2)]
    assert [segment for *_, segment, _ in group.all[0].missing()] == [0, 1]


def test_an_operation_is_found_by_its_step_and_index() -> None:
    (operations,) = new_view(1).all
    mine = all_reduce(np.arange(3))
    assert operations.operation(5, 0) is None
    operations.submit(5, mine)
    assert operations.operation(5, 0) is mine
    assert operations.operation(5, 1) is None and operations.operation(4, 0) is None
    operations.end()
    assert operations.operation(5, 0) is None


# Another view in the middle.


@given(st.integers(2, 5), st.integers(0, 60), st.data(), seeds)
@settings(deadline=None)
def test_another_view_runs_the_step_again_from_untouched_inputs(
    world_size: int, num_segments: int, data: st.DataObject, seed: int
) -> None:
    group = new_view(world_size, seed)
    inputs = [inputs_of(world_size, length) for length in (0, 10, 150)]
    operations = [[all_reduce(inputs[i][me].copy()) for i in range(3)] for me in range(world_size)]
    for me, each in enumerate(group.all):
        for operation in operations[me][: data.draw(st.integers(0, 3))]:
            each.submit(0, operation)
    group.deliver(num_segments)
    survivors = data.draw(st.lists(st.sampled_from(range(world_size)), min_size=1, unique=True))
    group.install(*survivors)
    assert all(group.all[me].finished() is None for me in survivors)
    for me in survivors:
        group.activate(me)
        submitted = sum(group.all[me].operation(0, i) is not None for i in range(3))
        for operation in operations[me][submitted:]:
            group.all[me].submit(0, operation)
        group.all[me].close(0, b"")
    group.deliver()
    group.finished()
    for me in survivors:
        for i, operation in enumerate(operations[me]):
            assert operation.input.tobytes() == inputs[i][me].tobytes()
            assert (operation.result == sum(inputs[i][other] for other in survivors)).all()


def test_a_step_that_some_commit_before_another_view_and_some_at_its_barrier_leaves_them_in_step() -> None:
    group = new_view(2)
    early, late = group.all
    for each in group.all:
        each.submit(0, all_reduce(np.arange(10)))
        each.close(0, b"")
    group.deliver()
    early.end()
    group.install(0, 1)
    late.end()
    group.activate()
    operations = [all_reduce(np.arange(20)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(1, operation)
        each.close(1, b"")
    group.deliver()
    assert group.finished()[0] == 1
    assert all((operation.result == 2 * np.arange(20)).all() for operation in operations)


def test_what_a_former_step_left_in_flight_is_ignored() -> None:
    group = new_view(2)
    for each in group.all:
        each.submit(0, all_reduce(np.full(10, 3)))
        each.close(0, b"")
    late = list(group.in_flight)
    group.deliver()
    group.end()
    operations = [all_reduce(np.arange(10)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(1, operation)
        each.close(1, b"")
    group.in_flight += late
    group.deliver()
    group.finished()
    assert all((operation.result == 2 * np.arange(10)).all() for operation in operations)


# Weights.


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), seeds)
@settings(deadline=None)
def test_weighted_sums_are_the_mean_over_all_samples(numbers: list[int], seed: int) -> None:
    group = new_view(len(numbers), seed)
    gradients = inputs_of(len(numbers), 100)
    operations = submit_weighted(group, numbers, gradients)
    group.deliver()
    group.finished()
    expected = sum(g.astype(np.float64) * n for g, n in zip(gradients, numbers, strict=True)) / sum(numbers)
    assert all(np.allclose(operation.result, expected, rtol=1e-5, atol=1e-4) for operation in operations)
    assert len({operation.result.tobytes() for operation in operations}) == 1
    gathered = [[10 * me, number] for me, number in enumerate(numbers)]
    assert all(each.counts is not None and each.counts.tolist() == gathered for each in group.all)


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
    group.finished()
    assert all(np.allclose(operations[me].result, 5.0) for me in (0, 1))
    assert all(each.counts is not None and each.counts.tolist() == [[10, 1], [0, 2]] for each in group.all[:2])
    assert [gradient[0] for gradient in gradients] == [3.0, 9.0, 100.0]


def test_nothing_that_is_weighted_is_sent_before_the_counts_are_known() -> None:
    group = new_view(2)
    gradients = inputs_of(2, 50)
    group.all[0].submit(0, counts(1))
    num_sent = len(group.in_flight)
    group.all[0].submit(0, weighted(gradients[0]))
    assert len(group.in_flight) == num_sent
    group.all[1].submit(0, counts(3))
    group.deliver()
    assert group.all[1].operation(0, 1) is None
    group.all[1].submit(0, weighted(gradients[1]))
    group.deliver()
    assert not group.all[0].missing() and not group.all[1].missing()


# What does not match.


@pytest.mark.parametrize("other", other_calls("ring"), ids=Operation.describe)
@pytest.mark.parametrize("first", [0, 1])
def test_an_operation_that_somebody_calls_differently_is_reported_and_not_summed(other: Operation, first: int) -> None:
    group = new_view(2)
    mine = all_reduce(np.arange(10))
    calls = [(0, mine), (1, replace(other))]
    for me, operation in (calls[first], calls[1 - first]):
        group.all[me].submit(0, operation)
        group.all[me].close(0, b"")
        group.deliver()
    assert set(group.mismatched) == {(0, 0), (1, 0)}
    assert [each.finished() for each in group.all] == [None, None]
    assert (mine.result == 77).all()


def test_the_step_and_the_place_in_it_are_part_of_what_has_to_match() -> None:
    group = new_view(2)
    group.all[0].submit(3, all_reduce(np.arange(10)))
    group.all[1].submit(4, all_reduce(np.arange(10)))
    group.deliver()
    assert set(group.mismatched) == {(0, 0), (1, 0)}


def test_after_a_step_is_given_up_the_next_works_in_another_view() -> None:
    group = new_view(2)
    for me, size in enumerate((10, 11)):
        group.all[me].submit(0, all_reduce(np.arange(size)))
    group.deliver()
    group.end()
    operations = [all_reduce(np.arange(12)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    group.install(0, 1)
    group.activate()
    group.deliver()
    group.finished()
    assert all((operation.result == 2 * np.arange(12)).all() for operation in operations)


def wrong_segments(good: Segment) -> list[Segment]:
    return [
        good._replace(source=7),
        good._replace(transfer=99),
        good._replace(segment=99),
        good._replace(payload=b""),
        good._replace(payload=bytes(good.payload) + bytes(8)),
        good._replace(payload=bytes(good.payload)[:-1]),
    ]


def test_a_segment_that_fits_nothing_is_refused_and_the_right_one_still_taken() -> None:
    group = new_view(2)
    operations = [all_reduce(np.arange(10)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    for target, good in list(group.in_flight):
        for wrong in wrong_segments(good):
            with pytest.raises(RemoteProtocolError, match="segment of operation 0"):
                group.all[target].receive(wrong)
    duplicate = group.in_flight[0]
    group.deliver()
    group.finished()
    with pytest.raises(RemoteProtocolError, match="segment of operation 0"):
        group.all[duplicate[0]].receive(duplicate[1])
    assert (operations[0].result == 2 * np.arange(10)).all()


def test_an_early_segment_that_fits_nothing_harms_nobody() -> None:
    group = new_view(2)
    group.all[0].submit(0, all_reduce(np.arange(10)))
    group.all[0].close(0, b"")
    (_, good), *_ = group.in_flight
    for wrong in wrong_segments(good):
        group.all[1].receive(wrong)
    group.deliver()
    mine = all_reduce(np.arange(10))
    group.all[1].submit(0, mine)
    group.all[1].close(0, b"")
    group.deliver()
    group.finished()
    assert (mine.result == 2 * np.arange(10)).all()


# Of who has no in_view.


def test_results_of_others_take_the_place_of_those_here() -> None:
    operations = [all_reduce(np.zeros(2)), all_reduce(np.zeros(0)), counts(3)]
    gathered = np.arange(6, dtype=np.int64)
    overwrite(operations, [np.ones(2).tobytes(), b"", gathered.tobytes()])
    assert operations[0].result.tolist() == [1, 1]
    assert operations[2].result.tolist() == gathered.tolist()


def test_a_result_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a result of all_reduce sum of float64 .4. by size has 31 bytes"):
        overwrite([all_reduce(np.zeros(4))], [bytes(31)])


# What is taken back.


def test_what_is_taken_back_runs_no_more_in_this_view_and_something_else_in_the_next() -> None:
    group = new_view(2)
    first, second = group.all
    theirs = all_reduce(np.full(50, 1.0))
    first.submit(3, all_reduce(np.full(50, 5.0)))
    second.submit(3, theirs)
    second.close(3, b"")
    group.deliver(2)
    assert first.progress()[0] == 1
    first.end()
    first.pause()
    assert first.progress() == (0, 0) and first.operation(3, 0) is None
    ours = all_reduce(np.full(50, 9.0))
    first.submit(3, ours)
    first.close(3, b"")
    group.deliver()
    assert first.finished() is None
    group.install(0, 1)
    group.activate()
    group.deliver()
    assert group.finished()[0] == 3
    assert (ours.result == 10.0).all() and (theirs.result == 10.0).all()
    assert first.progress() == (1, 1)


def test_what_has_not_run_in_this_view_is_taken_back_without_a_trace() -> None:
    group = Group(2, seed=0)
    group.install(0, 1)
    group.all[0].submit(0, all_reduce(np.zeros(5)))
    assert group.all[0].progress() == (0, 0)
    group.all[0].end()
    operations = [all_reduce(np.full(5, 1.0)) for _ in range(2)]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(0, operation)
        each.close(0, b"")
    group.activate()
    group.deliver()
    group.finished()
    assert all((operation.result == 2.0).all() for operation in operations)

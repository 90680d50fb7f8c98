"""Collectives other than all-reduce in the open steps of several peers, over messages and over memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import BFLOAT16, even_chunks, split_by_weight
from collectives.goals import COLLECTIVES, GOALS, SUM
from gossip.progress import Finish as Finished
from p2p.errors import OperationMismatch
from p2p.net.parcels import StepRecord
from p2p.session.operation_call import OperationArgs, part_of
from p2p.step.effects import Tell
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from tests.p2p.memory.machine import Machine
from tests.p2p.step.group import (
    MEMBERS,
    SEGMENT_BYTES,
    Array,
    Group,
    enter,
    gather,
    inputs_of,
    moved,
    new_view,
    only,
    run_step,
    shared_view,
    submit_all,
)

CASES = [(kind, algorithm) for kind in COLLECTIVES if kind != "all-reduce" for algorithm in COLLECTIVES[kind]]
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(4)
    yield machine
    machine.host.close()


def peer_id(me: int) -> str:
    return MEMBERS[me].peer_id


def operation_of(kind: str, algorithm: str, values: Array, me: int, world_size: int, root: int) -> Operation:
    """The operation that member `me` calls; `values` are all chunks."""
    if kind in ("all-gather", "gather"):
        values = values[split_by_weight(values.size, even_chunks(world_size))[me]].copy()
    if kind == "all-gather":
        operation = gather(values)
        operation.algorithm = algorithm
        return operation
    return moved(kind, values, root=peer_id(root) if GOALS[kind].has_root else "", algorithm=algorithm)


def check(kind: str, inputs: Sequence[Array], operations: Sequence[Operation], root: int) -> None:
    """Check that each member has in each chunk the collective's result."""
    goal, num, length = GOALS[kind], len(inputs), inputs[0].size
    num_chunks = num ** (goal.chunks_per_rank or 0)
    for rank, operation in enumerate(operations):
        for chunk, where in enumerate(split_by_weight(length, even_chunks(num_chunks))):
            source = goal.needed(rank, chunk, num, root)
            if source is not None:
                wanted = sum(each[where] for each in inputs) if source == SUM else inputs[source][where]
                assert (operation.result[where] == wanted).all(), (kind, rank, chunk)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("shares", [False, True])
@given(world_size=st.integers(1, 4), part=st.integers(0, 70), seed=seeds, data=st.data())
@settings(deadline=None, max_examples=10)
def test_each_member_has_what_the_collective_says_and_all_finish_with_one_digest(
    machine: Machine,
    kind: str,
    algorithm: str,
    shares: bool,
    world_size: int,
    part: int,
    seed: int,
    data: st.DataObject,
) -> None:
    root = data.draw(st.integers(0, world_size - 1)) if GOALS[kind].has_root else 0
    group = shared_view(machine, world_size, seed) if shares else new_view(world_size, seed)
    inputs = inputs_of(world_size, part * world_size, np.int64)
    for me, each in enumerate(inputs):
        each += 1000 * me
    operations = [operation_of(kind, algorithm, inputs[me], me, world_size, root) for me in range(world_size)]
    run_step(group, *operations)
    check(kind, inputs, operations, root)
    assert {each.outcome[2:] for each in operations} == {(world_size, False)}
    group.commit()


def test_half_types_are_moved_as_they_are() -> None:
    group, values = new_view(3), [np.full(5, me + 1).astype(np.float32).astype(BFLOAT16) for me in range(3)]
    operations = [moved("broadcast", each, root=peer_id(1)) for each in values]
    run_step(group, *operations)
    assert all(each.result.tobytes() == values[1].tobytes() for each in operations)


def begun(group: Group, operations: Sequence[Operation], num_messages: int) -> None:
    """All members have submitted, and some messages have arrived; then member 0 is gone."""
    for me, operation in enumerate(operations):
        group.all[me].submit(operation)
        group.all[me].close()
    group.deliver(num_messages)
    enter(group, *range(1, len(operations)))
    group.deliver()


@given(st.integers(0, 12), seeds)
@settings(deadline=None)
def test_without_its_root_a_broadcast_moves_nothing_and_the_step_commits(num_messages: int, seed: int) -> None:
    group = new_view(3, seed)
    operations = [moved("broadcast", np.full(40, me), root=peer_id(0), algorithm="binary-tree") for me in range(3)]
    begun(group, operations, num_messages)
    commits = group.commit()
    assert [commit.receipt.algorithms for commit in commits] == [("nothing",)] * 2
    assert [(each.is_root_missing, each.common.size) for each in operations[1:]] == [(True, 0)] * 2
    assert all((operations[me].input == me).all() for me in (1, 2))


@given(st.sampled_from(["one-shot", "binary-tree", "ring"]), st.integers(0, 12), seeds)
@settings(deadline=None)
def test_a_broadcast_is_done_again_from_its_root_whatever_rank_that_is_then(
    algorithm: str, num_messages: int, seed: int
) -> None:
    group = new_view(4, seed)
    operations = [moved("broadcast", np.full(40, me), root=peer_id(2), algorithm=algorithm) for me in range(4)]
    begun(group, operations, num_messages)
    group.commit()
    assert all((each.result == 2).all() and not each.is_root_missing for each in operations[1:])


@given(st.sampled_from(["direct", "ring"]), st.integers(0, 20), seeds)
@settings(deadline=None)
def test_a_reduce_scatter_that_is_done_again_has_the_shares_of_fewer(
    algorithm: str, num_messages: int, seed: int
) -> None:
    group = new_view(4, seed)
    operations = [moved("reduce-scatter", np.arange(10) + 100 * me, algorithm=algorithm) for me in range(4)]
    begun(group, operations, num_messages)
    group.commit()
    shares = split_by_weight(10, even_chunks(3))
    for me in (1, 2, 3):
        operation = operations[me]
        assert (operation.rank, operation.num_ranks, operation.common.size) == (me - 1, 3, 0)
        assert (operation.result[shares[me - 1]] == (3 * np.arange(10) + 600)[shares[me - 1]]).all()


@pytest.mark.parametrize("algorithm", COLLECTIVES["reduce-scatter"])
def test_a_reduce_scatter_has_the_mean_of_those_that_are_left(algorithm: str) -> None:
    group = new_view(4, 0)
    operations = [moved("reduce-scatter", np.full(6, 3.0 + me), "mean", algorithm=algorithm) for me in range(4)]
    begun(group, operations, 100)
    group.commit()
    for me, share in enumerate(split_by_weight(6, even_chunks(3)), start=1):
        assert operations[me].result[share].tolist() == [5.0, 5.0]


@given(st.sampled_from(["one-shot", "ring"]), st.integers(0, 12), seeds)
@settings(deadline=None)
def test_a_gather_that_is_done_again_has_the_rows_of_those_that_are_left(
    algorithm: str, num_messages: int, seed: int
) -> None:
    group = new_view(4, seed)
    operations = [operation_of("all-gather", algorithm, np.repeat(np.arange(4), 3), me, 4, 0) for me in range(4)]
    begun(group, operations, num_messages)
    group.commit()
    assert all(each.result.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3] for each in operations[1:])


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (moved("broadcast", np.arange(4), root="b"), "broadcast from peer b of int64 [4] by size"),
        (moved("reduce-scatter", np.arange(4)), "reduce_scatter sum of int64 [4] by size"),
        (moved("broadcast", np.arange(5), root="a"), "broadcast from peer a of int64 [5] by size"),
        (moved("broadcast", np.arange(4.0), root="a"), "broadcast from peer a of float64 [4] by size"),
    ],
)
def test_who_calls_another_root_operation_shape_or_type_goes_alone_and_both_are_said(
    theirs: Operation, said: str
) -> None:
    group = new_view(3)
    for me, operation in enumerate([moved("broadcast", np.arange(4), root="a") for _ in range(2)] + [theirs]):
        group.all[me].submit(operation)
        group.all[me].close()
    group.deliver()
    assert group.parted == {2}
    (told,) = only(Tell, group.all[2].open_step.notify_if_given_up())
    ours = "broadcast from peer a of int64 [4] by size"
    assert isinstance(told.notice, OperationMismatch) and told.notice.is_alone
    assert said in str(told.notice) and ours in str(told.notice)


def test_a_root_that_has_finished_is_told_by_who_calls_something_else() -> None:
    """A root waits for no member, so the other one gives the step up, and says why."""
    group = new_view(2)
    for me, operation in enumerate([moved("broadcast", np.arange(4), root="a"), moved("reduce-scatter", np.arange(4))]):
        group.all[me].submit(operation)
        group.all[me].close()
        group.deliver()
    assert group.all[0].finish is not None and {*group.mismatched} == {1}
    said = group.mismatched[1]
    assert "broadcast from peer a of int64 [4] by size" in said and "reduce_scatter sum of int64 [4] by size" in said


def test_an_observer_is_fed_what_all_have_and_nothing_of_a_share() -> None:
    """Roots and ranks are those of the view in which the step was finished."""
    group = new_view(2)

    def called(me: int) -> list[Operation]:
        kinds = [moved("reduce-scatter", np.arange(6)), moved("broadcast", np.full(3, me), root="b")]
        return [*kinds, gather(np.full(2, me)), moved("broadcast", np.full(3, me), root="c")]

    members = [called(me) for me in range(2)]
    submit_all(group, members)
    for each in group.all:
        each.close()
    group.deliver()
    (commit, _) = group.commit()
    observer, own = OpenStep(MEMBERS[2], segment_bytes=SEGMENT_BYTES), called(2)
    for operation in own:
        observer.submit(0, 0, operation)
    observer.close(0, b"")
    fed = [operation.common.tobytes() for operation in commit.operations]
    assert [len(each) for each in fed] == [0, 24, 32, 0]
    finish = Finished(0, b"r" * 16, b"", group.view.number)
    record = StepRecord(b"", b"", finish, group.view, ((0, 0, 0),) * 2, commit.receipt.algorithms, commit.fingerprints)
    taken = observer.adopt(record, fed)
    assert taken is not None and taken.receipt.algorithms == ("direct", "one-shot", "one-shot", "nothing")
    share, handed_out, rows, lost = own
    assert part_of(OperationArgs(share.collective), (6,), share.outcome)[1:] == ((0,), slice(0, 0))
    assert (handed_out.result.tolist(), rows.result.tolist(), lost.is_root_missing) == ([1, 1, 1], [0, 0, 1, 1], True)
    part, shape, _ = part_of(OperationArgs(rows.collective), (2,), rows.outcome)
    assert (part.tolist(), shape) == ([0, 0, 1, 1], (2, 2))

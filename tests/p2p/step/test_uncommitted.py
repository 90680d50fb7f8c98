"""Operations whose results are returned before the commit."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS
from p2p.step.operation import Operation
from tests.p2p.memory.machine import Machine
from tests.p2p.step.group import (
    Array,
    Group,
    SharedGroup,
    all_reduce,
    early_results,
    enter,
    inputs_of,
    new_view,
    shared_view,
)

calls = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 100]), st.sampled_from([None, *ALGORITHMS]), st.booleans()),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(4)
    yield machine
    machine.host.close()


@given(st.integers(2, 4), calls, st.booleans(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_each_is_handed_out_once_and_complete_and_the_others_are_not(
    machine: Machine, size: int, calls: list[tuple[int, str | None, bool]], shares: bool, seed: int
) -> None:
    group = shared_view(machine, size, seed) if shares else new_view(size, seed)
    inputs = [inputs_of(size, length) for length, _, _ in calls]
    operations = [
        [all_reduce(inputs[i][me], name, early=is_early) for i, (_, name, is_early) in enumerate(calls)]
        for me in group.members
    ]
    handed_out: list[list[Operation]] = [[] for _ in group.members]
    turns = [me for me in group.members for _ in calls]
    group.rng.shuffle(turns)
    submitted = [0] * size
    for me in turns:
        group.all[me].submit(operations[me][submitted[me]])
        submitted[me] += 1
        for _ in range(group.rng.randrange(20)):
            group.deliver(1)
            take(group, handed_out, operations, inputs)
    group.deliver()
    take(group, handed_out, operations, inputs)
    for me in group.members:
        wanted = [operation for operation in operations[me] if operation.is_uncommitted]
        assert all(one is other for one, other in zip(handed_out[me], wanted, strict=True))
        group.all[me].close()
    group.deliver()
    group.finished()


def take(
    group: Group, handed_out: list[list[Operation]], operations: list[list[Operation]], inputs: list[list[Array]]
) -> None:
    """Check that all results available now are final."""
    for me in group.members:
        for operation in early_results(group.all[me]):
            assert (operation.result == sum(inputs[operations[me].index(operation)])).all()
            handed_out[me].append(operation)


def test_what_is_done_over_writes_another_result_than_the_one_that_is_in_use(machine: Machine) -> None:
    group = SharedGroup(machine, 2)
    operations = [all_reduce(np.arange(9) + me, early=True) for me in range(2)]
    results = []
    for turn in range(2):
        enter(group, 0, 1)
        for each, operation in zip(group.all, operations, strict=True):
            if turn == 0:
                each.submit(operation)
        group.deliver()
        results.append([operation.result for operation in operations])
        for each, operation in zip(group.all, operations, strict=True):
            assert early_results(each) == ([operation] if turn == 0 else [])  # once
    for me in range(2):
        assert results[0][me] is not results[1][me]
        assert all((result[me] == 2 * np.arange(9) + 1).all() for result in results)


def test_a_result_is_there_before_the_step_is_closed_and_the_commit_has_all_operations() -> None:
    group = new_view(2)
    early, last = ([all_reduce(np.full(9, float(me)), early=is_early) for me in range(2)] for is_early in (True, False))
    for each, operation in zip(group.all, early, strict=True):
        each.submit(operation)
    group.deliver()
    for each, operation in zip(group.all, early, strict=True):
        assert early_results(each) == [operation] and (operation.result == 1).all()
        assert each.finish is None
    for each, operation in zip(group.all, last, strict=True):
        each.submit(operation)
        each.close()
    group.deliver()
    for me, commit in enumerate(group.commit()):
        assert commit.operations == [early[me], last[me]]


def test_who_is_barred_runs_nothing_with_those_who_have_used_a_result() -> None:
    """Otherwise they would redo operations whose results they have used, with other inputs."""
    group = new_view(2)
    one, other = group.all
    for value, each in ((1.0, one), (10.0, other)):
        each.submit(all_reduce(np.full(4, value), early=True))
    group.deliver()
    assert [len(early_results(each)) for each in group.all] == [1, 1]
    group.install(0, 1)
    one.withdraw()
    group.activate()
    one.submit(all_reduce(np.full(4, 100.0), early=True))
    group.deliver()
    assert [early_results(each) for each in group.all] == [[], []]

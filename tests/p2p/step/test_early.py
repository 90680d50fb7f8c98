"""Operations whose results are wanted before the commit."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS
from p2p.step.operations import Operation
from tests.p2p.memory.machine import Machine
from tests.p2p.step.group import Array, Group, SharingGroup, all_reduce, inputs_of

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
    group = SharingGroup(machine, size, seed) if shares else Group(size, seed)
    group.install(*range(size))
    group.activate()
    inputs = [inputs_of(size, length) for length, _, _ in calls]
    operations = [
        [all_reduce(inputs[i][me], algorithm) for i, (_, algorithm, _) in enumerate(calls)] for me in group.members
    ]
    for each in operations:
        for operation, (_, _, is_early) in zip(each, calls, strict=True):
            operation.is_early = is_early
    handed_out: list[list[Operation]] = [[] for _ in group.members]
    turns = [me for me in group.members for _ in calls]
    group.rng.shuffle(turns)
    submitted = [0] * size
    for me in turns:
        group.all[me].submit(4, operations[me][submitted[me]])
        submitted[me] += 1
        for _ in range(group.rng.randrange(20)):
            group.deliver(1)
            take(group, handed_out, operations, inputs)
    group.deliver()
    take(group, handed_out, operations, inputs)
    for me in group.members:
        assert {*map(id, handed_out[me])} == {id(operation) for operation in operations[me] if operation.is_early}
        group.all[me].close(4, b"")
    group.finished()


def take(
    group: Group, handed_out: list[list[Operation]], operations: list[list[Operation]], inputs: list[list[Array]]
) -> None:
    """What is there now: it has its final result, and was not there before."""
    for me in group.members:
        early, group.all[me].early = group.all[me].early, []
        for operation in early:
            assert not any(operation is before for before in handed_out[me])
            assert (operation.result == sum(inputs[operations[me].index(operation)])).all()
            handed_out[me].append(operation)


def test_what_is_early_is_another_operation_than_what_is_committed() -> None:
    one, other = all_reduce(np.arange(3)), all_reduce(np.arange(3))
    other.is_early = True
    assert other.describe() == f"{one.describe()}, uncommitted"


def test_what_is_done_over_writes_another_result_than_the_one_that_is_in_use(machine: Machine) -> None:
    group = SharingGroup(machine, 2)
    operations = [all_reduce(np.arange(9) + me) for me in range(2)]
    results = []
    for turn in range(2):
        group.install(0, 1)
        group.activate()
        for each, operation in zip(group.all, operations, strict=True):
            if turn == 0:
                operation.is_early = True
                each.submit(0, operation)
        group.deliver()
        results.append([operation.result for operation in operations])
        for each, operation in zip(group.all, operations, strict=True):
            assert each.early == ([operation] if turn == 0 else [])  # once
            operation.is_handed_out = True
            each.early = []
    for me in range(2):
        assert results[0][me] is not results[1][me]
        assert all((result[me] == 2 * np.arange(9) + 1).all() for result in results)

"""Operations that are not ready when they are started: the open step need not know."""

from collections.abc import Iterator

import numpy as np
import pytest

from gossip.given_up import Cause, GivenUp
from p2p.errors import OperationInterrupted, OperationMismatch
from p2p.memory.shared_runner import RunState
from p2p.step.operation import Operation
from p2p.step.runner import Runner
from tests.p2p.memory.machine import Machine
from tests.p2p.step.group import Group, SharedGroup, all_reduce, counts, early_results, enter, gather, weighted
from tests.p2p.step.staged import StagedRunner


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(2)
    yield machine
    machine.host.close()


class StagedGroup(SharedGroup):
    """Two members whose operations are ready when the test says so.

    Attributes:
        ready: number of ready operations of the open step, at each member.
    """

    def __init__(self, machine: Machine, *, shares: bool) -> None:
        super().__init__(machine, 2)
        self.ready = [0, 0]
        self._shares = shares
        enter(self, 0, 1)

    def install(self, *members: int, shares: bool = True) -> None:
        super().install(*members, shares=self._shares)

    def runner(self, me: int) -> Runner:
        return StagedRunner(super().runner(me), lambda index: index < self.ready[me])


@pytest.fixture(params=[False, True], ids=["messages", "memory"])
def group(machine: Machine, request: pytest.FixtureRequest) -> StagedGroup:
    return StagedGroup(machine, shares=request.param)


def submit(group: Group, *calls: tuple[Operation, Operation]) -> None:
    """Submit each pair of operations at both members."""
    for operations in calls:
        for each, operation in zip(group.all, operations, strict=True):
            each.submit(operation)
    for each in group.all:
        each.close(b"state")
    group.deliver()


def sums(*values: int) -> tuple[Operation, Operation]:
    one, other = (all_reduce(np.arange(50) * value) for value in values)
    return one, other


def test_results_are_right_and_come_when_the_inputs_are_there(group: StagedGroup) -> None:
    gathers = gather(np.arange(3.0)), gather(np.arange(3.0) + 3)
    means = weighted(np.full(5, 2.0)), weighted(np.full(5, 6.0))
    submit(group, sums(1, 2), gathers, (counts(1), counts(3)), means)
    assert [each.finish for each in group.all] == [None, None]
    group.ready = [4, 4]
    group.deliver()
    for commit in group.commit():
        total, gathered, _, mean = commit.operations
        assert (total.result == 3 * np.arange(50)).all() and (mean.result == 5.0).all()
        assert gathered.result.tolist() == [0, 1, 2, 3, 4, 5]


def test_inputs_are_those_of_the_moment_at_which_they_are_ready_and_results_come_when_they_are_complete(
    group: StagedGroup,
) -> None:
    """So no copy is the tensor itself."""
    gathers = gather(np.zeros(3)), gather(np.zeros(3))
    means = weighted(np.full(5, np.nan)), weighted(np.full(5, np.nan))
    totals = all_reduce(np.zeros(4)), all_reduce(np.zeros(4))
    submit(group, (counts(1), counts(3)), means, totals, gathers)
    for me in range(2):
        for operation in (means[me], totals[me], gathers[me]):
            operation.input[:] = me + 1
    group.ready = [4, 4]
    group.all[0].advance()
    assert (totals[0].result == 77).all()
    group.deliver()
    group.finished()
    assert all((mean.result == 1.75).all() for mean in means)
    assert all((total.result == 3).all() for total in totals)
    assert all(gathered.result.tolist() == [1, 1, 1, 2, 2, 2] for gathered in gathers)


def test_an_operation_that_is_not_ready_holds_those_behind_it(group: StagedGroup) -> None:
    early = [sums(1, 2), sums(3, 4), sums(5, 6)]
    for operation in (operation for pair in early for operation in pair):
        operation.is_uncommitted = True
    submit(group, *early)
    handed_out: list[list[Operation]] = [[], []]
    for ready in ([1, 3], [2, 2], [3, 3]):
        group.ready = ready
        group.deliver()
        for me, each in enumerate(group.all):
            handed_out[me] += early_results(each)
            assert handed_out[me] == [pair[me] for pair in early[: min(ready)]]
    group.finished()


def test_a_step_is_done_over_in_the_next_view_while_an_operation_is_not_ready(group: StagedGroup) -> None:
    first, second = sums(1, 2), sums(3, 4)
    group.ready = [1, 1]
    submit(group, first, second)
    assert [each.finish for each in group.all] == [None, None]
    enter(group, 0, 1)
    group.deliver()
    assert [each.finish for each in group.all] == [None, None]
    group.ready = [2, 2]
    group.deliver()
    assert group.finished().view_number == group.view.number
    for one, other in zip(first, second, strict=True):
        assert (one.result == 3 * np.arange(50)).all() and (other.result == 7 * np.arange(50)).all()


def test_a_step_is_given_up_while_an_operation_is_not_ready_and_the_next_one_runs(group: StagedGroup) -> None:
    given_up, again = sums(1, 2), sums(5, 6)
    group.ready = [0, 1]
    submit(group, given_up)
    group.install(0, 1)
    for each in group.all:
        each.carry_out(each.open_step.aborted(GivenUp(0, 2, Cause.IN_USE, "members have come")))
        assert len(each.heard(OperationInterrupted)) == 1
        each.attempt += 1
    group.activate()
    group.ready = [1, 1]
    submit(group, again)
    group.finished()
    assert all((operation.result == 77).all() for operation in given_up)
    assert all((operation.result == 11 * np.arange(50)).all() for operation in again)


def test_what_is_called_differently_is_found_when_it_runs(group: StagedGroup) -> None:
    submit(group, (all_reduce(np.arange(10)), all_reduce(np.arange(11))))
    assert not group.mismatched
    group.ready = [1, 1]
    group.deliver()
    assert {*group.mismatched} == {0, 1}
    enter(group, 0, 1)
    assert [[type(notice) for notice in each.told] for each in group.all] == [[OperationMismatch]] * 2


def test_what_is_awaited_of_others_is_named_once_it_is_asked_for(group: StagedGroup) -> None:
    one = group.all[0]
    one.submit(sums(1, 2)[0])
    assert one.advance() is RunState.IDLE and one.open_step.explain_missing("ab") == ""
    group.ready = [1, 0]
    group.deliver()
    assert "of operation 0 from peer b" in one.open_step.explain_missing("ab")

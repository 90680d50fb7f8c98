"""Members that call one operation differently: the notices, and which of them give the step up or go alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import View
from gossip.given_up import Cause, GivenUp
from gossip.progress import NOT_CALLED, Abort
from p2p.errors import OperationMismatch
from p2p.net.frames import Segment
from p2p.step.effects import Disagree, Finish, GiveUp, Leave, Tell
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.runner import MessageRunner
from p2p.step.transitions import Stage
from tests.gossip.members import A, B, C, D, E, view_of
from tests.p2p.step.group import Group, all_reduce, counts, enter, new_view, only, other_calls, run_step

TRIO, PAIR = view_of(2, A, B, C), view_of(2, A, B)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("step 3 is all_gather of float32 [2, 8] by size here", "is given 2 samples: pad them"),
        (
            "step 1 is a training step on 90 samples (Subset 05f875ef), global_batch=6",
            "needs the same seed on every peer",
        ),
        ("step 3 is all_reduce sum of float32 [2] by size here", "which a joiner begins at 0"),
    ],
)
def test_what_is_mostly_the_reason_is_said_last(reason: str, hint: str) -> None:
    assert str(OperationMismatch(reason)).rstrip(")").removesuffix(" (torch.utils.data.random_split").endswith(hint)


def alone(number: int) -> Operation:
    return all_reduce(np.arange(number), "one-shot")


def said(operation: Operation, index: int = 0, step: int = 0) -> Abort:
    return Abort(step, index, operation.describe())


def in_view(view: View = TRIO) -> OpenStep:
    step = OpenStep(A, segment_bytes=64)
    step.loaded(-1, None)
    step.installed(view)
    step.activated(view, -1, MessageRunner(64))
    return step


# Founders without a majority give up


@pytest.mark.parametrize("other", other_calls("ring"), ids=Operation.describe)
@pytest.mark.parametrize("first", [0, 1])
def test_an_operation_that_somebody_calls_differently_is_given_up_by_all_and_not_summed(
    other: Operation, first: int
) -> None:
    group = new_view(2)
    mine = all_reduce(np.arange(10))
    calls = [(0, mine), (1, replace(other))]
    for me, operation in (calls[first], calls[1 - first]):
        group.all[me].submit(operation)
        group.all[me].close()
        group.deliver()
    assert {*group.mismatched} == {0, 1}
    assert [each.finish for each in group.all] == [None, None]
    assert (mine.result == 77).all()
    sides = f"operation 0 of step 0 is {mine.describe()} at peer a, {other.describe()} at peer b"
    assert group.mismatched[0] == sides


@given(st.integers(2, 5), st.data(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_who_calls_something_else_than_most_goes_and_without_a_majority_all_give_up(
    world_size: int, data: st.DataObject, seed: int
) -> None:
    group = new_view(world_size, seed)
    lengths = data.draw(st.lists(st.integers(10, 12), min_size=world_size, max_size=world_size))
    turns = [(me, index) for me in range(world_size) for index in range(2)]
    group.rng.shuffle(turns)
    for me, index in sorted(turns, key=lambda turn: turn[1]):
        group.all[me].submit(all_reduce(np.arange(lengths[me] if index else 10)))
        group.deliver(group.rng.randrange(9))
    group.deliver()
    most, number = Counter(lengths).most_common(1)[0]
    minority = {me for me, length in enumerate(lengths) if length != most}
    if 2 * number > world_size:
        assert (group.parted, group.mismatched) == (minority, {})
        return
    assert group.parted == set() and {*group.mismatched} == set(range(world_size))
    assert all("operation 1 of step 0" in reason for reason in group.mismatched.values())
    enter(group, *range(world_size))
    for each in group.all:
        assert [type(notice) for notice in each.told] == [OperationMismatch]
        each.told, each.attempt = [], 1
    operations = [all_reduce(np.arange(12)) for _ in group.all]
    run_step(group, *operations)
    assert all((operation.result == world_size * np.arange(12)).all() for operation in operations)


def test_the_step_is_part_of_what_has_to_match() -> None:
    group = Group(2)
    group.all[1].open_step.loaded(0, None)  # although its core has not committed step 0
    enter(group, 0, 1)
    operations = [all_reduce(np.arange(10)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(operation)
        each.close()
    group.deliver()
    assert [each.finish for each in group.all] == [None, None]
    assert all((operation.result == 77).all() for operation in operations)


def test_an_operation_beyond_the_end_at_another_is_given_up_and_both_sides_are_named() -> None:
    step = in_view(PAIR)
    for operation in (alone(1), alone(2)):
        step.submit(0, 0, operation)
    reason = f"operation 1 of step 0 is {alone(2).describe()} at peer a, {NOT_CALLED} at peer b"
    given_up = GiveUp(0, Cause.MISMATCH, reason, is_told=True)
    assert step.receive_abort(B, Abort(0, 1, NOT_CALLED)) == [Disagree(said(alone(2), 1)), given_up]


def test_who_has_closed_its_step_gives_it_up_for_an_operation_behind_its_end() -> None:
    step = in_view(PAIR)
    step.submit(0, 0, alone(1))
    step.close(0, b"")
    effects = step.receive_abort(B, said(alone(2), 1))
    reason = f"operation 1 of step 0 is {NOT_CALLED} at peer a, {alone(2).describe()} at peer b"
    assert effects == [Disagree(Abort(0, 1, NOT_CALLED)), GiveUp(0, Cause.MISMATCH, reason, is_told=True)]


def test_who_has_finished_its_step_leaves_it_to_the_other_to_give_it_up() -> None:
    group = new_view(2)
    run_step(group, alone(1), alone(1))
    step = group.all[0].open_step
    assert step.receive_abort(B, said(alone(2), 1)) == [Disagree(Abort(0, 1, NOT_CALLED))]
    assert step.stage is Stage.FINISHED


def test_what_another_has_called_is_kept_until_it_is_called_here() -> None:
    step = in_view(PAIR)
    assert step.receive_abort(B, said(alone(4), 1)) == []
    assert only(GiveUp, step.submit(0, 0, alone(3))) == []
    assert only(GiveUp, step.submit(0, 0, alone(3))) != []


def test_what_is_said_of_another_step_or_after_it_was_given_up_changes_nothing() -> None:
    step = in_view(PAIR)
    step.submit(0, 0, alone(1))
    assert step.receive_abort(B, said(alone(2), step=1)) == []
    assert only(GiveUp, step.receive_abort(B, said(alone(2)))) != []
    assert step.receive_abort(B, said(alone(2))) == step.receive_abort(B, said(alone(3), 1)) == []


def test_what_was_given_up_in_a_barrier_is_not_given_up_again_when_that_is_over() -> None:
    """The script does not know yet: it is told with the view that redoes the step."""
    step, after = in_view(PAIR), view_of(3, A, B)
    step.submit(0, 0, alone(1))
    step.installed(after)
    assert only(GiveUp, step.receive_abort(B, said(alone(2)))) != []
    step.activated(after, -1, MessageRunner(64))
    assert step.receive_abort(B, said(alone(2))) == []
    (told,) = step.installed(view_of(4, A, B))
    assert isinstance(told, Tell) and isinstance(told.notice, OperationMismatch)


def test_what_was_heard_in_a_view_that_is_over_is_forgotten() -> None:
    step = in_view()
    step.receive_abort(B, said(alone(2)))
    step.installed(view_of(3, A, B, C))
    assert step.submit(0, 0, alone(1)) == []


def test_what_was_heard_in_a_barrier_of_a_step_that_it_has_given_up_is_forgotten() -> None:
    """The message was about an attempt that is over."""
    step, after = in_view(PAIR), view_of(3, A, B)
    step.installed(after)
    step.receive_abort(B, said(alone(2)))
    step.aborted(GivenUp(0, 2, Cause.VOIDED, "a script goes on"))
    step.activated(after, -1, MessageRunner(64))
    step.submit(0, 0, alone(1))
    assert only(GiveUp, step.submit(0, 1, alone(1))) == []


def test_who_sees_another_call_says_its_own_once() -> None:
    step, mine = in_view(), alone(1)
    step.submit(0, 0, mine)
    theirs = Segment(0, 1, 0, 0, bytes(16), bytes(8))
    assert step.receive(theirs) == [Disagree(said(mine))]
    assert step.receive(theirs) == []


def test_who_hears_of_a_call_says_its_own_also_if_it_is_the_same() -> None:
    step = in_view()
    step.submit(0, 0, alone(1))
    assert step.receive_abort(B, said(alone(1))) == [Disagree(said(alone(1)))]
    assert step.receive_abort(C, said(alone(1))) == []


def test_who_takes_back_what_it_has_said_of_its_calls_asks_for_another_view() -> None:
    step = OpenStep(A, segment_bytes=64)
    step.installed(TRIO)
    step.submit(0, 0, alone(1))
    step.receive_abort(B, said(alone(2)))
    told, given_up = step.withdraw(0, 0)
    assert isinstance(told, Tell) and isinstance(given_up, GiveUp) and given_up.cause is Cause.WITHDRAWN
    assert step.submit(0, 1, alone(2)) == [], "what is called now is said in that view"


def test_who_has_no_view_yet_hears_nothing() -> None:
    step = OpenStep(A, segment_bytes=64)
    step.submit(0, 0, alone(1))
    assert step.receive_abort(B, said(alone(2))) == []


# Members that go


def submit_lengths(group: Group, *lengths: int) -> None:
    for me, length in enumerate(lengths):
        group.all[me].submit(alone(length))
        group.all[me].close()
    group.deliver()


def test_one_of_three_founders_that_calls_something_else_goes_alone_and_hears_so_when_the_others_go_on() -> None:
    group = new_view(3)
    submit_lengths(group, 10, 11, 10)
    assert group.parted == {1} and not group.mismatched
    odd = group.all[1]
    assert Leave(0) in odd.asked and odd.heard(OperationMismatch) == []
    odd.carry_out(odd.open_step.notify_if_given_up())
    (error,) = odd.heard(OperationMismatch)
    assert error.is_alone and not error.is_recoverable
    sides = f"{alone(11).describe()} at peer b, {alone(10).describe()} at peer a"
    assert str(error).startswith(
        f"operation 0 of step 0 is {sides}; this peer has left, the run continues: call the same"
    )
    assert "`peer.done`" in str(error)
    assert odd.open_step.notify_if_given_up() == group.all[0].open_step.notify_if_given_up() == []


def test_who_goes_runs_nothing_more_and_hears_so_in_another_view_as_well() -> None:
    group = new_view(3)
    submit_lengths(group, 10, 11, 10)
    enter(group, 0, 1, 2)
    odd = group.all[1]
    (error,) = odd.heard(OperationMismatch)
    assert error.is_alone and odd.open_step.run is None
    odd.carry_out(odd.open_step.submit(0, 1, alone(10)))
    odd.carry_out(odd.open_step.receive_abort(A, said(alone(11))))
    group.deliver()
    assert group.parted == set() and [each.finish for each in group.all] == [None, None, None]


@pytest.mark.parametrize("lengths", [(10, 11, 11), (10, 11, 12)])
def test_joiners_go_if_the_founder_calls_something_else(lengths: tuple[int, int, int]) -> None:
    group = enter(Group(3, joiners=(1, 2)), 0, 1, 2)
    submit_lengths(group, *lengths)
    assert group.parted == {1, 2} and not group.mismatched


def test_nobody_goes_before_more_than_half_have_called_the_same() -> None:
    step = in_view(view_of(2, A, B, C, D, E))
    step.submit(0, 0, alone(1))
    for member in (B, C):
        assert only(Leave, step.receive_abort(member, said(alone(2)))) == []
    assert step.receive_abort(D, said(alone(2))) == [Leave(0)]


def test_who_has_finished_goes_if_most_call_more() -> None:
    group = new_view(3)
    one, *others = group.all
    for each in group.all:
        each.submit(alone(1))
    one.close()
    group.deliver()
    assert one.finish is not None
    for each in others:
        each.submit(alone(2))
        each.carry_out(each.open_step.receive_abort(one.member, Abort(0, 1, NOT_CALLED)))
    group.deliver()
    assert group.parted == {0} and not group.mismatched


def test_who_stays_says_nothing_more_and_does_not_give_up() -> None:
    step = in_view()
    step.submit(0, 0, alone(1))
    assert step.receive_abort(B, said(alone(1))) == [Disagree(said(alone(1)))]
    assert step.receive_abort(C, said(alone(2))) == [] and step.stage is Stage.OPEN


def test_the_first_operation_in_which_members_differ_decides() -> None:
    step = in_view()
    step.submit(0, 0, alone(1))
    step.submit(0, 0, alone(2))
    step.receive_abort(B, said(alone(3), 1))
    step.receive_abort(B, said(alone(2)))
    assert only(Leave, step.receive_abort(C, said(alone(3), 1))) == [], "who goes for operation 0 is not known yet"
    assert step.receive_abort(C, said(alone(2))) == [Leave(0)]


def test_counts_have_to_match_like_everything() -> None:
    group = new_view(2)
    group.all[0].submit(counts(1))
    group.all[1].submit(alone(2))
    group.deliver()
    assert {*group.mismatched} == {0, 1}


def test_a_step_that_matches_is_finished_whatever_is_heard_of_the_last() -> None:
    group = new_view(2)
    run_step(group, alone(1), alone(1))
    group.commit()
    one, other = group.all
    one.carry_out(one.open_step.receive_abort(other.member, said(alone(2), 0, step=0)))
    assert isinstance(run_step(group, alone(1), alone(1)), Finish)

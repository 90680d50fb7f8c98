"""Members that call one operation differently: who hears of it, who gives the step up, and who goes alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Member
from gossip.effects import Send
from gossip.given_up import Cause, GivenUp
from gossip.progress import NOT_CALLED, Abort
from p2p.errors import OperationMismatch
from p2p.net.frames import Segment
from p2p.step.effects import Finish, GiveUp, Leave, Tell
from p2p.step.notices import Admitted
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.runner import MessageRunner
from p2p.step.transitions import Stage
from tests.gossip.members import A, B, C, view_of
from tests.p2p.step.group import MEMBERS, Group, all_reduce, counts, enter, new_view, only, other_calls, run_step

TRIO = view_of(2, A, B, C)


def alone(number: int) -> Operation:
    return all_reduce(np.arange(number), "one-shot")


def said(operation: Operation, index: int = 0, step: int = 0) -> Abort:
    return Abort(step, index, operation.describe())


def in_trio(*contributors: Member) -> OpenStep:
    """Of A, when these are on the last receipt."""
    step = OpenStep(A, segment_bytes=64)
    step.loaded(-1, [member.peer_id for member in contributors], None)
    step.installed(TRIO)
    step.activated(TRIO, -1, MessageRunner(64))
    return step


# Among members that have trained together.


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
def test_all_give_up_what_one_calls_differently_and_the_next_attempt_works(
    world_size: int, data: st.DataObject, seed: int
) -> None:
    group = new_view(world_size, seed)
    culprit = data.draw(st.integers(0, world_size - 1))
    turns = [(me, index) for me in range(world_size) for index in range(2)]
    group.rng.shuffle(turns)
    for me, index in sorted(turns, key=lambda turn: turn[1]):
        length = 11 if (me, index) == (culprit, 1) else 10
        group.all[me].submit(all_reduce(np.arange(length)))
        group.deliver(group.rng.randrange(9))
    group.deliver()
    assert {*group.mismatched} == set(range(world_size))
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
    group.all[1].open_step.loaded(0, [member.peer_id for member in MEMBERS], None)  # its core knows better
    enter(group, 0, 1)
    operations = [all_reduce(np.arange(10)) for _ in group.all]
    for each, operation in zip(group.all, operations, strict=True):
        each.submit(operation)
        each.close()
    group.deliver()
    assert [each.finish for each in group.all] == [None, None]
    assert all((operation.result == 77).all() for operation in operations)


def test_an_operation_beyond_the_end_at_another_is_given_up_and_both_sides_are_named() -> None:
    step = in_trio(A, B, C)
    for operation in (alone(1), alone(2)):
        step.submit(0, 0, operation)
    effects = step.overhear(B, Abort(0, 1, NOT_CALLED))
    reason = f"operation 1 of step 0 is {alone(2).describe()} at peer a, {NOT_CALLED} at peer b"
    ours = said(alone(2), 1)
    assert effects == [
        Send(B, ours, TRIO.stamp),
        Send(C, ours, TRIO.stamp),
        GiveUp(0, Cause.MISMATCH, reason, is_told=True),
    ]


def test_who_has_closed_its_step_gives_it_up_for_an_operation_behind_its_end() -> None:
    step = in_trio(A, B, C)
    step.submit(0, 0, alone(1))
    step.close(0, b"")
    effects = step.overhear(B, said(alone(2), 1))
    reason = f"operation 1 of step 0 is {NOT_CALLED} at peer a, {alone(2).describe()} at peer b"
    assert effects[-1] == GiveUp(0, Cause.MISMATCH, reason, is_told=True)


def test_who_has_finished_its_step_leaves_it_to_the_other_to_give_it_up() -> None:
    group = new_view(2)
    run_step(group, alone(1), alone(1))
    step = group.all[0].open_step
    assert step.overhear(B, said(alone(2), 1)) == []
    assert step.stage is Stage.FINISHED


def test_what_another_has_called_is_kept_until_it_is_called_here() -> None:
    step = in_trio(A, B, C)
    assert step.overhear(B, said(alone(3))) == step.overhear(C, said(alone(4), 1)) == []
    assert only(GiveUp, step.submit(0, 0, alone(3))) == []
    assert only(GiveUp, step.submit(0, 0, alone(3))) != []


def test_a_mismatch_that_is_known_when_the_step_is_closed_comes_before_its_end() -> None:
    """Or it would be finished."""
    group = new_view(2)
    one, other = group.all
    for each in group.all:
        each.submit(alone(1))
    group.deliver()
    one.carry_out(one.open_step.overhear(other.member, said(alone(2), 1)))
    one.close()
    assert one.finish is None and {*group.mismatched} == {0}


def test_what_is_said_of_another_step_or_after_it_was_given_up_changes_nothing() -> None:
    step = in_trio(A, B, C)
    step.submit(0, 0, alone(1))
    assert step.overhear(B, said(alone(2), step=1)) == []
    assert only(GiveUp, step.overhear(B, said(alone(2)))) != []
    assert step.overhear(C, said(alone(2))) == step.overhear(C, said(alone(3), 1)) == []


def test_what_was_given_up_in_a_barrier_is_not_given_up_again_when_that_is_over() -> None:
    """The script has not heard of it yet: it does with the view that starts over."""
    step, after = in_trio(A, B, C), view_of(3, A, B, C)
    step.submit(0, 0, alone(1))
    step.installed(after)
    assert only(GiveUp, step.overhear(B, said(alone(2)))) != []
    step.activated(after, -1, MessageRunner(64))
    assert step.overhear(C, said(alone(2))) == []
    (told,) = step.installed(view_of(4, A, B, C))
    assert isinstance(told, Tell) and isinstance(told.notice, OperationMismatch)


def test_what_was_heard_in_a_view_that_is_over_is_forgotten() -> None:
    step = in_trio(A, B, C)
    step.overhear(B, said(alone(2)))
    step.installed(view_of(3, A, B, C))
    assert step.submit(0, 0, alone(1)) == []


def test_what_was_heard_in_a_barrier_of_a_step_that_it_has_given_up_is_forgotten() -> None:
    """It was said of an attempt that is over."""
    step, after = in_trio(A, B, C), view_of(3, A, B, C)
    step.installed(after)
    step.overhear(B, said(alone(2)))
    step.aborted(GivenUp(0, 2, Cause.VOIDED, "a script goes on"))
    step.activated(after, -1, MessageRunner(64))
    step.submit(0, 0, alone(1))
    assert only(GiveUp, step.submit(0, 1, alone(1))) == []


def test_who_sees_another_call_tells_all_members() -> None:
    step, mine = in_trio(A, B, C), alone(1)
    step.submit(0, 0, mine)
    theirs = Segment(0, 1, 0, 0, bytes(16), bytes(8))
    assert step.receive(theirs) == [Send(member, said(mine), TRIO.stamp) for member in (B, C)]


@pytest.mark.parametrize("fresh", [A, B])
def test_who_sees_another_call_and_one_of_both_is_fresh_tells_the_other_only(fresh: Member) -> None:
    mine, others = alone(1), [member for member in (A, B, C) if member != fresh]
    step = in_trio(*others)
    step.submit(0, 0, mine)
    assert step.receive(Segment(0, 1, 0, 0, bytes(16), bytes(8))) == [Send(B, said(mine), TRIO.stamp)]


def test_who_says_the_same_is_no_news() -> None:
    step = in_trio(A, B, C)
    step.submit(0, 0, alone(1))
    assert step.overhear(B, said(alone(1))) == step.overhear(C, said(alone(1))) == []


def test_who_has_no_view_yet_hears_nothing() -> None:
    step = OpenStep(A, segment_bytes=64)
    step.submit(0, 0, alone(1))
    assert step.overhear(B, said(alone(2))) == []


# Fresh members.


def fresh_group(*fresh: int) -> Group:
    """Three members, of whom those are on no receipt yet, and know it as the others do."""
    group = Group(3)
    contributors = [MEMBERS[me].peer_id for me in range(3) if me not in fresh]
    for each in group.all:
        each.open_step.loaded(-1, contributors, None)
    enter(group, 0, 1, 2)
    return group


def test_a_fresh_member_that_calls_something_else_goes_alone() -> None:
    group = fresh_group(2)
    for me, length in enumerate((10, 10, 11)):
        group.all[me].submit(alone(length))
        group.all[me].close()
    group.deliver()
    assert not group.mismatched
    assert [only(Leave, each.asked) for each in group.all][:2] == [[], []]
    (error, *_) = group.all[2].heard(OperationMismatch)
    assert error.is_alone and Leave() in group.all[2].asked
    assert f"operation 0 of step 0 is {alone(11).describe()} at peer c" in str(error)


def test_what_is_called_differently_is_told_to_a_fresh_member_only() -> None:
    step = in_trio(A, B)
    mine = alone(1)
    step.submit(0, 0, mine)
    assert step.overhear(C, said(alone(2))) == [Send(C, said(mine), TRIO.stamp)]
    assert step.overhear(C, said(mine)) == step.overhear(C, said(alone(2), 1)) == []
    assert step.stage is Stage.OPEN


def test_fresh_members_do_not_answer_each_other() -> None:
    step = in_trio(B)
    step.submit(0, 0, alone(1))
    assert step.overhear(C, said(alone(2))) == []


def test_members_that_have_all_just_joined_give_up_what_one_of_them_calls_differently() -> None:
    """Whoever is on the last receipt has died: nobody is left that could send the others away."""
    group = fresh_group(0, 1, 2)
    for me, length in enumerate((10, 10, 11)):
        group.all[me].submit(alone(length))
        group.all[me].close()
    group.deliver()
    assert {*group.mismatched} == {0, 1, 2}
    assert not any(only(Leave, each.asked) for each in group.all)


def test_who_has_just_joined_and_ends_its_step_too_early_raises_alone() -> None:
    group = Group(2)
    one, other = group.all
    enter(group, 0, 1)
    one.open_step.loaded(-1, [other.member.peer_id], None)
    for each in group.all:
        each.submit(alone(1))
    one.close()
    group.deliver()
    assert one.finish is not None
    told, leave = one.open_step.overhear(other.member, said(alone(2), 1))
    assert isinstance(told, Tell) and isinstance(told.notice, OperationMismatch) and told.notice.is_alone
    assert leave == Leave()


def test_a_member_that_has_to_go_alone_says_so_once_and_runs_nothing_more() -> None:
    step, after = in_trio(B, C), view_of(3, A, B, C)
    step.submit(0, 0, alone(1))
    assert Leave() in step.overhear(B, said(alone(2)))
    assert step.overhear(C, said(alone(2))) == []
    step.installed(after)
    assert step.activated(after, -1, MessageRunner(64)) == [Tell(Admitted(after, -1))] and step.run is None


def test_who_is_on_a_receipt_is_not_fresh_any_more() -> None:
    group = fresh_group(0, 1, 2)
    run_step(group, *[alone(1) for _ in range(3)])
    group.commit()
    for me, length in enumerate((10, 11, 10)):
        group.all[me].submit(alone(length))
    group.deliver()
    assert {*group.mismatched} == {0, 1, 2}


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
    one.carry_out(one.open_step.overhear(other.member, said(alone(2), 0, step=0)))
    assert isinstance(run_step(group, alone(1), alone(1)), Finish)

"""A step that is started over: aborted, withdrawn or stalled, in a new view of the same members."""

from gossip import Core
from gossip.effects import Aborted, Activated, Effect, Explain
from gossip.messages import Beat, Decide, Kind, Progress, Ready, Report

from .cores import (
    NOTHING,
    after,
    bodies,
    commit_step_0,
    decide,
    genesis,
    joiner,
    only,
    say,
    seated,
    view_of,
    view_with,
)
from .members import A, B, C


def test_an_abort_restarts_the_same_members_in_a_new_view() -> None:
    peer = seated(B)
    effects = peer.abort(0.0, 0, "shapes differ")
    assert bodies(Report, effects) == [(B, Report(Kind.ABORTED, A, 0))]
    assert effects[-1] == Explain("2 of 2 members of view 2 are here; step 0 is aborted by a")
    ready = bodies(Ready, decide(peer, B, 0.0))
    assert ready == [(B, Ready(True, -1, genesis(), None, 2, "shapes differ"))]
    assert view_of(peer).members == (A, B)
    assert only(Activated, say(peer, B, NOTHING)) == [Activated(view_of(peer), -1)]
    assert peer.reason == "2 of 2 members of view 3 are here"


def test_what_others_abort_is_told_by_the_barrier() -> None:
    peer = seated(B)
    say(peer, B, Decide(after(view_of(peer), A, B)))
    effects = say(peer, B, Ready(True, -1, genesis(), None, 2, "shapes differ"))
    assert only(Aborted, effects) == [Aborted(0, "shapes differ")]


def test_a_withdrawal_makes_a_view_of_the_same_members_and_the_step_is_redone() -> None:
    peer = seated(B, C)
    effects = peer.withdraw(0.0, 0)
    assert bodies(Report, effects) == [(member, Report(Kind.WITHDRAWN, A, 0)) for member in (B, C)]
    assert effects[-1] == Explain("3 of 3 members of view 2 are here; step 0 is withdrawn by a")
    decide(peer, B, 0.0)
    assert view_of(peer) == after(view_with(A, B, C), A, B, C)
    say(peer, B, NOTHING)
    assert only(Activated, say(peer, C, NOTHING)) == [Activated(view_of(peer), -1)]


def test_r15_who_withdraws_results_that_may_be_in_use_interrupts_the_step_for_all() -> None:
    peer = seated(B, C)
    effects = peer.withdraw(0.0, 0, interrupts=True)
    assert bodies(Report, effects) == [(member, Report(Kind.WITHDRAWN, A, 0)) for member in (B, C)]
    decide(peer, B, 0.0)
    say(peer, B, NOTHING)
    assert only(Aborted, say(peer, C, NOTHING)) == [Aborted(0, "")]


def test_r15_who_has_handed_results_out_gives_the_step_up_in_a_view_of_others() -> None:
    peer = seated(B, C)
    peer.handed_out()
    effects = say(peer, B, Decide(after(view_of(peer), A, B)))
    assert bodies(Ready, effects) == [(B, Ready(True, -1, genesis(), None, 2, ""))]
    assert only(Aborted, say(peer, B, NOTHING)) == [Aborted(0, "")]


def test_another_members_withdrawal_does_the_same() -> None:
    peer = seated(B, C)
    effects = say(peer, C, Report(Kind.WITHDRAWN, C, 0))
    assert effects == [Explain("3 of 3 members of view 2 are here; step 0 is withdrawn by c")]


def test_only_the_open_step_can_be_withdrawn() -> None:
    peer = seated(B)
    assert peer.withdraw(0.0, 1) == []
    peer.finished(0.0, 0, b"bits", b"")
    assert peer.withdraw(0.0, 0) == []
    assert joiner().withdraw(0.0, 0) == []


def submit(peer: Core, num_operations: int, start: float, stop: float) -> list[Effect]:
    """Time passes, while every other member says that it has submitted so many operations of step 0."""
    effects: list[Effect] = []
    for i in range(round(start / 0.25), round(stop / 0.25)):
        for member in view_of(peer).members[1:]:
            effects += say(peer, member, Beat(NOTHING, Progress(-1, genesis(), None, num_operations)), now=i * 0.25)
        effects += peer.tick(i * 0.25)
    return effects


STALLED = [(member, Report(Kind.STALLED, A, 0)) for member in (B, C)]


def test_an_operation_that_all_have_submitted_and_that_does_not_get_on_is_stalled_and_redone() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    assert bodies(Report, submit(peer, 3, 0.0, 2.0)) == []
    assert bodies(Report, submit(peer, 3, 2.0, 2.5))[:2] == STALLED
    assert peer.reason == "3 of 3 members of view 2 are here; step 0 is stalled: frames were lost"
    decide(peer, B, 2.5)
    assert view_of(peer).members == (A, B, C)
    say(peer, B, NOTHING)
    assert only(Activated, say(peer, C, NOTHING)) == [Activated(view_of(peer), -1)]


def test_an_operation_that_gets_on_is_not_stalled() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    submit(peer, 3, 0.0, 1.5)
    peer.submitted(0, 3, 2)
    assert bodies(Report, submit(peer, 3, 1.5, 3.5)) == []


def test_what_was_stalled_and_got_on_by_itself_is_reported_no_more() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    submit(peer, 3, 0.0, 2.5)
    commit_step_0(peer, B, C, now=2.5)
    assert peer.done == 0
    assert bodies(Report, submit(peer, 0, 2.5, 5.0)) == []
    assert peer.reason == "3 of 3 members of view 2 are here"


def test_what_is_submitted_for_another_step_means_nothing() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(1, 3, 2)
    assert bodies(Report, submit(peer, 3, 0.0, 4.0)) == []


def test_a_straggler_whose_operations_are_all_complete_waits_for_nobody() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 2, 2)
    assert (peer.standing(0.0, A)[0], peer.standing(0.0, B)) == (2, (0, 0.0))
    assert bodies(Report, submit(peer, 5, 0.0, 4.0)) == []
    assert peer.standing(4.0, B)[0] == 5


def test_waiting_for_who_has_not_submitted_is_no_stall() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    assert bodies(Report, submit(peer, 2, 0.0, 4.0)) == []

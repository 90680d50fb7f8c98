"""A step that is redone: given up, withdrawn or stalled, in a new view of the same members."""

import pytest

from gossip import NO_VIEW, Core, Stamp
from gossip.effects import Aborted, Activated, Effect, Explain, Installed
from gossip.given_up import Cause, GivenUp
from gossip.messages import Body, Decide, Leave, Report, ReportKind
from gossip.progress import Beat, Finish, Progress, Ready

from .cores import (
    NOTHING,
    after,
    bodies,
    commit_step_0,
    decide,
    first_view,
    genesis,
    joiner,
    only,
    say,
    seated,
    view_of,
    view_with,
)
from .members import A, B, C, D

MISMATCH = GivenUp(0, 2, Cause.MISMATCH, "shapes differ", 2)
TAKEN_BACK = "a took back what it had submitted"


def withdraw(peer: Core, cause: Cause = Cause.WITHDRAWN, step: int = 0) -> list[Effect]:
    return peer.give_up(0.0, step, cause, TAKEN_BACK, is_told=False)


def saying(given_up: GivenUp, finish: Finish | None = None) -> Ready:
    return Ready(True, -1, genesis(), finish, given_up)


def test_an_abort_restarts_the_same_members_in_a_new_view() -> None:
    peer = seated(B)
    effects = peer.give_up(0.0, 0, Cause.MISMATCH, "shapes differ", is_told=True)
    assert bodies(Report, effects) == [(B, Report(ReportKind.ABORTED, A, 0, given_up=MISMATCH))]
    assert effects[-1] == Explain("2 of 2 members of view 2 are here; step 0 is aborted by a")
    assert bodies(Ready, decide(peer, B, 0.0)) == [(B, saying(MISMATCH))]
    assert view_of(peer).members == (A, B)
    assert only(Activated, say(peer, B, NOTHING)) == [Activated(view_of(peer), -1)]
    assert peer.reason == "2 of 2 members of view 3 are here"


def test_who_goes_on_without_a_step_has_the_others_told() -> None:
    peer = seated(B)
    effects = peer.give_up(0.0, 0, Cause.VOIDED, "its script raised", is_told=True)
    voided = GivenUp(0, 2, Cause.VOIDED, "its script raised", 2)
    assert bodies(Report, effects) == [(B, Report(ReportKind.ABORTED, A, 0, given_up=voided))]
    assert bodies(Ready, decide(peer, B, 0.0)) == [(B, saying(voided))]
    effects = say(peer, B, saying(voided))
    assert (only(Aborted, effects), only(Activated, effects)) == ([], [Activated(view_of(peer), -1)])


def test_what_others_abort_is_told_by_the_barrier() -> None:
    peer = seated(B)
    say(peer, B, Decide(after(view_of(peer), A, B)))
    assert only(Aborted, say(peer, B, saying(MISMATCH))) == [Aborted(MISMATCH)]


REPORT = Report(ReportKind.ABORTED, C, 0, given_up=MISMATCH)


@pytest.mark.parametrize("told", [REPORT, Leave(given_up=MISMATCH)])
def test_r16_who_has_finished_a_step_and_hears_that_it_is_given_up_says_so_and_drops_it(told: Body) -> None:
    peer = seated(B, C)
    peer.finished(0.0, 0, b"bits", b"")
    say(peer, C, told)
    finish = Finish(0, b"bits", b"", 2)
    effects = say(peer, B, Decide(after(view_of(peer), A, B)))
    assert bodies(Ready, effects) == [(B, saying(MISMATCH, finish))]
    effects = say(peer, B, Ready(True, -1, genesis(), finish))
    assert only(Aborted, effects) == [Aborted(MISMATCH)]
    assert (peer.done, peer.has_finished) == (-1, False)


def test_r16_a_leaver_is_heard_in_an_older_view_but_not_in_another_swarm_nor_without_a_seat() -> None:
    """Otherwise its claims could void what was committed without it."""
    older, elsewhere = first_view().stamp, Stamp(b"another", 2, b"view")
    for source, stamp, said in ((C, older, MISMATCH), (C, elsewhere, None), (C, NO_VIEW, None), (D, older, None)):
        peer = seated(B, C)
        say(peer, source, Leave(given_up=MISMATCH), stamp)
        ready = Ready(True, -1, genesis(), None, said)
        assert bodies(Ready, say(peer, B, Decide(after(view_of(peer), A, B)))) == [(B, ready)]


def test_r16_what_was_reported_in_an_older_view_is_not_heard() -> None:
    peer = seated(B, C)
    say(peer, C, REPORT, first_view().stamp)
    assert bodies(Ready, say(peer, B, Decide(after(view_of(peer), A, B)))) == [(B, NOTHING)]


def test_r16_who_has_finished_a_step_and_leaves_says_that_it_is_given_up() -> None:
    peer = seated(B, C)
    peer.finished(0.0, 0, b"bits", b"")
    say(peer, C, REPORT)
    leave = Leave(given_up=MISMATCH, finish=Finish(0, b"bits", b"", 2))
    assert bodies(Leave, peer.leave(0.0)) == [(B, leave), (C, leave)]
    assert bodies(Leave, peer.tick(0.25)) == [(B, leave), (C, leave)]


def test_a_withdrawal_makes_a_view_of_the_same_members_and_the_step_is_redone() -> None:
    peer = seated(B, C)
    effects = withdraw(peer)
    withdrawn = GivenUp(0, 2, Cause.WITHDRAWN, TAKEN_BACK, 2)
    report = Report(ReportKind.WITHDRAWN, A, 0, given_up=withdrawn)
    assert bodies(Report, effects) == [(member, report) for member in (B, C)]
    assert effects[-1] == Explain("3 of 3 members of view 2 are here; step 0 is withdrawn by a")
    assert bodies(Ready, decide(peer, B, 0.0)) == [(member, saying(withdrawn)) for member in (B, C)]
    assert view_of(peer) == after(view_with(A, B, C), A, B, C)
    say(peer, B, NOTHING)
    effects = say(peer, C, NOTHING)
    assert (only(Aborted, effects), only(Activated, effects)) == ([], [Activated(view_of(peer), -1)])


def test_r15_who_withdraws_results_that_may_be_in_use_interrupts_the_step_for_all() -> None:
    peer = seated(B, C)
    effects = withdraw(peer, Cause.VOIDED)
    voided = GivenUp(0, 2, Cause.VOIDED, TAKEN_BACK, 2)
    report = Report(ReportKind.WITHDRAWN, A, 0, given_up=voided)
    assert bodies(Report, effects) == [(member, report) for member in (B, C)]
    decide(peer, B, 0.0)
    say(peer, B, NOTHING)
    assert only(Aborted, say(peer, C, NOTHING)) == [Aborted(voided)]


def test_r15_who_has_handed_results_out_gives_the_step_up_in_a_view_of_others() -> None:
    peer = seated(B, C)
    peer.mark_in_use(2)
    reason = "its results were in use before its commit, and members have joined or left"
    effects = say(peer, B, Decide(after(view_of(peer), A, B)))
    assert bodies(Ready, effects) == [(B, saying(GivenUp(0, 2, Cause.IN_USE, reason)))]
    assert only(Aborted, say(peer, B, NOTHING)) == [Aborted(GivenUp(0, 2, Cause.IN_USE, reason, 2))]


def test_r15_results_of_a_view_that_is_over_are_not_handed_out() -> None:
    peer = seated(B, C)
    assert not peer.mark_in_use(1)
    assert only(Aborted, [*say(peer, B, Decide(after(view_of(peer), A, B))), *say(peer, B, NOTHING)]) == []
    assert peer.mark_in_use(3)
    assert not joiner().mark_in_use(0)


def test_a_step_is_finished_once_in_the_active_view_and_in_no_other() -> None:
    peer = seated(B, C)
    assert peer.may_finish(0, 2, b"")
    assert not peer.may_finish(0, 1, b"")
    assert not peer.may_finish(1, 2, b"")
    assert not joiner().may_finish(0, 0, b"")
    say(peer, B, Decide(after(view_of(peer), A, B)))
    assert not peer.may_finish(0, 3, b"")  # its barrier is incomplete
    say(peer, B, NOTHING)
    assert peer.may_finish(0, 3, b"")
    peer.finished(0.0, 0, b"digest", b"state")
    assert not peer.may_finish(0, 3, b"")


def test_who_has_no_seat_yet_starts_over_with_the_others_and_gives_nothing_up() -> None:
    """The others may have committed the step without it, at the barrier that it waits for."""
    peer = joiner()
    say(peer, A, Decide(view_with(A, B)))
    assert say(peer, A, NOTHING) != []
    assert peer.done == -1 and not peer.seated
    effects = withdraw(peer, Cause.VOIDED)
    assert bodies(Report, effects) == [(A, Report(ReportKind.WITHDRAWN, B, 0))]


def test_another_members_withdrawal_does_the_same() -> None:
    peer = seated(B, C)
    effects = say(peer, C, Report(ReportKind.WITHDRAWN, C, 0))
    assert effects == [Explain("3 of 3 members of view 2 are here; step 0 is withdrawn by c")]


def test_only_the_open_step_can_be_withdrawn() -> None:
    peer = seated(B)
    assert withdraw(peer, step=1) == []
    peer.finished(0.0, 0, b"bits", b"")
    assert withdraw(peer) == []
    assert withdraw(joiner()) == []


def submit(peer: Core, num_operations: int, start: float, stop: float) -> list[Effect]:
    """Let time pass, while every other member says that it has submitted this many operations of step 0."""
    effects: list[Effect] = []
    for i in range(round(start / 0.25), round(stop / 0.25)):
        for member in view_of(peer).members[1:]:
            effects += say(peer, member, Beat(NOTHING, Progress(-1, genesis(), None, num_operations)), now=i * 0.25)
        effects += peer.tick(i * 0.25)
    return effects


STALLED = [(member, Report(ReportKind.STALLED, A, 0)) for member in (B, C)]


def test_an_operation_that_all_have_submitted_and_that_does_not_get_on_is_stalled_and_redone() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    assert bodies(Report, submit(peer, 3, 0.0, 2.0)) == []
    assert bodies(Report, submit(peer, 3, 2.0, 2.5))[:2] == STALLED
    assert peer.reason == "3 of 3 members of view 2 are here; step 0 is stalled: frames were lost"
    assert [each.has_stalled for each in only(Installed, decide(peer, B, 2.5))] == [True]
    assert view_of(peer).members == (A, B, C)
    say(peer, B, NOTHING)
    assert only(Activated, say(peer, C, NOTHING)) == [Activated(view_of(peer), -1)]


def test_frames_that_were_lost_are_no_reason_for_a_view_without_a_member_or_for_another_reason() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    submit(peer, 3, 0.0, 2.5)
    without_c = after(view_of(peer), A, B)
    assert [each.has_stalled for each in only(Installed, say(peer, B, Decide(without_c), now=2.5))] == [False]
    withdrawn = seated(B, C, stall_s=2.0)
    withdraw(withdrawn)
    assert [each.has_stalled for each in only(Installed, decide(withdrawn, B, 0.0))] == [False]


def test_who_has_given_the_step_up_goes_on_saying_so_though_operations_of_it_do_not_get_on() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    report = Report(ReportKind.ABORTED, A, 0, given_up=MISMATCH)
    peer.give_up(0.0, 0, Cause.MISMATCH, "shapes differ", is_told=True)
    said = {told for _, told in bodies(Report, submit(peer, 3, 0.0, 4.0)) if told.subject == A}
    assert said == {report}


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
    assert (peer.member_progress(0.0, A)[0], peer.member_progress(0.0, B)) == (2, (0, 0.0))
    assert bodies(Report, submit(peer, 5, 0.0, 4.0)) == []
    assert peer.member_progress(4.0, B)[0] == 5


def test_waiting_for_who_has_not_submitted_is_no_stall() -> None:
    peer = seated(B, C, stall_s=2.0)
    peer.submitted(0, 3, 2)
    assert bodies(Report, submit(peer, 2, 0.0, 4.0)) == []

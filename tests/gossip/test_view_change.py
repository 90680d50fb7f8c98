"""View changes: observations and reports of a member, turns to propose, pauses, and reasons."""

import math
from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest

from gossip import Core, CoreConfig, Member, Policy, State, View
from gossip.acceptor import NO_BALLOT
from gossip.commit import StepMachine
from gossip.effects import Effect, Explain, Installed, Paused, Removed, Resumed, Send
from gossip.given_up import Cause
from gossip.messages import (
    Accept,
    AcceptorRecord,
    Ack,
    Ballot,
    Decide,
    Gossip,
    Head,
    Join,
    Leave,
    Ping,
    Prepare,
    Report,
    ReportKind,
)
from gossip.progress import Ready
from gossip.reports import ReportsConfig
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import NO_VIEW
from gossip.view_change import MOST_DEAD, ViewChange

from .cores import (
    NOTHING,
    SAME,
    activate,
    after,
    bodies,
    first_view,
    founder,
    joiner,
    meet,
    member_of,
    only,
    run,
    say,
    seated,
    view_of,
    view_with,
)
from .members import A, B, C, D, E, claim

SILENT_S = ReportsConfig().silent_s


def fresh(view: View) -> AcceptorRecord:
    """Record of a member that installed `view` and promised nothing."""
    return AcceptorRecord(view, NO_BALLOT, None)


def listen(peer: Core, heard: Collection[Member], start: float, stop: float, *reports: Report) -> list[Effect]:
    """Let time pass, while only `heard` send frames, answer probes, and make these reports."""
    effects: list[Effect] = []
    for i in range(round(start * 20) + 1, round(stop * 20) + 1):
        now = i / 20
        for member in heard:
            effects += say(peer, member, NOTHING, now=now)
            for report in reports:
                effects += say(peer, member, report, now=now)
        told = peer.tick(now)
        for target, ping in bodies(Ping, told):
            told += say(peer, target, Ack(ping.nonce, ()), now=now) if target in heard else []
        effects += told
    return effects


def reports(effects: list[Effect], target: Member = B) -> list[Report]:
    """Reports to `target`, each once."""
    return list(dict.fromkeys(body for member, body in bodies(Report, effects) if member == target))


# Observations and reports


def test_who_goes_on_talking_in_an_older_view_does_not_hear_and_is_reported_like_who_is_silent() -> None:
    peer = seated(B, C)
    older = peer.stamp
    activate(peer, after(view_of(peer), A, B, C))
    effects: list[Effect] = []
    force_cut_s = ReportsConfig().force_cut_s
    for tick in range(1, round(4 * force_cut_s) + 2):
        now = tick / 4
        told = say(peer, B, NOTHING, older, now=now)
        assert Send(B, Decide(view_of(peer)), peer.stamp) in told
        say(peer, C, NOTHING, now=now)
        effects += peer.tick(now)
        assert (Report(ReportKind.SILENT, B) in reports(effects, C)) == (now >= 0.25 + force_cut_s)
    assert Report(ReportKind.SILENT, C) not in reports(effects, B)
    say(peer, B, NOTHING, now=force_cut_s + 0.5)
    assert Report(ReportKind.SILENT, B) not in reports(peer.tick(force_cut_s + 0.75), C)


def test_a_joiner_that_has_its_seat_and_goes_on_asking_is_reported_too() -> None:
    peer = seated(B, C)
    activate(peer, after(view_of(peer), A, B, C, D))
    meet(peer, [D])
    effects: list[Effect] = []
    for tick in range(1, 13):
        say(peer, D, Join(SAME, view_number=1), NO_VIEW, now=tick / 4)
        effects += peer.tick(tick / 4)
    assert Report(ReportKind.SILENT, D) in reports(effects, C)


def test_who_was_stopped_itself_counts_anew_who_stays_behind() -> None:
    peer = seated(B, C)
    older = peer.stamp
    activate(peer, after(view_of(peer), A, B, C))
    say(peer, B, NOTHING, older, now=0.25)
    say(peer, B, NOTHING, older, now=60.0)
    assert Report(ReportKind.SILENT, B) not in reports(peer.tick(60.1), C)


def test_a_death_is_reported_to_all_and_with_every_beat_again() -> None:
    peer = seated(B, C, D)
    effects = peer.declare_dead(0.0, D, "SIGKILL")
    assert bodies(Report, effects) == [(member, Report(ReportKind.PROVEN, D)) for member in (B, C)]
    assert bodies(Report, peer.tick(0.25)) == bodies(Report, effects)


def test_a_proof_is_relayed_with_its_record() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    record = fresh(view_of(peer))
    assert reports(peer.declare_dead(0.0, C, "SIGKILL", record)) == [Report(ReportKind.PROVEN, C, record=record)]


def test_a_refused_link_is_reported_and_cuts_at_once() -> None:
    peer = seated(B, C, D)
    effects = peer.link_refused(0.0, D, "connection refused")
    told = [Explain("d may be dead: connection refused"), Explain("d is suspect: a had no answer")]
    assert only(Explain, effects)[:2] == told
    assert reports(effects) == [Report(ReportKind.REFUSED, D)]
    assert effects[-1] == Explain("3 of 4 members of view 2 are here; without d")
    assert bodies(Prepare, peer.tick(0.0)) == [(member, Prepare(Ballot(1, 0))) for member in (B, C, D)]


def test_a_link_that_is_still_refused_is_no_news() -> None:
    peer = seated(B, C)
    peer.link_refused(0.0, C, "connection refused")
    assert peer.link_refused(0.5, C, "connection refused") == []


def test_who_is_gone_can_refuse_nothing() -> None:
    peer = seated(B, C)
    peer.declare_dead(0.0, C, "SIGKILL")
    assert peer.link_refused(0.0, C, "connection refused") == []
    peer.leave(0.0)
    listen(peer, [B], 0.0, 6.0)
    assert peer.ended
    assert peer.link_refused(6.0, B, "connection refused") == []


def test_a_refusal_that_is_not_repeated_is_forgotten() -> None:
    peer = seated(B, C, D)
    peer.link_refused(0.0, D, "connection refused")
    listen(peer, [B, C, D], 0.0, 3.5)
    assert peer.reason == "4 of 4 members of view 2 are here"


def test_a_link_that_is_refused_without_a_view_is_remembered_for_it() -> None:
    peer = joiner()
    assert reports(peer.link_refused(0.0, C, "connection refused"), A) == []
    say(peer, A, Decide(view_with(A, B, C)))
    assert reports(peer.tick(0.5), A) == [Report(ReportKind.REFUSED, C)]


def test_silence_is_reported_only_after_silent_s() -> None:
    peer = seated(B, C, D)
    assert reports(listen(peer, [B, C], 0.0, SILENT_S - 0.05)) == []
    assert reports(listen(peer, [B, C], SILENT_S - 0.05, SILENT_S + 0.25)) == [Report(ReportKind.SILENT, D)]


def test_who_is_ill_itself_is_more_patient() -> None:
    peer = seated(B, C, D)
    patience: list[int] = []
    effects: list[Effect] = []
    while Report(ReportKind.SILENT, D) not in reports(effects):
        patience.append(peer._swim.health_multiplier())
        for _ in range(3):  # refutations: it seems not to hear the others
            denied = replace(claim(A, State.SUSPECT), refutation=len(patience))
            say(peer, B, Gossip((denied,)), now=len(patience) / 20)
        effects = listen(peer, [B, C], (len(patience) - 1) / 20, len(patience) / 20)
    assert len(patience) / 20 == pytest.approx(SILENT_S * patience[-1], abs=0.3)
    assert patience[-1] > 3


def test_silence_needs_a_majority_of_those_who_could_hear() -> None:
    peer = seated(B, C, D)
    listen(peer, [B, C], 0.0, 3.0)
    assert peer.reason == "4 of 4 members of view 2 are here"
    listen(peer, [B, C], 3.0, 3.5, Report(ReportKind.SILENT, D))
    assert peer.reason == "3 of 4 members of view 2 are here; without d"


def test_silence_settles_before_anybody_proposes() -> None:
    peer = seated(B, C, D)
    listen(peer, [B, C], 0.0, 3.0)
    assert bodies(Prepare, listen(peer, [B, C], 3.0, 3.3, Report(ReportKind.SILENT, D))) == []
    assert bodies(Prepare, listen(peer, [B, C], 3.3, 3.8, Report(ReportKind.SILENT, D))) != []


def test_g2_who_hears_a_member_proposes_nothing_by_reports_that_outlive_its_silence() -> None:
    peer = seated(B, C, D)
    effects = listen(peer, [B, C, D], 0.0, 0.5, Report(ReportKind.SILENT, D))
    assert peer.reason == "3 of 4 members of view 2 are here; without d"
    assert bodies(Prepare, [*effects, *listen(peer, [B, C, D], 0.5, 4.0)]) == []
    assert peer.reason == "4 of 4 members of view 2 are here"


def test_g2_who_hears_a_member_that_others_do_not_hear_for_long_proposes_a_view_without_it() -> None:
    peer = seated(B, C, D)
    assert bodies(Prepare, listen(peer, [B, C, D], 0.0, 2.2, Report(ReportKind.SILENT, D))) == []
    assert bodies(Prepare, listen(peer, [B, C, D], 2.2, 2.6, Report(ReportKind.SILENT, D))) != []


def test_of_who_is_lost_half_the_silence_is_enough() -> None:
    lost = replace(claim(D, State.LOST), refutation=1, accuser="b")
    peer = seated(B, C, D)
    listen(peer, [B, C, D], 0.0, 1.0)
    say(peer, B, Gossip((lost,)), now=1.0)
    assert reports(listen(peer, [B, C], 1.0, 1.0 + SILENT_S / 2 - 0.05)) == []
    assert reports(listen(peer, [B, C], 1.7, 2.0)) == [Report(ReportKind.SILENT, D)]
    peer.link_answered(2.0, D)
    assert reports(listen(peer, [B, C], 2.0, 2.25)) == []


def test_who_was_stopped_forgets_the_silence_of_others() -> None:
    peer = seated(B, C)
    listen(peer, [B, C], 0.0, 1.0)
    effects = listen(peer, [B, C], 9.0, 9.5)
    assert reports(effects) == []
    assert peer.reason == "3 of 3 members of view 2 are here"


def test_a_member_that_others_cannot_hear_knows_that_it_is_cut() -> None:
    peer = seated(B, C, D)
    listen(peer, [B, C, D], 0.0, 3.0, Report(ReportKind.SILENT, A))
    assert peer.reason == "others in view 2 report that they do not hear this peer"
    assert peer._view_change.agreement.next_deadline() == math.inf


# Turns


def trio(me: Member) -> Core:
    """`me`, active in view 2 of A, B and C."""
    return member_of(view_with(A, B, C), me)


def due(peer: Core) -> float:
    return peer._view_change.agreement.next_deadline()


def test_after_a_death_survivors_take_turns_in_the_order_of_their_ranks() -> None:
    for me, delay_s in ((A, 0.0), (C, 0.02)):
        peer = trio(me)
        peer.declare_dead(1.0, B, "SIGKILL")
        assert due(peer) == pytest.approx(1.0 + delay_s)


def test_for_a_joiner_the_first_turn_rotates_with_the_number_of_the_view() -> None:
    for me, delay_s in ((A, 0.2), (B, 0.4), (C, 0.0)):  # view 2
        peer = trio(me)
        meet(peer, [D])
        say(peer, D, Join(SAME, view_number=2), NO_VIEW)
        assert due(peer) == pytest.approx(delay_s)


def test_leavers_are_passed_over() -> None:
    peer = trio(C)
    say(peer, A, Leave())
    assert due(peer) == pytest.approx(0.02)  # B, then C


def test_who_leaves_itself_proposes_the_view_without_it_in_its_turn() -> None:
    peer = trio(B)
    peer.leave(0.0)
    assert due(peer) == pytest.approx(0.02)


def test_survivors_that_start_over_take_turns_as_after_a_death() -> None:
    peer = trio(B)
    peer.give_up(0.0, 0, Cause.WITHDRAWN, "it starts over", is_told=False)
    assert due(peer) == pytest.approx(0.02)


def test_who_is_cut_itself_waits_for_all_others() -> None:
    peer = seated(B, C, D)
    for member in (B, C, D):
        say(peer, member, Report(ReportKind.REFUSED, A))
    assert due(peer) == math.inf


def test_r12_who_is_not_seated_proposes_nothing() -> None:
    peer = joiner()
    say(peer, A, Decide(view_with(A, B, C)))
    peer.declare_dead(0.0, C, "gone")
    assert bodies(Prepare, listen(peer, [A], 0.0, 2.0)) == []


# Flapping members


def remove(peer: Core, member: Member, now: float = 0.0) -> None:
    view = view_of(peer)
    activate(peer, after(view, *(other for other in view.members if other != member)), now)


def ask(peer: Core, member: Member, now: float = 0.0) -> list[Effect]:
    join = Join(SAME, view_number=peer.stamp.number)
    return [*peer.meet(now, claim(member)), *say(peer, member, join, NO_VIEW, now)]


def admit(peer: Core, member: Member, now: float = 0.0) -> None:
    meet(peer, [member], now)
    activate(peer, after(view_of(peer), *view_of(peer).members, member), now)


def of_c(incarnation: int) -> Member:
    return Member("c", incarnation)


@pytest.mark.parametrize("took_part", [True, False])
def test_r8_who_was_removed_is_not_admitted_by_a_join_of_before(took_part: bool) -> None:
    peer = founder()
    say(peer, B, Decide(view_with(A, B, C)))
    for member in (B, C) if took_part else (B,):
        say(peer, member, NOTHING)
    remove(peer, C)
    meet(peer, [C])
    for number in (0, 1):  # it knew of no later view before it had a seat in view 2
        assert say(peer, C, Join(SAME, view_number=number), NO_VIEW) == [Send(C, Head(-1, b"", 3, absent_since=3))]
        assert peer.reason == "2 of 2 members of view 3 are here"


def test_who_was_removed_once_may_return_at_once_as_another_incarnation() -> None:
    peer = seated(B, C)
    remove(peer, C)
    ask(peer, of_c(2))
    assert peer.reason.endswith("; with c")


def test_who_was_removed_twice_waits_for_its_third_seat() -> None:
    peer = seated(B, C)
    remove(peer, C)
    admit(peer, of_c(2))
    remove(peer, of_c(2))
    for now in (0.0, 9.9):
        ask(peer, of_c(3), now)
        assert peer.reason == "2 of 2 members of view 5 are here"
    ask(peer, of_c(3), 10.1)
    assert peer.reason == "2 of 2 members of view 5 are here; with c"


def test_who_has_left_by_itself_is_not_held_back() -> None:
    peer = seated(B, C)
    for incarnation in (1, 2, 3):
        say(peer, of_c(incarnation), Leave())
        remove(peer, of_c(incarnation))
        admit(peer, of_c(incarnation + 1))
    remove(peer, of_c(4))
    ask(peer, of_c(5))
    assert peer.reason.endswith("; with c")


# Pausing.


def test_r12_too_few_decide_nothing_and_the_pause_is_final_when_the_missing_are_dead() -> None:
    peer = seated(B, C, D)
    effects: list[Effect] = []
    for member in (B, C, D):
        effects += peer.declare_dead(0.0, member, "power cut")
    reason = "1 of 4 members of view 2 are here, no majority"
    assert effects[-2:] == [Explain(reason), Paused(reason, is_final=False)]
    effects = run(peer, 0.0, 2.0)  # a record may come a little later
    assert only(Paused, effects) == [Paused(reason, is_final=True)]
    assert bodies(Prepare, effects) == []


def test_a_pause_is_not_final_while_the_missing_may_come_back() -> None:
    peer = seated(B, C, D)
    effects = [
        *peer.declare_dead(0.0, D, "power cut"),
        *peer.link_refused(0.0, B, "refused"),
        *peer.link_refused(0.0, C, "refused"),
    ]
    reason = "1 of 4 members of view 2 are here, no majority"
    assert only(Paused, effects)[-1] == Paused(reason, is_final=False)


TOO_FEW = Paused("2 of 5 members of view 2 can be heard, not c, d, e", is_final=False)


def test_a_side_that_hears_too_few_says_how_many_and_whom_not_and_goes_on_when_they_are_back() -> None:
    peer = seated(B, C, D, E)
    assert only(Paused, listen(peer, [B], 0.0, 1.75)) == [TOO_FEW]
    effects = listen(peer, [B, C], 1.75, 2.25)
    assert only(Resumed, effects) == [Resumed("5 of 5 members of view 2 are here")]
    assert only(Paused, effects) == []


def test_a_side_that_has_paused_stays_so_until_the_missing_are_heard() -> None:
    peer = seated(B, C, D, E)
    effects = listen(peer, [B], 0.0, 8.0)
    assert (only(Paused, effects), only(Resumed, effects)) == ([TOO_FEW], [])


def test_a_pause_that_changes_says_so() -> None:
    peer = seated(B, C, D, E)
    listen(peer, [B], 0.0, 1.75)
    assert only(Paused, peer.declare_dead(1.8, B, "SIGKILL")) == [
        Paused("1 of 5 members of view 2 can be heard, not b, c, d, e", is_final=False)
    ]


def test_a_side_that_has_paused_keeps_its_view_and_proposes_nothing() -> None:
    peer = seated(B, C, D, E)
    effects = listen(peer, [], 0.0, 6.0)
    assert bodies(Prepare, effects) + bodies(Accept, effects) == []
    assert view_of(peer) == view_with(A, B, C, D, E)
    assert not peer.ended


def test_r13_under_live_who_is_left_goes_on_if_all_records_were_read() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    view = view_of(peer)
    peer.declare_dead(0.0, B, "SIGKILL", fresh(view))
    assert peer.reason == "2 of 3 members of view 2 are here; without b"
    peer.declare_dead(0.0, C, "SIGKILL", fresh(view))
    assert peer.reason == "1 of 3 members of view 2 are here; without b, c"
    assert only(Installed, peer.tick(0.0)) == [Installed(after(view, A))]


def test_r13_under_live_a_death_without_a_record_pauses_and_a_record_that_comes_later_ends_that() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    view = view_of(peer)
    peer.declare_dead(0.0, B, "SIGKILL", fresh(view))
    effects = peer.declare_dead(0.0, C, "SIGKILL")
    unread = "what c had agreed to before it died cannot be read"
    why = f"1 of 3 members of view 2 are here, no majority, and {unread}"
    assert only(Paused, effects) == [Paused(why, is_final=False)]
    effects = peer.declare_dead(0.5, C, "SIGKILL", fresh(view))
    assert only(Resumed, effects) == [Resumed("1 of 3 members of view 2 are here; without b, c")]
    assert only(Installed, peer.tick(0.5)) == [Installed(after(view, A))]


def test_r13_a_record_of_a_fork_says_nothing_so_its_writer_is_no_witness() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    view = view_of(peer)
    peer.declare_dead(0.0, B, "SIGKILL", fresh(view))
    effects = peer.declare_dead(0.0, C, "SIGKILL", fresh(replace(view, parent=b"fork")))
    assert [paused.reason[:6] for paused in only(Paused, effects)] == ["1 of 3"]
    assert only(Installed, run(peer, 0.0, 1.0)) == []


def test_r13_what_was_read_before_a_view_was_known_counts_in_it() -> None:
    peer = founder(policy=Policy.LIVE)
    view = view_with(A, B, C, policy=Policy.LIVE)
    peer.declare_dead(0.0, C, "SIGKILL", fresh(view))
    say(peer, B, Decide(view))
    say(peer, B, NOTHING)
    peer.declare_dead(0.0, B, "SIGKILL", fresh(view))
    assert peer.reason == "1 of 3 members of view 2 are here; without b, c"


def test_who_hears_that_others_do_not_hear_it_says_that_of_itself() -> None:
    """It was stopped, say; not that nothing proves its own death."""
    peer = seated(B, policy=Policy.LIVE)
    effects = say(peer, B, Report(ReportKind.SILENT, A), now=0.1)
    assert only(Explain, [*effects, *run(peer, 0.1, 1.0)])[0] == Explain(
        "others in view 2 report that they do not hear this peer"
    )


def test_r12_a_view_whose_seated_members_are_all_dead_is_paused_for_good() -> None:
    peer = joiner()
    say(peer, A, Decide(view_with(A, B, C)))
    say(peer, C, Ready(False, -1, b"", None))
    effects = peer.declare_dead(0.0, A, "SIGKILL")
    reason = "all members of view 2 that have the state are dead"
    assert only(Paused, effects) == [Paused(reason, is_final=False)]
    *_, last = only(Paused, run(peer, 0.0, 2.0))
    assert last.is_final
    assert last.reason == peer.reason == reason


# The succession alone


def succession() -> ViewChange:
    swim = Swim(claim(A), rng=Random(1), config=SwimConfig(), now=0.0)
    return ViewChange(A, swim, rng=Random(1), config=CoreConfig())


def test_before_the_first_view_there_is_nothing_to_report_and_no_deadline() -> None:
    new = succession()
    assert (new.send_reports(0.0, repeat=True), new.next_deadline()) == ([], math.inf)


def test_the_records_of_the_latest_dead_are_kept() -> None:
    new = succession()
    dead = [Member(f"dead {i}", 1) for i in range(MOST_DEAD + 9)]
    view = after(first_view(policy=Policy.LIVE), A, dead[0], dead[-1])
    for member in dead:
        new.declare_dead(0.0, member, fresh(view))
        new.declare_dead(0.0, member, None)  # a proof without a record takes none back
    new.install(0.0, view)
    assert list(new.reports.records) == [dead[-1]]


def test_what_nobody_says_any_more_needs_no_thought() -> None:
    new, steps = succession(), StepMachine(A)
    steps.found(first_view())
    new.install(0.0, first_view())
    assert new.reconsider(0.0, steps) == []


def test_who_leaves_is_remembered_until_a_view_goes_on_without_it() -> None:
    peer = seated(B, C)
    say(peer, B, Leave())
    activate(peer, after(view_of(peer), A, B, C))
    assert peer.reason == "3 of 3 members of view 3 are here; without b"


def test_the_removal_of_a_member_is_told_with_the_view_that_did_it() -> None:
    peer = trio(C)
    effects = say(peer, A, Decide(after(view_of(peer), A, B)))
    assert only(Removed, effects) == [Removed("the others have continued without this peer: view 3 consists of a, b")]
    assert bodies(Ping, effects) == []

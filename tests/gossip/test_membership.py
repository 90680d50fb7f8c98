"""A peer in its view: messages, decisions, installed views, admission, feeding and states."""

from dataclasses import replace

import pytest

from gossip import NO_VIEW, Core, Member, Phase, Policy, View
from gossip.acceptor import NO_BALLOT
from gossip.effects import (
    AbortReceived,
    Activated,
    Discovered,
    Effect,
    Explain,
    Forget,
    Installed,
    Left,
    Provide,
    Removed,
    Send,
    WriteRecord,
)
from gossip.messages import (
    Accept,
    Accepted,
    AcceptorRecord,
    Ballot,
    Decide,
    Difference,
    Head,
    Join,
    Leave,
    Ping,
    Prepare,
    Promise,
    Refuse,
    Report,
    ReportKind,
    ViewQuery,
    Vote,
)
from gossip.progress import Abort, Finish, Ready, StateQuery

from .cores import (
    NOTHING,
    OTHER_MODEL,
    SAME,
    activate,
    after,
    bodies,
    commit_step_0,
    commit_steps,
    core,
    decide,
    feeds_of,
    first_view,
    founder,
    genesis,
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

B2 = Member("b", 2)


# Admission.


def ask(peer: Core, *joiners: Member, follows: bool = False, now: float = 0.0) -> list[Effect]:
    """Discovered `joiners` ask for a seat, as observers that have every step if they follow."""
    meet(peer, joiners, now)
    join = Join(SAME, follows, peer.done, b"", peer.stamp.number)
    return [effect for member in joiners for effect in say(peer, member, join, NO_VIEW, now)]


def steps_told(effects: list[Effect]) -> list[tuple[Member, int, bytes]]:
    """Targets to which `effects` name the last step: the observers that this member feeds."""
    return [(member, head.step, head.digest) for member, head in bodies(Head, effects) if head.digest]


def views_told(effects: list[Effect]) -> list[tuple[Member, int, int]]:
    """Targets that are told the installed view, and since when they have had no seat."""
    return [(member, head.view_number, head.absent_since) for member, head in bodies(Head, effects)]


def test_a_join_makes_the_members_propose_a_view_with_the_joiner() -> None:
    peer = founder()
    assert ask(peer, B) == [Send(B, Head(-1, b"", 1, 1)), Explain("1 of 1 members of view 1 are here; with b")]
    effects = peer.tick(0.2)
    view = view_with(A, B)
    assert bodies(Decide, effects) == [(B, Decide(view))]
    assert only(Installed, effects) == [Installed(view)]
    assert say(peer, B, Join(SAME), NO_VIEW) == [Send(B, Decide(view))]


def test_those_who_ask_at_one_time_enter_by_one_view_at_most_as_many_as_are_seated() -> None:
    peer = seated(B)
    ask(peer, C, D, E)
    assert peer.reason == "2 of 2 members of view 2 are here; with c, d"
    run(peer, 0.0, 0.3)  # rank 0 with half of the members may decide
    assert view_of(peer) == after(view_with(A, B), A, B, C, D)


def test_a_stranger_gets_no_seat_before_it_is_met() -> None:
    peer = founder()
    assert say(peer, B, Join(SAME), NO_VIEW) == []
    assert only(Explain, ask(peer, B)) == [Explain("1 of 1 members of view 1 are here; with b")]


def test_a_joiner_that_asks_no_more_is_forgotten() -> None:
    peer = seated(B, C)
    ask(peer, D)
    assert peer.reason == "3 of 3 members of view 2 are here; with d"
    run(peer, 0.0, 1.6, 0.4)
    assert peer.reason == "3 of 3 members of view 2 are here"


def test_a_joiner_that_leaves_is_forgotten() -> None:
    peer = seated(B, C)
    ask(peer, D)
    say(peer, D, Leave(), NO_VIEW)
    assert peer.reason == "3 of 3 members of view 2 are here"


def test_nobody_is_admitted_before_the_last_barrier_is_complete() -> None:
    peer = founder()
    say(peer, B, Decide(view_with(A, B)))
    assert peer.phase is Phase.INSTALLING
    assert bodies(Accept, [*ask(peer, C), *run(peer, 0.0, 0.5)]) == []


def test_another_layout_is_refused_and_concerns_the_joiner_only() -> None:
    peer = founder()
    meet(peer, [B])
    assert say(peer, B, Join(OTHER_MODEL), NO_VIEW) == [Send(B, Refuse(True, (Difference("model", b"one tensor"),)))]
    assert peer.reason == "1 of 1 members of view 1 are here"


def test_who_has_no_view_admits_nobody() -> None:
    assert say(joiner(), C, Join(SAME), NO_VIEW) == []


def test_a_joiner_that_is_taken_for_dead_is_told() -> None:
    peer = seated(C)
    meet(peer, [B])
    peer.declare_dead(0.0, B, "link lost")
    (target, ping), *_ = bodies(Ping, say(peer, B, Join(SAME), NO_VIEW))
    assert target == B
    assert [said.member for said in ping.claims][:1] == [B]


def test_r8_who_is_started_again_is_out_as_soon_as_it_is_heard_of_and_has_a_seat_in_the_view_behind_that() -> None:
    peer = seated(B, C)
    effects = peer.meet(0.0, claim(B2))
    assert bodies(Report, effects) == [(C, Report(ReportKind.PROVEN, B))]
    ask(peer, B2)
    assert peer.reason == "2 of 3 members of view 2 are here; without b"
    decide(peer, C, 0.0)
    assert view_of(peer) == after(view_with(A, B, C), A, C)
    say(peer, C, NOTHING)
    assert peer.reason == "2 of 2 members of view 3 are here; with b"


def test_r8_a_late_join_of_the_older_incarnation_is_ignored() -> None:
    peer = seated(C)
    meet(peer, [B2])
    effects = ask(peer, B)
    assert [type(body) for _, body in bodies(Ping, effects)] == [Ping]  # the sender is told that it was replaced
    assert peer.reason == "2 of 2 members of view 2 are here"


def test_who_asks_is_told_at_once_of_the_view_by_every_member_whether_it_follows_or_not() -> None:
    for me in (A, B, C):
        peer = member_of(view_with(A, B, C), me)
        assert views_told(ask(peer, D)) == [(D, 2, 2)]
        assert views_told(ask(peer, E, follows=True)) == [(E, 2, 2)]


def test_who_names_no_view_is_told_of_it_and_not_admitted() -> None:
    peer = seated(B)
    meet(peer, [D])
    assert views_told(say(peer, D, Join(SAME), NO_VIEW)) == [(D, 2, 2)]
    assert peer.reason == "2 of 2 members of view 2 are here"


def test_who_asks_is_told_of_the_next_view_as_soon_as_it_is_installed() -> None:
    peer = seated(B, C)
    ask(peer, D, E)
    effects = say(peer, B, Decide(after(view_of(peer), A, B, C, E)))
    assert views_told(effects) == [(D, 3, 3)]
    assert views_told(say(peer, B, Decide(after(view_of(peer), A, B)))) == [(D, 4, 3)]


def test_a_seat_has_the_numerics_class_of_the_join() -> None:
    peer = founder()
    meet(peer, [B])
    say(peer, B, Join(SAME, view_number=1, numerics=b"class 16"), NO_VIEW)
    peer.tick(0.2)
    assert [seat.numerics for seat in view_of(peer).seats] == [bytes(8), b"class 16"]


# Observers.


def feeder_of(view: View, observer: Member) -> Member:
    members = [seat.member for seat in view.seats if seat.since < view.number]
    return members[(sum(observer.peer_id.encode()) + view.number) % len(members)]


def test_r9_an_observer_is_fed_by_exactly_one_member() -> None:
    trio = A, B, C
    heads, feeds = {}, {}
    view = after(view_with(*trio), *trio)
    for me in trio:
        peer = member_of(view_with(*trio), me)
        activate(peer, view)
        heads[me] = steps_told(ask(peer, D, follows=True))
        feeds[me] = feeds_of(commit_step_0(peer, *(member for member in trio if member != me)))
    feeder = feeder_of(view, D)
    assert [me for me in trio if heads[me]] == [me for me in trio if feeds[me]] == [feeder]
    assert heads[feeder] == [(D, -1, genesis())]
    assert [(feed.member, feed.step, feed.previous) for feed in feeds[feeder]] == [(D, 0, genesis())]


def test_r9_after_a_view_change_an_observer_is_fed_by_another_member() -> None:
    peer = seated(B, C)
    observers = [Member(name, 1) for name in "xyz"]
    for _ in range(2):
        activate(peer, after(view_of(peer), A, B, C))
        ours = [(member, -1, genesis()) for member in observers if feeder_of(view_of(peer), member) == A]
        assert steps_told(ask(peer, *observers, follows=True)) == ours
        assert len(ours) == 1
    assert [feed.member for feed in feeds_of(commit_step_0(peer, B, C))] == [member for member, *_ in ours]


def test_r9_who_has_just_been_admitted_feeds_nobody() -> None:
    observers = [Member(name, 1) for name in "xyz"]
    founding = steps_told(ask(seated(B, C), *observers, follows=True))
    assert [member for member, *_ in founding] == observers
    assert steps_told(ask(member_of(view_with(A, B, C), B), *observers, follows=True)) == []


def test_r9_what_is_committed_at_a_barrier_is_fed_by_the_feeders_of_both_views() -> None:
    """The feeder of the new view may have committed it in the old one."""
    peer = seated(B, C)
    activate(peer, after(view_of(peer), A, B, C))
    old, new = view_of(peer), after(view_of(peer), A, B)
    observers = [Member(name, 1) for name in "uvwxyz"]
    ask(peer, *observers, follows=True)
    peer.finished(0.0, 0, b"bits", b"")
    say(peer, B, Decide(new))
    committed = say(peer, B, Ready(True, -1, genesis(), Finish(0, b"bits", b"", old.number)))
    fed = [feed.member for feed in feeds_of(committed)]
    assert fed == [member for member in observers if A in (feeder_of(old, member), feeder_of(new, member))]
    assert {(feeder_of(old, member) == A, feeder_of(new, member) == A) for member in fed} == {
        (True, True),
        (True, False),
        (False, True),
    }


def test_r9_what_is_committed_at_the_barrier_that_seats_the_only_observer_is_fed_to_it() -> None:
    """The observer may wait for an operation of its own, whose result no state contains."""
    peer = seated(B, C)
    activate(peer, old := after(view_of(peer), A, B, C))
    observer = next(each for each in map(Member, "xyz", (1, 1, 1)) if feeder_of(old, each) == A)
    ask(peer, observer, follows=True)
    peer.finished(0.0, 0, b"bits", b"")
    say(peer, B, Decide(after(old, A, B, C, observer)))
    shown, lacks = Ready(True, -1, genesis(), Finish(0, b"bits", b"", old.number)), Ready(False, -1, b"", None)
    fed = [feeds_of(say(peer, each, ready)) for each, ready in ((B, shown), (C, shown), (observer, lacks))]
    assert [feed.member for feed in fed[-1]] == [observer]


def test_r9_an_observer_remembers_who_else_observes_for_the_time_when_it_has_a_seat() -> None:
    peer, known = joiner(B, follows=True), joiner(B)
    for each in (peer, known):
        meet(each, [C, D])
        for member, join in ((C, Join(SAME, True)), (D, Join(SAME)), (D, Join(OTHER_MODEL, True))):
            assert say(each, member, join, NO_VIEW) == []
        assert say(each, Member("stranger", 1), Join(SAME, True), NO_VIEW) == []
    assert peer._view_change.admission.joiners() == [C]
    assert known._view_change.admission.joiners() == []
    bystander = core(B)
    meet(bystander, [C])
    assert say(bystander, C, Join(SAME, True), NO_VIEW) == []
    assert bystander._view_change.admission.joiners() == []


def test_r9_an_observer_that_has_died_is_fed_no_more() -> None:
    peer = founder(founding_size=1)
    ask(peer, B, follows=True)
    assert [(feed.member, feed.step) for feed in feeds_of(peer.finished(0.0, 1, b"bits", b""))] == [(B, 1)]
    peer.declare_dead(0.0, B, "gone")
    assert feeds_of(peer.finished(0.0, 2, b"bits", b"")) == []


def test_r9_an_observer_that_has_come_back_is_not_fed_as_who_it_was() -> None:
    """Both incarnations have the same addresses: two streams of one peer would block each other."""
    peer = founder(founding_size=1)
    ask(peer, B, follows=True)
    ask(peer, B2, follows=True)
    assert [feed.member for feed in feeds_of(peer.finished(0.0, 1, b"bits", b""))] == [B2]


def test_r9_an_observer_is_fed_until_its_first_barrier_is_complete() -> None:
    peer = founder(founding_size=1)
    ask(peer, B, follows=True)
    peer.tick(0.0)
    assert (view_of(peer).members, peer.phase) == ((A, B), Phase.INSTALLING)
    assert peer._view_change.admission.followers(0.0) == [B]
    activated = say(peer, B, Ready(True, 0, peer._steps.digest, None))
    assert only(Activated, activated) == [Activated(view_of(peer), 0, founded_in=1)]
    assert peer._view_change.admission.followers(0.0) == []


def test_a_joiner_that_does_not_follow_is_fed_nothing() -> None:
    peer = seated(B, C)
    names = [Member(name, 1) for name in "xyz"]
    assert steps_told(ask(peer, *names)) == []
    assert feeds_of(commit_step_0(peer, B, C)) == []


def test_r9_no_step_is_told_during_a_barrier() -> None:
    peer = founder()
    say(peer, B, Decide(view_with(A, B)))
    assert steps_told(ask(peer, *(Member(name, 1) for name in "wxyz"), follows=True)) == []


def test_r9_an_observer_in_the_barrier_asks_for_the_state_only_after_two_beats() -> None:
    peer = joiner(follows=True)
    peer.loaded(0.0, 3, b"three")
    say(peer, A, Head(3, b"three"))
    run(peer, 0.0, 2.0)
    say(peer, A, Decide(view_with(A, B)), now=2.1)
    assert bodies(StateQuery, say(peer, A, Ready(True, 4, b"four", None), now=2.1)) == []  # step 4 may be under way
    assert bodies(StateQuery, run(peer, 2.1, 2.7)) == []
    assert bodies(StateQuery, run(peer, 2.7, 3.0)) != []


def test_r9_an_observer_that_lacks_only_what_was_just_committed_is_admitted() -> None:
    peer = founder(founding_size=1)
    for step in (1, 2, 3):
        peer.finished(step / 10, step, b"bits", b"")
    meet(peer, [B], 0.3)
    say(peer, B, Join(SAME, True, 0, b"", 1), NO_VIEW, 0.3)
    assert peer.reason == "1 of 1 members of view 1 are here; with b"
    late = founder(founding_size=1)
    for step in (1, 2, 3):
        late.finished(step / 10, step, b"bits", b"")
    meet(late, [B], 1.3)
    say(late, B, Join(SAME, True, 0, b"", 1), NO_VIEW, 1.4)
    assert late.reason == "1 of 1 members of view 1 are here"


def test_r9_an_observer_whose_feeder_has_no_seat_any_more_asks_for_the_state_at_once() -> None:
    peer = joiner(follows=True)
    peer.loaded(0.0, 3, b"three")
    meet(peer, [C])
    say(peer, C, Head(3, b"three"))
    say(peer, A, Decide(view_with(A, B)))
    assert bodies(StateQuery, say(peer, A, Ready(True, 4, b"four", None))) == [(A, StateQuery(4))]


@pytest.mark.parametrize("lacks_a_step", [True, False])
def test_r9_an_observer_that_lacks_a_step_is_not_admitted_by_the_view_that_removes_its_feeder(
    lacks_a_step: bool,
) -> None:
    peer = seated(B, C)
    activate(peer, after(view_of(peer), A, B, C))
    feeders = {feeder_of(view_of(peer), observer): observer for observer in (Member(name, 1) for name in "xyz")}
    commit_steps(peer, 1, B, C)
    peer.declare_dead(0.0, B, "gone")
    meet(peer, [feeders[B], feeders[C]])
    for observer in (feeders[B], feeders[C]):
        say(peer, observer, Join(SAME, True, 0 if lacks_a_step else 1, b"", 3), NO_VIEW)
    decide(peer, C, 0.0)
    admitted = view_of(peer).members[2:]
    assert admitted == ((feeders[C],) if lacks_a_step else (feeders[B], feeders[C]))


def test_r9_an_observer_without_any_state_does_not_wait_for_what_is_fed() -> None:
    peer = joiner(follows=True)
    say(peer, A, Decide(view_with(A, B)))
    say(peer, A, Ready(True, 4, b"four", None))
    assert bodies(StateQuery, peer.tick(0.5)) == [(A, StateQuery(4))]


def test_who_is_seated_provides_the_state_for_members() -> None:
    assert say(seated(B), B, StateQuery(-1)) == [Provide(B, -1)]
    other = joiner()
    say(other, A, Decide(view_with(A, B)))
    assert say(other, A, StateQuery(-1)) == []


def test_who_is_seated_provides_the_state_for_observers_that_it_knows() -> None:
    peer = seated(B)
    assert only(Provide, say(peer, C, StateQuery(7), NO_VIEW)) == []
    meet(peer, [C])
    assert say(peer, C, StateQuery(7), NO_VIEW) == [Provide(C, -1)]
    assert say(joiner(), A, StateQuery(7), NO_VIEW) == []


# Deciding.


def test_a_decision_is_told_to_all_whom_it_concerns_and_installed() -> None:
    peer = seated(B, C)
    view = after(view_of(peer), A, B)
    peer.declare_dead(0.0, C, "gone")
    peer.tick(0.0)
    say(peer, B, Promise(Ballot(1, 0), None))
    assert say(peer, B, Accepted(Ballot(1, 0))) == [
        Send(B, Decide(view)),
        Send(C, Decide(view)),
        Installed(view),
        Send(B, Ready(True, -1, genesis(), None)),
        Forget(C),
    ]
    assert peer.reason == "2 of 2 members of view 3 are here"


def test_r13_under_live_a_decision_is_written_before_it_is_told() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    view = after(view_of(peer), A, B)
    peer.declare_dead(0.0, C, "gone", AcceptorRecord(view_of(peer), NO_BALLOT, None))
    peer.tick(0.0)
    say(peer, B, Promise(Ballot(1, 0), None))
    effects = say(peer, B, Accepted(Ballot(1, 0)))
    assert effects[:2] == [WriteRecord(AcceptorRecord(view, NO_BALLOT, None)), Send(B, Decide(view))]


def test_what_is_said_in_the_view_that_ends_leaves_with_its_stamp_and_not_with_that_of_the_next() -> None:
    peer = seated(B)
    view = view_of(peer)
    peer.declare_dead(0.0, B, "gone")
    effects = peer.tick(0.0)
    assert [installed.view.number for installed in only(Installed, effects)] == [3]
    assert {send.stamp for send in only(Send, effects)} == {view.stamp}


def test_r12_anybody_accepts() -> None:
    peer, ballot = joiner(), Ballot(1, 0)
    say(peer, A, Decide(view_with(A, B, C)))
    vote = Vote(ballot, after(view_of(peer), A, B))
    assert say(peer, A, Prepare(ballot)) == [Send(A, Promise(ballot, None))]
    assert say(peer, A, Accept(vote)) == [Send(A, Accepted(ballot))]


def test_who_is_gone_is_forgotten_when_a_view_goes_on_without_it() -> None:
    peer = seated(B, C)
    peer.declare_dead(0.0, C, "gone")
    assert only(Forget, say(peer, B, Decide(after(view_of(peer), A, B)))) == [Forget(C)]
    assert only(Forget, say(peer, B, Decide(after(view_of(peer), A, B)))) == []


def test_members_whom_nobody_has_introduced_are_met_by_the_view() -> None:
    peer = founder()
    effects = say(peer, B, Decide(view_with(A, B, C)))
    assert only(Discovered, effects) == [Discovered(claim(B)), Discovered(claim(C))]


def test_r8_who_is_excluded_is_removed_and_says_why() -> None:
    peer = seated(B)
    assert say(peer, B, Decide(after(view_of(peer), B))) == [
        Removed("the others have continued without this peer: view 3 consists of b")
    ]
    assert (peer.ended, peer.reason) == (
        True,
        "the others have continued without this peer: view 3 consists of b",
    )
    assert say(peer, B, Ping(1, ())) == []
    assert peer.tick(99.0) == []


def test_a_view_that_is_not_later_changes_nothing() -> None:
    peer = seated(B)
    assert say(peer, B, Decide(view_with(A, B))) == []
    assert say(peer, B, Decide(first_view())) == []


def test_a_joiner_takes_no_view_without_itself() -> None:
    peer = joiner()
    assert say(peer, A, Decide(first_view())) == []
    assert peer.view is None


def test_a_view_with_a_number_that_nobody_can_count_to_is_ignored() -> None:
    peer = seated(B)
    assert say(peer, B, Decide(replace(view_of(peer), number=2**64 - 1))) == []
    assert view_of(peer).number == 2


# Telling and asking.


def test_a_peer_without_progress_asks_all_whom_it_knows_for_a_later_view() -> None:
    peer = seated(B)
    meet(peer, [C])
    asked = {}
    for i in range(1, 17):
        say(peer, B, NOTHING, now=i / 4)
        asked[i / 4] = [target for target, _ in bodies(ViewQuery, peer.tick(i / 4))]
    assert {now: targets for now, targets in asked.items() if targets} == {2.0: [B, C], 4.0: [B, C]}


def test_a_new_view_puts_the_question_off() -> None:
    peer = seated(B)
    for i in range(1, 31):
        say(peer, B, Decide(after(view_of(peer), A, B)) if i == 15 else ViewQuery(), now=i / 10)
        assert bodies(ViewQuery, peer.tick(i / 10)) == []


def test_progress_puts_the_question_off() -> None:
    peer = seated(B, pause_s=9.0)
    commit_step_0(peer, B, now=1.5)
    assert bodies(ViewQuery, peer.tick(2.25)) == []
    assert bodies(ViewQuery, peer.tick(3.5)) == [(B, ViewQuery())]


def test_a_call_that_another_member_made_reaches_the_host() -> None:
    abort = Abort(3, 1, "sum of float32")
    assert say(seated(B), B, abort) == [AbortReceived(B, abort)]


def test_a_question_for_the_view_in_the_same_view_needs_no_answer() -> None:
    assert say(seated(B), B, ViewQuery()) == []


def test_a_leaver_is_left_out_of_the_next_view_and_votes_for_it() -> None:
    peer = seated(B)
    assert say(peer, B, Leave()) == [Explain("b leaves"), Explain("2 of 2 members of view 2 are here; without b")]
    effects = peer.tick(0.0)
    assert view_of(peer).members == (A,)
    assert (B, Decide(view_of(peer))) in bodies(Decide, effects)


def test_the_leave_of_a_stranger_takes_nobody_out() -> None:
    peer = seated(B)
    assert say(peer, C, Leave()) == []
    assert only(Left, peer.leave(0.0)) == []

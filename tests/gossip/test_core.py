"""One peer's protocol, wired together: what a message or a command entails, and what it must not."""

from random import Random
from typing import Any

import pytest

from gossip import NO_VIEW, Claim, Core, CoreConfig, Envelope, Member, Phase, Seat, Stamp, State, View
from gossip.claim import NOWHERE
from gossip.commit import StepMachine
from gossip.messages import (
    Abort,
    Accept,
    Accepted,
    Ack,
    Activated,
    Ballot,
    Beat,
    Body,
    Committed,
    Decide,
    Discovered,
    Effect,
    Explain,
    Finish,
    Forget,
    Installed,
    Join,
    Leave,
    Left,
    Nack,
    Overheard,
    Ping,
    Prepare,
    Progress,
    Promise,
    Provide,
    QuorumGone,
    Ready,
    Refuse,
    Refused,
    Removed,
    Send,
    StateQuery,
    ViewQuery,
    Vote,
)
from gossip.view import founding_view

from .members import A2, LINEAGE, A, B, C, D, claim

LAYOUT = ("hash", b"one tensor")


def core(me: Member = A, **config: Any) -> Core:
    return Core(claim(me), rng=Random(1), config=CoreConfig(**config), now=0.0)


def founder(founding_size: int = 9) -> Core:
    """A alone in view 1. Step 0 is held, so that nothing but what a test does happens."""
    new = core()
    new.found(0.0, LINEAGE, founding_size, LAYOUT)
    return new


def view_with(*members: Member, number: int = 2, founding_size: int = 9) -> View:
    seats = tuple(Seat(member, 1 if member == A else 2) for member in members)
    return View(LINEAGE, number, founding_size, seats, founding_view(A, LINEAGE, founding_size).hash)


def say(peer: Core, sender: Member, body: Body, stamp: Stamp | None = None, now: float = 0.0) -> list[Effect]:
    return peer.receive(now, Envelope(sender, peer.stamp if stamp is None else stamp, body))


def seated(*others: Member, founding_size: int = 9) -> Core:
    """A, seated and active in view 2 with `others`, whom it knows to be alive."""
    peer = founder(founding_size)
    for member in others:
        peer.meet(claim(member))
    say(peer, others[0], Decide(view_with(A, *others, founding_size=founding_size)))
    for member in others:
        say(peer, member, Ready(True, -1, genesis(), None))
    assert peer.phase is Phase.ACTIVE
    return peer


def genesis() -> bytes:
    """Digest of the chain of a lineage in which nothing is done."""
    machine = StepMachine(A)
    machine.found(founding_view(A, LINEAGE, 1))
    return machine.digest


def joiner(me: Member = B) -> Core:
    peer = core(me)
    peer.meet(claim(A))
    peer.ask_for_seat(0.0, LAYOUT)
    return peer


def only(kind: type[Effect], effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def bodies(kind: type[Body], effects: list[Effect]) -> list[tuple[Member, Body]]:
    return [(e.target, e.body) for e in effects if isinstance(e, Send) and isinstance(e.body, kind)]


# Founding and joining.


def test_a_founder_is_active_alone_and_step_0_waits_for_the_founding_members() -> None:
    peer, view = core(), founding_view(A, LINEAGE, 2)
    assert peer.found(0.0, LINEAGE, 2, LAYOUT) == [
        Installed(view),
        Activated(view, -1),
        Explain("1 of 1 members of view 1 are alive"),
    ]
    assert (peer.stamp, peer.view, peer.phase, peer.done) == (view.stamp, view, Phase.ACTIVE, -1)
    assert peer.reason == "1 of 1 members of view 1 are alive"


def test_a_founder_for_one_commits_step_0_at_once() -> None:
    effects = core().found(0.0, LINEAGE, 1, LAYOUT)
    assert only(Committed, effects) == [Committed(Finish(0, b"", b"", 1), founding_view(A, LINEAGE, 1))]


def test_step_0_is_finished_by_itself_when_the_founding_members_are_there() -> None:
    peer = founder(2)
    say(peer, B, Decide(view_with(A, B, founding_size=2)))
    effects = say(peer, B, Ready(True, -1, genesis(), None))
    assert bodies(Progress, effects) == [(B, Progress(-1, genesis(), Finish(0, b"", b"", 2)))]
    say(peer, B, Beat(Ready(True, -1, genesis(), None), Progress(-1, genesis(), Finish(0, b"", b"", 2))))
    assert peer.done == 0


def test_a_joiner_asks_everybody_alive_and_whoever_it_meets_later() -> None:
    peer = core(B)
    assert (peer.stamp, peer.reason) == (NO_VIEW, "not in a view yet")
    peer.meet(claim(A))
    assert peer.ask_for_seat(1.0, LAYOUT) == [Send(A, Join("hash"))]
    assert peer.next_deadline() == 1.0  # the probe
    assert bodies(Join, say(peer, C, Ping(1, (claim(C),)))) == [(C, Join("hash"))]
    assert bodies(Join, peer.tick(1.4)) == []
    assert bodies(Join, peer.tick(1.5)) == [(A, Join("hash")), (C, Join("hash"))]


def test_who_has_asked_for_nothing_waits_in_silence() -> None:
    peer = core(B)
    peer.meet(claim(A))
    assert bodies(Join, peer.tick(5.0)) == []
    assert say(peer, A, Decide(view_with(A, B))) == []
    assert peer.next_deadline() == 5.25


def test_a_join_makes_the_members_propose_a_view_with_the_joiner() -> None:
    peer = founder()
    peer.meet(claim(B))
    assert say(peer, B, Join("hash"), NO_VIEW) == [Explain("1 of 1 members of view 1 are alive; with b")]
    view = view_with(A, B)
    effects = peer.tick(0.2)
    assert bodies(Decide, effects) == [(B, Decide(view))]
    assert only(Installed, effects) == [Installed(view)]
    assert say(peer, B, Join("hash"), NO_VIEW) == [Send(B, Decide(view))]


def test_a_stranger_gets_no_seat_before_it_is_met() -> None:
    peer = founder()
    assert say(peer, B, Join("hash"), NO_VIEW) == []
    peer.meet(claim(B))
    assert only(Explain, say(peer, B, Join("hash"), NO_VIEW)) == [Explain("1 of 1 members of view 1 are alive; with b")]


def test_a_joiner_that_asks_no_more_is_forgotten() -> None:
    peer = seated(B, C)
    peer.meet(claim(D))
    say(peer, D, Join("hash"), NO_VIEW)
    assert peer.reason.endswith("with d")
    peer.tick(1.6)
    assert peer.reason == "3 of 3 members of view 2 are alive"


def test_a_joiner_that_leaves_is_forgotten() -> None:
    peer = seated(B)
    peer.meet(claim(D))
    say(peer, D, Join("hash"), NO_VIEW)
    say(peer, D, Leave(), NO_VIEW)
    assert peer.reason == "2 of 2 members of view 2 are alive"


def test_nobody_is_admitted_before_the_last_barrier_is_complete() -> None:
    peer = founder()
    say(peer, B, Decide(view_with(A, B)))
    peer.meet(claim(C))
    say(peer, C, Join("hash"), NO_VIEW)
    assert peer.phase is Phase.INSTALLING
    assert peer.reason == "2 of 2 members of view 2 are alive"


def test_another_layout_is_refused_and_concerns_the_joiner_only() -> None:
    peer = founder()
    peer.meet(claim(B))
    assert say(peer, B, Join("other"), NO_VIEW) == [Send(B, Refuse(b"one tensor"))]
    other = joiner()
    assert say(other, A, Refuse(b"their tensor")) == [Refused(b"their tensor")]
    assert say(peer, B, Refuse(b"their tensor")) == []


def test_who_has_no_view_admits_nobody() -> None:
    assert bodies(Join, say(joiner(), C, Join("hash"), NO_VIEW)) == []


def test_r6_a_joiner_asks_for_the_state_and_takes_its_seat() -> None:
    peer, view = joiner(), view_with(A, B)
    assert peer.wanted_state() is None
    assert only(Installed, say(peer, A, Decide(view))) == [Installed(view)]
    say(peer, A, Ready(True, 4, b"digest", None))
    assert peer.wanted_state() == (4, b"digest", A)
    assert bodies(StateQuery, peer.tick(1.0)) == [(A, StateQuery(4))]
    assert only(Activated, peer.loaded(1.1, 4, b"digest")) == [Activated(view, 4)]
    assert (peer.done, peer.phase) == (4, Phase.ACTIVE)


def test_the_seated_provide_the_state() -> None:
    assert say(seated(B), B, StateQuery(-1)) == [Provide(B, -1)]
    other = joiner()
    say(other, A, Decide(view_with(A, B)))
    assert say(other, A, StateQuery(-1)) == []


def test_a_joiner_that_others_take_for_dead_is_told_and_ends() -> None:
    peer = seated(C)
    peer.meet(claim(B))
    peer.bury(0.0, B, "link lost")
    effects = say(peer, B, Join("hash"), NO_VIEW)
    assert [target for target, _ in bodies(Ping, effects)] == [B]
    (_, said), *_ = bodies(Ping, effects)
    other = joiner()
    assert only(Removed, say(other, A, said)) == [Removed("others take this peer for dead")]
    assert other.ended
    assert other.tick(9.0) == []


def test_a_member_that_others_take_for_dead_waits_for_their_view() -> None:
    peer = seated(B)
    assert only(Removed, say(peer, B, Ping(1, (claim(A, State.DEAD),)))) == []
    assert not peer.ended


# Deaths, and what they entail.


def test_a_death_is_told_and_makes_the_survivors_propose() -> None:
    peer = seated(B, C)
    effects = peer.bury(1.0, B, "SIGKILL")
    assert effects[0] == Explain("b is dead: SIGKILL")
    assert effects[-1] == Explain("2 of 3 members of view 2 are alive; without b")
    (target, said), *_ = bodies(Ping, effects)
    assert isinstance(said, Ping)
    assert target == C
    assert claim(B, State.DEAD) in said.claims
    assert peer.next_deadline() <= 1.0
    assert bodies(Prepare, peer.tick(1.0)) == [(B, Prepare(Ballot(1, 0))), (C, Prepare(Ballot(1, 0)))]
    assert peer.bury(1.0, B, "again") == []


def test_a_member_that_was_never_met_can_be_buried() -> None:
    peer = founder()
    say(peer, B, Decide(view_with(A, B, C)))
    effects = peer.bury(0.0, C, "not in the registry")
    assert effects[0] == Explain("c is dead: not in the registry")
    assert peer.reason == "2 of 3 members of view 2 are alive; without c"
    (_, said), *_ = bodies(Ping, say(peer, B, Ping(1, (claim(B),))))
    assert isinstance(said, Ping)
    assert Claim(C, State.DEAD, NOWHERE) in said.claims


def test_the_death_of_a_leaver_is_called_leaving() -> None:
    peer = seated(B)
    say(peer, B, Leave())
    assert peer.bury(1.0, B, "exit")[0] == Explain("b is left: exit")


def test_survivors_take_turns() -> None:
    peer = core(C)
    peer.ask_for_seat(0.0, LAYOUT)
    view = view_with(A, B, C)
    say(peer, A, Decide(view))
    for member in (A, B):
        peer.meet(claim(member))
        say(peer, member, Ready(True, -1, b"", None))
    assert peer.phase is Phase.ACTIVE
    say(peer, A, Ping(1, (claim(B, State.DEAD),)), now=0.1)
    assert peer._agreement.next_deadline() == pytest.approx(0.12)


def test_r12_too_few_alive_decide_nothing_and_say_so() -> None:
    peer = seated(B, C, D)
    for member in (B, C, D):
        effects = peer.bury(0.0, member, "power cut")
    reason = "1 of 4 members of view 2 are alive, no majority"
    assert effects[-2:] == [Explain(reason), QuorumGone(1, 4, reason)]
    assert bodies(Prepare, peer.tick(0.0)) == []


def test_r12_who_is_not_seated_proposes_nothing() -> None:
    peer = joiner()
    say(peer, A, Decide(view_with(A, B, C)))
    peer.bury(0.0, A, "gone")
    assert bodies(Prepare, peer.tick(0.2)) == []
    assert peer._agreement.next_deadline() == float("inf")


def test_r12_anybody_accepts_and_completes_what_it_accepted() -> None:
    peer, ballot = joiner(), Ballot(1, 0)
    say(peer, A, Decide(view_with(A, B, C)))
    next_view = view_with(A, B, number=3)
    assert say(peer, A, Prepare(ballot)) == [Send(A, Promise(ballot, None))]
    assert say(peer, A, Accept(Vote(ballot, next_view))) == [Send(A, Accepted(ballot))]
    assert (C, Prepare(Ballot(2, 1))) in bodies(Prepare, peer.tick(1.0))


def test_who_is_gone_is_forgotten_when_a_view_goes_on_without_it() -> None:
    peer = seated(B, C)
    peer.bury(0.0, C, "gone")
    view = view_with(A, B, number=3)
    assert only(Forget, say(peer, B, Decide(view))) == [Forget(C)]
    assert only(Forget, say(peer, B, Decide(view_with(A, number=4)))) == []


# Deciding.


def decide_without(peer: Core, gone: Member, helper: Member) -> list[Effect]:
    """The effects of the message that decides."""
    peer.bury(0.0, gone, "gone")
    peer.tick(0.0)
    ballot = Ballot(1, 0)
    say(peer, helper, Promise(ballot, None))
    return say(peer, helper, Accepted(ballot))


def test_a_decision_is_told_to_all_whom_it_concerns_and_installed() -> None:
    peer = seated(B, C)
    old = peer.view
    assert old is not None
    effects = decide_without(peer, C, B)
    view = View(LINEAGE, 3, 9, old.seats[:2], old.hash)
    assert effects == [
        Send(B, Decide(view)),
        Send(C, Decide(view)),
        Installed(view),
        Send(B, Ready(True, -1, genesis(), None)),
        Forget(C),
        Explain("2 of 2 members of view 3 are alive"),
    ]


def test_nothing_of_the_view_that_ends_leaves_with_the_stamp_of_the_next() -> None:
    peer = seated(B)
    peer.bury(0.0, B, "gone")
    effects = peer.tick(0.0)
    assert only(Installed, effects) != []
    assert bodies(Prepare, effects) + bodies(Accept, effects) == []


def test_r8_who_was_excluded_and_admitted_again_without_knowing_is_removed() -> None:
    peer = seated(B)
    again = View(LINEAGE, 5, 9, (Seat(B, 2), Seat(A, 5)), b"")
    assert say(peer, B, Decide(again)) == [Removed("view 5 was agreed without this peer: b, a")]
    assert peer.ended


def test_r8_who_is_excluded_is_removed() -> None:
    peer = seated(B)
    assert say(peer, B, Decide(view_with(B, number=3))) == [Removed("view 3 was agreed without this peer: b")]
    assert (peer.ended, peer.reason) == (True, "view 3 was agreed without this peer: b")
    assert say(peer, B, Ping(1, ())) == []
    assert peer.tick(99.0) == []


def test_r8_a_new_incarnation_replaces_the_older_one_and_a_late_join_of_the_older_is_ignored() -> None:
    peer = joiner()
    say(peer, A, Decide(view_with(A, B)))
    say(peer, A, Ready(True, -1, b"digest", None))
    peer.loaded(0.0, -1, b"digest")
    peer.meet(claim(A2))
    say(peer, A2, Join("hash"), NO_VIEW)
    assert peer.reason == "1 of 2 members of view 2 are alive, no majority"  # A was rank 0
    other = seated(B)
    other.meet(claim(Member("b", 2)))
    say(other, Member("b", 2), Join("hash"), NO_VIEW)
    assert other.reason == "1 of 2 members of view 2 are alive; without b; with b"
    effects = other.tick(0.0)
    assert other.view is not None
    assert other.view.members == (A, Member("b", 2))
    assert bodies(Decide, effects) != []
    assert [type(body) for _, body in bodies(Ping, say(other, B, Join("hash"), NO_VIEW))] == [Ping]
    assert other.reason == "2 of 2 members of view 3 are alive"


def test_a_view_that_is_not_later_changes_nothing() -> None:
    peer = seated(B)
    assert say(peer, B, Decide(view_with(A, B))) == []
    assert say(peer, B, Decide(founding_view(A, LINEAGE, 9))) == []


def test_another_lineage_is_named_and_ignored() -> None:
    peer = seated(B)
    other = founding_view(C, b"\xff", 1)
    assert say(peer, C, Decide(other), other.stamp)[0] == Explain("two swarms have met: ignored view 1 of lineage ff")
    assert peer.view == view_with(A, B)


def test_a_joiner_takes_no_view_without_itself() -> None:
    peer = joiner()
    assert say(peer, A, Decide(founding_view(A, LINEAGE, 9))) == []
    assert peer.view is None


def test_r4_a_ready_that_overtakes_the_view_is_kept_for_it() -> None:
    peer, view = founder(), view_with(A, B)
    peer.meet(claim(B))
    assert say(peer, B, Ready(True, -1, genesis(), None), view.stamp) == [Send(B, ViewQuery())]
    assert only(Activated, say(peer, B, Decide(view))) == [Activated(view, -1)]


def test_r4_a_ready_of_another_view_or_of_a_stranger_is_not_kept() -> None:
    peer, view = founder(), view_with(A, B)
    say(peer, B, Ready(True, -1, genesis(), None), view.stamp)
    peer.meet(claim(B))
    say(peer, B, Ready(True, -1, genesis(), None), Stamp(LINEAGE, 2, b"another hash"))
    assert only(Activated, say(peer, B, Decide(view))) == []


# What does not belong here.


def test_who_is_behind_is_told_of_the_later_view() -> None:
    peer, old = seated(B), founding_view(A, LINEAGE, 9).stamp
    for stray in (ViewQuery(), Progress(0, b"", None), Prepare(Ballot(9, 1)), StateQuery(0)):
        assert say(peer, B, stray, old) == [Send(B, Decide(view_with(A, B)))]


def test_who_is_ahead_is_asked() -> None:
    peer = seated(B)
    ahead = Stamp(LINEAGE, 7, b"hash")
    assert say(peer, B, Progress(0, b"", None), ahead) == [Send(B, ViewQuery())]


@pytest.mark.parametrize(
    "body",
    [
        Ready(True, 7, b"", None),
        Progress(7, b"", None),
        Beat(Ready(True, 7, b"", None), Progress(7, b"", None)),
        Prepare(Ballot(9, 1)),
        Promise(Ballot(1, 0), None),
        Accepted(Ballot(1, 0)),
        Nack(Ballot(9, 1)),
        StateQuery(0),
        Abort(0, 0, "sum"),
    ],
)
def test_a_stray_message_changes_nothing(body: Body) -> None:
    peer = seated(B)
    view = peer.view
    forked = Stamp(LINEAGE, 2, b"another hash")
    assert say(peer, B, body, forked) == []  # another view of this number
    assert say(peer, C, body) == []  # no member
    assert say(joiner(), A, body, forked) == []  # no view
    assert (peer.view, peer.phase, peer.done, peer.ended) == (view, Phase.ACTIVE, -1, False)
    assert bodies(Prepare, peer.tick(0.1)) == []


def test_a_question_in_the_same_view_needs_no_answer() -> None:
    assert say(seated(B), B, ViewQuery()) == []


# Steps.


def test_a_step_commits_when_all_have_finished_it() -> None:
    peer = seated(B)
    mine = Finish(0, b"bits", b"", 2)
    assert peer.finished(0.0, 0, b"bits", b"") == [Send(B, Progress(-1, genesis(), mine))]
    assert say(peer, B, Progress(-1, genesis(), mine)) == [Committed(mine, view_with(A, B))]
    assert peer.done == 0


def test_an_abort_restarts_the_same_members_in_a_new_view() -> None:
    peer = seated(B)
    assert peer.abort(0.0, 0, "shapes differ") == [Explain("2 of 2 members of view 2 are alive; step 0 is aborted")]
    effects = peer.tick(0.0)
    assert bodies(Ready, effects) == [(B, Ready(True, -1, genesis(), None, 2, "shapes differ"))]
    assert peer.view is not None
    assert peer.view.members == (A, B)
    assert only(Activated, say(peer, B, Ready(True, -1, genesis(), None))) == [Activated(peer.view, -1)]
    assert peer.reason == "2 of 2 members of view 3 are alive"


def test_what_was_called_here_is_told_to_every_member() -> None:
    abort = Abort(3, 1, "sum of float32")
    assert seated(B, C).broadcast(abort) == [Send(B, abort), Send(C, abort)]
    assert core().broadcast(abort) == []
    assert say(seated(B), B, abort) == [Overheard(B, abort)]


# Leaving.


def test_who_leaves_says_so_until_a_view_goes_on_without_it() -> None:
    peer = seated(B, C)
    effects = peer.leave(0.0)
    assert bodies(Leave, effects) == [(B, Leave()), (C, Leave())]
    assert bodies(Leave, peer.tick(0.25)) == [(B, Leave()), (C, Leave())]
    assert say(peer, B, Decide(view_with(B, C, number=3))) == [Left("view 3 goes on without it")]
    assert peer.ended


def test_a_leaver_is_left_out_of_the_next_view_and_votes_for_it() -> None:
    peer = seated(B)
    assert say(peer, B, Leave()) == [Explain("2 of 2 members of view 2 are alive; without b")]
    effects = peer.tick(0.0)
    assert peer.view is not None
    assert peer.view.members == (A,)
    assert (B, Decide(peer.view)) in bodies(Decide, effects)


def test_who_has_no_seat_leaves_at_once() -> None:
    peer = joiner()
    assert peer.leave(0.0) == [Send(A, Leave()), Left("it had no seat")]
    assert peer.ended


def test_when_all_leave_all_close() -> None:
    peer = seated(B, C)
    peer.leave(0.0)
    say(peer, B, Leave())
    assert not peer.ended
    assert only(Left, peer.bury(0.0, C, "gone")) == [Left("every member leaves")]
    assert peer.ended


# Timers.


def test_a_peer_without_progress_asks_for_a_later_view() -> None:
    peer = seated(B)
    peer.meet(claim(C))
    asked = [len(bodies(ViewQuery, peer.tick(quarter / 4))) for quarter in range(1, 17)]
    assert [quarter / 4 for quarter, number in enumerate(asked, 1) if number] == [2.0, 4.0]
    assert sum(asked) == 4


def test_progress_puts_the_question_off() -> None:
    peer = seated(B)
    assert not peer.has_finished
    peer.finished(0.0, 0, b"bits", b"")
    assert peer.has_finished
    say(peer, B, Progress(-1, genesis(), Finish(0, b"bits", b"", 2)), now=1.5)
    assert bodies(ViewQuery, peer.tick(2.25)) == []
    assert bodies(ViewQuery, peer.tick(3.5)) == [(B, ViewQuery())]


def test_beats_come_at_their_interval() -> None:
    peer = seated(B)
    assert len(bodies(Beat, peer.tick(0.0))) == 1
    assert peer.next_deadline() == 0.25
    assert bodies(Beat, peer.tick(0.2)) == []
    assert len(bodies(Beat, peer.tick(0.25))) == 1


def test_probes_are_answered_in_any_view() -> None:
    peer = seated(B)
    assert bodies(Ack, say(peer, C, Ping(5, (claim(C),)), NO_VIEW)) == [(C, Ack(5, (claim(C), claim(B))))]
    assert only(Discovered, say(peer, D, Ack(5, (claim(D),)), NO_VIEW)) == [Discovered(claim(D))]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"beat_s": 0.0}, "beat_s must be positive and finite, is 0.0"),
        ({"death_stagger_s": -1.0}, "death_stagger_s must be positive and finite, is -1.0"),
        ({"join_stagger_s": float("nan")}, "join_stagger_s must be positive and finite, is nan"),
        ({"stale_s": float("inf")}, "stale_s must be positive and finite, is inf"),
        ({"stale_s": 0.1}, "stale_s must be at least beat_s, got 0.1 and 0.25"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoreConfig(**config)

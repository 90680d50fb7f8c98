"""The core: one peer's protocol, with the calls of its host, the effects of time, and its end."""

import math

import pytest

from gossip import NO_VIEW, Claim, Core, CoreConfig, Member, Phase, State
from gossip.acceptor import NO_BALLOT
from gossip.claim import Status
from gossip.effects import (
    Apply,
    Committed,
    Discovered,
    DropState,
    Effect,
    Explain,
    Forget,
    Left,
    Load,
    Removed,
    Send,
)
from gossip.given_up import Cause
from gossip.levels import chain
from gossip.messages import (
    AcceptorRecord,
    Ack,
    Body,
    Decide,
    Died,
    Gossip,
    Head,
    Join,
    Leave,
    Ping,
    Report,
    ReportKind,
    ViewQuery,
)
from gossip.progress import Beat, Finish, Progress, Ready, StateQuery
from gossip.view import NOWHERE

from .cores import (
    NOTHING,
    SAME,
    after,
    bodies,
    founder,
    genesis,
    joiner,
    meet,
    only,
    run,
    say,
    seated,
    view_of,
    view_with,
)
from .members import A2, LINEAGE, A, B, C, D, claim

# Observing.


def observer() -> Core:
    """B, which follows A and has received the state after step 3."""
    peer = joiner(follows=True)
    say(peer, A, Head(3, b"three"))
    assert peer.loaded(0.1, 3, b"three") == []
    return peer


def test_r2_what_all_others_show_as_finished_is_committed() -> None:
    peer = seated(B)
    assert bodies(Progress, peer.finished(0.0, 0, b"bits", b"state", is_shown=True)) == []
    (committed,) = only(Committed, peer.all_finished(0.0))
    assert committed.finish.digest == b"bits" and peer.done == 0


def test_r9_an_observer_asks_for_the_state_and_runs_the_steps_that_it_is_fed() -> None:
    peer = joiner(follows=True)
    assert say(peer, A, Head(3, b"three")) == [Send(A, StateQuery(3))]
    assert peer.loaded(0.1, 3, b"three") == []
    assert peer.fed(4, b"three", b"four", 0, is_own=False) == [Apply(4, b"four")]
    assert peer.fed(5, b"four", b"five", 0, is_own=False) == []  # one at a time
    assert peer.loaded(0.2, 4, b"four") == [Apply(5, b"five")]
    asked = Join(SAME, True, digest=b"four")
    assert bodies(Join, peer.tick(0.5)) == [(A, asked)], "one step does not prove anything"
    assert peer.loaded(0.6, 5, b"five") == []
    assert peer.waits(0.75, lambda: True) is None
    assert bodies(Join, peer.tick(1.0)) == [(A, Join(SAME, True, 5, b"five", step_us=275_000))]


def test_r18_an_observer_knows_of_a_run_as_soon_as_it_hears_how_far_that_is() -> None:
    peer = joiner(follows=True)
    assert not peer.knows_steps
    say(peer, A, Head(-1, b"", 2, 2))
    assert not peer.knows_steps
    say(peer, A, Head(3, b"three"))
    assert peer.knows_steps and peer.reason == f"{A} will give the state, once the next step begins there"


def test_r9_a_step_on_another_chain_is_not_run() -> None:
    assert observer().fed(4, b"another three", b"four", 0, is_own=False) == []


def test_what_another_swarm_feeds_takes_no_step_from_the_one_that_is_followed() -> None:
    peer = observer()
    assert peer.fed(5, b"four", b"five", 0, is_own=False) == []
    assert peer.fed(5, b"another four", b"another five", 0, is_own=False) == []
    assert peer.fed(4, b"three", b"four", 0, is_own=False) == [Apply(4, b"four")]
    assert Apply(5, b"five") in peer.loaded(0.0, 4, b"four")


def test_r9_a_gap_that_lasts_makes_it_ask_for_the_state() -> None:
    peer = observer()
    assert say(peer, A, Head(9, b"nine"), now=0.2) == []  # missing steps may be in flight
    assert say(peer, A, Head(9, b"nine"), now=0.7) == []
    assert say(peer, A, Head(9, b"nine"), now=1.2) == [Send(A, StateQuery(9))]


def test_r9_who_has_a_seat_is_fed_no_more() -> None:
    peer = seated(B)
    assert peer.fed(0, genesis(), b"zero", 0, is_own=False) == []
    assert say(peer, B, Head(9, b"nine")) == []


def test_r9_a_state_that_has_come_is_loaded_and_the_steps_beyond_it_run() -> None:
    peer = joiner(follows=True)
    assert not peer.state_segment_arrived(0.0, A, 3)
    say(peer, A, Head(3, b"three"))
    assert peer.state_segment_arrived(0.1, A, 3)
    assert peer.state_arrived(3, b"three", LINEAGE) == [Load(3, b"three")]
    assert peer.fed(4, b"three", b"four", 0, is_own=False) == []
    assert peer.loaded(0.1, 3, b"three") == [Apply(4, b"four")]
    assert peer.due == (4, b"four")


def test_r9_who_leaves_runs_nothing_more() -> None:
    peer = observer()
    say(peer, A, Decide(view_with(A, B)), now=0.1)
    assert peer.fed(4, b"three", b"four", 0, is_own=False) == [Apply(4, b"four")]
    peer.leave(0.2)
    assert not peer.ended and peer.due is None


def test_r9_who_has_ended_takes_nothing_more() -> None:
    peer = observer()
    peer.leave(0.5)
    assert peer.fed(4, b"three", b"four", 0, is_own=False) == []
    assert peer.state_arrived(9, b"nine", LINEAGE) == [DropState(9, b"nine")]
    assert peer.declined(0.6, 9, b"nine") == peer.put_off(0.6, 9, b"nine") == []
    assert peer.loaded(0.6, 9, b"nine") == [] and peer.done == 3


# Claims about this peer


def test_a_joiner_that_others_take_for_dead_ends_and_says_why() -> None:
    peer = joiner()
    assert only(Removed, say(peer, A, Gossip((claim(B, State.DEAD),)))) == [Removed("others take this peer for dead")]
    assert (peer.ended, peer.reason) == (True, "others take this peer for dead")
    assert (peer.tick(9.0), say(peer, A, Ping(1, ())), peer.declare_dead(9.0, A, "gone")) == ([], [], [])
    assert (peer.next_deadline(), peer.meet(9.0, claim(C))) == (math.inf, [])


def test_a_member_that_others_take_for_dead_waits_for_their_view() -> None:
    peer = seated(B)
    assert only(Removed, say(peer, B, Gossip((claim(A, State.DEAD),)))) == []
    assert not peer.ended


def test_what_the_launcher_of_a_peer_says_of_its_end_is_proof() -> None:
    peer = seated(B, C)
    record = AcceptorRecord(view_of(peer), NO_BALLOT, None)
    effects = say(peer, C, Died(record), NO_VIEW)
    assert Explain("c is dead: its launcher says that its process has ended") in effects
    assert (B, Report(ReportKind.PROVEN, C, record=record)) in bodies(Report, effects)


def test_what_oneself_has_said_is_not_heard() -> None:
    peer = seated(B)
    assert say(peer, A, Leave()) == []
    assert say(peer, B, NOTHING) == []


def test_the_acquaintances_of_a_peer_are_those_who_are_not_gone_for_good() -> None:
    peer = seated(B, C, D)
    peer.declare_dead(0.0, C, "gone")
    assert [known.member for known in peer.bootstrap_claims()] == [B, D]


def shown(peer: Core) -> Status:
    return peer.claims()[0].status


def test_a_peer_shows_how_far_it_is_and_what_its_script_says() -> None:
    peer = seated(B, status_s=2.0)
    assert shown(peer) == Status()
    peer.set_loss(loss=0.5)
    for step in range(4):
        mine = Finish(step, b"bits", b"", 2)
        peer.finished(0.5, step, b"bits", b"")
        say(peer, B, Beat(NOTHING, Progress(step - 1, b"", mine)), now=0.5)
    assert peer.done == 3
    listen(peer, B, 0.5, 1.9)
    assert shown(peer) == Status()
    effects = listen(peer, B, 1.9, 2.1)
    status = shown(peer)
    assert (status.version, status.view_number, status.step) == (1, 2, 3)
    assert status.steps_per_s == pytest.approx(2.0, abs=0.1)
    assert (status.loss, len(status.digest)) == (0.5, 16)
    listen(peer, B, 2.1, 4.2)
    assert shown(peer).steps_per_s == 0.0  # since the status before
    assert status in [news.status for _, gossip in bodies(Gossip, effects) for news in gossip.claims]


def test_a_status_that_stays_the_same_is_not_told_again() -> None:
    peer = seated(B, status_s=1.0)
    listen(peer, B, 0.0, 9.0)
    assert shown(peer).version <= 2


def listen(peer: Core, other: Member, start: float, stop: float) -> list[Effect]:
    """Let time pass, while frames of `other` arrive."""
    effects: list[Effect] = []
    for i in range(round(start * 20) + 1, round(stop * 20) + 1):
        peer.link_answered(i / 20, other)
        effects += peer.tick(i / 20)
    return effects


def test_a_loss_that_is_not_finite_is_not_shown() -> None:
    peer = seated(B, status_s=1.0)
    peer.set_loss(loss=math.nan)
    listen(peer, B, 0.0, 1.1)
    assert math.isfinite(shown(peer).loss)


def test_a_state_that_was_loaded_is_no_speed() -> None:
    peer = joiner(status_s=1.0)
    say(peer, A, Decide(view_with(A, B)))
    say(peer, A, Ready(True, 1_000_000, b"digest", None))
    peer.loaded(0.5, 1_000_000, b"digest")
    listen(peer, A, 0.5, 1.6)
    assert (shown(peer).step, shown(peer).steps_per_s) == (1_000_000, 0.0)


def test_the_claims_of_a_peer_are_its_own_and_those_of_all_who_are_not_gone() -> None:
    peer = seated(B, C)
    peer.declare_dead(0.0, C, "gone")
    assert [known.member for known in peer.claims()] == [A, B]


# The kernel's word.


def test_a_death_is_told_to_everybody_at_once() -> None:
    peer = seated(B, C)
    effects = peer.declare_dead(0.5, B, "SIGKILL")
    assert effects[0] == Explain("b is dead: SIGKILL")
    assert bodies(Gossip, effects) == [(C, Gossip((claim(B, State.DEAD),)))]
    assert bodies(Report, effects) == [(C, Report(ReportKind.PROVEN, B))]
    assert effects[-1] == Explain("2 of 3 members of view 2 are here; without b")
    assert only(Forget, effects) == []  # the next view tells when no member needs it any more
    assert peer.declare_dead(0.5, B, "again") == []


def test_who_was_stopped_and_hears_of_a_death_first_takes_nobody_elses_silence_for_granted() -> None:
    peer = seated(B, C)
    effects = peer.declare_dead(20.0, C, "SIGKILL")
    assert effects[0] == Explain("this process was stopped for a while")
    assert bodies(Report, effects) == [(B, Report(ReportKind.PROVEN, C))]


def test_a_member_that_was_never_met_can_be_buried() -> None:
    peer = founder()
    assert peer.declare_dead(0.0, C, "not in the registry") == [Explain("c is dead: not in the registry"), Forget(C)]
    (_, said), *_ = bodies(Ack, say(peer, B, Ping(1, (claim(B),))))
    assert Claim(C, State.DEAD, NOWHERE) in said.claims


def test_who_was_buried_by_others_first_is_forgotten_when_the_kernel_says_so_here_too() -> None:
    """Found by churn: for two minutes after a member had left, its link, record and process handle were kept."""
    peer = seated(B, C)
    assert only(Forget, say(peer, B, Decide(after(view_of(peer), A, B)))) == []
    assert only(Forget, say(peer, B, Gossip((claim(C, State.LEFT),)))) == []  # our process handle of it may tell later
    assert only(Forget, peer.declare_dead(0.0, C, "its process has ended")) == [Forget(C)]


def test_who_has_no_view_forgets_the_dead_at_once() -> None:
    assert joiner().declare_dead(0.0, A, "SIGKILL") == [Explain("a is dead: SIGKILL"), Forget(A)]


def test_the_death_of_a_leaver_is_called_leaving() -> None:
    peer = seated(B, C)
    say(peer, B, Leave())
    assert peer.declare_dead(0.5, B, "exit")[0] == Explain("b is left: exit")


def test_nobody_buries_itself() -> None:
    assert seated(B).declare_dead(1.0, A, "by mistake") == []


def test_a_joiner_that_died_is_not_admitted() -> None:
    peer = seated(B)
    meet(peer, [C])
    say(peer, C, Join(SAME, view_number=2), NO_VIEW)
    assert peer.reason.endswith("with c")
    effects = peer.declare_dead(0.0, C, "gone")
    assert Forget(C) in effects
    assert peer.reason == "2 of 2 members of view 2 are here"


# Leaving.


def test_who_leaves_says_so_until_a_view_goes_on_without_it() -> None:
    peer = seated(B, C)
    assert not peer.leaving
    assert bodies(Leave, peer.leave(0.0)) == [(B, Leave()), (C, Leave())]
    assert peer.leaving
    assert bodies(Leave, peer.tick(0.25)) == [(B, Leave()), (C, Leave())]
    assert only(Left, say(peer, B, Decide(after(view_of(peer), B, C)))) == [Left("view 3 continues without it")]
    assert peer.ended


def test_who_leaves_goes_in_the_end_even_if_nobody_decides() -> None:
    peer = seated(B, C, leave_s=3.0)
    peer.leave(1.0)
    peer.leave(2.0)  # a second call delays nothing
    assert only(Left, run(peer, 1.0, 3.9)) == []
    assert peer.next_deadline() <= 4.0
    assert peer.tick(4.0) == [Left("no view without it within 3 s")]
    assert (peer.ended, peer.tick(4.1)) == (True, [])


def test_who_was_removed_has_nobody_to_wait_for() -> None:
    peer = seated(B)
    say(peer, B, Decide(after(view_of(peer), B)))
    assert len(only(Left, peer.leave(0.0))) == 1


def test_who_has_no_seat_leaves_at_once() -> None:
    peer = joiner()
    assert peer.leave(0.0) == [Send(A, Leave()), Left("it had no seat")]
    assert peer.ended


def test_when_all_leave_all_close() -> None:
    peer = seated(B, C)
    peer.leave(0.0)
    assert only(Left, say(peer, B, Leave())) == []
    assert only(Left, peer.declare_dead(0.0, C, "gone")) == [Left("every member leaves")]
    assert peer.ended


def test_who_leaves_alone_leaves_at_once() -> None:
    assert founder().leave(0.0) == [Left("every member leaves")]


# Steps.


def test_a_step_may_be_finished_once_and_in_the_active_view_only() -> None:
    assert not joiner().may_finish(0, 1, b"")
    peer = seated(B, C)
    number = view_of(peer).number
    assert peer.may_finish(0, number, b"")
    assert (
        not peer.may_finish(1, number, b"")
        and not peer.may_finish(0, number - 1, b"")
        and not peer.may_finish(0, number + 1, b"")
    )
    peer.finished(0.0, 0, b"bits", b"")
    assert not peer.may_finish(0, number, b"")
    say(peer, B, Decide(after(view_of(peer), A, B, C)))
    assert peer.phase is Phase.INSTALLING and not peer.may_finish(0, number + 1, b"")
    other = seated(B, C)
    say(other, B, Decide(after(view_of(other), A, B, C)))
    assert not other.has_finished and not other.may_finish(0, number + 1, b"")


def test_results_are_handed_out_in_the_installed_view_only_and_then_interrupt_the_step_when_members_go() -> None:
    assert not joiner().mark_in_use(1)
    for is_current in (False, True):
        peer = seated(B, C)
        number = view_of(peer).number
        assert peer.mark_in_use(number if is_current else number - 1) is is_current
        effects = say(peer, B, Decide(after(view_of(peer), A, B)))
        ((_, ready),) = bodies(Ready, effects)
        causes = [] if ready.given_up is None else [ready.given_up.cause]
        assert causes == ([Cause.IN_USE] if is_current else [])


def test_a_step_commits_when_all_have_finished_it() -> None:
    peer = seated(B)
    mine = Finish(0, b"bits", b"", 2)
    assert peer.finished(0.0, 0, b"bits", b"") == [Send(B, Progress(-1, genesis(), mine))]
    assert peer.has_finished
    assert say(peer, B, Progress(-1, genesis(), mine)) == [Committed(mine, view_with(A, B))]
    assert (peer.done, peer.digest, peer.has_finished) == (0, chain(genesis(), mine), False)


# Time.


def test_beats_come_at_their_interval() -> None:
    peer = seated(B)
    assert len(bodies(Beat, peer.tick(0.0))) == 1
    assert peer.next_deadline() <= 0.25
    assert bodies(Beat, peer.tick(0.2)) == []
    assert len(bodies(Beat, peer.tick(0.25))) == 1


def test_a_peer_that_was_stopped_says_so_and_asks_everybody_for_a_later_view() -> None:
    peer = seated(B)
    meet(peer, [C])
    run(peer, 0.0, 1.0)
    effects = peer.tick(1.0 + 0.05 + 0.25 + 0.75)
    assert Explain("this process was stopped for a while") in effects
    assert bodies(ViewQuery, effects) == [(B, ViewQuery()), (C, ViewQuery())]


@pytest.mark.parametrize("body", [NOTHING, Progress(-1, genesis(), None), Ping(1, ())])
def test_a_stop_is_noticed_by_what_waited_to_be_received(body: Body) -> None:
    peer = seated(B)
    assert bodies(ViewQuery, say(peer, B, body, now=9.0)) == [(B, ViewQuery())]
    assert bodies(ViewQuery, peer.tick(9.0)) == []


def test_an_own_message_hides_no_stop() -> None:
    peer = seated(B)
    say(peer, A, NOTHING)
    assert bodies(ViewQuery, peer.tick(9.0)) == [(B, ViewQuery())]


def test_who_is_a_little_late_was_not_stopped() -> None:
    peer = seated(B)
    assert only(Explain, peer.tick(0.74)) == []
    assert only(Explain, seated(B).tick(0.75)) == [Explain("this process was stopped for a while")]


def test_a_stopped_joiner_has_no_view_to_ask_for() -> None:
    effects = joiner().tick(9.0)
    assert Explain("this process was stopped for a while") in effects
    assert bodies(ViewQuery, effects) == []


def test_a_sign_of_life_that_the_host_has_counts() -> None:
    peer = seated(B, C, stale_s=99.0)
    for i in range(1, 80):
        for member in (B, C):
            peer.link_answered(i * 0.05, member)
        assert bodies(Report, peer.tick(i * 0.05)) == []


def test_probes_are_answered_in_any_view() -> None:
    peer = seated(B)
    (target, ack), *_ = bodies(Ack, say(peer, C, Ping(5, (claim(C),)), NO_VIEW))
    assert (target, ack.nonce) == (C, 5)
    assert only(Discovered, say(peer, D, Ack(5, (claim(D),)), NO_VIEW)) == [Discovered(claim(D))]


def test_a_later_incarnation_of_a_member_is_met_and_the_older_is_unlinked() -> None:
    peer = joiner(C)
    assert only(Forget, peer.meet(0.0, claim(A2))) == [Forget(A)]


def test_a_config_is_refused_if_a_lease_does_not_outlast_two_beats() -> None:
    with pytest.raises(ValueError, match="must outlast two beats"):
        CoreConfig(beat_s=1.0, stale_s=9.0, pause_s=9.0)


def test_who_comes_back_has_lacked_a_seat_since_it_lacked_one_first() -> None:
    former, new = joiner(B), joiner(B)
    new.return_from(former)
    assert new._observing._pace.patience is former._observing._pace.patience


def test_a_state_that_was_never_offered_leaves_nothing_out() -> None:
    assert joiner(B).lacks(5, b"of step 5") == []

"""Messages from another view, from none, or from another swarm: peers that are behind are told, two swarms named."""

from dataclasses import replace

import pytest

from gossip import NO_VIEW, Core, Member, Phase, Policy, Seat, Stamp, View
from gossip.effects import Activated, Discovered, Effect, Installed, OtherSwarmFound, Send
from gossip.membership import MOST_PENDING_READY
from gossip.messages import (
    Accepted,
    Ack,
    Ballot,
    Body,
    Decide,
    Gossip,
    Nack,
    Ping,
    Prepare,
    Promise,
    Report,
    ReportKind,
    ViewQuery,
)
from gossip.progress import Abort, Beat, Progress, Ready, StateQuery
from gossip.view import founding_view

from .cores import (
    NOTHING,
    RUN,
    after,
    bodies,
    core,
    first_view,
    founder,
    joiner,
    meet,
    only,
    run,
    say,
    seat,
    seated,
    view_of,
    view_with,
)
from .members import LINEAGE, A, B, C, D, claim

FORKED = Stamp(LINEAGE, 2, b"another hash")
OTHER = founding_view(seat(C), b"\xfe\xdc\xba\x98" * 4, 9)
OURS = LINEAGE.hex()[:8]


def test_who_is_behind_is_told_of_the_later_view() -> None:
    peer, old = seated(B), first_view().stamp
    for stray in (ViewQuery(), Progress(0, b"", None), Prepare(Ballot(9, 1)), StateQuery(0), NOTHING):
        assert say(peer, B, stray, old) == [Send(B, Decide(view_with(A, B)))]


def test_who_has_no_view_is_told_of_it() -> None:
    assert say(seated(B), B, ViewQuery(), NO_VIEW) == [Send(B, Decide(view_with(A, B)))]


def test_who_is_ahead_is_asked() -> None:
    peer = seated(B)
    assert say(peer, B, Progress(0, b"", None), Stamp(LINEAGE, 7, b"hash")) == [Send(B, ViewQuery())]


STRAYS = [
    Ready(True, 7, b"", None),
    Progress(7, b"", None),
    Beat(Ready(True, 7, b"", None), Progress(7, b"", None)),
    Prepare(Ballot(9, 1)),
    Promise(Ballot(1, 0), None),
    Accepted(Ballot(1, 0)),
    Nack(Ballot(9, 1)),
    Report(ReportKind.REFUSED, B),
    StateQuery(0),
    Abort(0, 0, "sum"),
]


@pytest.mark.parametrize("body", STRAYS)
def test_a_stray_message_changes_nothing(body: Body) -> None:
    peer = seated(B)
    view = peer.view
    assert say(peer, B, body, FORKED) == []  # another view of this number
    assert say(peer, C, body) == []  # no member
    assert say(joiner(), A, body, FORKED) == []  # no view
    assert (peer.view, peer.phase, peer.done, peer.ended) == (view, Phase.ACTIVE, -1, False)
    assert bodies(Prepare, peer.tick(0.1)) == []


def test_r4_a_ready_that_overtakes_the_view_is_kept_for_it() -> None:
    peer, view = founder(), view_with(A, B)
    meet(peer, [B])
    assert say(peer, B, NOTHING, view.stamp) == [Send(B, ViewQuery())]
    assert only(Activated, say(peer, B, Decide(view))) == [Activated(view, -1)]


def test_r4_a_joiner_keeps_what_overtakes_its_first_view() -> None:
    peer, view = joiner(), view_with(A, B)
    assert say(peer, A, Beat(NOTHING, Progress(-1, NOTHING.digest, None)), view.stamp) == []
    say(peer, A, Decide(view))
    assert peer._steps.wanted_state() == (-1, NOTHING.digest, A)


def test_r4_a_ready_of_another_view_is_not_kept() -> None:
    peer = founder()
    meet(peer, [B])
    say(peer, B, NOTHING, FORKED)
    assert only(Activated, say(peer, B, Decide(view_with(A, B)))) == []


def test_r4_a_ready_of_a_stranger_is_not_kept() -> None:
    peer, view = founder(), view_with(A, B)
    say(peer, B, NOTHING, view.stamp)
    assert only(Activated, say(peer, B, Decide(view))) == []


def test_r4_a_ready_that_overtakes_two_views_is_kept_until_its_own() -> None:
    peer = seated(B)
    third = after(view_of(peer), A, B)
    fourth = after(third, A, B)
    say(peer, B, NOTHING, fourth.stamp)
    assert only(Activated, say(peer, B, Decide(third))) == []
    assert only(Activated, say(peer, B, Decide(fourth))) == [Activated(fourth, -1)]


@pytest.mark.parametrize("again", [False, True])
def test_r4_of_too_many_that_overtake_a_view_the_latest_are_kept(again: bool) -> None:
    peer, view = founder(), view_with(A, B)
    others = [Member(f"other {i}", 1) for i in range(MOST_PENDING_READY)]
    meet(peer, [B, *others])
    for member in (B, *others[1:], *([B] if again else []), others[0]):
        say(peer, member, NOTHING, view.stamp)
    assert bool(only(Activated, say(peer, B, Decide(view)))) is again


# Two swarms of one name.


def other_swarm() -> Core:
    """C, which has founded another swarm."""
    peer = core(C)
    peer.found(0.0, OTHER.lineage, 9, RUN, Policy.MAJORITY)
    return peer


def test_who_hears_of_another_lineage_asks_for_its_view_and_shows_its_own() -> None:
    peer = seated(B)
    assert say(peer, C, NOTHING, OTHER.stamp) == [Send(C, ViewQuery()), Send(C, Decide(view_of(peer)))]


def test_a_probe_from_another_swarm_is_enough_to_ask() -> None:
    peer = seated(B)
    effects = say(peer, C, Ping(1, (claim(C),)), OTHER.stamp)
    assert bodies(ViewQuery, effects) == [(C, ViewQuery())]
    assert len(bodies(Ack, effects)) == 1


def carry(sender: Core, receiver: Core, effects: list[Effect]) -> list[Effect]:
    """Deliver the messages of `sender` to `receiver`. Returns the effects there."""
    said = [effect.body for effect in effects if isinstance(effect, Send) and effect.target == receiver.me]
    return [effect for body in said for effect in say(receiver, sender.me, body, sender.stamp)]


def test_two_founders_are_named_on_both_sides_once() -> None:
    ours, theirs = seated(B), other_swarm()
    told = carry(ours, theirs, ours.meet(0.0, claim(C)))
    answer = carry(theirs, ours, told)
    again = carry(ours, theirs, answer)
    last = carry(theirs, ours, again)
    here = f"{OURS}, founded by a, with a, b"
    there = "fedcba98, founded by c, with c"
    assert only(OtherSwarmFound, [*answer, *last]) == [
        OtherSwarmFound(f"two swarms of one name have met: {here}, and {there}; this peer stays in its own")
    ]
    assert only(OtherSwarmFound, [*told, *again]) == [
        OtherSwarmFound(f"two swarms of one name have met: {there}, and {here}; this peer stays in its own")
    ]
    assert (view_of(ours).members, view_of(theirs).members) == ((A, B), (C,))
    assert say(ours, C, Decide(OTHER), OTHER.stamp) == []
    assert bodies(ViewQuery, say(ours, C, NOTHING, OTHER.stamp)) == []


def test_a_founder_that_gave_no_name_is_a_question_mark() -> None:
    (said,) = only(OtherSwarmFound, say(seated(B), C, Decide(replace(OTHER, founder="")), OTHER.stamp))
    assert "founded by ?" in said.reason


def test_a_fork_of_one_lineage_is_named() -> None:
    peer = seated(B)
    fork = view_with(A, C)
    (said,) = only(OtherSwarmFound, say(peer, C, Decide(fork), fork.stamp))
    assert said.reason.startswith(f"two swarms of one name have met: {OURS}, founded by a, with a, b, and {OURS}")
    assert only(OtherSwarmFound, say(peer, C, Decide(fork), fork.stamp)) == []
    other = view_with(A, D)
    assert len(only(OtherSwarmFound, say(peer, D, Decide(other), other.stamp))) == 1


def test_no_more_than_64_other_swarms_are_named() -> None:
    peer = seated(B)
    said = []
    for i in range(99):
        other = replace(OTHER, lineage=bytes([i]))
        said += only(OtherSwarmFound, say(peer, C, Decide(other), other.stamp))
    assert len(said) == 64
    assert bodies(ViewQuery, say(peer, C, NOTHING, Stamp(b"yet another", 1, b""))) == []


@pytest.mark.parametrize("body", [NOTHING, Gossip(()), Decide(OTHER)])
def test_a_member_that_sits_in_another_swarm_is_reported_refused(body: Body) -> None:
    peer = seated(B, C)
    say(peer, C, body, OTHER.stamp)
    assert bodies(Report, peer.tick(0.25)) == [(member, Report(ReportKind.REFUSED, C)) for member in (B, C)]
    assert peer.reason == "2 of 3 members of view 2 are here; without c"


def test_a_member_that_sits_in_another_swarm_is_accused_only_while_it_says_so() -> None:
    peer = seated(B, C)
    say(peer, C, NOTHING, OTHER.stamp)
    for i in range(1, 20):
        for member in (B, C):
            say(peer, member, NOTHING, now=i * 0.25)
        last = peer.tick(i * 0.25)
    assert bodies(Report, last) == []


def test_a_stranger_that_sits_in_another_swarm_is_not_reported() -> None:
    peer = seated(B)
    say(peer, C, NOTHING, OTHER.stamp)
    assert bodies(Report, run(peer, 0.0, 1.0)) == []


def test_two_swarms_learn_of_each_others_peers_and_nothing_more() -> None:
    peer = seated(B)
    assert only(Discovered, say(peer, C, Gossip((claim(D),)), OTHER.stamp)) == [Discovered(claim(D))]
    view = View(OTHER.lineage, 7, 9, (Seat(C, 1), Seat(A, 2)), b"")
    assert only(Installed, say(peer, C, Decide(view), view.stamp)) == []
    assert view_of(peer) == view_with(A, B)

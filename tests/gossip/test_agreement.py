"""Single-decree Paxos: whatever the schedule, one view at most is decided."""

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Member, View
from gossip.agreement import Agreement, AgreementConfig, Body, Decided
from gossip.messages import Accept, Accepted, Ballot, Nack, Prepare, Promise, Send, Vote

from .members import A, B, C, D, view_of

VIEW = view_of(4, A, B, C)
NEXT = view_of(5, A, B)
OTHER = view_of(5, A, C)
RANK_0 = Ballot(1, 0)


def agreement(me: Member, view: View = VIEW, seed: int = 1, **config: Any) -> Agreement:
    new = Agreement(me, rng=Random(seed), config=AgreementConfig(**config))
    new.install(view)
    return new


def preparing(me: Member = A) -> Agreement:
    """`me` has asked the others to promise its first ballot."""
    new = agreement(me)
    new.want(0.0, NEXT, 0.0)
    new.tick(0.0)
    return new


def test_a_view_is_decided_in_two_round_trips() -> None:
    a, b = agreement(A), agreement(B)
    a.want(0.0, NEXT, 0.1)
    assert a.next_deadline() == 0.1
    assert a.tick(0.05) == []
    assert a.tick(0.1) == [Send(B, Prepare(RANK_0)), Send(C, Prepare(RANK_0))]
    assert b.receive(0.2, A, Prepare(RANK_0)) == [Send(A, Promise(RANK_0, None))]
    vote = Vote(RANK_0, NEXT)
    assert a.receive(0.3, B, Promise(RANK_0, None)) == [Send(B, Accept(vote)), Send(C, Accept(vote))]
    assert b.receive(0.4, A, Accept(vote)) == [Send(A, Accepted(RANK_0))]
    assert a.receive(0.5, B, Accepted(RANK_0)) == [Decided(NEXT)]
    assert a.next_deadline() == math.inf


def test_who_is_alone_decides_at_once() -> None:
    alone = agreement(A, view_of(4, A))
    alone.want(0.0, NEXT, 0.0)
    assert alone.tick(0.0) == [Decided(NEXT)]


def test_r12_rank_0_of_two_decides_without_the_other_and_rank_1_does_not() -> None:
    pair = view_of(4, A, B)
    a, b = agreement(A, pair), agreement(B, pair)
    for one in (a, b):
        one.want(0.0, NEXT, 0.0)
    assert Decided(NEXT) in a.tick(0.0)
    assert b.tick(0.0) == [Send(A, Prepare(Ballot(1, 1)))]


def test_nobody_is_asked_when_nothing_is_wanted_any_more() -> None:
    a = agreement(A)
    a.want(0.0, NEXT, 0.1)
    a.want(0.0, None, 0.1)
    assert a.next_deadline() == math.inf
    assert a.tick(9.0) == []


def test_a_wish_taken_back_while_preparing_ends_with_the_promises() -> None:
    a = preparing()
    a.want(0.0, None, 0.0)
    assert a.receive(0.1, B, Promise(RANK_0, None)) == []
    assert a.next_deadline() == math.inf


def test_a_wish_taken_back_while_preparing_ends_with_the_deadline() -> None:
    a = preparing()
    a.want(0.0, None, 0.0)
    assert a.tick(a.next_deadline()) == []
    assert a.next_deadline() == math.inf


def test_the_latest_wish_is_proposed() -> None:
    a = preparing()
    a.want(0.0, OTHER, 0.0)
    assert a.receive(0.1, B, Promise(RANK_0, None))[0] == Send(B, Accept(Vote(RANK_0, OTHER)))


def test_r12_an_accepted_view_is_proposed_again_and_the_latest_of_several() -> None:
    big = view_of(4, A, B, C, D)
    b, ballot = agreement(B, big), Ballot(1, 1)
    b.want(0.0, view_of(5, B, D), 0.0)
    b.tick(0.0)
    assert b.receive(0.1, C, Promise(ballot, Vote(Ballot(0, 2), OTHER))) == []
    effects = b.receive(0.1, D, Promise(ballot, Vote(Ballot(0, 1), NEXT)))
    assert effects == [Send(member, Accept(Vote(ballot, OTHER))) for member in (A, C, D)]


def test_r12_whoever_has_accepted_a_view_completes_it_when_its_proposer_is_silent() -> None:
    b = agreement(B, complete_s=0.5)
    b.receive(0.0, A, Accept(Vote(RANK_0, NEXT)))
    assert b.next_deadline() == 1.0
    b.want(0.1, None, 0.0)
    assert b.next_deadline() == 1.0
    ballot = Ballot(2, 1)
    assert b.tick(1.0) == [Send(A, Prepare(ballot)), Send(C, Prepare(ballot))]
    assert b.receive(1.1, C, Promise(ballot, None))[0] == Send(A, Accept(Vote(ballot, NEXT)))


def test_a_smaller_ballot_is_refused_and_told_of_the_greater() -> None:
    c, greater = agreement(C), Ballot(3, 1)
    c.receive(0.0, B, Prepare(greater))
    assert c.receive(0.0, A, Prepare(RANK_0)) == [Send(A, Nack(greater))]
    assert c.receive(0.0, A, Accept(Vote(RANK_0, NEXT))) == [Send(A, Nack(greater))]
    assert c.receive(0.0, B, Accept(Vote(greater, OTHER))) == [Send(B, Accepted(greater))]


def test_who_was_refused_asks_again_with_a_greater_ballot() -> None:
    a = preparing()
    assert a.receive(0.1, B, Nack(Ballot(7, 1))) == []
    assert a.tick(a.next_deadline())[0] == Send(B, Prepare(Ballot(8, 0)))


def test_what_nobody_has_answered_is_repeated_to_the_silent_ever_more_rarely() -> None:
    big = view_of(4, B, A, C, D)
    a, ballot = agreement(A, big), Ballot(1, 1)
    a.want(0.0, NEXT, 0.0)
    a.tick(0.0)
    a.receive(0.0, D, Promise(ballot, None))
    moments = [0.0]
    for _ in range(10):
        moments.append(a.next_deadline())
        assert a.tick(moments[-1]) == [Send(B, Prepare(ballot)), Send(C, Prepare(ballot))]
    waits = [later - earlier for earlier, later in pairwise(moments)]
    assert 0.1 <= waits[0] <= 0.2
    assert all(2.0 <= wait <= 4.0 for wait in waits[5:])
    vote = Vote(ballot, NEXT)
    a.receive(9.0, B, Promise(ballot, None))
    assert a.receive(9.0, D, Accepted(ballot)) == []
    assert a.tick(a.next_deadline()) == [Send(B, Accept(vote)), Send(C, Accept(vote))]


def test_who_was_outbid_waits_however_often_it_is_told_what_to_want() -> None:
    a = preparing()
    assert a.receive(0.0, B, Prepare(Ballot(1, 1))) == [Send(B, Promise(Ballot(1, 1), None))]
    backed_off = a.next_deadline()
    assert backed_off >= 0.1
    a.want(0.01, OTHER, 0.0)
    assert a.next_deadline() == backed_off
    a.want(0.01, None, 0.0)
    a.want(0.01, OTHER, 0.0)
    assert a.next_deadline() == backed_off


def test_answers_to_older_ballots_count_for_nothing() -> None:
    a = preparing()
    assert a.receive(0.1, B, Promise(Ballot(0, 0), None)) == []
    assert a.receive(0.1, B, Accepted(RANK_0)) == []
    a.receive(0.1, B, Promise(RANK_0, None))
    assert a.receive(0.1, C, Promise(RANK_0, None)) == []
    assert a.receive(0.1, B, Accepted(Ballot(0, 0))) == []
    assert a.receive(0.1, B, Accepted(RANK_0)) == [Decided(NEXT)]


def test_a_majority_of_acceptances_is_waited_for() -> None:
    big = view_of(4, B, A, C, D)
    a = agreement(A, big)
    a.want(0.0, NEXT, 0.0)
    a.tick(0.0)
    ballot = Ballot(1, 1)
    assert a.receive(0.1, C, Promise(ballot, None)) == []
    assert len(a.receive(0.1, D, Promise(ballot, None))) == 3
    assert a.receive(0.1, C, Accepted(ballot)) == []
    assert a.receive(0.1, B, Accepted(ballot)) == [Decided(NEXT)]


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(2, 5),
    seed=st.integers(0, 3),
    schedule=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10_000)), min_size=60, max_size=120),
)
def test_two_views_are_never_decided(size: int, seed: int, schedule: list[tuple[int, int]]) -> None:
    """Everybody wants something else; messages are lost, doubled and reordered, timers fire at any moment."""
    members = [Member(f"m{rank}", 1) for rank in range(size)]
    view = view_of(1, *members)
    peers = {member: agreement(member, view, seed=seed + rank) for rank, member in enumerate(members)}
    under_way: list[tuple[Member, Member, Body]] = []
    decided: set[View] = set()
    now = 0.0

    def perform(source: Member, effects: list[Send | Decided]) -> None:
        for effect in effects:
            if isinstance(effect, Decided):
                decided.add(effect.view)
            else:
                assert isinstance(effect.body, Prepare | Promise | Accept | Accepted | Nack)
                under_way.append((source, effect.target, effect.body))

    for rank, member in enumerate(members):
        peers[member].want(0.0, replace(view_of(2, *members), parent=bytes([rank])), 0.01 * rank)
    for action, number in schedule:
        if action < 2 or not under_way:
            member = members[number % size]
            now += 0.001
            perform(member, peers[member].tick(max(now, peers[member].next_deadline())))
        else:
            chosen = under_way[number % len(under_way)]
            if action > 3:  # else it will arrive again
                under_way.remove(chosen)
            if action > 2:
                source, target, body = chosen
                perform(target, peers[target].receive(now, source, body))
        assert len(decided) <= 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retry_s": 0.0}, "need 0 < retry_s <= retry_max_s .* got 0.0, 2.0 and 0.5"),
        ({"retry_s": 3.0}, "got 3.0, 2.0 and 0.5"),
        ({"retry_max_s": math.inf}, "got 0.1, inf and 0.5"),
        ({"complete_s": 0.0}, "got 0.1, 2.0 and 0.0"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgreementConfig(**config)

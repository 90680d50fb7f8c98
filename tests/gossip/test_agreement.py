"""Single-decree Paxos: at most one view is decided, under any schedule."""

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from gossip import Member, View
from gossip.acceptor import MAX_ROUND
from gossip.agreement import Agreement, AgreementConfig, Body, Decided
from gossip.effects import Send
from gossip.messages import Accept, Accepted, Ballot, Nack, Prepare, Promise, Vote
from gossip.view import Policy

from .acceptors import successor
from .members import LINEAGE, A, B, C, D, view_of

VIEW = view_of(4, A, B, C)  # its owner is B
NEXT, OTHER = successor(VIEW, A, B), successor(VIEW, A, C)
BIG = view_of(7, A, B, C, D)  # its owner is D
OWNERS = Ballot(0, 1)
RANK_0 = Ballot(1, 0)


def agreement(me: Member, view: View = VIEW, seed: int = 1, **config: Any) -> Agreement:
    new = Agreement(me, rng=Random(seed), config=AgreementConfig(**config))
    new.install(view)
    return new


def owner() -> Agreement:
    """B wants NEXT, in the view that it owns."""
    new = agreement(B)
    new.want(0.0, NEXT, 0.0)
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
    view = view_of(4, A)
    alone = agreement(A, view)
    alone.want(0.0, successor(view, A, D), 0.0)
    assert alone.tick(0.0) == [Decided(successor(view, A, D))]


def test_r12_rank_0_of_two_decides_without_the_other_and_rank_1_does_not() -> None:
    pair = view_of(4, A, B)
    a, b = agreement(A, pair), agreement(B, pair)
    for one in (a, b):
        one.want(0.0, successor(pair, A), 0.0)
        one.receive(0.0, B, Nack(RANK_0))  # no shortcut for either
    assert a.tick(0.0)[-1] == Decided(successor(pair, A))
    assert b.tick(0.0) == [Send(A, Prepare(Ballot(2, 1)))]


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
    b, ballot = agreement(B, BIG), Ballot(1, 1)
    older, newer = (successor(BIG, member) for member in (A, C))
    b.want(0.0, successor(BIG, B, D), 0.0)
    b.tick(0.0)
    assert b.receive(0.1, C, Promise(ballot, Vote(Ballot(1, 0), newer))) == []
    effects = b.receive(0.1, D, Promise(ballot, Vote(Ballot(0, 3), older)))
    assert effects == [Send(member, Accept(Vote(ballot, newer))) for member in (A, C, D)]


def test_r12_whoever_wants_another_view_completes_what_it_has_accepted() -> None:
    b, ballot = agreement(B), Ballot(2, 1)
    b.receive(0.0, A, Accept(Vote(RANK_0, NEXT)))
    assert b.next_deadline() == math.inf  # its proposer continues, or is missed
    b.want(1.0, OTHER, 0.0)
    assert b.tick(1.0) == [Send(A, Prepare(ballot)), Send(C, Prepare(ballot))]
    assert b.receive(1.1, C, Promise(ballot, None))[0] == Send(A, Accept(Vote(ballot, NEXT)))


def test_a_wish_taken_back_ends_a_proposal_that_too_few_have_accepted() -> None:
    a = preparing()
    a.receive(0.1, B, Promise(RANK_0, None))
    a.want(0.1, None, 0.0)
    assert a.is_under_way(0.1)
    assert a.tick(a.next_deadline()) == []
    assert not a.is_under_way(9.0)
    assert a.next_deadline() == math.inf


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
    b, ballot = agreement(B, BIG), Ballot(1, 1)
    b.want(0.0, successor(BIG, B), 0.0)
    b.tick(0.0)
    b.receive(0.0, D, Promise(ballot, None))
    moments = [0.0]
    for _ in range(10):
        moments.append(b.next_deadline())
        assert b.tick(moments[-1]) == [Send(A, Prepare(ballot)), Send(C, Prepare(ballot))]
    waits = [later - earlier for earlier, later in pairwise(moments)]
    assert 0.1 <= waits[0] <= 0.2
    assert all(2.0 <= wait <= 4.0 for wait in waits[5:])
    vote = Vote(ballot, successor(BIG, B))
    b.receive(9.0, A, Promise(ballot, None))
    assert b.receive(9.0, D, Accepted(ballot)) == []
    assert b.tick(b.next_deadline()) == [Send(A, Accept(vote)), Send(C, Accept(vote))]


def test_r5_the_back_off_is_four_measured_round_trips_where_that_is_longer() -> None:
    """Doubled each time, as usual: this is the second wait, then the third."""
    a = agreement(A, retry_max_s=60.0)
    a.want(0.0, NEXT, 0.0)
    a.tick(0.0)
    a.receive(0.5, B, Promise(RANK_0, None))
    a.receive(0.5, C, Prepare(Ballot(1, 2)))
    waited = a.next_deadline() - 0.5
    assert 2 * 4 * 0.5 <= waited <= 4 * 4 * 0.5
    now = a.next_deadline()
    a.tick(now)
    assert 4 * 4 * 0.5 <= a.next_deadline() - now <= 8 * 4 * 0.5


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
    b, ballot, wanted = agreement(B, BIG), Ballot(1, 1), successor(BIG, B)
    b.want(0.0, wanted, 0.0)
    b.tick(0.0)
    assert b.receive(0.1, C, Promise(ballot, None)) == []
    assert len(b.receive(0.1, D, Promise(ballot, None))) == 3
    assert b.receive(0.1, C, Accepted(ballot)) == []
    assert b.receive(0.1, D, Accepted(ballot)) == [Decided(wanted)]


def test_who_has_decided_is_silent_until_the_next_view() -> None:
    a = preparing()
    a.receive(0.1, B, Promise(RANK_0, None))
    a.receive(0.1, B, Accepted(RANK_0))
    assert a.receive(0.1, C, Accepted(RANK_0)) == []
    assert a.receive(0.1, C, Prepare(Ballot(2, 2))) == []
    a.want(0.2, OTHER, 0.0)
    assert a.next_deadline() == math.inf
    a.install(NEXT)
    a.want(0.3, successor(NEXT, A), 0.0)
    assert a.next_deadline() == 0.3


def test_r4_the_owner_decides_in_one_round_trip() -> None:
    b, a = owner(), agreement(A)
    vote = Vote(OWNERS, NEXT)
    assert b.tick(0.0) == [Send(A, Accept(vote)), Send(C, Accept(vote))]
    assert a.receive(0.1, B, Accept(vote)) == [Send(B, Accepted(OWNERS))]
    assert b.receive(0.2, A, Accepted(OWNERS)) == [Decided(NEXT)]


def test_r4_the_owner_repeats_its_first_ballot_with_the_same_view_only() -> None:
    b = owner()
    accepts = b.tick(0.0)
    b.want(0.05, OTHER, 0.0)
    assert b.tick(b.next_deadline()) == accepts


def test_r4_the_owner_who_was_outbid_has_no_second_shortcut() -> None:
    b = owner()
    b.tick(0.0)
    b.receive(0.1, C, Nack(Ballot(1, 2)))
    assert b.tick(b.next_deadline())[0] == Send(A, Prepare(Ballot(2, 1)))
    b.want(0.1, None, 0.0)
    assert b.promised == Ballot(2, 1)


def test_r4_the_owner_who_promised_or_heard_of_a_greater_ballot_has_no_shortcut() -> None:
    for body in (Prepare(RANK_0), Nack(RANK_0), Accept(Vote(RANK_0, OTHER))):
        b = owner()
        b.receive(0.0, A, body)
        assert b.tick(9.0)[0] == Send(A, Prepare(Ballot(2, 1)))


def test_r4_who_is_not_the_owner_cannot_accept_below_round_1_and_outbids_the_owner() -> None:
    a, first = agreement(A), Vote(OWNERS, NEXT)
    assert a.promised == OWNERS
    assert a.receive(0.0, C, Accept(Vote(Ballot(0, 2), OTHER))) == []
    assert a.receive(0.0, C, Prepare(Ballot(1, 2))) == [Send(C, Promise(Ballot(1, 2), None))]
    assert a.receive(0.0, B, Accept(first)) == [Send(B, Nack(Ballot(1, 2)))]


def test_r4_what_the_owner_got_accepted_is_proposed_again() -> None:
    a = preparing()
    effects = a.receive(0.1, C, Promise(RANK_0, Vote(OWNERS, OTHER)))
    assert effects == [Send(member, Accept(Vote(RANK_0, OTHER))) for member in (B, C)]


def test_an_accepted_view_is_accepted_again() -> None:
    c, vote = agreement(C), Vote(RANK_0, NEXT)
    for _ in range(2):
        assert c.receive(0.0, A, Accept(vote)) == [Send(A, Accepted(RANK_0))]
    assert c.receive(0.0, A, Prepare(RANK_0)) == [Send(A, Promise(RANK_0, vote))]


HIGH = 2**70
NONSENSE: list[Body] = [
    Prepare(Ballot(1, 1)),  # of another rank than C's
    Prepare(Ballot(1, -1)),
    Prepare(Ballot(1, 3)),
    Prepare(Ballot(-1, 2)),
    Prepare(Ballot(0, 2)),
    Prepare(Ballot(MAX_ROUND + 1, 2)),
    Prepare(Ballot(-HIGH, HIGH)),
    Accept(Vote(Ballot(2, 1), OTHER)),
    Accept(Vote(Ballot(0, 2), OTHER)),
    Accept(Vote(Ballot(HIGH, 2), OTHER)),
    Accept(Vote(Ballot(2, 2), VIEW)),
    Accept(Vote(Ballot(2, 2), replace(OTHER, number=6))),
    Accept(Vote(Ballot(2, 2), replace(OTHER, parent=b"another"))),
    Accept(Vote(Ballot(2, 2), replace(OTHER, lineage=LINEAGE[::-1]))),
    Accept(Vote(Ballot(2, 2), replace(OTHER, policy=Policy.LIVE))),
    Promise(RANK_0, Vote(OWNERS, VIEW)),
    Promise(RANK_0, Vote(Ballot(-1, 0), OTHER)),
    Promise(RANK_0, Vote(RANK_0, OTHER)),
    Promise(RANK_0, Vote(Ballot(2, 2), OTHER)),
    Promise(Ballot(HIGH, 0), None),
    Accepted(RANK_0),
    Accepted(Ballot(-HIGH, -1)),
    Nack(Ballot(MAX_ROUND + 1, 2)),
    Nack(Ballot(5, 3)),
    Nack(Ballot(-HIGH, 0)),
]


@pytest.mark.parametrize("body", NONSENSE)
def test_what_no_member_can_mean_changes_nothing(body: Body) -> None:
    a, undisturbed = preparing(), preparing()
    assert a.receive(0.1, C, body) == []
    assert (a.promised, a.next_deadline()) == (undisturbed.promised, undisturbed.next_deadline())
    assert a.tick(a.next_deadline()) == undisturbed.tick(undisturbed.next_deadline())
    assert a.receive(0.5, B, Promise(RANK_0, None)) == undisturbed.receive(0.5, B, Promise(RANK_0, None))


def test_two_views_at_one_ballot_are_nonsense() -> None:
    c = agreement(C)
    c.receive(0.0, A, Accept(Vote(RANK_0, NEXT)))
    assert c.receive(0.0, A, Accept(Vote(RANK_0, OTHER))) == []
    assert c.receive(0.0, A, Prepare(RANK_0)) == [Send(A, Promise(RANK_0, Vote(RANK_0, NEXT)))]


def test_only_a_view_that_can_follow_is_wanted() -> None:
    with pytest.raises(AssertionError, match="cannot follow"):
        agreement(A).want(0.0, VIEW, 0.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retry_s": 0.0}, "need 0 < retry_s <= retry_max_s, .* got 0.0 and 2.0"),
        ({"retry_s": 3.0}, "got 3.0 and 2.0"),
        ({"retry_max_s": math.inf}, "got 0.1 and inf"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgreementConfig(**config)

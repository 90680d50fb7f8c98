"""Policy `live`: promises and votes of a dead member count, as its record shows them after its death."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Member, View
from gossip.acceptor import MAX_ROUND, Acceptor, decided_record, is_ballot, reading
from gossip.agreement import Agreement, AgreementConfig, Decided
from gossip.effects import Send, WriteRecord
from gossip.messages import Accept, Accepted, AcceptorRecord, Ballot, Nack, Prepare, Promise, Vote
from gossip.view import Policy

from .acceptors import NOTHING, Swarm, of_policy, successor
from .members import A, B, C, D

E, J = Member("e", 1), Member("j", 1)
VIEW = of_policy(Policy.LIVE, 4, A, B, C)
NEXT, OTHER = successor(VIEW, A, B), successor(VIEW, A, C)
FIRST = Ballot(1, 0)
FRESH = AcceptorRecord(VIEW, NOTHING, None)


def agreement(me: Member, view: View = VIEW, **config: float) -> Agreement:
    new = Agreement(me, rng=Random(1), config=AgreementConfig(**config))
    new.install(view)
    return new


def preparing(me: Member = A, view: View = VIEW) -> Agreement:
    """`me` has asked the others to promise its first ballot."""
    new = agreement(me, view)
    new.want(0.0, successor(view, me), 0.0)
    new.tick(0.0)
    return new


def test_r13_a_view_that_is_installed_is_on_record_first() -> None:
    assert Agreement(A, rng=Random(1), config=AgreementConfig()).install(VIEW) == [WriteRecord(FRESH)]


def test_r13_a_promise_is_on_record_before_it_leaves() -> None:
    b = agreement(B)
    assert b.receive(0.0, A, Prepare(FIRST)) == [
        WriteRecord(AcceptorRecord(VIEW, FIRST, None)),
        Send(A, Promise(FIRST, None)),
    ]
    assert b.receive(0.1, A, Prepare(FIRST)) == [Send(A, Promise(FIRST, None))]
    assert b.promised == FIRST


def test_r13_a_vote_is_on_record_before_it_leaves() -> None:
    b, vote = agreement(B), Vote(FIRST, NEXT)
    written = WriteRecord(AcceptorRecord(VIEW, FIRST, vote))
    assert b.receive(0.0, A, Accept(vote)) == [written, Send(A, Accepted(FIRST))]
    assert b.receive(0.1, A, Accept(vote)) == [Send(A, Accepted(FIRST))]


def test_r13_a_refusal_needs_no_record() -> None:
    b = agreement(B)
    b.receive(0.0, C, Prepare(Ballot(2, 2)))
    assert b.receive(0.0, A, Prepare(FIRST)) == [Send(A, Nack(Ballot(2, 2)))]
    assert b.receive(0.0, A, Accept(Vote(FIRST, NEXT))) == [Send(A, Nack(Ballot(2, 2)))]


def test_r13_the_proposer_records_its_own_promise_its_own_vote_and_the_decision_before_it_tells() -> None:
    a, vote = agreement(A), Vote(FIRST, NEXT)
    a.want(0.0, NEXT, 0.0)
    promise = WriteRecord(AcceptorRecord(VIEW, FIRST, None))
    assert a.tick(0.0) == [Send(B, Prepare(FIRST)), Send(C, Prepare(FIRST)), promise]
    own_vote = WriteRecord(AcceptorRecord(VIEW, FIRST, vote))
    assert a.receive(0.1, B, Promise(FIRST, None)) == [Send(B, Accept(vote)), Send(C, Accept(vote)), own_vote]
    decision = WriteRecord(AcceptorRecord(NEXT, NOTHING, None))
    assert a.receive(0.2, B, Accepted(FIRST)) == [decision, Decided(NEXT)]
    assert decided_record(NEXT) == a.install(NEXT) == [decision]


def test_c10_who_has_decided_writes_nothing_of_the_older_view_any_more() -> None:
    alone = of_policy(Policy.LIVE, 4, A)
    a = agreement(A, alone)
    a.want(0.0, successor(alone, A), 0.0)
    results = a.tick(0.0)
    assert results[-2:] == [
        WriteRecord(AcceptorRecord(successor(alone, A), NOTHING, None)),
        Decided(successor(alone, A)),
    ]
    assert a.receive(0.1, A, Prepare(Ballot(9, 0))) == []
    assert a.tick(math.inf) == []
    a.want(0.1, successor(alone, A, J), 0.0)
    assert a.next_deadline() == math.inf
    assert a.declare_dead(0.1, A, AcceptorRecord(alone, NOTHING, None)) == []


def test_r13_the_owner_has_no_shortcut() -> None:
    owner = VIEW.members[VIEW.number % 3]
    one = agreement(owner)
    one.want(0.0, NEXT, 0.0)
    assert Send(A, Prepare(Ballot(1, 1))) in one.tick(0.0)
    assert agreement(A).receive(0.0, owner, Accept(Vote(Ballot(0, 1), NEXT))) == []


def test_r13_the_last_one_decides_when_the_records_of_all_others_are_read() -> None:
    c = preparing(C)
    assert c.declare_dead(0.1, A, FRESH) == []
    assert c.next_deadline() < math.inf
    results = c.declare_dead(0.1, B, FRESH)
    assert results[-1] == Decided(successor(VIEW, C))
    assert not [result for result in results if isinstance(result, Send)]
    assert c.records == {A: FRESH, B: FRESH}


def test_r13_who_is_dead_without_a_record_is_waited_for() -> None:
    c = preparing(C)
    c.declare_dead(0.1, B, FRESH)
    assert c.tick(9.0) == [Send(A, Prepare(Ballot(1, 2)))]


def test_r13_the_dead_never_count_as_having_accepted_what_began_before_they_were_read() -> None:
    """D dies between the phases: its record is read anew, by a greater ballot."""
    view = of_policy(Policy.LIVE, 4, B, A, C, D)
    a, first = preparing(A, view), Ballot(1, 1)
    for member in (B, C):
        a.receive(0.1, member, Promise(first, None))
    wanted = Vote(first, successor(view, A))
    assert a.declare_dead(0.2, B, AcceptorRecord(view, first, wanted)) == []  # three survivors, a quorum
    second = Ballot(2, 1)
    assert a.declare_dead(0.2, C, AcceptorRecord(view, first, None)) == [
        Send(D, Prepare(second)),
        WriteRecord(AcceptorRecord(view, second, wanted)),
    ]
    assert a.receive(0.3, D, Accepted(first)) == []
    assert a.receive(0.3, D, Promise(second, None))[0] == Send(D, Accept(Vote(second, successor(view, A))))
    assert a.receive(0.4, D, Accepted(second))[-1] == Decided(successor(view, A))


def test_r13_a_vote_on_a_record_competes_with_those_of_the_living() -> None:
    view = of_policy(Policy.LIVE, 4, A, B, C, D)
    older, newer = Vote(Ballot(1, 0), successor(view, A, B)), Vote(Ballot(2, 1), successor(view, B, D))
    for on_record, promised in ((older, newer), (newer, older)):
        d = agreement(D, view)
        d.want(0.0, successor(view, D), 0.0)
        d.declare_dead(0.0, A, AcceptorRecord(view, on_record.ballot, on_record))
        d.declare_dead(0.0, B, AcceptorRecord(view, Ballot(5, 2), None))
        ballot = Ballot(6, 3)
        assert d.tick(0.0)[0] == Send(C, Prepare(ballot))
        assert d.receive(0.1, C, Promise(ballot, promised))[0] == Send(C, Accept(Vote(ballot, newer.view)))


def test_r13_a_ballot_is_above_every_promise_on_record() -> None:
    c = agreement(C)
    c.declare_dead(0.0, A, AcceptorRecord(VIEW, Ballot(7, 0), None))
    c.want(0.0, OTHER, 0.0)
    assert c.tick(0.0)[0] == Send(B, Prepare(Ballot(8, 2)))


def test_r13_a_record_that_outbids_a_ballot_which_the_living_can_finish_ends_it_at_its_deadline() -> None:
    a = preparing(A)
    assert a.declare_dead(0.1, C, AcceptorRecord(VIEW, Ballot(7, 2), None)) == []
    assert a.tick(a.next_deadline())[0] == Send(B, Prepare(Ballot(8, 0)))


def test_a_death_ends_the_back_off() -> None:
    b = preparing(B)
    b.receive(0.0, C, Prepare(Ballot(1, 2)))
    b.want(0.01, OTHER, 0.0)
    assert b.next_deadline() >= 0.1
    b.declare_dead(0.02, C, AcceptorRecord(VIEW, Ballot(1, 2), None))
    b.want(0.02, OTHER, 0.0)
    assert b.next_deadline() == 0.02


def test_r13_the_record_of_an_older_view_has_promised_and_accepted_nothing_in_this_one() -> None:
    older = AcceptorRecord(of_policy(Policy.LIVE, 3, A, B, C), Ballot(9, 0), Vote(Ballot(9, 0), VIEW))
    assert reading(older, VIEW) == FRESH
    c = agreement(C)
    c.declare_dead(0.0, A, older)
    assert c.records == {A: FRESH}


@pytest.mark.parametrize(
    "record",
    [
        AcceptorRecord(NEXT, NOTHING, None),
        AcceptorRecord(replace(VIEW, parent=b"fork"), NOTHING, None),
        AcceptorRecord(VIEW, Ballot(1, 3), None),
        AcceptorRecord(VIEW, Ballot(0, 1), None),
        AcceptorRecord(VIEW, Ballot(MAX_ROUND + 1, 1), None),
        AcceptorRecord(VIEW, FIRST, Vote(Ballot(2, 0), NEXT)),
        AcceptorRecord(VIEW, FIRST, Vote(FIRST, VIEW)),
    ],
    ids=[
        "later",
        "fork",
        "rank",
        "shortcut",
        "huge",
        "vote-above-promise",
        "no-successor",
    ],
)
def test_a_record_that_says_nothing_about_this_view_is_left_alone(record: AcceptorRecord) -> None:
    c = preparing(C)
    c.declare_dead(0.1, B, FRESH)
    before = c.next_deadline()
    assert c.declare_dead(0.1, A, record) == []
    assert (c.records, c.next_deadline()) == ({B: FRESH}, before)


@pytest.mark.parametrize("number", [3, VIEW.number, VIEW.number + 9])
def test_who_had_a_seat_in_another_swarm_has_promised_nothing_in_this_one(number: int) -> None:
    c = agreement(C)
    c.declare_dead(0.0, A, AcceptorRecord(replace(VIEW, lineage=b"another", number=number), Ballot(7, 1), None))
    assert c.records == {A: FRESH}


def test_only_the_first_record_of_another_member_of_the_view_counts() -> None:
    c = agreement(C)
    c.declare_dead(0.0, A, FRESH)
    c.declare_dead(0.0, A, AcceptorRecord(VIEW, Ballot(7, 1), None))
    c.declare_dead(0.0, C, FRESH)
    c.declare_dead(0.0, J, FRESH)
    assert c.records == {A: FRESH}
    c.install(successor(VIEW, B, C))
    assert c.records == {}


def test_r12_under_majority_nothing_is_written_or_read() -> None:
    view = of_policy(Policy.MAJORITY, 4, A, B, C)
    c = Agreement(C, rng=Random(1), config=AgreementConfig())
    assert c.install(view) == decided_record(view) == []
    c.want(0.0, successor(view, C), 0.0)
    assert c.tick(0.0) == [Send(A, Prepare(Ballot(1, 2))), Send(B, Prepare(Ballot(1, 2)))]
    assert c.declare_dead(0.1, A, AcceptorRecord(view, NOTHING, None)) == []
    assert c.declare_dead(0.1, B, AcceptorRecord(view, NOTHING, None)) == []
    assert c.records == {}


# Named counterexamples of PROTOCOL.md, executed step by step. Each is safe with all rules in, and ends in
# two views of one number where the rule that excludes it is taken out.


def without_promises(acceptor: Acceptor) -> AcceptorRecord:
    """A record that holds the vote only."""
    vote = acceptor.vote
    return AcceptorRecord(acceptor._view, vote.ballot if vote is not None else NOTHING, vote)


def without_votes(acceptor: Acceptor) -> AcceptorRecord:
    return AcceptorRecord(acceptor._view, acceptor.promised, None)


def forget_decisions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gossip.agreement.decided_record", lambda decided: [])
    patch.setattr(Swarm, "_learn", learn_without_writing)


def learn_without_writing(swarm: Swarm, member: Member, view: View) -> None:
    swarm.decided[view] = None
    swarm._informed.add(member)


def skip_the_records_check(patch: pytest.MonkeyPatch) -> None:
    """Pages differ from the messages sent, as they should in a mutant."""
    patch.setattr(Swarm, "_check", lambda swarm, member, body: None)


def decided_by_the_dead(number: int) -> dict[View, None]:
    """C2: A and B accept a view and are killed before DECIDE leaves; C, which heard nothing, reads both records."""
    view = of_policy(Policy.LIVE, number, A, B, C)
    swarm = Swarm(view)
    swarm.want(A, successor(view, A, B, C, J))
    swarm.tick(A)
    swarm.deliver(A, B, Prepare)
    swarm.deliver(B, A, Promise)
    swarm.deliver(A, B, Accept)
    swarm.kill(A, after=0)
    swarm.deliver(B, A, Accepted)
    swarm.kill(B)
    swarm.read(C, A)
    swarm.read(C, B)
    swarm.want(C, successor(view, C))
    swarm.tick(C)
    return swarm.decided


def test_c2_the_last_survivor_decides_what_the_dead_have_accepted() -> None:
    (decided,) = decided_by_the_dead(15)
    assert decided.members == (A, B, C, J)


def test_c2_without_the_votes_on_record_two_views_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_the_records_check(monkeypatch)
    monkeypatch.setattr(Acceptor, "record", property(without_votes))
    assert len(decided_by_the_dead(15)) == 2


def test_c2_a_shortcut_that_asks_whether_records_know_a_greater_ballot_is_harmless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossip.acceptor.has_shortcut", lambda view: True)
    monkeypatch.setattr("gossip.agreement.has_shortcut", lambda view: True)
    assert len(decided_by_the_dead(17)) == 1


def test_c2_with_the_owners_shortcut_two_views_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of view 17 is C. It asks no member, living or dead, whether there is a greater ballot."""
    monkeypatch.setattr("gossip.acceptor.has_shortcut", lambda view: True)
    monkeypatch.setattr(Agreement, "_may_skip_phase_1", lambda agreement: agreement._rank == 2)
    assert len(decided_by_the_dead(17)) == 2


def a_record_without_the_promise() -> dict[View, None]:
    """C10: E's ACCEPT(X) is in flight when C, D and E are killed; A and B decide Y, A is killed, then X arrives."""
    view = of_policy(Policy.LIVE, 1, A, B, C, D, E)
    x, y = successor(view, A, B, C), successor(view, A, B, J)
    swarm = Swarm(view)
    swarm.want(E, x)
    swarm.tick(E)
    for member in (C, D):
        swarm.deliver(E, member, Prepare)
    swarm.deliver(C, E, Promise)
    swarm.kill(E, after=4)  # ACCEPT is sent, its own vote is not on record
    swarm.deliver(D, E, Promise)
    swarm.kill(C)
    swarm.kill(D)
    for reader in (A, B):
        for dead in (C, D, E):
            swarm.read(reader, dead)
    swarm.want(A, y)
    swarm.tick(A)
    swarm.deliver(A, B, Prepare)
    swarm.deliver(B, A, Promise)
    swarm.deliver(A, B, Accept)
    swarm.deliver(B, A, Accepted)
    swarm.kill(A)  # it has told J of Y
    assert list(swarm.decided) == [y]
    swarm.deliver(E, B, Accept)
    swarm.read(B, A)
    swarm.want(B, successor(view, B))
    swarm.tick(B)
    return swarm.decided


def test_c10_a_late_accept_below_the_promise_on_record_decides_nothing() -> None:
    assert len(a_record_without_the_promise()) == 1


def test_c10_the_decision_on_record_is_enough_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_the_records_check(monkeypatch)
    monkeypatch.setattr(Acceptor, "record", property(without_promises))
    assert len(a_record_without_the_promise()) == 1


def test_c10_the_promise_on_record_is_enough_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_decisions(monkeypatch)
    assert len(a_record_without_the_promise()) == 1


def test_c10_with_neither_on_record_two_views_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_the_records_check(monkeypatch)
    forget_decisions(monkeypatch)
    monkeypatch.setattr(Acceptor, "record", property(without_promises))
    assert len(a_record_without_the_promise()) == 2


# Laws.


def a_move(swarm: Swarm, number: int) -> None:
    """One step of a schedule, chosen by `number`: a member and its action, or the fate of a message."""
    action, chosen = number % 32, number // 32
    member = swarm.view.members[chosen % len(swarm.view.members)]
    packet = chosen % max(1, min(len(swarm.under_way), 2 * len(swarm.view.members) if action % 2 else 10**9))
    if action < 4 or (action < 26 and not swarm.under_way):
        swarm.now += 0.001
        swarm.want(member, successor(swarm.view, member, Member("j", chosen % 3)))
        swarm.tick(member)
    elif action < 22:  # of two deliveries, one is of the latest messages
        swarm.arrive(*swarm.under_way.pop(-1 - packet))
    elif action < 24:  # it will arrive again
        swarm.arrive(*swarm.under_way[-1 - packet])
    elif action < 26:
        del swarm.under_way[-1 - packet]
    elif action < 30:
        for dead in list(swarm.dead)[: 1 + chosen % 4]:
            swarm.read(member, dead)
    else:
        swarm.kill(member, after=chosen % 5 if action == 30 else None)


def a_run(size: int, policy: Policy, moves: Sequence[int]) -> Swarm:
    """A run in which every member wants a different view."""
    members = [Member(f"m{rank}", 1) for rank in range(size)]
    view = of_policy(policy, 1 + moves[0] % 5, *members)
    swarm = Swarm(view)
    for member in members:
        swarm.want(member, successor(view, member, J))
    for number in moves:
        promised = {member: swarm.agreements[member].promised for member in members}
        a_move(swarm, number)
        assert len(swarm.decided) <= 1
        assert all(swarm.agreements[member].promised >= promised[member] for member in members)
    return swarm


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(2, 5),
    policy=st.sampled_from(Policy),
    moves=st.lists(st.integers(0, 2**16 - 1), min_size=40, max_size=120),
)
def test_s1_two_views_are_never_decided(size: int, policy: Policy, moves: list[int]) -> None:
    """Messages are lost, doubled, reordered; timers fire at any moment; members die between any two effects."""
    a_run(size, policy, moves)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5), policy=st.sampled_from(Policy), seed=st.integers(0, 2**16))
def test_l1_a_view_is_decided_when_everybody_is_alive_and_messages_arrive(size: int, policy: Policy, seed: int) -> None:
    swarm = of_everybody(size, policy, seed)
    run_until_decided(swarm, Random(seed), lambda now: None)
    assert len(swarm.decided) == 1


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 5), seed=st.integers(0, 2**16))
def test_l1_a_view_is_decided_by_whoever_is_left_when_all_records_are_read(size: int, seed: int) -> None:
    rng = Random(seed)
    swarm = of_everybody(size, Policy.LIVE, seed)
    for member in rng.sample(swarm.view.members, rng.randint(1, size - 1)):
        swarm.kill(member, after=rng.randint(0, 6)) if rng.random() < 0.7 else swarm.kill(member)

    def read_all(now: float) -> None:
        for reader in swarm.alive:
            for dead in swarm.dead:
                swarm.read(reader, dead)

    run_until_decided(swarm, rng, read_all)
    assert len(swarm.decided) == 1


def of_everybody(size: int, policy: Policy, seed: int) -> Swarm:
    members = [Member(f"m{rank}", 1) for rank in range(size)]
    swarm = Swarm(of_policy(policy, 1 + seed % 5, *members), seed)
    for member in members:
        swarm.want(member, successor(swarm.view, member, J))
    return swarm


def run_until_decided(swarm: Swarm, rng: Random, before_each_ms: Callable[[float], None]) -> None:
    """For 20 virtual seconds at most. In the first two, a third of the messages is lost."""
    while not swarm.decided and swarm.now < 20.0:
        swarm.now += 0.001
        before_each_ms(swarm.now)
        for packet in list(swarm.under_way):
            if rng.random() < 0.05:  # a message takes 20 ms on the average
                swarm.under_way.remove(packet)
                if swarm.now > 2.0 or rng.random() > 0.3:
                    swarm.arrive(*packet)
        for member in swarm.deciding:
            if swarm.agreements[member].next_deadline() <= swarm.now:
                swarm.tick(member)


@given(
    number=st.integers(-2, 2) | st.integers() | st.just(MAX_ROUND),
    rank=st.integers(-1, 3) | st.integers(),
    policy=st.sampled_from(Policy),
)
def test_r4_a_ballot_has_a_rank_of_the_view_and_a_round_within_bounds(number: int, rank: int, policy: Policy) -> None:
    expected = 1 <= number <= MAX_ROUND and 0 <= rank < 3
    expected |= policy is Policy.MAJORITY and (number, rank) == (0, 1)
    assert is_ballot(Ballot(number, rank), of_policy(policy, 4, A, B, C)) is expected

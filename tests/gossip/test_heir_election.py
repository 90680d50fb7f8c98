"""Heir election: which peer without a seat continues once all members have died, on several hosts (R29)."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from gossip import NO_VIEW, Claim, Core, CoreConfig, Envelope, Member, Policy, Seat, Stamp, State, View
from gossip.acceptor import NO_BALLOT
from gossip.effects import Effect, Left, Removed, WriteRecord
from gossip.heir_election import MOST_HELD
from gossip.messages import AcceptorRecord, Body, Choice, Died, Gossip, Head, Held, Leave, Report, ReportKind
from gossip.view import founding_view

from .cores import RUN, bodies, only
from .members import LINEAGE, A, B, C, D, E, claim

HOSTS = {A: "one", B: "two", C: "one", D: "two", E: "three"}
"""A and B are members, the others observe."""
ANOTHER = b"another lineage."
BEAT_S = 2 * CoreConfig().beat_s
LATE_S = CoreConfig().heir_s + 1.0


def at(member: Member, state: State = State.ALIVE) -> Claim:
    """A claim about `member` on its host, which other hosts reach."""
    known = claim(member, state)
    remote = f"{member.peer_id}:1"
    return replace(known, contact=replace(known.contact, host=HOSTS[member], remote_control=remote, remote_data=remote))


def view_of(number: int, *members: Member, lineage: bytes = LINEAGE) -> View:
    seats = tuple(Seat(member, 1, at(member).contact) for member in members)
    return View(lineage, number, 1, seats, b"", Policy.LIVE)


LAST = view_of(3, A, B)


def record(view: View | None = LAST, choice: Choice | None = None) -> AcceptorRecord:
    return AcceptorRecord(view, NO_BALLOT, None, choice)


def chose(heir: Member) -> AcceptorRecord:
    """A record of a peer without a seat, with its choice."""
    return record(None, Choice(LINEAGE, heir))


def observer(me: Member, step: int, others: Sequence[Member] = (), *, is_reached: bool = True) -> Core:
    """`me` holds the state after `step`, 0: none; it knows A, B and `others`."""
    own = at(me) if is_reached else claim(me)
    peer = Core(own, rng=Random(1), config=CoreConfig(), now=0.0)
    for member in (A, B, *others):
        peer.meet(0.0, at(member))
    peer.ask_for_seat(0.0, RUN, follows=True)
    if step:
        peer.state_arrived(step, b"digest", LINEAGE)
        peer.loaded(0.0, step, b"digest")
    return peer


def say(peer: Core, source: Member, body: Body, now: float = 0.0, stamp: Stamp = NO_VIEW) -> list[Effect]:
    return peer.receive(now, Envelope(source, stamp, body))


def all_die(peer: Core, now: float = 0.0) -> list[Effect]:
    """DIED of all members arrives, from their launchers."""
    return [*say(peer, A, Died(record()), now), *say(peer, B, Died(record()), now)]


def holds(peer: Core, source: Member, step: int, heir: Member | None = None, now: float = 0.0) -> list[Effect]:
    return say(peer, source, Held(LINEAGE, step, heir), now)


def said(effects: list[Effect]) -> dict[Member, Held]:
    """The last HELD to each target."""
    return dict(bodies(Held, effects))


def late(peer: Core, now: float = LATE_S) -> str:
    estate = peer.election_status(now)
    assert estate is not None
    return estate.waits_for


def pass_time(peer: Core, until: float, others: Sequence[Member] = ()) -> list[Effect]:
    """Let time pass, while `others` are heard."""
    effects, now = [], 0.0
    while now < until:
        now += 0.25
        effects += peer.tick(now)
        for other in others:
            effects += say(peer, other, Gossip(()), now)
    return effects


# Proofs


def test_members_are_dead_once_each_of_the_last_view_is_proven_dead() -> None:
    peer = observer(C, 7)
    assert peer.election_status(0.0) is None
    say(peer, A, Died(record()))
    assert peer.election_status(0.0) is None
    say(peer, B, Died(record()))
    estate = peer.election_status(0.0)
    assert estate is not None and (estate.view, estate.heir, estate.waits_for) == (LAST, None, "")


def test_a_death_without_a_record_proves_nothing() -> None:
    peer = observer(C, 7)
    say(peer, A, Died(record()))
    peer.declare_dead(0.0, B, "its process has ended")
    assert peer.election_status(0.0) is None


def test_a_record_of_a_later_view_says_who_else_has_to_be_dead() -> None:
    peer = observer(C, 7)
    say(peer, A, Died(record()))
    say(peer, B, Died(record(view_of(4, B, D))))
    assert peer.election_status(0.0) is None
    say(peer, D, Died(record(None)))
    assert peer.election_status(0.0) is not None


def test_where_a_later_view_was_heard_of_the_members_of_an_older_one_are_not_all() -> None:
    peer = observer(C, 7)
    assert not peer.knows_members
    say(peer, A, Head(-1, b"", 9, 9), stamp=LAST.stamp)
    assert peer.knows_members
    all_die(peer)
    assert peer.election_status(0.0) is None


def test_where_somebody_with_a_seat_is_heard_nobody_goes_on() -> None:
    peer = observer(C, 7, [D])
    say(peer, D, Head(-1, b"", 3, 3), stamp=LAST.stamp)
    assert bodies(Report, all_die(peer)) == [] and peer.election_status(0.0) is None


def test_who_holds_no_state_learns_from_any_record_whose_members_are_dead() -> None:
    peer = observer(C, 0)
    say(peer, A, Died(record(view_of(1, A, lineage=ANOTHER))))
    estate = peer.election_status(0.0)
    assert estate is not None and estate.view.lineage == ANOTHER


def test_who_holds_a_state_has_nothing_to_do_with_another_lineage() -> None:
    peer = observer(C, 7)
    say(peer, A, Died(record(view_of(1, A, lineage=ANOTHER))))
    assert peer.election_status(0.0) is None


def test_blank_records_name_no_members() -> None:
    peer = observer(C, 7, [D])
    say(peer, D, Died(record(None)))
    assert peer.election_status(0.0) is None


def test_where_no_other_host_is_reached_the_registry_knows_more() -> None:
    peer = observer(C, 7, is_reached=False)
    assert bodies(Held, all_die(peer)) == [] and peer.election_status(0.0) is None


def test_who_has_a_seat_says_and_hears_nothing_of_it() -> None:
    peer = Core(at(C), rng=Random(1), config=CoreConfig(), now=0.0)
    peer.meet(0.0, at(D))
    peer.found(0.0, LINEAGE, 1, RUN, Policy.LIVE)
    view = peer.view
    assert view == founding_view(Seat(C, 1, at(C).contact, RUN.numerics), LINEAGE, 1, Policy.LIVE)
    assert holds(peer, D, 7) == [] and say(peer, D, Report(ReportKind.PROVEN, E, record=record())) == []
    assert peer.election_status(0.0) is None


# Proofs passed on


def test_a_proof_is_passed_on_until_its_receiver_says_that_it_knows() -> None:
    peer = observer(C, 7, [D])
    proof = Report(ReportKind.PROVEN, A, record=record())
    assert (D, proof) in bodies(Report, say(peer, A, Died(record())))
    assert (D, proof) in bodies(Report, peer.tick(BEAT_S)), "it may be lost"
    holds(peer, D, 5, now=BEAT_S)
    assert bodies(Report, peer.tick(2 * BEAT_S)) == []


def test_a_proof_that_was_passed_on_is_as_good_as_any() -> None:
    peer = observer(D, 5, [C])
    say(peer, B, Died(record()))
    say(peer, C, Report(ReportKind.PROVEN, A, record=record()))
    assert peer.election_status(0.0) is not None


@pytest.mark.parametrize(
    "report",
    [
        Report(ReportKind.PROVEN, D, record=record()),
        Report(ReportKind.PROVEN, A),
        Report(ReportKind.SILENT, A, record=record()),
    ],
    ids=["of the receiver", "without a record", "of silence"],
)
def test_what_is_no_proof_changes_nothing(report: Report) -> None:
    peer = observer(D, 5, [C])
    say(peer, B, Died(record()))
    say(peer, C, report)
    assert peer.election_status(0.0) is None and not peer.ended


# The decider


def test_who_is_alone_goes_on_a_moment_later_and_writes_it_down_first() -> None:
    peer = observer(C, 7)
    all_die(peer)
    assert only(WriteRecord, peer.tick(0.25)) == [], "others may come to be known"
    assert only(WriteRecord, peer.tick(BEAT_S)) == [WriteRecord(chose(C))]
    estate = peer.election_status(LATE_S)
    assert estate is not None and (estate.heir, estate.waits_for) == (C, "")
    assert only(WriteRecord, peer.tick(2 * BEAT_S)) == []


def test_the_newest_state_is_gone_on_with_once_all_that_are_heard_have_said_what_they_hold() -> None:
    peer = observer(C, 7, [D, E])
    all_die(peer)
    holds(peer, D, 9)
    assert only(WriteRecord, peer.tick(BEAT_S)) == []
    effects = holds(peer, E, 9, now=BEAT_S)
    assert only(WriteRecord, effects) == [WriteRecord(chose(D))], "of equals the first"
    assert said(effects) == dict.fromkeys((D, E), Held(LINEAGE, 7, D))
    first_said = next(index for index, effect in enumerate(effects) if bodies(Held, [effect]))
    assert effects.index(WriteRecord(chose(D))) < first_said, "it is written first"


def test_another_host_waits_for_the_first_and_names_it() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    holds(peer, C, 7)
    assert only(WriteRecord, peer.tick(BEAT_S)) == [] and late(peer, BEAT_S) == ""
    assert late(peer) == f"peer {C} of host one"


def test_who_decides_first_does_not_if_it_holds_nothing() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    holds(peer, C, 0)
    assert only(WriteRecord, peer.tick(BEAT_S)) == [WriteRecord(chose(D))]


def test_who_is_only_silent_is_not_replaced() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    effects = pass_time(peer, LATE_S)
    assert not peer._swim.is_alive(C) and only(WriteRecord, effects) == []
    assert late(peer) == f"peer {C} of host one"


def test_who_decides_does_not_wait_for_whom_it_cannot_hear() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    assert only(WriteRecord, pass_time(peer, LATE_S)) == [WriteRecord(chose(C))]


def test_a_host_without_a_member_comes_last() -> None:
    peer = observer(E, 9, [D])
    all_die(peer)
    holds(peer, D, 7)
    assert only(WriteRecord, peer.tick(BEAT_S)) == []


# Deciders and heirs that die or leave


def test_who_follows_a_decider_follows_its_choice() -> None:
    peer = observer(D, 9, [C, E])
    all_die(peer)
    holds(peer, C, 7)
    holds(peer, E, 8)
    say(peer, C, Died(chose(E)))
    assert only(WriteRecord, peer.tick(BEAT_S)) == []
    estate = peer.election_status(BEAT_S)
    assert estate is not None and estate.heir == E


def test_who_follows_a_decider_that_had_not_chosen_decides() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    holds(peer, C, 7)
    say(peer, C, Died(record(None)))
    assert only(WriteRecord, peer.tick(BEAT_S)) == [WriteRecord(chose(D))]


def test_a_decider_that_is_dead_may_have_chosen_as_long_as_its_record_is_not_read() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    holds(peer, C, 7)
    peer.declare_dead(0.0, C, "its process has ended")
    assert only(WriteRecord, peer.tick(BEAT_S)) == []
    say(peer, C, Died(record(None)), BEAT_S)
    assert peer.election_status(BEAT_S) is not None
    assert only(WriteRecord, peer.tick(2 * BEAT_S)) == [] and peer.election_status(BEAT_S).heir == D  # type: ignore[union-attr]


def test_a_decider_that_leaves_decides_nothing_more() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    holds(peer, C, 7)
    say(peer, C, Leave())
    assert only(WriteRecord, peer.tick(BEAT_S)) == [WriteRecord(chose(D))]


def test_who_was_chosen_and_leaves_or_dies_before_it_follows_is_replaced() -> None:
    for word in (Leave(), Died(record(None))):
        peer = observer(C, 7, [D])
        all_die(peer)
        holds(peer, D, 9)
        assert only(WriteRecord, peer.tick(BEAT_S)) == [WriteRecord(chose(D))]
        assert only(WriteRecord, say(peer, D, word, BEAT_S)) == [WriteRecord(chose(C))]


def test_once_any_that_has_waited_has_begun_anew_nobody_decides_however_silent_it_is() -> None:
    peer = observer(D, 9, [C, E])
    all_die(peer)
    holds(peer, C, 7)
    holds(peer, E, 5)
    say(peer, C, Leave())
    anew = replace(at(E), member=replace(E, incarnation=E.incarnation + 1))
    peer.meet(0.0, anew)
    assert only(WriteRecord, pass_time(peer, 30.0)) == [] and not peer._swim.is_alive(anew.member)


def test_who_has_begun_to_go_on_is_not_replaced() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    holds(peer, D, 9)
    peer.tick(BEAT_S)
    assert only(WriteRecord, say(peer, D, Died(chose(D)), BEAT_S)) == []
    assert late(peer) == f"peer {D}, which was to continue the run"


def test_an_heir_that_is_heard_may_take_as_long_as_its_script_does() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    holds(peer, D, 9)
    pass_time(peer, LATE_S, [D])
    assert late(peer) == ""


def test_who_hears_that_it_is_to_go_on_writes_it_down() -> None:
    peer = observer(D, 9, [C])
    all_die(peer)
    effects = holds(peer, C, 7, D)
    assert only(WriteRecord, effects) == [WriteRecord(chose(D))]
    assert said(effects) == {C: Held(LINEAGE, 9, D)}


def test_an_heir_that_leaves_takes_back_what_it_has_written() -> None:
    peer = observer(C, 7)
    all_die(peer)
    peer.tick(BEAT_S)
    assert only(WriteRecord, peer.leave(BEAT_S)) == [WriteRecord(record(None))]


def test_a_decider_that_leaves_does_not() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    holds(peer, D, 9)
    peer.tick(BEAT_S)
    effects = peer.leave(BEAT_S)
    assert only(WriteRecord, effects) == [] and only(Left, effects)


# Without an heir, and with an earlier one


def test_where_nobody_holds_a_state_it_is_lost() -> None:
    peer = observer(C, 0, [D])
    all_die(peer)
    estate = peer.election_status(0.0)
    assert estate is not None and not estate.is_lost
    holds(peer, D, 0)
    estate = peer.election_status(0.0)
    assert estate is not None and estate.is_lost


def test_what_is_held_of_another_lineage_is_of_no_use() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    say(peer, D, Held(ANOTHER, 9, D))
    assert only(WriteRecord, peer.tick(BEAT_S)) == [] and late(peer) == f"peer {D} of host two"


def test_who_holds_nothing_says_for_whom_it_waits() -> None:
    peer = observer(C, 0, [D])
    all_die(peer)
    holds(peer, D, 9)
    assert late(peer) == f"peer {D} of host two"
    holds(peer, D, 0)
    assert late(peer) == "peers that no peer here has met"


def test_of_so_many_peers_at_most_it_is_kept_what_they_hold() -> None:
    peer = observer(C, 7)
    for number in range(MOST_HELD + 5):
        holds(peer, Member(f"p{number}", 1), 7)
    holds(peer, Member("p3", 1), 8)
    assert len(peer._heirs._held) == MOST_HELD and peer._heirs._held[Member("p3", 1)].step == 8


def test_who_hears_of_another_lineage_once_nobody_is_left_comes_back_to_that() -> None:
    peer = observer(C, 7, [D])
    elsewhere = view_of(1, D, lineage=ANOTHER).stamp
    say(peer, A, Head(-1, b"", 3, 3), stamp=LAST.stamp)
    assert only(Removed, say(peer, D, Head(-1, b"", 1, 1), stamp=elsewhere)) == [], "A lives"
    all_die(peer)
    (removed,) = only(Removed, say(peer, D, Head(-1, b"", 1, 1), stamp=elsewhere))
    assert f"{D} continues in another lineage" in removed.reason and peer.ended


def test_who_is_not_alive_does_not_go_on() -> None:
    peer = observer(C, 7)
    all_die(peer)
    elsewhere = view_of(1, D, lineage=ANOTHER).stamp
    assert only(Removed, say(peer, D, Head(-1, b"", 1, 1), stamp=elsewhere)) == []


def test_members_that_are_there_after_all_end_it() -> None:
    peer = observer(C, 7, [D])
    all_die(peer)
    say(peer, D, Head(-1, b"", 3, 3), stamp=LAST.stamp)
    assert peer.election_status(0.0) is None

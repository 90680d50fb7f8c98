"""Acceptor records of dead members, as a peer in its view uses them (R13)."""

from gossip import Policy, State
from gossip.acceptor import NO_BALLOT
from gossip.effects import Explain, Installed, Paused, Removed
from gossip.messages import AcceptorRecord, Ballot, Gossip, Report, ReportKind

from .cores import after, bodies, first_view, member_of, only, run, say, seated, view_of, view_with
from .members import A, B, C, D, E, claim


def test_r13_a_later_view_in_the_record_of_a_dead_member_is_installed() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    later = after(view_of(peer), B, A)
    effects = peer.declare_dead(1.0, B, "SIGKILL", AcceptorRecord(later, NO_BALLOT, None))
    assert only(Installed, effects) == [Installed(later)]
    assert peer.reason == "1 of 2 members of view 3 are here; without b"
    assert only(Installed, run(peer, 1.0, 1.2)) == [Installed(after(later, A))]


def test_r13_a_later_view_in_the_record_may_be_one_without_this_peer() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    record = AcceptorRecord(after(view_of(peer), B, C), NO_BALLOT, None)
    assert only(Removed, peer.declare_dead(1.0, B, "SIGKILL", record)) == [
        Removed("the others have continued without this peer: view 3 consists of b, c")
    ]
    assert peer.ended


def test_r13_a_record_older_than_the_view_counts_as_an_acceptor_that_promised_nothing() -> None:
    peer = seated(B, policy=Policy.LIVE)
    peer.declare_dead(1.0, B, "SIGKILL", AcceptorRecord(first_view(policy=Policy.LIVE), Ballot(9, 0), None))
    assert only(Installed, peer.tick(1.0)) == [Installed(after(view_with(A, B, policy=Policy.LIVE), A))]


def test_r13_in_a_view_that_a_record_names_the_records_of_the_other_dead_are_waited_for_anew() -> None:
    peer = seated(B, C, D, policy=Policy.LIVE)
    later = after(view_of(peer), A, B, C, D)
    for member in (B, C, D):
        peer.declare_dead(0.0, member, "SIGKILL")
    assert [paused.is_final for paused in only(Paused, run(peer, 0.0, 1.4))] == []
    assert not only(Paused, peer.declare_dead(1.4, B, "SIGKILL", AcceptorRecord(later, NO_BALLOT, None)))[0].is_final
    assert only(Paused, run(peer, 1.4, 2.8)) == []
    assert [paused.is_final for paused in only(Paused, run(peer, 2.8, 3.2))] == [True]


def test_r13_without_a_record_half_of_a_view_does_not_go_on_without_rank_0() -> None:
    peer = member_of(view_with(A, B), B)
    peer.declare_dead(1.0, A, "SIGKILL")
    assert peer.reason == "1 of 2 members of view 2 are here, no majority"
    assert only(Installed, run(peer, 1.0, 3.0)) == []


def test_a_proof_that_another_member_relays_counts_like_ones_own() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    record = AcceptorRecord(view_of(peer), NO_BALLOT, None)
    effects = say(peer, B, Report(ReportKind.PROVEN, C, record=record))
    assert bodies(Gossip, effects) == [(B, Gossip((claim(C, State.DEAD),)))]
    assert only(Explain, effects)[-1] == Explain("2 of 3 members of view 2 are here; without c")
    peer.declare_dead(0.0, B, "SIGKILL", record)
    assert only(Installed, peer.tick(0.0)) == [Installed(after(view_with(A, B, C, policy=Policy.LIVE), A))]


def test_a_proof_about_oneself_or_about_strangers_means_nothing() -> None:
    peer = seated(B, C)
    assert say(peer, B, Report(ReportKind.PROVEN, A)) == []
    assert say(peer, B, Report(ReportKind.PROVEN, E)) == []
    assert peer.reason == "3 of 3 members of view 2 are here"


def test_r13_a_relayed_record_can_name_a_later_view() -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    later = after(view_of(peer), C, A)
    effects = say(peer, B, Report(ReportKind.PROVEN, C, record=AcceptorRecord(later, NO_BALLOT, None)))
    assert only(Installed, effects) == [Installed(later)]

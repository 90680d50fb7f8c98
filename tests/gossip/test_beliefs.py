from dataclasses import replace
from typing import Any

from gossip import Claim, Member, State
from gossip.beliefs import MOST_REFUTATIONS, Beliefs
from gossip.claim import Status
from gossip.effects import Discovered, Explain, Forget
from gossip.swim_config import SwimConfig
from gossip.view import NOWHERE

from .members import A2, A, B, C, D, claim

B2 = Member("b", 2)
E = Member("e", 1)


def beliefs(me: Member = A, *known: Member, **config: Any) -> Beliefs:
    return Beliefs(claim(me), tuple(map(claim, known)), config=SwimConfig(**config), now=0.0)


def about(member: Member, state: State = State.ALIVE, refutation: int = 0, accuser: str = "") -> Claim:
    return replace(claim(member, state), refutation=refutation, accuser=accuser)


def suspect(member: Member, refutation: int = 0, accuser: str = "d") -> Claim:
    return about(member, State.SUSPECT, refutation, accuser)


def lost(member: Member, refutation: int = 0) -> Claim:
    return about(member, State.LOST, refutation, "d")


def lose(mind: Beliefs, now: float, member: Member, refutation: int = 0) -> None:
    mind.apply_claim(now - 100.0, suspect(member, refutation))
    mind.apply_claim(now, lost(member, refutation))


def run(mind: Beliefs, until: float) -> list[object]:
    effects = list[object]()
    while (now := mind.next_deadline()) <= until:
        effects += mind.tick(now)
    return effects


def test_who_is_met_is_linked_to_once_and_told_of() -> None:
    mind = beliefs()
    assert mind.apply_claim(1.0, claim(B)) == [Discovered(claim(B))]
    assert mind.apply_claim(2.0, claim(B)) == []
    assert mind.news() == (claim(A), claim(B))
    assert mind.silence_s(4.0, B) == 3.0
    mind.frame_received(3.5, B)
    mind.frame_received(3.6, B2)
    mind.frame_received(3.7, C)
    assert mind.silence_s(4.0, B) == 0.5
    assert mind.silence_s(3.0, B) == 0.0


def test_word_of_strangers_that_need_not_be_told_on_is_not() -> None:
    mind = beliefs()
    mind.news()
    for _ in range(3):
        mind.news()
    assert mind.apply_claim(1.0, claim(B), spread=False) == [Discovered(claim(B))]
    assert mind.news() == ()
    mind.apply_claim(1.0, about(B, refutation=1), spread=False)
    assert mind.news() == (about(B, refutation=1),)


def test_a_suspicion_that_nobody_denies_becomes_a_loss() -> None:
    mind = beliefs(A, B)
    assert mind.suspect(10.0, B) == [Explain("b is suspect: a had no answer")]
    assert mind.next_deadline() == 13.0
    assert mind.roster.alive() == (B,)
    assert run(mind, 13.0) == [Explain("b is lost: it did not deny the suspicion, says a")]
    assert mind.is_lost(B)
    assert not mind.is_lost(B2)
    assert mind.roster.alive() == ()
    assert mind.suspect(14.0, B) == []


def test_what_is_believed_now_is_said_with_the_claim_for_the_record() -> None:
    mind = beliefs(A, B)
    said = [
        *mind.suspect(10.0, B),
        *mind.apply_claim(11.0, about(B, refutation=1)),
        *mind.suspect(12.0, B),
        *run(mind, 30.0),
    ]
    claims = [each.claim for each in said if isinstance(each, Explain) and each.claim is not None]
    assert [(each.member, each.state, each.accuser) for each in claims] == [
        (B, State.SUSPECT, A.peer_id),
        (B, State.ALIVE, ""),
        (B, State.SUSPECT, A.peer_id),
        (B, State.LOST, A.peer_id),
    ]


def test_a_refutation_ends_suspicion_and_loss() -> None:
    mind = beliefs(A, B)
    mind.suspect(10.0, B)
    assert mind.apply_claim(11.0, about(B, refutation=1)) == [Explain("b denies that it is suspect")]
    assert run(mind, 1000.0) == []
    lose(mind, 1000.0, B, 1)
    assert mind.apply_claim(1001.0, about(B, refutation=2)) == [Explain("b denies that it is lost")]
    assert mind.roster.alive() == (B,)


def test_nobody_suspects_strangers_or_what_was_replaced() -> None:
    mind = beliefs(A, B2)
    assert mind.suspect(1.0, B) == []
    assert mind.suspect(1.0, C) == []


def test_others_that_confirm_a_suspicion_shorten_it_and_are_told_on() -> None:
    mind = beliefs(A, B, C, D, E)
    mind.apply_claim(0.0, suspect(B, accuser=""))
    assert mind.next_deadline() == 18.0
    for name in ("c", "d"):
        assert mind.apply_claim(1.0, suspect(B, accuser=name)) == []
        assert mind.news() == (suspect(B, accuser=name),)
    assert mind.next_deadline() == 3.0
    mind.apply_claim(1.0, suspect(B, accuser="e"))
    mind.apply_claim(1.0, about(B))
    assert mind.roster.get("b") == suspect(B, accuser="d")


def test_an_accuser_that_knows_a_newer_status_confirms_as_well() -> None:
    mind = beliefs(A, B, C, D, E)
    mind.apply_claim(0.0, suspect(B, accuser="c"))
    newer = replace(suspect(B, accuser="d"), status=Status(version=1))
    assert mind.apply_claim(1.0, newer) == []
    assert 3.0 < mind.next_deadline() < 18.0
    mind.apply_claim(1.0, suspect(B, refutation=1))
    assert mind.next_deadline() == 19.0


def test_a_newer_status_of_the_lost_is_no_second_loss() -> None:
    mind = beliefs(A, B)
    lose(mind, 0.0, B)
    assert mind.apply_claim(100.0, replace(lost(B), status=Status(version=1))) == []
    assert run(mind, 120.0) == [Forget(B)]


def test_who_was_heard_just_now_is_not_lost() -> None:
    mind = beliefs(A, B)
    mind.suspect(0.0, B)
    mind.frame_received(2.5, B)
    assert run(mind, 3.9) == []
    assert mind.next_deadline() == 4.0
    assert len(run(mind, 4.0)) == 1
    plain = beliefs(A, B, lifeguard=False)
    plain.suspect(0.0, B)
    plain.frame_received(2.9, B)
    assert len(run(plain, 3.0)) == 1


def test_without_suspicion_a_failed_probe_is_a_loss() -> None:
    mind = beliefs(A, B, suspicion_mult=0.0)
    assert mind.suspect(0.0, B) == [Explain("b is lost: it did not deny the suspicion, says a")]


def test_who_is_lost_to_others_and_was_not_suspect_here_has_time_to_deny_it() -> None:
    mind = beliefs(A, B, C, D, E)
    assert mind.apply_claim(10.0, lost(B)) == [Explain("b is suspect: d had no answer")]
    assert mind.apply_claim(11.0, lost(B)) == []
    assert mind.next_deadline() == 13.0
    assert len(run(mind, 13.0)) == 1
    plain = beliefs(A, B, lifeguard=False)
    plain.apply_claim(10.0, lost(B))
    assert plain.is_lost(B)


def test_what_is_said_of_itself_is_denied_while_that_is_possible() -> None:
    mind = beliefs(A, B)
    assert mind.apply_claim(0.0, suspect(A, 4, accuser="")) == [
        Explain("another peer takes this peer for suspect: denied")
    ]
    assert mind.me == about(A, refutation=5)
    assert mind.news() == (mind.me,)
    assert mind.health.score == 1
    assert mind.apply_claim(0.0, suspect(A, 4)) == []
    assert mind.apply_claim(0.0, about(A, refutation=9)) == []
    assert mind.apply_claim(0.0, lost(A, MOST_REFUTATIONS)) == []
    assert mind.apply_claim(0.0, lost(A, 5)) == [Explain("d takes this peer for lost: denied")]
    assert mind.me == about(A, refutation=6)
    assert mind.roster.get("a") == mind.me
    assert not mind.is_declared_gone


def test_the_end_of_this_process_cannot_be_denied() -> None:
    for end in (about(A, State.DEAD), about(A, State.LEFT), claim(A2)):
        mind = beliefs(A, B)
        assert mind.apply_claim(0.0, end) == []
        assert mind.is_declared_gone
        assert mind.me == claim(A)


def test_who_speaks_of_an_older_process_hears_of_this_one() -> None:
    mind = beliefs(A2, B)
    assert mind.apply_claim(0.0, about(A, State.DEAD)) == []
    assert not mind.is_declared_gone
    assert mind.news() == (claim(A2),)


def test_the_dead_stay_dead_even_when_their_death_is_long_forgotten() -> None:
    mind = beliefs(A, B)
    assert mind.apply_claim(0.0, about(B, State.DEAD)) == []
    assert run(mind, 120.0) == [Forget(B)]
    assert mind.roster.get("b") is None
    for word in (claim(B), suspect(B, 9), lost(B, 9), about(B, State.DEAD), claim(Member("b", 0))):
        assert mind.apply_claim(121.0, word) == []
    assert mind.latest("b") == Claim(B, State.DEAD, NOWHERE)
    assert mind.apply_claim(122.0, claim(B2)) == [Discovered(claim(B2))]


def test_who_was_lost_and_forgotten_is_doubted_until_it_speaks_for_itself() -> None:
    def forgotten() -> Beliefs:
        mind = beliefs(A, B)
        lose(mind, 0.0, B, 3)
        assert run(mind, 120.0) == [Forget(B)]
        assert mind.is_lost(B)
        return mind

    assert forgotten().apply_claim(130.0, about(B, refutation=2)) == []
    assert forgotten().apply_claim(130.0, lost(B, 3)) == []
    assert forgotten().apply_claim(130.0, about(B, refutation=4)) == [Discovered(about(B, refutation=4))]
    assert forgotten().apply_claim(130.0, about(B, State.DEAD)) == []
    doubted = suspect(B, 3, accuser="a")
    assert forgotten().apply_claim(130.0, about(B, refutation=3)) == [
        Discovered(doubted),
        Explain("b is suspect: a had no answer"),
    ]


def test_who_is_doubted_is_asked_but_not_alive() -> None:
    for end in (about(B, refutation=4), about(B, State.DEAD), claim(B2)):
        mind = beliefs(A, B)
        lose(mind, 0.0, B, 3)
        run(mind, 120.0)
        mind.apply_claim(130.0, about(B, refutation=3))
        assert mind.roster.alive() == ()
        assert mind.roster.neighbours() == (B,)
        assert mind.is_lost(B)
        mind.apply_claim(131.0, end)
        assert mind.roster.alive() == (() if end.state is State.DEAD else (end.member,))


def test_of_who_was_never_met_only_the_end_is_remembered_and_nothing_is_unlinked() -> None:
    mind = beliefs(A, B)
    mind.apply_claim(0.0, lost(C))
    mind.apply_claim(0.0, about(D, State.DEAD))
    assert not mind.is_linked(C)
    assert run(mind, 500.0) == []
    mind.apply_claim(500.0, lost(E))
    assert mind.apply_claim(501.0, about(E, refutation=1)) == [
        Discovered(about(E, refutation=1)),
        Explain("e denies that it is lost"),
    ]
    assert mind.is_linked(E)


def test_a_later_incarnation_replaces_the_older_one_whatever_became_of_it() -> None:
    for state in State:
        mind = beliefs(A, B)
        mind.apply_claim(0.0, about(B, state))
        assert mind.apply_claim(1.0, claim(B2)) == [Forget(B), Discovered(claim(B2))]
        assert run(mind, 500.0) == []
        assert mind.apply_claim(501.0, about(B, State.DEAD)) == []


def test_who_is_held_down_is_watched_but_not_alive() -> None:
    mind = beliefs(A, B, C)
    for refutation in range(2):
        lose(mind, 0.0, B, refutation)
        mind.apply_claim(0.0, about(B, refutation=refutation + 1))
    assert mind.is_lost(B)
    assert mind.roster.alive() == (C,)
    assert mind.roster.neighbours() == (B, C)
    assert run(mind, 11.0) == []
    assert not mind.is_lost(B)
    assert mind.roster.alive() == (B, C)


def test_who_is_held_down_is_alive_again_when_its_frames_have_come_without_a_gap() -> None:
    mind = beliefs(A, B, C)
    for refutation in range(2):
        lose(mind, 0.0, B, refutation)
        mind.apply_claim(0.0, about(B, refutation=refutation + 1))
    for tick in range(12):
        mind.frame_received(tick / 4, B)
        assert mind.roster.alive() == (C,)
    mind.frame_received(3.0, B)
    assert not mind.is_lost(B)
    assert mind.roster.alive() == (B, C)


def test_who_was_late_itself_gives_everybody_as_much_longer() -> None:
    mind = beliefs(A, B)
    mind.suspect(0.0, B)
    mind.excuse(5.0, 5.0)
    assert mind.next_deadline() == 8.0


def test_after_a_short_pause_suspicions_start_afresh_and_silence_means_nothing() -> None:
    mind = beliefs(A, B, C)
    mind.suspect(0.0, B)
    mind.frame_received(0.0, C)
    mind.resume(50.0, is_long=False)
    assert mind.next_deadline() == 53.0
    assert mind.silence_s(51.0, C) == 1.0
    assert mind.roster.alive() == (B, C)


def test_after_a_long_pause_only_the_dead_are_known_and_the_linked_are_asked() -> None:
    mind = beliefs(A, B, C, D)
    mind.apply_claim(0.0, about(B, State.DEAD))
    mind.apply_claim(0.0, suspect(C))
    mind.apply_claim(0.0, lost(E))
    mind.resume(100.0, is_long=True)
    assert list(mind.unconfirmed) == [C, D]
    assert mind.roster.others() == (about(B, State.DEAD),)
    assert mind.news() == (claim(A),)
    assert mind.apply_claim(101.0, claim(C)) == []
    assert list(mind.unconfirmed) == [D]
    assert mind.roster.alive() == (C,)
    assert run(mind, 500.0) == [Forget(B), Forget(D)]


def test_even_after_a_long_pause_no_older_incarnation_is_believed() -> None:
    mind = beliefs(A, B2)
    mind.resume(100.0, is_long=True)
    assert mind.apply_claim(101.0, claim(B)) == []
    assert mind.apply_claim(101.0, lost(B2)) != []


def test_an_orphan_that_restarted_or_died_is_unlinked() -> None:
    mind = beliefs(A, B, C)
    mind.resume(100.0, is_long=True)
    assert mind.apply_claim(101.0, claim(B2)) == [Forget(B), Discovered(claim(B2))]
    assert mind.apply_claim(101.0, about(C, State.DEAD)) == []
    assert run(mind, 500.0) == [Forget(C)]


def test_news_of_who_was_forgotten_meanwhile_is_none() -> None:
    mind = beliefs(A, B)
    mind.apply_claim(0.0, about(B, State.DEAD))
    run(mind, 120.0)
    assert mind.news() == ()

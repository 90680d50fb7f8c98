from dataclasses import replace

from gossip import Member, State
from gossip.roster import MOST_TOMBSTONES, Roster
from gossip.view import NOWHERE

from .members import A2, A, B, C, D, claim


def roster(*held: str) -> Roster:
    return Roster(claim(A), (claim(B), claim(C)), held.__contains__)


def test_it_knows_who_is_alive_who_is_watched_and_who_is_lost() -> None:
    known = roster("c")
    known.put(claim(D, State.LOST))
    assert known.neighbours() == (B, C)
    assert known.alive() == (B,)
    assert known.lost() == (D,)
    assert known.others() == (claim(B), claim(C), claim(D, State.LOST))
    assert len(known) == 4


def test_its_lists_are_made_anew_only_when_somebody_comes_or_goes() -> None:
    known = roster()
    alive = known.alive()
    known.put(claim(B, State.SUSPECT))
    assert known.alive() is alive
    known.put(claim(B, State.LOST))
    assert known.alive() == (C,)
    known.regroup()
    assert known.lost() == (B,)


def test_a_neighbour_is_one_process_not_a_name() -> None:
    known = roster()
    assert known.is_neighbour(B)
    assert not known.is_neighbour(Member("b", 2))
    assert not known.is_neighbour(D)
    known.put(claim(B, State.DEAD))
    assert not known.is_neighbour(B)


def test_who_is_forgotten_has_a_tombstone_until_it_is_known_again() -> None:
    known = roster()
    known.put(replace(claim(B, State.LOST), refutation=3, accuser="c"))
    known.forget("b")
    assert known.get("b") is None
    assert known.tombstone("b") == replace(claim(B, State.LOST), contact=NOWHERE, refutation=3)
    known.put(claim(B))
    assert known.tombstone("b") is None


def test_tombstones_are_bounded() -> None:
    known = roster()
    for number in range(MOST_TOMBSTONES + 1):
        known.put(claim(Member(f"x{number}", 1), State.DEAD))
        known.forget(f"x{number}")
    assert known.tombstone("x0") is None
    assert known.tombstone("x1") is not None
    assert len(known) == 3


def test_only_the_dead_are_known_without_doubt() -> None:
    known = roster()
    known.put(claim(D, State.DEAD))
    assert known.drop_living() == (B, C)
    assert known.others() == (claim(D, State.DEAD),)
    assert known.get("a") == claim(A)


def test_equal_rosters_have_equal_digests_and_buckets_hold_all_claims() -> None:
    known, other = roster(), Roster(claim(C), (claim(B), claim(A)), lambda name: False)
    assert known.digests() == other.digests()
    other.put(claim(A2))
    assert known.digests() != other.digests()
    assert sorted(c.member for number in range(64) for c in known.bucket(number)) == [A, B, C]

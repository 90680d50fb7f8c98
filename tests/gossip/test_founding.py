"""Founding: which peer founds a swarm if all have the same seeds, and when. G15 of PROTOCOL.md."""

import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member
from gossip.founding import MOST_SOURCES, Founding, KnownLineages

from .members import A, B, C, D

SEEDS = ("one", "two", "three")
LINEAGE = b"\x01\x02"
ALL = {B: "two", C: "three"}
NOBODY: Mapping[Member, str] = {}
LONG_AGO = -100.0
EXISTS = False, "the swarm exists: lineage 0102"
FOUNDS = True, "no peer knows a swarm"


def founding(own: str = "one", seeds: tuple[str, ...] = SEEDS, size: int = 1) -> Founding:
    return Founding(seeds, own, size, begun=0.0, patience_s=10.0, greeting_s=3.0)


def told(own: str, have_none: Iterable[Member], size: int = 1) -> Founding:
    new = founding(own, size=size)
    for member in have_none:
        new.has_none(member)
    return new


def test_the_first_seed_founds_when_every_other_knows_no_swarm() -> None:
    new = told("one", [B])
    assert new.decide(0.0, ALL, b"", LONG_AGO) == (False, "waiting 10 s more for three to say whether a swarm exists")
    new.has_none(C)
    assert new.decide(0.0, ALL, b"", LONG_AGO) == FOUNDS


def test_a_seed_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    new = founding()
    for_both = False, "waiting 6 s more for two, three to say whether a swarm exists"
    assert new.decide(4.0, NOBODY, b"", LONG_AGO) == for_both
    new.has_none(C)
    for_one = False, "waiting 0 s more for two to say whether a swarm exists"
    assert new.decide(9.9, {C: "three"}, b"", LONG_AGO) == for_one
    assert new.decide(10.0, {C: "three"}, b"", LONG_AGO) == (True, f"{FOUNDS[1]}; two did not answer")


def test_who_was_met_and_is_no_seed_is_waited_for_as_long_as_it_lives() -> None:
    new = founding(seeds=("one",))
    assert new.decide(5.0, {D: "elsewhere"}, b"", 0.0)[1].startswith("waiting 10 s more for elsewhere")
    assert new.decide(14.0, {D: "elsewhere"}, b"", 0.0)[1].startswith("waiting 1 s more for elsewhere")
    assert new.decide(15.0, {D: "elsewhere"}, b"", 0.0) == (True, f"{FOUNDS[1]}; elsewhere did not answer")
    assert new.decide(14.0, NOBODY, b"", 0.0) == FOUNDS


def test_nobody_founds_before_members_that_live_have_had_the_time_to_call() -> None:
    new = founding(seeds=("one",))
    waits = False, "waiting 0.5 s more, in case members of an existing swarm call"
    assert (new.decide(2.5, NOBODY, b"", 2.0)[0], new.due) == (False, 3.0), "there may be others to wait with by then"
    assert (new.decide(4.5, NOBODY, b"", 2.0), new.due) == (waits, 5.0)
    assert new.decide(5.0, NOBODY, b"", 2.0) == FOUNDS
    assert (new.decide(5.0, NOBODY, LINEAGE, 2.0), new.due) == (EXISTS, math.inf)


@pytest.mark.parametrize(("size", "is_shorter"), [(1, False), (3, True), (4, False)])
def test_where_all_for_whom_the_first_step_waits_wait_it_takes_a_third_of_that(size: int, is_shorter: bool) -> None:
    new = told("one", [B, C], size)
    assert new.decide(0.99, ALL, b"", 0.0)[0] is False
    assert new.decide(1.0, ALL, b"", 0.0)[0] is is_shorter
    assert new.decide(3.0, ALL, b"", 0.0) == FOUNDS


def test_the_dead_do_not_count_as_waiting() -> None:
    new = founding(seeds=("one",), size=3)
    for member in (B, C):
        new.has_none(member)
    assert new.decide(1.0, {B: "two"}, b"", 0.0)[0] is False


OF_THE_RUN: Mapping[str, str] = {"host b": "two", "host c": "three"}
WAITS = "this peer takes the place of a member of a run with others at {}, and no peer there answers: "


def replacement(*have_none: Member) -> Founding:
    """A replacement in a run with members on the hosts of B and C."""
    new = founding(seeds=("one", "two"))
    new.elsewhere = OF_THE_RUN
    for member in have_none:
        new.has_none(member)
    return new


def test_who_replaces_a_member_of_a_run_does_not_take_the_silence_of_its_hosts_for_none() -> None:
    new = replacement()
    assert new.decide(9.0, NOBODY, b"", LONG_AGO)[1].startswith("waiting 1 s more for two to say")
    founds, reason = new.decide(1e9, NOBODY, b"", LONG_AGO)
    assert not founds and reason.startswith(WAITS.format("two, three"))
    new.has_none(B)
    founds, reason = new.decide(1e9, {B: "two"}, b"", LONG_AGO)
    assert not founds and reason.startswith(WAITS.format("three"))


def test_of_many_hosts_a_few_are_named() -> None:
    new = founding(seeds=("one",))
    new.elsewhere = {f"host {number}": f"at {number}" for number in range(10)}
    assert "at 6, at 7 and 2 more, and no peer there answers" in new.decide(1e9, NOBODY, b"", LONG_AGO)[1]


def test_where_each_host_of_the_run_knows_none_who_replaces_a_member_founds() -> None:
    assert replacement(B, C).decide(1.0, ALL, b"", LONG_AGO) == FOUNDS


def test_a_host_is_known_by_its_kernel_where_its_peer_has_another_address() -> None:
    at, hosts = {B: "two", C: "another port"}, {B: "host b", C: "host c"}
    assert replacement(B, C).decide(1.0, at, b"", LONG_AGO, hosts) == FOUNDS
    assert not replacement(B, C).decide(1.0, at, b"", LONG_AGO, {B: "host b", C: "host d"})[0]


def test_who_replaces_a_member_does_not_take_the_silence_of_anybody_who_lives_for_none_either() -> None:
    founds, reason = replacement(B, C).decide(1e9, {**ALL, D: "elsewhere"}, b"", LONG_AGO)
    assert not founds and reason.startswith("waiting 10 s more for elsewhere")
    late = replacement(B, C)
    late.decide(0.0, {**ALL, D: "elsewhere"}, b"", LONG_AGO)
    founds, reason = late.decide(1e9, {**ALL, D: "elsewhere"}, b"", LONG_AGO)
    assert not founds and reason.startswith(WAITS.format("elsewhere"))


@pytest.mark.parametrize("own", ["two", "three", "no seed"])
def test_all_others_wait_for_ever(own: str) -> None:
    new = told(own, [A, B, C])
    assert new.decide(1e9, ALL, b"", LONG_AGO) == (False, "waiting for a seat; seed one founds")


@pytest.mark.parametrize("own", ["one", "two"])
def test_where_a_swarm_exists_nobody_founds(own: str) -> None:
    assert told(own, [B, C]).decide(1e9, ALL, LINEAGE, LONG_AGO) == EXISTS


@pytest.mark.parametrize("seeds", [(), ("one", "two", "one")])
def test_seeds_are_distinct_and_there_is_one(seeds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="seeds must be distinct addresses, at least one, are") as raised:
        founding(seeds=seeds)
    assert str(list(seeds)) in str(raised.value)


def test_a_lineage_is_known_until_all_who_have_it_are_gone_and_then_it_was_heard_of_until_lately() -> None:
    known, gone = KnownLineages(1.0), set[Member]()
    assert known.find(lambda member, heard_at: member in gone) == b""
    known.hear(2.0, B, LINEAGE)
    known.hear(4.0, C, b"another")
    known.hear(5.0, B, LINEAGE)
    assert known.find(lambda member, heard_at: member in gone) == b"another"
    gone.add(C)
    assert (known.find(lambda member, heard_at: member in gone), known.listening_since) == (LINEAGE, 4.0)
    assert (known.find(lambda member, heard_at: heard_at < 6.0), known.listening_since) == (b"", 5.0)


def test_of_many_who_have_a_lineage_the_last_are_remembered() -> None:
    known = KnownLineages(0.0)
    for number in range(MOST_SOURCES + 3):
        known.hear(0.0, Member("b", number), bytes([number]))
    assert len(known._sources) == MOST_SOURCES and known.find(lambda member, heard_at: False) == bytes([3])


names = st.sampled_from(["one", "two", "three", "four", "no seed"])
MEMBERS = {name: Member(name, 1) for name in ("one", "two", "three", "four", "no seed")}


@given(
    st.lists(names, min_size=1, unique=True).map(tuple),
    st.lists(st.tuples(names, names)),
    st.lists(names, unique=True),
    st.floats(0.0, 20.0),
)
def test_two_peers_with_the_same_seeds_never_both_found(
    seeds: tuple[str, ...], told: list[tuple[str, str]], met: list[str], now: float
) -> None:
    peers = {own: founding(own, seeds) for own in MEMBERS}
    for own, other in told:
        peers[own].has_none(MEMBERS[other])
    alive = {own: {MEMBERS[name]: name for name in met if name != own} for own in peers}
    founders = [own for own, peer in peers.items() if peer.decide(now, alive[own], b"", 0.0)[0]]
    assert founders in ([], [seeds[0]])
    if founders:
        answered = {other for own, other in told if own == seeds[0]}
        assert now >= 3.0
        assert now >= 10.0 or {*seeds[1:], *met} - {seeds[0]} <= answered

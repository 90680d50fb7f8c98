"""Who founds a swarm whose peers are all given the same seeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.founding import Founding

SEEDS = ("one", "two", "three")
LINEAGE = b"\x01\x02"


def founding(own: str = "one", seeds: tuple[str, ...] = SEEDS) -> Founding:
    return Founding(seeds, own, deadline=10.0)


def test_the_first_seed_founds_when_every_other_knows_no_swarm() -> None:
    new = founding()
    new.answered("two", b"")
    assert new.decide(0.0) == (False, "waiting 10 s more for three to say whether a swarm exists")
    new.answered("three", b"")
    assert new.decide(0.0) == (True, "no other seed knows a swarm")


def test_a_seed_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    new = founding()
    assert new.decide(4.0) == (False, "waiting 6 s more for two, three to say whether a swarm exists")
    new.answered("three", b"")
    assert new.decide(9.9) == (False, "waiting 0 s more for two to say whether a swarm exists")
    assert new.decide(10.0) == (True, "no other seed knows a swarm; two did not answer")


def test_who_is_the_only_seed_founds_at_once() -> None:
    assert founding(seeds=("one",)).decide(0.0) == (True, "no other seed knows a swarm")


@pytest.mark.parametrize("own", ["two", "three", "no seed"])
def test_all_others_wait_for_ever(own: str) -> None:
    new = founding(own)
    for seed in SEEDS:
        new.answered(seed, b"")
    assert new.decide(1e9) == (False, "waiting for a seat; seed one founds")


@pytest.mark.parametrize("own", ["one", "two"])
def test_where_a_swarm_exists_nobody_founds(own: str) -> None:
    new = founding(own)
    new.answered("three", LINEAGE)
    new.answered("three", b"")
    new.answered("two", b"another")
    assert new.decide(1e9) == (False, "the swarm exists: lineage 0102")


def test_who_is_no_seed_has_no_say() -> None:
    new = founding()
    new.answered("somebody", LINEAGE)
    assert new.decide(10.0) == (True, "no other seed knows a swarm; two, three did not answer")


@pytest.mark.parametrize("seeds", [(), ("one", "two", "one")])
def test_seeds_are_distinct_and_there_is_one(seeds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="seeds must be distinct addresses, at least one, are") as raised:
        founding(seeds=seeds)
    assert str(list(seeds)) in str(raised.value)


names = st.sampled_from(["one", "two", "three", "four", "no seed"])


@given(
    st.lists(names, min_size=1, unique=True).map(tuple),
    st.lists(st.tuples(names, names, st.sampled_from([b"", LINEAGE]))),
    st.floats(0.0, 20.0),
)
def test_two_peers_with_the_same_seeds_never_both_found(
    seeds: tuple[str, ...], told: list[tuple[str, str, bytes]], now: float
) -> None:
    peers = {own: founding(own, seeds) for own in ("one", "two", "three", "four", "no seed")}
    for own, seed, lineage in told:
        peers[own].answered(seed, lineage)
    founders = [own for own, peer in peers.items() if peer.decide(now)[0]]
    assert founders in ([], [seeds[0]])
    if founders:
        answers = {seed: lineage for own, seed, lineage in told if own == seeds[0] and seed in seeds}
        assert not any(answers.values())
        assert now >= 10.0 or {*seeds[1:]} <= {*answers}

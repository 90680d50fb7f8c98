from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from gossip import Claim, Member, State, overrides
from gossip.claim import Status, order
from gossip.view import NOWHERE

from .members import A2, A, claim

claims = st.builds(
    Claim,
    member=st.builds(Member, st.just("a"), st.integers(1, 2)),
    state=st.sampled_from(State),
    contact=st.just(NOWHERE),
    refutation=st.integers(0, 2),
    status=st.builds(Status, version=st.integers(0, 1)),
    accuser=st.sampled_from(["", "b"]),
)


def merge(old: Claim, new: Claim) -> Claim:
    return new if overrides(new, old) else old


@given(claims, claims)
def test_arrival_order_does_not_decide_what_stands(one: Claim, other: Claim) -> None:
    assert order(merge(one, other)) == order(merge(other, one))


@given(claims, claims, claims)
def test_it_does_not_matter_who_merged_first(one: Claim, two: Claim, three: Claim) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(st.lists(claims, min_size=1))
def test_what_was_heard_again_changes_nothing(heard: list[Claim]) -> None:
    assert reduce(merge, heard + heard) == reduce(merge, heard)


@given(claims, claims, claims)
def test_one_order_holds_between_all_claims_about_a_peer(one: Claim, two: Claim, three: Claim) -> None:
    assert overrides(one, two) + overrides(two, one) + (order(one) == order(two)) == 1
    assert not (overrides(one, two) and overrides(two, three)) or overrides(one, three)


@given(claims)
def test_only_death_itself_replaces_death(other: Claim) -> None:
    dead = claim(other.member, State.DEAD)
    assert merge(dead, other).state is State.DEAD
    assert merge(other, dead).state is State.DEAD


@given(claims, claims)
def test_a_greater_refutation_denies_all_but_the_end(one: Claim, other: Claim) -> None:
    if one.member == other.member and one.refutation > other.refutation and other.state < State.LEFT:
        assert overrides(one, other)


@given(st.sampled_from(State), st.sampled_from(State))
def test_a_restarted_process_overrides_all_that_was_said_of_the_older_one(new: State, old: State) -> None:
    assert overrides(claim(A2, new), claim(A, old))
    assert not overrides(claim(A, old), claim(A2, new))

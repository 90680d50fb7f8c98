from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from gossip import Claim, Member, State, overrides

from .members import A2, A, claim

claims = st.builds(claim, st.builds(Member, st.just("a"), st.integers(1, 3)), st.sampled_from(State))


def merge(old: Claim, new: Claim) -> Claim:
    return new if overrides(new, old) else old


@given(claims, claims)
def test_arrival_order_does_not_decide_what_stands(one: Claim, other: Claim) -> None:
    assert merge(one, other) == merge(other, one)


@given(claims, claims, claims)
def test_it_does_not_matter_who_merged_first(one: Claim, two: Claim, three: Claim) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(st.lists(claims, min_size=1))
def test_what_was_heard_again_changes_nothing(heard: list[Claim]) -> None:
    assert reduce(merge, heard + heard) == reduce(merge, heard)


@given(claims)
def test_death_is_final_for_its_incarnation(other: Claim) -> None:
    dead = claim(other.member, State.DEAD)
    assert merge(dead, other) == dead


@given(st.sampled_from(State), st.sampled_from(State))
def test_a_restarted_process_overrides_all_that_was_said_of_the_older_one(new: State, old: State) -> None:
    assert overrides(claim(A2, new), claim(A, old))
    assert not overrides(claim(A, old), claim(A2, new))

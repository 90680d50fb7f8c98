from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import NO_VIEW, Decision, Member, Seat, View, is_quorum, propose_view
from gossip.view import founding_view

from .members import A2, LINEAGE, A, B, C, D, view_of

names = st.sampled_from("abcdef")
members = st.builds(Member, names, st.integers(1, 3))


@st.composite
def views(draw: st.DrawFn) -> View:
    number = draw(st.integers(1, 9))
    seated = draw(st.lists(members, min_size=1, max_size=6, unique_by=lambda member: member.peer_id))
    seats = tuple(Seat(member, draw(st.integers(1, number))) for member in seated)
    return View(LINEAGE, number, draw(st.integers(1, 4)), seats, draw(st.binary(max_size=16)))


def subsets(view: View) -> list[set[Member]]:
    sizes = range(len(view.members) + 1)
    return [set(chosen) for chosen in chain.from_iterable(combinations(view.members, size) for size in sizes)]


@given(views())
def test_any_two_quorums_share_a_member(view: View) -> None:
    quorums = [chosen for chosen in subsets(view) if is_quorum(chosen, view)]
    assert all(one & other for one, other in combinations(quorums, 2))


@given(views())
def test_of_two_halves_one_is_a_quorum(view: View) -> None:
    for chosen in subsets(view):
        assert is_quorum(chosen, view) != is_quorum(set(view.members) - chosen, view)


def test_r12_half_is_a_quorum_only_with_rank_0_and_strangers_do_not_count() -> None:
    view = view_of(3, A, B, C, D)
    assert is_quorum([A, C], view)
    assert not is_quorum([B, C], view)
    assert not is_quorum([B, C, A2], view)
    assert is_quorum([B, C, D], view)


@given(views(), st.sets(members), st.sets(members), st.lists(members))
def test_who_stays_keeps_the_order_and_one_joiner_at_most_follows(
    view: View, dead: set[Member], leaving: set[Member], joiners: list[Member]
) -> None:
    decision = propose_view(view, dead=dead, leaving=leaving, joiners=joiners)
    assert decision.reason
    if (new := decision.successor) is None:
        return
    assert (new.lineage, new.number, new.parent) == (view.lineage, view.number + 1, view.hash)
    joined = [member for member in new.members if member not in view.members]
    assert len(joined) <= 1
    assert new.seats[len(new.seats) - len(joined) :] == tuple(Seat(member, new.number) for member in joined)
    kept = new.seats[: len(new.seats) - len(joined)]
    assert kept == tuple(seat for seat in view.seats if seat in kept)
    replaced = {member for member in view.members for joiner in joined if joiner.peer_id == member.peer_id}
    assert all(joiner.incarnation > member.incarnation for joiner in joined for member in replaced)
    assert {seat.member for seat in kept} == set(view.members) - dead - leaving - replaced
    assert is_quorum(set(view.members) - dead, view)


@given(views(), st.data())
def test_the_hash_covers_every_field(view: View, data: st.DataObject) -> None:
    first, *others = view.seats
    changes: list[dict[str, Any]] = [
        {"lineage": b"another"},
        {"number": view.number + 1},
        {"founding_size": view.founding_size + 1},
        {"parent": view.parent + b"x"},
        {"seats": (replace(first, member=replace(first.member, peer_id="another")), *others)},
        {"seats": (replace(first, member=replace(first.member, incarnation=9)), *others)},
        {"seats": (*view.seats, Seat(Member("another", 1), 1))},
    ]
    changes += [{"seats": (*others, first)}] if others else []
    changes += [{"seats": (replace(first, since=first.since - 1), *others)}] if first.since > 1 else []
    other = replace(view, **data.draw(st.sampled_from(changes)))
    assert other.hash != view.hash
    assert other.stamp != view.stamp
    assert replace(view).stamp == view.stamp


def test_nothing_to_change_is_no_decision() -> None:
    assert propose_view(view_of(2, A, B), dead=[], leaving=[], joiners=[]) == Decision(
        None, "2 of 2 members of view 2 are alive"
    )


def test_a_view_says_why() -> None:
    view = view_of(2, A, B, C)
    decision = propose_view(view, dead=[B], leaving=[C], joiners=[D], restart="step 3 is aborted")
    assert decision == Decision(
        View(LINEAGE, 3, 1, (Seat(A, 1), Seat(D, 3)), view.hash),
        "2 of 3 members of view 2 are alive; without b, c; with d; step 3 is aborted",
    )


def test_a_restart_keeps_the_same_members() -> None:
    view = view_of(2, A, B)
    decision = propose_view(view, dead=[], leaving=[], joiners=[], restart="again")
    assert decision.successor == View(LINEAGE, 3, 1, view.seats, view.hash)


def test_too_few_alive_decide_nothing() -> None:
    decision = propose_view(view_of(2, A, B, C, D), dead=[A, B], leaving=[], joiners=[])
    assert decision == Decision(None, "2 of 4 members of view 2 are alive, no majority", quorum_lost=True)


def test_a_view_that_all_leave_has_no_successor() -> None:
    decision = propose_view(view_of(2, A, B), dead=[], leaving=[A, B], joiners=[C])
    assert decision == Decision(None, "2 of 2 members of view 2 are alive, and all of them leave")


def test_r8_a_greater_incarnation_excludes_the_older_member_and_a_smaller_one_is_ignored() -> None:
    old, new = view_of(2, A, B), view_of(2, A2, B)
    decision = propose_view(old, dead=[], leaving=[], joiners=[A2])
    assert decision.successor == View(LINEAGE, 3, 1, (Seat(B, 1), Seat(A2, 3)), old.hash)
    assert propose_view(new, dead=[], leaving=[], joiners=[A]).successor is None
    assert propose_view(old, dead=[], leaving=[], joiners=[A]).successor is None


def test_the_first_who_asks_and_lives_is_admitted() -> None:
    decision = propose_view(view_of(2, A), dead=[B], leaving=[], joiners=[B, C, D])
    assert decision.successor is not None
    assert decision.successor.members == (A, C)


def test_a_founder_begins_alone() -> None:
    view = founding_view(A, LINEAGE, 4)
    assert view == View(LINEAGE, 1, 4, (Seat(A, 1),), b"")
    assert view.since(A) == 1
    assert view.since(A2) is None
    assert view.stamp != NO_VIEW


@pytest.mark.parametrize(
    ("number", "seats", "message"),
    [
        (0, (Seat(A, 1),), r"view 0 needs a number >= 1 and distinct members, has \['a'\]"),
        (1, (), r"view 1 needs a number >= 1 and distinct members, has \[\]"),
        (2, (Seat(A, 1), Seat(A2, 2)), r"view 2 needs .* distinct members, has \['a', 'a'\]"),
        (2, (Seat(A, 3),), "view 2 has a seat that is younger than the view"),
        (2, (Seat(A, 0),), "view 2 has a seat that is younger than the view"),
    ],
)
def test_a_view_that_cannot_be_is_refused(number: int, seats: tuple[Seat, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View(LINEAGE, number, 1, seats, b"")

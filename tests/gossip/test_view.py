"""Views: quorums, joiners and removals. R8, R12 and R13 of PROTOCOL.md."""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import NO_VIEW, Decision, Member, Policy, Seat, View, is_quorum, propose_view
from gossip.messages import Join
from gossip.view import LAST_VIEW, NO_NUMERICS, NOWHERE, Change, Joiner, can_decide, founding_view

from .cores import SAME
from .members import A2, LINEAGE, A, B, C, D, E, contact_of, view_of

B2, C2 = Member("b", 2), Member("c", 2)

names = st.sampled_from("abcdef")
members = st.builds(Member, names, st.integers(1, 3))
numerics = st.sampled_from((NO_NUMERICS, b"class 16"))
joiners = st.lists(members, unique=True).map(lambda asking: joining(*asking))


@st.composite
def views(draw: st.DrawFn, policy: Policy | None = None) -> View:
    number = draw(st.integers(1, 9))
    seated = draw(st.lists(members, min_size=1, max_size=6, unique_by=lambda member: member.peer_id))
    seats = tuple(Seat(m, draw(st.integers(1, number)), numerics=draw(numerics)) for m in seated)
    chosen = draw(st.sampled_from(Policy)) if policy is None else policy
    return View(LINEAGE, number, draw(st.integers(1, 4)), seats, draw(st.binary(max_size=16)), chosen)


@st.composite
def changes(draw: st.DrawFn, view: View) -> Change:
    gone = draw(st.sets(st.sampled_from(view.members)))
    proven = draw(st.sets(st.sampled_from(sorted(gone)))) if gone else set()
    return Change(
        gone=gone,
        proven=proven,
        witnessed=draw(st.sets(st.sampled_from(sorted(proven)))) if proven else set(),
        leaving=draw(st.sets(st.sampled_from(view.members))),
        joiners=draw(joiners),
        redo_reason=draw(st.sampled_from(["", "again"])),
    )


def subsets(members: Collection[Member]) -> list[set[Member]]:
    sizes = range(len(members) + 1)
    return [set(chosen) for chosen in chain.from_iterable(combinations(members, size) for size in sizes)]


def joining(*asking: Member) -> dict[Member, Joiner]:
    return {member: Joiner(contact_of(member)) for member in asking}


def joined(new: View, old: View) -> list[Member]:
    return [member for member in new.members if member not in old.members]


# Quorums


@given(views(Policy.MAJORITY), st.sets(members))
def test_any_two_that_can_decide_by_majority_share_a_member(view: View, witnessed: set[Member]) -> None:
    deciding = [chosen for chosen in subsets(view.members) if can_decide(chosen, witnessed, view)]
    assert all(one & other for one, other in combinations(deciding, 2))
    assert deciding == [chosen for chosen in subsets(view.members) if is_quorum(chosen, view)]


@given(views())
def test_of_two_halves_one_is_a_quorum(view: View) -> None:
    for chosen in subsets(view.members):
        assert is_quorum(chosen, view) != is_quorum(set(view.members) - chosen, view)


@given(views(Policy.LIVE), st.data())
def test_r13_of_two_that_can_decide_live_one_hears_the_other_or_reads_its_records(
    view: View, data: st.DataObject
) -> None:
    some = st.sets(st.sampled_from(view.members))
    living, witnessed, others, read = data.draw(some), data.draw(some), data.draw(some), data.draw(some)
    if can_decide(living, witnessed, view) and can_decide(others, read, view):
        assert living & (others | read) or others & (living | witnessed)


def test_r12_half_is_a_quorum_only_with_rank_0_and_strangers_do_not_count() -> None:
    view = view_of(3, A, B, C, D)
    assert is_quorum([A, C], view)
    assert not is_quorum([B, C], view)
    assert not is_quorum([B, C, A2], view)
    assert is_quorum([B, C, D], view)


def test_r13_a_live_minority_decides_if_the_record_of_every_other_was_read() -> None:
    view = view_of(3, A, B, C, policy=Policy.LIVE)
    assert can_decide([C], [A, B], view)
    assert not can_decide([C], [A], view)
    assert not can_decide([], [A, B, C], view)
    assert can_decide([A, B], [], view)


def test_r13_records_mean_nothing_under_majority() -> None:
    assert not can_decide([C], [A, B], view_of(3, A, B, C))


# Successors


def test_nothing_to_change_is_no_decision() -> None:
    assert propose_view(view_of(2, A, B), Change()) == Decision(None, "2 of 2 members of view 2 are here")


def test_a_decision_names_who_goes_who_comes_and_why_it_starts_over() -> None:
    view = view_of(2, A, B, C)
    change = Change(gone=[B], leaving=[C], joiners=joining(D), redo_reason="step 3 is aborted by a")
    assert propose_view(view, change) == Decision(
        View(LINEAGE, 3, 1, (Seat(A, 1), Seat(D, 3, contact_of(D))), view.hash),
        "2 of 3 members of view 2 are here; without b, c; with d; step 3 is aborted by a",
    )


@given(views(), st.data())
def test_every_reason_is_a_sentence_that_names_those_who_go_and_come(view: View, data: st.DataObject) -> None:
    change = data.draw(changes(view))
    decision = propose_view(view, change)
    here = sum(member not in change.gone for member in view.members)
    assert decision.reason.startswith(f"{here} of {len(view.members)} members of view {view.number} are here")
    if (new := decision.successor) is None:
        return
    parts = decision.reason.split("; ")[1:]
    lost = [member.peer_id for member in view.members if member not in new.members]
    expected = [f"without {', '.join(lost)}"] if lost else []
    expected += [f"with {', '.join(map(str, joined(new, view)))}"] if joined(new, view) else []
    assert parts == expected + ([change.redo_reason] if change.redo_reason else [])


@given(views(), st.data())
def test_survivors_keep_their_seats_and_order_and_joiners_follow(view: View, data: st.DataObject) -> None:
    change = data.draw(changes(view))
    if (new := propose_view(view, change).successor) is None:
        return
    assert (new.lineage, new.number, new.parent) == (view.lineage, view.number + 1, view.hash)
    assert (new.policy, new.founder, new.founding_size) == (view.policy, view.founder, view.founding_size)
    come = joined(new, view)
    kept = new.seats[: len(new.seats) - len(come)]
    assert kept == tuple(seat for seat in view.seats if seat in kept)
    assert new.seats[len(kept) :] == tuple(Seat(member, new.number, contact_of(member)) for member in come)
    assert {seat.member for seat in kept} == {*view.members} - {*change.gone} - {*change.leaving}


@given(views(), st.data())
def test_g2_survivors_alone_are_a_quorum_of_the_successor(view: View, data: st.DataObject) -> None:
    decision = propose_view(view, data.draw(changes(view)))
    if (new := decision.successor) is not None:
        assert is_quorum([member for member in new.members if member in view.members], new)


@given(views(), st.data())
def test_r12_only_who_may_decide_gets_a_successor(view: View, data: st.DataObject) -> None:
    change = data.draw(changes(view))
    decision = propose_view(view, change)
    living = [member for member in view.members if member not in change.gone]
    if decision.successor is not None:
        assert can_decide(living, change.witnessed, view)
    assert not decision.quorum_lost or not can_decide(living, change.witnessed, view)
    assert not decision.is_final or (decision.quorum_lost and decision.successor is None)


@given(views(), st.data())
def test_r8_nobody_gets_a_seat_while_another_incarnation_of_it_has_one(view: View, data: st.DataObject) -> None:
    new = propose_view(view, data.draw(changes(view))).successor
    if new is not None:
        assert not {member.peer_id for member in joined(new, view)} & {member.peer_id for member in view.members}


def test_a_restart_keeps_the_same_members() -> None:
    view = view_of(2, A, B)
    decision = propose_view(view, Change(redo_reason="step 1 is withdrawn by b"))
    assert decision.successor == View(LINEAGE, 3, 1, view.seats, view.hash)
    assert decision.reason == "2 of 2 members of view 2 are here; step 1 is withdrawn by b"


def test_a_view_that_all_leave_has_no_successor() -> None:
    decision = propose_view(view_of(2, A, B), Change(leaving=[A, B], joiners=joining(C)))
    assert decision == Decision(None, "2 of 2 members of view 2 are here, and none of them stays")


def test_who_leaves_still_votes() -> None:
    decision = propose_view(view_of(2, A, B, C), Change(gone=[A], leaving=[B]))
    assert decision.successor is not None
    assert decision.successor.members == (C,)


# Lost quorums


@pytest.mark.parametrize(
    ("proven", "is_final"), [([], False), ([C], False), ([B, C], True)], ids=["all silent", "one dead", "both dead"]
)
def test_a_lost_majority_is_final_only_if_too_many_are_proven_dead(proven: list[Member], is_final: bool) -> None:
    decision = propose_view(view_of(2, A, B, C), Change(gone=[B, C], proven=proven))
    reason = "1 of 3 members of view 2 are here, no majority"
    assert decision == Decision(None, reason, quorum_lost=True, is_final=is_final)


def test_half_without_rank_0_waits_for_it_while_it_may_return() -> None:
    view = view_of(2, A, B)
    assert propose_view(view, Change(gone=[A])).is_final is False
    assert propose_view(view, Change(gone=[A], proven=[A])).is_final is True
    assert propose_view(view, Change(gone=[B], proven=[B])).successor is not None


def test_r13_live_goes_on_alone_when_the_records_of_the_dead_were_read() -> None:
    view = view_of(2, A, B, C, policy=Policy.LIVE)
    decision = propose_view(view, Change(gone=[A, B], proven=[A, B], witnessed=[A, B]))
    assert decision == Decision(
        View(LINEAGE, 3, 1, (Seat(C, 1),), view.hash, Policy.LIVE), "1 of 3 members of view 2 are here; without a, b"
    )


@pytest.mark.parametrize(
    ("proven", "witnessed", "why", "is_final"),
    [
        ([], [], "no proof that a, b died, and is not stopped or cut off", False),
        ([A], [A], "no proof that b died, and is not stopped or cut off", False),
        ([A, B], [A], "what b had agreed to before it died cannot be read", True),
        (
            [A],
            [],
            "no proof that b died, and is not stopped or cut off, "
            "and what a had agreed to before it died cannot be read",
            False,
        ),
    ],
    ids=["silent, may return", "one silent", "dead without a record", "both"],
)
def test_r13_live_pauses_and_names_whose_record_is_missing(
    proven: list[Member], witnessed: list[Member], why: str, is_final: bool
) -> None:
    view = view_of(2, A, B, C, policy=Policy.LIVE)
    decision = propose_view(view, Change(gone=[A, B], proven=proven, witnessed=witnessed))
    reason = f"1 of 3 members of view 2 are here, no majority, and {why}"
    assert decision == Decision(None, reason, quorum_lost=True, is_final=is_final)


# Joiners


def test_g2_joiners_come_in_the_order_of_asking_at_most_as_many_as_survivors() -> None:
    decision = propose_view(view_of(2, A, B), Change(gone=[], joiners=joining(E, C, D)))
    assert decision.successor is not None
    assert decision.successor.members == (A, B, E, C)
    assert decision.reason == "2 of 2 members of view 2 are here; with e, c"


def test_who_is_gone_and_who_leaves_makes_no_room() -> None:
    decision = propose_view(view_of(2, A, B, C), Change(gone=[B], leaving=[C], joiners=joining(D, E)))
    assert decision.successor is not None
    assert decision.successor.members == (A, D)


def test_r8_who_is_started_again_gets_its_seat_in_the_view_behind_the_one_without_it() -> None:
    change = Change(gone=[B], joiners=joining(B2, D))
    without = propose_view(view_of(2, A, B), change).successor
    assert without is not None and without.members == (A, D)
    again = propose_view(without, change).successor
    assert again is not None and again.members == (A, D, B2)


def test_r8_no_incarnation_replaces_another() -> None:
    assert propose_view(view_of(2, A2, B), Change(joiners=joining(A, A2, B, B2))).successor is None


def test_of_two_incarnations_the_later_gets_the_seat() -> None:
    for asking in (joining(C, C2), joining(C2, C)):
        decision = propose_view(view_of(2, A, B), Change(joiners=asking))
        assert decision.successor is not None
        assert decision.successor.members == (A, B, C2)


def test_where_every_member_leaves_nobody_has_the_state() -> None:
    decision = propose_view(view_of(2, A), Change(leaving=[A], joiners=joining(A2, B)))
    assert decision == Decision(None, "1 of 1 members of view 2 are here, and none of them stays")


# Values


@given(views(), st.data())
def test_the_hash_covers_every_field(view: View, data: st.DataObject) -> None:
    first, *others = view.seats
    different: list[dict[str, Any]] = [
        {"lineage": b"another"},
        {"number": view.number + 1},
        {"founding_size": view.founding_size + 1},
        {"parent": view.parent + b"x"},
        {"policy": Policy(1 - view.policy)},
        {"founder": "another"},
        {"seats": (replace(first, member=replace(first.member, peer_id="another")), *others)},
        {"seats": (replace(first, member=replace(first.member, incarnation=9)), *others)},
        {"seats": (replace(first, contact=replace(first.contact, control="x")), *others)},
        {"seats": (replace(first, contact=replace(first.contact, data="x")), *others)},
        {"seats": (replace(first, contact=replace(first.contact, host="x")), *others)},
        {"seats": (replace(first, contact=replace(first.contact, remote_control="x")), *others)},
        {"seats": (replace(first, contact=replace(first.contact, remote_data="x")), *others)},
        {"seats": (replace(first, contact=replace(first.contact, pid=9)), *others)},
        {"seats": (replace(first, contact=replace(first.contact, process_start=9)), *others)},
        {"seats": (replace(first, numerics=b"another!"), *others)},
        {"seats": (*view.seats, Seat(Member("another", 1), 1))},
    ]
    different += [{"seats": (*others, first)}] if others else []
    different += [{"seats": (replace(first, since=first.since - 1), *others)}] if first.since > 1 else []
    other = replace(view, **data.draw(st.sampled_from(different)))
    assert other.hash != view.hash
    assert other.stamp != view.stamp
    assert replace(view).stamp == view.stamp


def test_the_hash_tells_a_seat_from_the_hash_of_the_view_before() -> None:
    two = view_of(2, A, B, parent=b"parent")
    seat_of_b = b"1:b 1 1 0: 0: 0: 0: 0: 0 0 %b " % NO_NUMERICS
    assert view_of(2, A, parent=seat_of_b + b"parent").hash != two.hash


def test_a_founder_begins_alone() -> None:
    view = founding_view(Seat(A, 1, contact_of(A)), LINEAGE, 4, Policy.LIVE)
    assert view == View(LINEAGE, 1, 4, (Seat(A, 1, contact_of(A)),), b"", Policy.LIVE, "a")
    assert founding_view(Seat(A, 1), LINEAGE, 4).policy is Policy.MAJORITY
    assert view.since(A) == 1
    assert view.since(A2) is None
    assert view.stamp != NO_VIEW


def test_a_seat_says_where_its_member_is_reached_if_anybody_knows() -> None:
    assert Seat(A, 1).contact == NOWHERE
    assert propose_view(view_of(1, A), Change(joiners=joining(B))).successor == View(
        LINEAGE, 2, 1, (Seat(A, 1), Seat(B, 2, contact_of(B))), view_of(1, A).hash
    )


def test_a_seat_has_the_numerics_class_that_its_member_has_named() -> None:
    change = Change(joiners={B: Joiner(contact_of(B), b"class 16")})
    successor = propose_view(view_of(1, A), change).successor
    assert successor is not None
    assert [seat.numerics for seat in successor.seats] == [NO_NUMERICS, b"class 16"]


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_numerics_class_has_8_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a numerics class has 8 bytes, this one has {size}"):
        Seat(A, 1, numerics=bytes(size))
    with pytest.raises(ValueError, match=f"a numerics class has 8 bytes, this one has {size}"):
        Join(SAME, numerics=bytes(size))


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


@pytest.mark.parametrize(
    ("change", "is_final"),
    [(Change(joiners=joining(C)), False), (Change(leaving=[B]), True), (Change(redo_reason="again"), True)],
    ids=["joiner", "leaver", "restart"],
)
def test_after_the_last_view_but_one_nothing_can_change(change: Change, is_final: bool) -> None:
    for number in (LAST_VIEW - 1, LAST_VIEW, 2**63):
        decision = propose_view(view_of(number, A, B), change)
        assert decision.successor is None and decision.reason.endswith("and no view has a greater number")
        assert decision.quorum_lost == decision.is_final == is_final
    successor = propose_view(view_of(LAST_VIEW - 2, A, B), change).successor
    assert successor is not None and successor.number == LAST_VIEW - 1

"""Seniority: members that stay where members differ. R17 of PROTOCOL.md."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member, Seat
from gossip.seniority import NOBODY, staying

from .members import A, B, C, D, E

MEMBERS = (A, B, C, D, E)


def seats(num_founders: int, num_joiners: int = 0) -> list[Seat]:
    """Seats in rank order; founders have had theirs since view 2 or before."""
    since = [1 + index % 2 for index in range(num_founders)] + [3] * num_joiners
    return [Seat(member, number) for member, number in zip(MEMBERS, since, strict=False)]


def stays(num_founders: int, num_joiners: int, words: str) -> set[Member] | None:
    """Members that stay, of members that say these letters, in rank order; a dot: nothing yet."""
    said = {member: word for member, word in zip(MEMBERS, words, strict=False) if word != "."}
    found = staying(seats(num_founders, num_joiners), 2, said)
    return None if found is None else {*found}


@pytest.mark.parametrize(
    ("num_founders", "num_joiners", "words", "expected"),
    [
        (2, 0, "xy", set()),
        (1, 1, "xy", {A}),
        (1, 2, "xyy", {A}),
        (1, 4, "xyyyy", {A}),
        (3, 0, "xyy", {B, C}),
        (3, 0, "yxy", {A, C}),
        (3, 0, "xyz", set()),
        (4, 0, "xxyy", set()),
        (3, 1, "xyyy", {B, C, D}),
        (2, 1, "xyy", {A}),
        (2, 1, "xyx", {A, C}),
        (2, 3, "xyyyx", {A, E}),
        (0, 3, "xyy", {A}),
        (2, 2, "xyxy", {A, C}),
    ],
)
def test_who_stays(num_founders: int, num_joiners: int, words: str, expected: set[Member]) -> None:
    assert stays(num_founders, num_joiners, words) == expected


@pytest.mark.parametrize(
    ("num_founders", "num_joiners", "words", "expected"),
    [
        (3, 0, "xy.", None),
        (3, 0, ".yy", {B, C}),
        (2, 1, ".yz", None),
        (1, 2, ".xy", None),
        (1, 2, ".xx", None),
        (5, 0, "x.yyy", {C, D, E}),
        (4, 0, "xyz.", set()),
        (1, 3, ".xyz", None),
        (2, 2, "x.yz", {A}),
    ],
)
def test_nobody_goes_while_what_others_have_still_to_say_may_count(
    num_founders: int, num_joiners: int, words: str, expected: set[Member] | None
) -> None:
    assert stays(num_founders, num_joiners, words) == expected


def test_before_the_first_step_all_are_founders() -> None:
    assert staying(seats(1, 1), 0, {A: 1, B: 2}) is NOBODY


views = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: seats(*pair)[:5]).filter(bool)


@given(views, st.lists(st.sampled_from("xyz"), min_size=5, max_size=5), st.sets(st.sampled_from(MEMBERS)))
def test_what_is_still_to_be_said_never_changes_what_is_decided(
    view: Sequence[Seat], words: list[str], silent: set[Member]
) -> None:
    whole = dict(zip([seat.member for seat in view], words, strict=False))
    known = {member: word for member, word in whole.items() if member not in silent}
    final, early = staying(view, 2, whole), staying(view, 2, known)
    assert final is not None
    assert early is None or early == final.intersection(known)


@given(views, st.lists(st.sampled_from("xyz"), min_size=5, max_size=5))
def test_a_founder_goes_only_for_the_oldest_member_or_for_most_of_the_founders(
    view: Sequence[Seat], words: list[str]
) -> None:
    found = staying(view, 2, dict(zip([seat.member for seat in view], words, strict=False)))
    founders = {seat.member for seat in view if seat.since <= 2}
    assert found is not None
    if found and not founders <= found:
        assert view[0].member in found or 2 * len(founders & found) > len(founders)

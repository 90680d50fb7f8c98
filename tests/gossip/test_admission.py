"""Admission: joiners that ask for a seat, and those that may have one. R9 and G10 of PROTOCOL.md."""

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossip import Member, View
from gossip.admission import FIRST, MOST_VIEWS, Admission, AdmissionConfig
from gossip.messages import Join
from gossip.progress import NOTHING_DONE

from .cores import SAME
from .members import A, B, C, D, E, view_of

PLAIN = Join(SAME, view_number=1)
ALL_DONE = 10**6


def admission(**config: Any) -> Admission:
    """Admission of A, which is alone in view 1, and can give the state after step 3."""
    new = Admission(AdmissionConfig(**config))
    new.install(view_of(1, A))
    new.state_available(3)
    return new


def following(done: int) -> Join:
    return Join(SAME, True, done, b"digest", view_number=1)


def asked(new: Admission, now: float, *members: Member, join: Join = PLAIN) -> Admission:
    for member in members:
        new.receive_join(now, member, join)
    return new


def removed(times: int, **config: Any) -> Admission:
    """Admission after this many removals of D at time 0."""
    new = admission(lease_s=1e9, **config)
    for _ in range(times):
        new.removed(0.0, D)
    return asked(new, 0.0, D)


# Asking.


def test_nobody_has_asked_yet() -> None:
    new = admission()
    assert new.is_empty()
    assert new.candidates(0.0, 3) == []
    assert new.followers(0.0) == []


def test_the_first_who_asked_comes_first_however_often_the_others_ask() -> None:
    new = asked(admission(), 0.0, D, C)
    assert asked(new, 0.5, C, D, E).candidates(0.6, 3) == [D, C, E]


def test_who_does_not_ask_again_is_forgotten() -> None:
    for now, known in ((1.5, [D]), (1.6, [])):
        assert asked(admission(lease_s=1.5), 0.0, D).candidates(now, 3) == known
        new = asked(admission(lease_s=1.5), 0.0, D, join=following(3))
        assert new.followers(now) == known
        assert new.is_empty() == (not known)


def test_who_asks_again_too_late_is_the_last() -> None:
    new = asked(asked(admission(lease_s=1.5), 0.0, C), 1.0, D)
    assert new.candidates(1.6, 3) == [D]
    assert asked(new, 1.7, C).candidates(1.7, 3) == [D, C]


def test_who_is_forgotten_asks_no_more() -> None:
    new = asked(admission(), 0.0, C, D)
    new.forget(C)
    new.forget(E)
    assert new.candidates(0.0, 3) == [D]


def test_who_has_a_seat_asks_no_more() -> None:
    new = asked(admission(), 0.0, C, D)
    new.install(view_of(2, A, B, C))
    assert new.candidates(0.0, 3) == [D]


# Lag of followers


def test_r9_who_does_not_follow_is_admitted_as_it_is_where_there_is_a_state_for_it() -> None:
    new = asked(admission(), 0.0, D)
    assert new.candidates(0.0, FIRST - 1) == [D], "the swarm begins"
    assert new.candidates(0.0, ALL_DONE) == [], "the script may be amid an iteration"
    new.state_available(ALL_DONE)
    assert new.candidates(0.0, ALL_DONE) == [D]
    assert new.candidates(0.0, ALL_DONE, has_finished=True) == [], "others may have finished the step, too"
    assert new.needed_s(0.7, D) == 0.7


@pytest.mark.parametrize(("done", "candidates"), [(8, []), (9, [D]), (10, [D]), (11, [D])])
def test_r9_where_steps_are_slow_one_step_may_be_missing(done: int, candidates: list[Member]) -> None:
    new = admission(least_lag_s=1.0, lag_s=1.0)
    new.committed(0.0, 10)
    assert asked(new, 5.0, D, join=following(done)).candidates(5.0, 10) == candidates


@pytest.mark.parametrize(("done", "candidates"), [(88, []), (89, [D]), (99, [D])])
def test_r9_where_steps_are_fast_those_of_the_last_second_may_be_missing(done: int, candidates: list[Member]) -> None:
    new = admission(least_lag_s=1.0, lag_s=1.0)
    for step in range(101):
        new.committed(step / 10, step)
    assert asked(new, 10.0, D, join=following(done)).candidates(10.0, 100) == candidates


@pytest.mark.parametrize(("waited_s", "lacks"), [(0.0, 2), (2.5, 6), (5.0, 10), (60.0, 10)])
def test_r9_who_has_waited_longer_may_lack_more(waited_s: float, lacks: int) -> None:
    """Steps take 0.1 s. The limit grows from 0.2 s to 1 s; else a joiner as fast as the members would never enter."""
    new, now = admission(lease_s=99.0), 10.0 + waited_s
    new.receive_join(10.0, D, following(NOTHING_DONE))
    for step in range(1001):
        if step / 10 <= now:
            new.committed(step / 10, step)
    last = int(now * 10)
    for lag in range(20):
        new.receive_join(now, D, following(last - lag))
        assert new.candidates(now, last) == ([D] if lag <= lacks + 1 else []), lag


def test_r9_what_it_lacks_was_committed_in_this_view() -> None:
    """The present feeder has not fed it older steps."""
    new = admission(least_lag_s=1.0, lag_s=1.0)
    for step in range(11):
        new.committed(step / 10, step)
    new.seated(7)
    assert asked(new, 1.0, D, join=following(6)).candidates(1.0, 10) == []
    assert asked(new, 1.0, D, join=following(7)).candidates(1.0, 10) == [D]


def test_r9_who_is_fed_by_nobody_lacks_nothing() -> None:
    new = admission(least_lag_s=1.0, lag_s=1.0)
    new.committed(0.0, 10)
    asked(new, 0.0, D, join=following(9))
    asked(new, 0.0, E, join=following(10))
    assert new.joiners() == [D, E]
    assert new.candidates(0.0, 10) == [D, E]
    assert new.candidates(0.0, 10, [D, E]) == [E]


def test_r9_before_the_first_step_nothing_is_missing_and_after_it_the_state_is() -> None:
    new = asked(admission(), 0.0, D, join=following(NOTHING_DONE))
    new.seated(NOTHING_DONE)
    assert new.candidates(0.0, NOTHING_DONE) == [D]
    for step in range(3):
        new.committed(0.0, step)
        assert new.candidates(0.0, step) == [], "all would wait until it has the state, as recent as the steps are"


def test_r9_what_it_has_taken_since_it_asked_counts() -> None:
    new = asked(admission(), 0.0, D, join=following(2))
    assert new.candidates(0.0, 9) == []
    assert asked(new, 0.5, D, join=following(8)).candidates(0.5, 9) == [D]


@example([0.5], -1)
@given(st.lists(st.floats(0.001, 0.8), min_size=1, max_size=40), st.integers(-1, 45))
def test_r9_who_lacks_no_older_step_than_the_lag_or_only_one_is_current(gaps: list[float], done: int) -> None:
    new, now = admission(least_lag_s=1.0, lag_s=1.0), 0.0
    times = []
    for step, gap in enumerate(gaps):
        now += gap
        times.append(now)
        new.committed(now, step)
    last = len(gaps) - 1
    is_recent = done >= last - 1 or all(at >= now - 1.0 for at in times[done + 1 :])
    is_current = done >= FIRST and is_recent
    assert asked(new, now, D, join=following(done)).candidates(now, last) == ([D] if is_current else [])


# Followers.


def test_r9_who_follows_is_fed_whether_it_is_current_or_not() -> None:
    new = asked(admission(), 0.0, D, join=following(0))
    assert asked(new, 0.0, E).followers(0.0) == [D]
    assert new.candidates(0.0, 3) == [E]


def test_r9_who_followed_is_fed_until_its_first_barrier_is_complete() -> None:
    new = asked(admission(), 0.0, C, D, join=following(9))
    asked(new, 0.0, E)
    new.install(view_of(2, A, C, E))
    assert new.followers(0.0) == [C, D]
    new.seated(3)
    assert new.followers(0.0) == [D]


def test_r9_it_is_fed_even_if_another_view_comes_before_that_barrier() -> None:
    new = asked(admission(), 0.0, C, D, join=following(9))
    new.install(view_of(2, A, B, C))
    new.install(view_of(3, A, C, D))
    assert new.followers(0.0) == [C, D]
    new.install(view_of(4, A, D))
    assert new.followers(0.0) == [D]
    assert new.followers(9.0) == [D]


# Flapping and removals


def test_g10_to_be_removed_once_may_happen_to_anybody() -> None:
    assert removed(1).candidates(0.0, 3) == [D]


@pytest.mark.parametrize(("times", "wait_s"), [(2, 10.0), (3, 20.0), (4, 40.0), (9, 600.0), (2000, 600.0)])
def test_g10_who_was_removed_more_often_waits_twice_as_long_each_time_up_to_a_limit(times: int, wait_s: float) -> None:
    new = removed(times, hold_down_s=10.0, hold_down_max_s=600.0)
    assert new.candidates(wait_s - 0.1, 3) == []
    assert new.candidates(wait_s, 3) == [D]


def test_g10_removals_fade() -> None:
    new = removed(1, half_life_s=60.0, hold_down_s=10.0)
    new.removed(60.0, D)  # counts as one and a half
    assert new.candidates(67.0, 3) == []
    assert new.candidates(67.1, 3) == [D]
    new = removed(1, half_life_s=60.0)
    new.removed(61.0, D)
    assert new.candidates(61.0, 3) == [D]
    new.removed(61.0, D)  # two and a half, about
    assert new.candidates(74.0, 3) == []
    assert new.candidates(75.2, 3) == [D]


def test_g10_another_incarnation_does_not_escape_and_others_do_not_wait() -> None:
    new = removed(2)
    asked(new, 0.0, Member("d", 2), E)
    assert new.candidates(0.0, 3) == [E]


def test_g10_who_is_held_back_keeps_its_place_in_the_queue() -> None:
    assert asked(removed(2), 0.0, E).candidates(10.0, 3) == [D, E]


def test_g10_old_removals_of_others_are_forgotten() -> None:
    new = removed(2, half_life_s=60.0)
    new.removed(1000.0, E)
    new.removed(1000.0, D)
    assert new.candidates(1000.0, 3) == [D]


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=20).map(sorted))
def test_g10_nobody_waits_longer_than_the_limit(times: list[float]) -> None:
    new = asked(admission(lease_s=1e9, hold_down_max_s=100.0), 0.0, D)
    for now in times:
        new.removed(now, D)
    assert new.candidates(times[-1] + 100.0, 3) == [D]


@pytest.mark.parametrize(("after_s", "flaps", "is_held"), [(4.9, False, True), (5.0, False, False), (15.0, True, True)])
def test_g10_who_had_its_seat_for_long_is_not_removed_again_and_again_unless_it_flaps(
    after_s: float, flaps: bool, is_held: bool
) -> None:
    new = asked(admission(lease_s=1e9, settled_s=5.0), 0.0, D)
    for turn in range(2):
        new.view_changed(20.0 * turn, view_of(1, A), view_of(2, A, D))
        new.removed(20.0 * turn + after_s, D, flaps=flaps)
        new.view_changed(20.0 * turn + after_s, view_of(2, A, D), view_of(3, A))
    assert (D not in new.candidates(20.0 + after_s, 3)) == is_held


def test_g10_who_was_there_before_this_member_counts_as_settled() -> None:
    new = asked(admission(lease_s=1e9), 0.0, D)
    for _ in range(3):
        new.view_changed(0.0, view_of(1, A, D), view_of(2, A, D, E))
        new.removed(0.1, D)
    assert new.candidates(0.1, 3) == [D]


def test_g10_removals_do_not_grow_when_time_seems_to_go_back() -> None:
    new = removed(1)
    new.removed(-1e9, D)
    assert new.candidates(9.0, 3) == [D]


# Views in which a JOIN counts, and past seats


@pytest.mark.parametrize(("number", "counts"), [(1, [1, 2]), (2, [2, 3]), (3, [3]), (0, []), (-1, []), (4, [])])
def test_r8_a_join_counts_in_the_view_that_it_names_and_in_the_next(number: int, counts: list[int]) -> None:
    found = []
    for installed in (1, 2, 3):
        new = Admission(AdmissionConfig())
        new.install(view_of(installed, A))
        new.receive_join(0.0, D, Join(SAME, view_number=number))
        new.state_available(3)
        found += [installed] if new.candidates(0.0, 3) else []
    assert found == counts


def test_r8_a_join_counts_until_the_second_view_after_it_is_installed() -> None:
    new = asked(admission(), 0.0, D)
    found = []
    for number in (2, 3):
        new.install(view_of(number, A, B))
        found.append(new.candidates(0.0, 3))
    assert found == [[D], []]


def test_r9_who_observes_is_fed_whatever_view_it_names() -> None:
    new = admission()
    new.receive_join(0.0, D, Join(SAME, True, 3, b"digest"))
    assert (new.candidates(0.0, 3), new.followers(0.0)) == ([], [D])


def through(*views: View) -> Admission:
    new = Admission(AdmissionConfig())
    for view in views:
        new.install(view)
    return new


@pytest.mark.parametrize(("number", "since"), [(0, 7), (1, 4), (2, 4), (3, 4), (4, 5), (6, 7), (7, 7), (9, 7)])
def test_r8_a_member_vouches_for_the_views_that_it_has_installed_one_after_the_other(number: int, since: int) -> None:
    new = through(*(view_of(number, A) for number in (4, 5, 6, 7)))
    assert new.absent_since(D, number) == since


def test_r8_nobody_vouches_for_a_view_that_it_has_missed() -> None:
    assert through(view_of(4, A), view_of(6, A), view_of(7, A)).absent_since(D, 1) == 6


def test_r8_nobody_vouches_for_who_had_a_seat() -> None:
    new = through(view_of(4, A), view_of(5, A, D), view_of(6, A), view_of(7, A))
    assert [new.absent_since(member, 3) for member in (D, E, Member("d", 2))] == [6, 4, 4]


def test_r8_of_many_views_only_the_last_are_remembered() -> None:
    last = 3 * MOST_VIEWS
    new = through(*(view_of(number, A) for number in range(1, last + 1)))
    assert new.absent_since(D, 1) == last - MOST_VIEWS + 1


# Configuration.


@pytest.mark.parametrize(
    "name",
    [
        "lease_s",
        "least_lag_s",
        "lag_s",
        "patience_s",
        "hold_down_s",
        "hold_down_max_s",
        "half_life_s",
        "settled_s",
        "load_timeout_s",
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_times_are_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"need .*{name}.* positive and finite, .* got \(.*{value}.*\)"):
        admission(**{name: value})


def test_the_first_wait_is_not_above_the_limit() -> None:
    with pytest.raises(
        ValueError,
        match=r"hold_down_s <= hold_down_max_s .*, got \(1.5, 0.2, 1.0, 5.0, 20.0, 10.0, 60.0, 5.0, 4.0, 300.0\)",
    ):
        admission(hold_down_s=20.0, hold_down_max_s=10.0)

"""The part of a table that is computed at a time, for steps of any length."""

import pytest

from p2p.loop.parts import LEAST_S, MOST_S, SHARE, TableParts


def after_steps(*took_s: float) -> TableParts:
    parts, now = TableParts(), 7.0
    for each in took_s:
        parts.watch(now, object())
        now += each
    parts.watch(now, object())
    return parts


@pytest.mark.parametrize(
    ("step_s", "part_s"), [(1e-3, 0.05e-3), (4e-3, 0.08e-3), (10e-3, 0.2e-3), (2.0, MOST_S), (1e-5, LEAST_S)]
)
def test_a_part_is_a_fiftieth_of_a_step_and_so_are_all_of_the_time(step_s: float, part_s: float) -> None:
    parts = after_steps(*[step_s] * 60)
    assert parts.part_s == pytest.approx(part_s, rel=0.01)
    assert parts.every_s * SHARE == pytest.approx(parts.part_s)


def test_one_long_step_says_little_and_without_steps_a_part_is_long() -> None:
    assert TableParts().part_s == MOST_S
    assert after_steps(*[1e-3] * 60, 9.0).part_s < 2 * LEAST_S


def test_what_goes_on_is_no_other_step() -> None:
    parts, run = TableParts(), object()
    for number in range(50):
        parts.watch(0.001 * number, run)
        parts.watch(0.001 * number, None)
    assert parts.part_s == MOST_S


def test_the_next_part_is_left_to_a_call_that_waits_as_long_again_as_there_has_to_be_between_two() -> None:
    parts = after_steps(*[1e-3] * 60)
    assert parts.next_at < 7.0, "none was made"
    parts.was_made(9.0)
    assert (parts.next_at, parts.late_at) == pytest.approx((9.0 + parts.every_s, 9.0 + 2 * parts.every_s))

"""Pace: when the script of an observer is held. R9 of PROTOCOL.md."""

from gossip.admission import AdmissionConfig
from gossip.pace import MOST_HELD_S, Pace


def yes() -> bool:
    return True


LAG_S = AdmissionConfig().lag_s
LATE_S = AdmissionConfig().load_timeout_s


def pace(*steps_s: float) -> tuple[Pace, float]:
    """Pace of a script that took this long for each of its steps, and now waits in one; and the time."""
    new, now = Pace(AdmissionConfig()), 0.0
    for step_s in steps_s:
        new.ran(now, is_next_here=True)
        now += step_s
        assert not new.waits(now, 0, 0.0, yes)
    return new, now


def test_a_script_takes_the_shorter_time_of_the_last_two_steps() -> None:
    for steps_s, step_s in (((), 0.0), ((3.0,), 3.0), ((1.0, 5.0), 1.0), ((1.0, 5.0, 2.0), 2.0)):
        assert pace(*steps_s)[0].step_s == step_s


def test_that_is_known_unless_the_first_step_is_under_way() -> None:
    new, _ = pace()
    assert new.is_known
    new.ran(0.0, is_next_here=True)
    assert not new.is_known
    new.waits(0.1, 0, 0.0, yes)
    assert new.is_known
    new.ran(0.2, is_next_here=True)
    assert new.is_known


def test_an_operation_of_its_own_is_a_step_that_takes_nothing() -> None:
    new, _ = pace()
    new.ran(0.0, is_next_here=True)
    new.ran(0.0, is_next_here=True)  # which was an operation
    new.waits(3.0, 0, 0.0, yes)
    assert new.step_s == 1.5


def test_what_it_waits_for_an_operation_is_no_time_of_its_own() -> None:
    new, _ = pace()
    new.ran(0.0, is_next_here=False)
    new.ran(5.0, is_next_here=True)
    new.waits(7.0, 0, 0.0, yes)
    assert new.step_s == 2.0


def test_what_it_takes_until_it_loads_a_state_counts_and_what_it_waits_there_does_not() -> None:
    new, _ = pace()
    new.ran(0.0, is_next_here=True)
    new.loaded(2.0)
    assert new.step_s == 2.0
    assert not new.waits(60.0, 0, 0.0, yes) and new.step_s == 2.0


def test_r9_a_script_is_held_if_it_takes_long_for_what_it_lacks() -> None:
    new, now = pace(LAG_S / 2)
    assert not new.waits(now, 2, 0.0, yes) and not new.is_held
    assert new.waits(now, 3, 0.0, yes) and new.is_held
    assert not new.waits(now, 2, 0.0, yes) and not new.is_held


def test_r9_a_script_is_not_held_if_a_state_takes_as_long() -> None:
    new, now = pace(LAG_S)
    assert new.waits(now, 3, LAG_S, yes) and not new.waits(now, 3, 2 * LAG_S, yes)
    assert not new.waits(now, 1000, 0.51 * LATE_S, yes), "all would wait for that too long"


def test_r9_a_state_that_takes_long_is_waited_for_once_its_peer_has_lacked_a_seat_ten_times_as_long() -> None:
    state_s = 10 * LATE_S
    new, now = pace(LAG_S)
    until = now + 10 * state_s
    assert not new.waits(now, 1000, state_s, yes) and not new.waits(until - LAG_S - 1.0, 1000, state_s, yes)
    assert new.waits(until, 1000, state_s, yes)
    assert new.patience.limit_s(until) >= 2 * state_s


def test_r9_who_lacks_no_more_than_what_its_state_takes_may_catch_up_ten_times_as_long() -> None:
    new, now = pace(LAG_S)
    until = now + 10 * LAG_S
    assert not new.waits(now, 2, LAG_S, yes) and not new.waits(until - LAG_S - 0.1, 2, LAG_S, yes)
    assert new.waits(until, 2, LAG_S, yes) and not new.waits(until, 1, LAG_S, yes)


def test_r9_who_had_no_state_in_time_is_held_again_when_all_may_wait_twice_as_long() -> None:
    new, now = pace(LAG_S)
    assert new.patience.begin(now) == now + LATE_S and new.patience.was_late() == LATE_S
    until = now + 10 * LATE_S
    assert not new.waits(until - LAG_S - 0.1, 1000, 0.0, yes) and new.waits(until, 1000, 0.0, yes)


def test_nobody_is_waited_for_longer_than_the_most() -> None:
    new, now = pace(LAG_S)
    assert new.patience.limit_s(now) == LATE_S
    assert new.patience.limit_s(now + 1e6) == AdmissionConfig().load_timeout_max_s
    assert not new.waits(now + 1e6, 1000, 0.51 * AdmissionConfig().load_timeout_max_s, yes)


def test_r9_a_script_is_held_no_more_once_a_step_was_run_or_a_state_loaded() -> None:
    new, now = pace(LAG_S)
    assert new.waits(now, 3, 0.0, yes)
    new.loaded(now)
    assert not new.is_held and new.waits(now, 3, 0.0, yes)
    new.ran(now, is_next_here=False)
    assert not new.is_held


def test_r9_a_script_that_is_held_for_long_runs_a_step() -> None:
    new, now = pace(LAG_S, LAG_S)
    assert new.waits(now, 3, 0.0, yes) and new.waits(now + 0.9 * MOST_HELD_S, 3, 0.0, yes)
    assert not new.waits(now + MOST_HELD_S, 3, 0.0, yes) and not new.waits(now + 2 * MOST_HELD_S, 3, 0.0, yes)
    new.ran(now + 2 * MOST_HELD_S, is_next_here=True)
    assert new.waits(now + 2 * MOST_HELD_S + LAG_S, 3, 0.0, yes)


def test_r9_a_script_that_is_held_and_loads_states_is_held_no_longer_for_that() -> None:
    new, now = pace(LAG_S, LAG_S)
    for after in range(int(MOST_HELD_S)):
        assert new.waits(now + after, 3, 0.0, yes)
        new.loaded(now + after)
    assert not new.waits(now + MOST_HELD_S, 3, 0.0, yes)


def test_r9_a_script_of_several_phases_is_not_held() -> None:
    new, now = pace(LAG_S)
    assert not new.waits(now, 3, 0.0, lambda: False)
    assert new.waits(now, 3, 0.0, yes) and new.waits(now, 3, 0.0, lambda: False)

"""Figures from records: a peer's pace, the cost of a view change, the current activity."""

import pytest

from p2p.telemetry.records import How, Kind, Record
from p2p.telemetry.snapshot import Change, Pace
from p2p.telemetry.timeline import activity, last_change, pace

B = "b" * 16
MS = 10**6


def record(
    ms: float, kind: Kind, step: int = -1, *, view: int = 0, peer_id: str = "", how: int = 0, value: float = 0.0
) -> Record:
    return Record(1, int(ms * MS), kind, how, 0, step, view, peer_id, value)


def step(begin_ms: int, number: int) -> list[Record]:
    """Records of a step of 100 ms: 70 of its own work, 20 until it is complete here, 10 until it commits."""
    return [
        record(begin_ms + 30, Kind.BEGUN, number),
        record(begin_ms + 70, Kind.SUBMITTED, number),
        record(begin_ms + 90, Kind.FINISHED, number),
        record(begin_ms + 100, Kind.COMMITTED, number),
        record(begin_ms + 100, Kind.RECEIVED, number),
    ]


STEPS = [each for number in range(1, 31) for each in step(number * 100, number)]


def test_the_parts_of_a_step_add_up_to_its_time() -> None:
    assert pace(STEPS, 3100 * MS) == Pace(steps_per_s=10.0, compute_s=0.07, exchange_s=0.02, wait_s=0.01)


def test_the_rate_is_that_of_the_last_seconds_and_of_two_steps_at_least() -> None:
    slow = [*step(0, 0), *(record(90_000 * number, Kind.COMMITTED, number) for number in (1, 2))]
    assert pace([*slow, *STEPS[:0]], 181_000 * MS).steps_per_s == round(2 / 179.9, 3)
    late = [record(60_000 + each.time_ns / MS, Kind(each.kind), each.step) for each in STEPS]
    assert pace([*STEPS, *late], 63_100 * MS).steps_per_s == 10.0


def test_steps_of_which_less_is_known_than_their_commits_do_not_make_the_parts_shorter() -> None:
    """There may be fewer records of the training thread than of the loop, if the script logs a lot."""
    some = [each for each in STEPS if each.time_ns > 1500 * MS or each.kind in (Kind.FINISHED, Kind.COMMITTED)]
    assert pace(some, 3100 * MS) == Pace(steps_per_s=10.0, compute_s=0.07, exchange_s=0.02, wait_s=0.01)


def test_the_rate_falls_where_nothing_is_committed_any_more() -> None:
    rates = [pace(STEPS, (3100 + late) * MS).steps_per_s for late in (0, 100, 1000, 60_000)]
    assert rates[0] == rates[1] == 10.0 > rates[2] > rates[3] > 0


@pytest.mark.parametrize("records", [[], STEPS[:3], STEPS[:4]])
def test_one_step_says_nothing_of_the_pace(records: list[Record]) -> None:
    assert pace(records, 10**12) == Pace()


DEATH = [
    record(10, Kind.INSTALLED, 4, view=2),
    record(11, Kind.ACTIVE, 4, view=2),
    record(20, Kind.COMMITTED, 5),
    record(25, Kind.GONE, peer_id="c" * 16),  # an observer
    record(30, Kind.GONE, peer_id=B, how=How.KERNEL),
    record(41, Kind.INSTALLED, 5, view=3),
    record(41, Kind.OUT, view=3, peer_id=B),
    record(44, Kind.ACTIVE, 5, view=3),
    record(44, Kind.REDO, 6, view=3),
    record(50, Kind.COMMITTED, 6),
]


def test_a_death_costs_from_its_first_sign_until_all_go_on() -> None:
    assert last_change(DEATH) == Change(view=3, step=5, waited_s=0.014, redone=6)
    assert last_change(DEATH[:-3]) == Change(view=2, step=4, waited_s=0.001)


def test_a_silence_costs_from_its_beginning_since_the_others_wait_from_then_on() -> None:
    silence = [
        *DEATH[:3],
        record(2741, Kind.INSTALLED, 5, view=3),
        record(2741, Kind.OUT, view=3, peer_id=B, how=How.SILENCE, value=2.7),
        record(2744, Kind.ACTIVE, 5, view=3),
    ]
    assert last_change(silence) == Change(view=3, step=5, waited_s=2.703)
    waits = [*silence[:3], record(30, Kind.SUBMITTED, 6), *silence[3:]]  # its link is answered for a second more
    assert last_change(waits) == Change(view=3, step=5, waited_s=2.714)
    killed = [
        each._replace(how=How.DEATH, value=0.0) if each.kind == Kind.OUT else each
        for each in [*waits[:4], record(1500, Kind.PAUSED, 5), *waits[4:]]
    ]
    assert last_change(killed) == last_change(waits), "it was stopped, and killed when nobody could go on any more"
    before = [each._replace(time_ns=29 * MS) if each.kind == Kind.PAUSED else each for each in killed]
    assert last_change(before) == Change(view=3, step=5, waited_s=0.003), "that pause was over"
    has_results = [*waits[:4], record(35, Kind.RECEIVED, 6), *waits[4:]]
    assert last_change(has_results) == last_change(silence)


def test_a_join_costs_from_the_view_until_all_go_on() -> None:
    join = [record(60, Kind.INSTALLED, 6, view=4), record(60, Kind.IN, view=4, peer_id=B)]
    assert last_change([*DEATH, *join]) == last_change(DEATH)
    assert last_change([*DEATH, *join, record(63, Kind.ACTIVE, 6, view=4)]) == Change(view=4, step=6, waited_s=0.003)


def test_two_views_in_a_row_are_one_change() -> None:
    both = [each for each in DEATH if each.kind != Kind.ACTIVE]
    both += [record(60, Kind.INSTALLED, 6, view=4), record(70, Kind.ACTIVE, 6, view=4)]
    found = last_change(both)
    assert found is not None and (found.view, found.waited_s) == (4, 0.06)


def test_a_committed_step_that_is_not_there_any_more_is_said_to_be_lost() -> None:
    found = last_change([*DEATH[:-3], record(44, Kind.ACTIVE, 4, view=3)])
    assert found is not None and found.num_lost == 1


def test_where_no_view_became_active_nothing_is_known() -> None:
    assert last_change(DEATH[5:7]) is None


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "starting"),
        (1, "computing step 1, part of which is under way"),
        (2, "exchanging step 1 with the others"),
        (3, "waiting for the others to finish step 1"),
        (4, "taking the results of step 1"),
        (5, "computing step 2"),
    ],
)
def test_what_a_peer_is_at_is_what_it_did_last(number: int, expected: str) -> None:
    words, since_ns = activity(STEPS[:number])
    assert words == expected
    assert since_ns == (STEPS[number - 1].time_ns if number else 0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.ASKED, "waiting for a seat"),
        (Kind.STATE, "taking the state after step 7"),
        (Kind.COMING, "taking the state after step 7, 0 % of which are here"),
        (Kind.INSTALLED, "waiting for the other members of view 3"),
        (Kind.PAUSED, "waiting until more members can be reached"),
        (Kind.REMOVED, "removed: the others continued without it"),
    ],
)
def test_what_the_loop_waits_for_comes_before_what_the_script_did_before_that(kind: Kind, expected: str) -> None:
    last = record(5000, kind, 7, view=3)
    assert activity([*STEPS, last]) == activity([last]) == (expected, last.time_ns)
    assert activity([last, *step(6000, 8)])[0] == "computing step 9"

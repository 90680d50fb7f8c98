"""The slowest member, by the times that all members send with their counts."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member
from p2p.step.agreed_rows import AgreedRows
from p2p.step.open_step import OpenStep
from p2p.step.receipts import NUM_COLUMNS, TOOK
from p2p.step.stragglers import LEAST_US, WINDOW, Named, Straggler, StragglerDetector, judge
from tests.p2p.step.group import counts

A, B, C = ("a", 1), ("b", 1), ("c", 1)
ABC = (A, B, C)


def steps(
    speeds: StragglerDetector, members: tuple[Named, ...], took_us: Sequence[int], first: int, number: int
) -> list[Straggler]:
    """Run training steps with constant times; returns the new verdicts."""
    told = (speeds.committed(step, members, took_us) for step in range(first, first + number))
    return [each for each in told if each is not None]


def test_the_slowest_is_named_once_with_how_much_slower_it_is() -> None:
    speeds = StragglerDetector(3.0)
    assert steps(speeds, ABC, [30_000, 93_000, 31_000], 1, WINDOW) == [], "the first step says what was before these"
    (found,) = steps(speeds, ABC, [30_000, 93_000, 31_000], WINDOW + 1, 3 * WINDOW)
    assert found == speeds.slowest == Straggler(B, 93_000, 30_000, WINDOW)
    assert str(found) == "its compute is 3.1 times the median of the others over 20 steps (93.0 ms, 30.0 ms)"


def test_who_is_slow_no_more_is_not_shown_any_more_and_nobody_is_named_twice() -> None:
    speeds = StragglerDetector(2.0)
    assert [each.who for each in steps(speeds, ABC, [30_000, 30_000, 90_000], 0, 2 * WINDOW)] == [C]
    assert steps(speeds, ABC, [30_000, 30_000, 30_000], 2 * WINDOW, WINDOW + 1) == [] and speeds.slowest is None
    assert [each.who for each in steps(speeds, ABC, [90_000, 30_000, 30_000], 3 * WINDOW + 1, WINDOW)] == [A]
    assert steps(speeds, ABC, [30_000, 30_000, 90_000], 4 * WINDOW + 1, WINDOW) == []
    assert speeds.slowest is not None and speeds.slowest.who == C


def test_a_change_of_members_begins_anew() -> None:
    speeds = StragglerDetector(2.0)
    steps(speeds, ABC, [30_000, 30_000, 90_000], 0, 2 * WINDOW)
    assert speeds.slowest is not None
    assert steps(speeds, (A, C), [30_000, 90_000], 2 * WINDOW, WINDOW) == [] and speeds.slowest is None
    assert [each.who for each in steps(speeds, (A, C), [30_000, 90_000], 3 * WINDOW, WINDOW)] == [C]
    again = ("c", 2)
    assert steps(speeds, (A, again), [30_000, 90_000], 4 * WINDOW, 1) == [] and speeds.slowest is None


def test_a_few_long_steps_make_nobody_slow() -> None:
    speeds = StragglerDetector(2.0)
    for step in range(3 * WINDOW):
        assert speeds.committed(step, ABC, [30_000, 5_000_000 if step % 3 == 0 else 30_000, 30_000]) is None


def test_steps_of_two_kinds_make_nobody_slow() -> None:
    """Data are loaded in every second step; at times a step is late, or counts as the other kind."""
    speeds = StragglerDetector(2.0)
    for step in range(6 * WINDOW):
        took = [6_000, 6_500, 6_200] if step % 2 else [100_000, 97_000, 99_000]
        if step % WINDOW == 7:
            took[step // WINDOW % 3] = 98_000
        assert speeds.committed(step, ABC, took) is None and speeds.slowest is None
    slow = [each for step in range(WINDOW) if (each := speeds.committed(step, ABC, [6_000, 200_000, 6_000]))]
    assert slow == [], "its steps of before count as well"


def test_who_is_slow_in_steps_of_two_kinds_is_named() -> None:
    speeds = StragglerDetector(2.0)
    for step in range(WINDOW + 1):
        found = speeds.committed(step, ABC, [20_000, 60_000, 20_000] if step % 2 else [100_000, 300_000, 99_000])
    assert found is not None and found.who == B


def test_of_two_the_other_one_is_the_measure_and_nobody_is_slow_alone_or_by_a_hair() -> None:
    assert judge([[10_000, 30_000]], (A, B), 3.0) == Straggler(B, 30_000, 10_000, 1)
    assert judge([[10_000, 30_000]], (A, B), 3.1) is None
    assert judge([[30_000]], (A,), 1.5) is None
    assert judge([[100, 100 + LEAST_US - 1]], (A, B), 2.0) is None
    assert judge([[0, LEAST_US]], (A, B), 2.0) == Straggler(B, LEAST_US, 0, 1)


rows = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 200_000), min_size=size, max_size=size), min_size=1, max_size=9)
)


@given(rows, st.floats(1.01, 5))
def test_who_is_slow_is_slower_than_most_others_in_most_steps(rows: list[list[int]], factor: float) -> None:
    members = tuple((str(place), 1) for place in range(len(rows[0])))

    def others(row: list[int], place: int) -> int:
        rest = sorted(row[:place] + row[place + 1 :])
        return rest[(len(rest) - 1) // 2]

    def times(place: int) -> float:
        ratios = sorted(row[place] / max(1, others(row, place)) for row in rows)
        return ratios[(len(rows) - 1) // 2]

    found = judge(rows, members, factor)
    worst = max(range(len(members)), key=times)
    assert found is None or found.who == members[worst]
    if found is not None:
        assert 2 * sum(row[worst] >= factor * others(row, worst) for row in rows) >= len(rows)
        assert found.took_us - found.others_us >= LEAST_US and found.took_us >= factor * found.others_us
    else:
        long = sum(row[worst] >= factor * max(1, others(row, worst)) + LEAST_US for row in rows)
        assert long < len(rows), "it has more than it takes in no step of all"


@given(rows, st.lists(st.integers(1, 50), min_size=20, max_size=20))
def test_steps_that_are_longer_for_all_change_nothing(rows: list[list[int]], scales: list[int]) -> None:
    members = tuple((str(place), 1) for place in range(len(rows[0])))
    rows = [[max(1, each) for each in row] for row in rows]
    found = judge(rows, members, 2.0)
    longer = judge([[scale * each for each in row] for row, scale in zip(rows, scales, strict=False)], members, 2.0)
    assert found is None or len(scales) < len(rows) or (longer is not None and longer.who == found.who)


def test_what_a_step_took_is_said_with_the_counts_of_the_training_step_behind_it() -> None:
    step = OpenStep(Member("a", 1), segment_bytes=1 << 10)
    assert isinstance(step.agreed, AgreedRows)
    said = []
    for number, took_us in enumerate((70, 80, 90)):
        operation = counts(2)
        step.submit(number, number, operation)
        step.close(number, b"state", took_us)
        said.append(operation.input[TOOK:NUM_COLUMNS].tolist())
        step.withdraw(number, number)
    assert np.ravel(said).tolist() == [0, 70, 80]

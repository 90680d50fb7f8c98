"""When a peer looks at the processes of members."""

import math

from p2p.loop.exit_looks import FIRST_LOOK_S, MOST_LOOK_S, ExitLooks


def test_nobody_is_looked_at_before_a_step_is_opened() -> None:
    assert ExitLooks().at == math.inf


def test_looks_come_at_intervals_that_double_while_the_step_is_open() -> None:
    looks = ExitLooks()
    looks.begin(100.0, 7)
    times = []
    for _ in range(7):
        times.append(looks.at)
        assert looks.is_wanted(looks.at, done=6)
    intervals = [round(b - a, 6) for a, b in zip([100.0, *times], times, strict=False)]
    assert intervals == [FIRST_LOOK_S, 0.01, 0.02, 0.04, 0.08, MOST_LOOK_S, MOST_LOOK_S]


def test_a_step_that_is_committed_is_waited_for_no_longer_and_the_next_one_begins_anew() -> None:
    looks = ExitLooks()
    looks.begin(100.0, 7)
    assert not looks.is_wanted(100.2, done=7) and looks.at == math.inf
    looks.begin(101.0, 8)
    assert looks.at == 101.0 + FIRST_LOOK_S and looks.is_wanted(looks.at, done=7)

"""Does this processor keep the memory order that the board relies on? SHOAL_LITMUS_S=600 tests for longer."""

import os

import pytest

from p2p.memory.board import IS_ORDERED
from tests.p2p.memory.litmus import ENOUGH, PATIENCE_S
from tests.p2p.memory.processes import introduce, read, started

LIMIT_S = float(os.environ.get("SHOAL_LITMUS_S", "1.2"))
"""Least duration; the processes continue until everything was tried (litmus.py)."""

pytestmark = [
    pytest.mark.skipif(not IS_ORDERED, reason="this processor's memory order is not known to suffice"),
    pytest.mark.timeout(60 + LIMIT_S + PATIENCE_S),
]


def test_no_sum_is_torn_and_no_wake_up_is_lost() -> None:
    with started("litmus", "sums", str(LIMIT_S), num_processes=2) as processes:
        introduce(processes)
        (rounds, sleeps, caught, rung), other = (read(process) for process in processes)
        assert rounds == other[0] > 10 * ENOUGH
        assert sleeps > ENOUGH and rung > ENOUGH, f"nobody slept in {PATIENCE_S} s, so nothing was tried"
        assert caught == other[2] == 0


def test_what_is_read_under_one_tag_was_written_under_it() -> None:
    with started("litmus", "tags", str(LIMIT_S), num_processes=2) as processes:
        introduce(processes)
        (num_written,), (num_good, num_void, num_seen) = (read(process) for process in processes)
        assert num_written >= num_seen
        assert min(num_good, num_void, 10 * num_seen) > ENOUGH, f"the two never met in {PATIENCE_S} s"

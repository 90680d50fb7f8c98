"""Who looks again and again at the pages of a host."""

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p2p.status.follow import NUM_STEPS, Follower
from p2p.status.local import Condition
from p2p.status.top import BARS, screen, spark
from p2p.telemetry.arrays import as_records, new_records
from p2p.telemetry.page import Page, read_page
from p2p.telemetry.records import HALF_BYTES, Half, Kind, read_half
from tests.p2p.telemetry.pages import A, identity, of_this_process, page, snapshot

MS = 10**6


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Page]:
    """Of this process; its clock ticks by a millisecond."""
    (tmp_path / "pond").mkdir()
    yield page(tmp_path / "pond", identity(**of_this_process()))


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_an_array_has_the_records_that_were_read_one_by_one(number: int, after: int) -> None:
    memory = memoryview(bytearray(HALF_BYTES))
    half = Half(memory, iter(range(10**9)).__next__)
    for step in range(number):
        half.note(Kind.COMMITTED, step, view=7, peer=10, how=1, size=3, value=0.5)
    assert as_records(new_records(memory, after)) == [each for each in read_half(memory) if each.number > after]


def test_a_record_that_was_cut_short_is_left_out() -> None:
    memory = memoryview(bytearray(HALF_BYTES))
    half = Half(memory, iter(range(10**9)).__next__)
    for step in range(3):
        half.note(Kind.COMMITTED, step)
    memory[2 * 64 + 56] ^= 0xFF
    assert [each.step for each in as_records(new_records(memory, 0))] == [0, 2]


def test_what_is_new_is_seen_with_the_times_of_steps(tmp_path: Path, made: Page) -> None:
    follower = Follower(tmp_path, "pond", lambda: 10**10)
    made.show(snapshot(made.identity, time_ns=10**10))
    for step in range(1, 400):
        made.loop.note(Kind.COMMITTED, step)
    follower.look()
    assert follower.steps_us() == {A: [1000] * NUM_STEPS}
    made.loop.note(Kind.GONE)
    made.loop.note(Kind.COMMITTED, 400)
    made.loop.note(Kind.COMMITTED, 402)  # of 401 there is no time
    (looked,) = follower.look()["pond"]
    assert follower.steps_us()[A] == [1000] * (NUM_STEPS - 2) + [2000]
    assert looked.condition is Condition.RUNNING
    assert looked.seen.records == read_page(made.path).records[-32:]
    made.remove()
    assert follower.look() == {}


def test_a_bar_is_a_step_and_its_height_how_far_it_is_from_the_median() -> None:
    assert spark([]) == ""
    assert spark([0.01, 0.01, 0.01, 0.02, 0.005, 1.0]) == "▃▃▃▅▁█"
    assert len(spark([0.01] * 100)) == 30
    assert spark([1e-9, 1.0, 1.0])[0] == BARS[0]


def test_top_has_a_row_per_peer(tmp_path: Path, made: Page) -> None:
    made.show(snapshot(made.identity, time_ns=10**9, has_begun=True, members=((A, 1),), view=1, logged={"loss": 0.5}))
    for step in range(1, 4):
        made.loop.note(Kind.COMMITTED, step)
    follower = Follower(tmp_path, "", lambda: 10**9 + 5 * MS)
    console = Console(file=StringIO(), width=160, color_system=None)
    console.print(screen(follower.look(), follower.steps_us()))
    assert isinstance(console.file, StringIO)
    head, titles, row = (" ".join(line.split()) for line in console.file.getvalue().splitlines())
    assert head == "swarm pond: 1 member in view 1, step 3, 0 steps/s"
    assert titles == "peer process seat step median slowest last 30 steps is at logged"
    assert row == f"0 running ({os.getpid()}) rank 0 3 1 ms 1 ms ▃▃ going on after step 3, 3 ms loss 0.5"

"""Repeated looks at the pages of a host."""

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from p2p.status.follow import NUM_STEPS, StatusReader
from p2p.status.local import Condition
from p2p.status.top import BARS, screen, spark
from p2p.telemetry.arrays import as_records, new_records
from p2p.telemetry.page import Page, read_page
from p2p.telemetry.records import RING_BYTES, Kind, RecordRing, read_ring
from p2p.telemetry.snapshot import Link, Pace
from tests.p2p.telemetry.pages import A, B, identity, of_this_process, page, snapshot

MS = 10**6


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Page]:
    """The page of this process; its clock advances by a millisecond per reading."""
    (tmp_path / "pond").mkdir()
    yield page(tmp_path / "pond", identity(**of_this_process()))


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_an_array_has_the_records_that_were_read_one_by_one(number: int, after: int) -> None:
    memory = memoryview(bytearray(RING_BYTES))
    half = RecordRing(memory, iter(range(10**9)).__next__)
    for step in range(number):
        half.note(Kind.COMMITTED, step, view=7, peer=10, how=1, size=3, value=0.5)
    assert as_records(new_records(memory, after)) == [each for each in read_ring(memory) if each.number > after]


def test_a_record_that_was_cut_short_is_left_out() -> None:
    memory = memoryview(bytearray(RING_BYTES))
    half = RecordRing(memory, iter(range(10**9)).__next__)
    for step in range(3):
        half.note(Kind.COMMITTED, step)
    memory[2 * 64 + 56] ^= 0xFF
    assert [each.step for each in as_records(new_records(memory, 0))] == [0, 2]


def test_what_is_new_is_seen_with_the_times_of_steps(tmp_path: Path, made: Page) -> None:
    follower = StatusReader(tmp_path, "pond", lambda: 10**10)
    made.show(snapshot(made.identity, time_ns=10**10))
    for step in range(1, 400):
        made.loop.note(Kind.COMMITTED, step)
    follower.read()
    assert follower.steps_us() == {A: [1000] * NUM_STEPS}
    made.loop.note(Kind.GONE)
    made.loop.note(Kind.COMMITTED, 400)
    made.loop.note(Kind.COMMITTED, 402)  # step 401 has no record, so this step has no duration
    (looked,) = follower.read()["pond"]
    assert follower.steps_us()[A] == [1000] * (NUM_STEPS - 2) + [2000]
    assert looked.condition is Condition.RUNNING
    assert looked.seen.records == read_page(made.path).records[-32:]
    made.remove()
    assert follower.read() == {}


def test_a_bar_is_a_step_and_its_height_how_far_it_is_from_the_median() -> None:
    assert spark([]) == ""
    assert spark([0.01, 0.01, 0.01, 0.02, 0.005, 1.0]) == "▃▃▃▅▁█"
    assert len(spark([0.01] * 100)) == 30
    assert spark([1e-9, 1.0, 1.0])[0] == BARS[0]


def test_top_has_a_row_per_peer(tmp_path: Path, made: Page) -> None:
    made.show(snapshot(made.identity, time_ns=10**9, has_begun=True, members=((A, 1),), view=1, logged={"loss": 0.5}))
    for step in range(1, 4):
        made.loop.note(Kind.COMMITTED, step)
    follower = StatusReader(tmp_path, "", lambda: 10**9 + 5 * MS)
    console = Console(file=StringIO(), width=160, color_system=None)
    console.print(screen(follower.read(), follower.steps_us()))
    assert isinstance(console.file, StringIO)
    head, titles, row = (" ".join(line.split()) for line in console.file.getvalue().splitlines())
    assert head == "swarm pond: 1 member in view 1, step 3, 0 steps/s"
    assert titles == "peer process seat step median slowest last 30 steps is at logged"
    assert row == f"0 running ({os.getpid()}) rank 0 3 1 ms 1 ms ▃▃ continuing after step 3, 3 ms loss 0.5"


def test_top_shows_the_links_of_the_slowest_for_whom_others_wait(tmp_path: Path, made: Page) -> None:
    quick = page(tmp_path / "pond", identity(B, name="1", **of_this_process()))
    both = (A, 1), (B, 1)
    for each, compute_s in ((made, 0.5), (quick, 0.1)):
        link = Link(peer_id="c" * 16, rtt_us=52_000, bytes_per_s=10**6, sent_bytes=10**7)
        pace = Pace(steps_per_s=1.0, compute_s=compute_s, exchange_s=0.1, wait_s=0.0)
        shown = {"has_begun": True, "members": both, "view": 1, "links": (link,), "pace": pace}
        each.show(snapshot(each.identity, time_ns=10**9, **shown))
    lines = shown_by(StatusReader(tmp_path, "", lambda: 10**9), 160)
    assert [line.strip() for line in lines if "links" in line] == ["links of 0: cccccccc 52 ms, 1 MB/s, 10 MB sent"]


@pytest.mark.parametrize("width", [40, 100, 160, 200])
def test_top_cuts_words_where_the_console_ends_and_lets_nothing_move_the_cursor(
    tmp_path: Path, made: Page, width: int
) -> None:
    logged = {"verl\u00fcst" * 5: 0.5, "\u640d\u5931\u640d\u5931": 0.25, "bad\x1b[2J": 1.0}
    made.show(snapshot(made.identity, time_ns=10**9, has_begun=True, members=((A, 1),), view=1, logged=logged))
    lines = shown_by(StatusReader(tmp_path, "", lambda: 10**9), width)
    assert len(lines) == 3 and max(map(cell_len, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    assert lines[2].startswith("0     running") and lines[2].endswith("\u2026") is (40 < width < 200)


def shown_by(follower: StatusReader, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(screen(follower.read(), follower.steps_us()))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()

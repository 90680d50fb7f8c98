"""A stream over a line with a queue, in virtual time."""

from collections import deque

import pytest

from p2p.catchup.window import FEWEST, FIRST, MOST_BYTES, TARGET_S, Window

SEGMENT_BYTES = 256 << 10


def send(
    bytes_per_s: float, way_s: float, num_segments: int, segment_bytes: int = SEGMENT_BYTES
) -> tuple[float, float]:
    """Simulate a stream; returns the used share of the line, and the longest time in the queue, after warm-up."""
    window, now, free_at = Window(segment_bytes), 0.0, 0.0
    arrivals: deque[float] = deque()
    waits: list[float] = []
    num_sent = num_taken = 0
    while num_taken < num_segments:
        while window.has_room and num_sent < num_segments:
            window.sent(now)
            num_sent += 1
            waits.append(max(0.0, free_at - now))
            free_at = max(now, free_at) + segment_bytes / bytes_per_s
            arrivals.append(free_at + way_s)
        now = arrivals.popleft()
        num_taken += 1
        window.acked(now, 1)
    return num_segments * segment_bytes / bytes_per_s / now, max(waits[num_segments // 4 :])


@pytest.mark.parametrize("mbit", [50, 200, 1000])
@pytest.mark.parametrize("way_s", [0.001, 0.02])
def test_a_line_is_used_and_its_queue_stays_short(mbit: int, way_s: float) -> None:
    share, waited_s = send(mbit * 125_000, way_s, 400)
    assert share > 0.9
    one_s = SEGMENT_BYTES / (mbit * 125_000)
    assert waited_s <= TARGET_S + (FIRST + 1) * one_s


def test_what_waits_makes_it_shrink_and_what_does_not_grow() -> None:
    window = Window(SEGMENT_BYTES)
    for now in range(1000):
        window.sent(float(now))
        window.acked(now + 0.01, 1)
    assert window.size == MOST_BYTES // SEGMENT_BYTES
    for now in range(1000, 3000):
        window.sent(float(now))
        window.acked(now + 0.5, 1)
    assert window.size == FEWEST


def test_several_that_are_taken_at_once_leave_room_for_as_many() -> None:
    window = Window(SEGMENT_BYTES)
    for _ in range(FIRST):
        assert window.has_room
        window.sent(0.0)
    assert not window.has_room
    window.acked(0.01, 3)
    assert window.has_room

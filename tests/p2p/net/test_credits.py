"""Bytes in flight to a receiver: bounded by the kernel's counters, and never blocked permanently."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.net.credits import BUSY_S, FLOOR_BYTES, FLOOR_S, LEAST_BYTES, QUEUED_S, UNKNOWN, Credit, credit_of
from p2p.net.pacing import LOOK_S, Pacer

pytestmark = pytest.mark.light
FRAME = 100_000


class Line:
    """Simulated kernel counters: acknowledged bytes of `b` and `c`; no others are known."""

    def __init__(self) -> None:
        self.acked = {"b": 5000, "c": 0}
        self.now = 0.0
        self.sent: list[str] = []
        self.pacer = Pacer(self._take, lambda: self.now, 1, self.acked.get)
        self.credits = self.pacer.credits
        self.credits.is_on = True

    def _take(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        self.sent.append(peer_id)
        return True

    def send(self, *peer_ids: str, num_bytes: int = FRAME) -> str:
        """Send a frame to each; returns the receivers of frames sent by then."""
        for peer_id in peer_ids:
            self.pacer.send(peer_id, b"", memoryview(bytes(num_bytes)))
        return "".join(self.sent)

    def look(self) -> str:
        self.now += LOOK_S
        self.pacer.go_on()
        return "".join(self.sent)


def test_more_waits_until_what_is_under_way_has_arrived() -> None:
    line = Line()
    line.credits.set({"b": Credit(int(2.5 * FRAME))})
    assert line.send(*"bbbb") == "bb"
    assert line.look() == "bb" and line.pacer.next_at == line.now + LOOK_S
    line.acked["b"] += FRAME
    assert line.look() == "bbb"
    line.acked["b"] += 2 * FRAME
    assert line.look() == "bbbb" and line.pacer.next_at == math.inf


def test_who_waits_for_one_receiver_sends_to_another() -> None:
    line = Line()
    line.credits.set({"b": Credit(FRAME)})
    assert line.send(*"bbcbc") == "b", "in turns, and so not before the next look"
    assert line.look() == "bcc"
    assert line.credits.in_flight_bytes("c") == 2 * FRAME


def test_a_long_way_has_room_for_more_and_an_unknown_one_for_some() -> None:
    line = Line()
    far = credit_of(10_000_000, 0.2)
    assert far == (int(10_000_000 * (0.2 + QUEUED_S)), int(10_000_000 * (0.2 + BUSY_S)))
    assert far.most > far.least > 10_000_000 * 0.2, "what has room on the way"
    assert credit_of(10_000_000, 0.001).most == FLOOR_BYTES, (
        "segments of which one is heard of after the next has to go"
    )
    assert credit_of(1_250_000, 0.04).most == 1_250_000 * (0.04 + FLOOR_S), "a slow line has no queue for so many"
    assert credit_of(100_000, 0.001) == (LEAST_BYTES, LEAST_BYTES)
    assert line.credits.of("c") == UNKNOWN


def test_a_line_is_not_idle_while_the_acknowledgement_of_a_long_frame_comes_back() -> None:
    """On a slow line two frames exceed the limit of bytes in flight, and single ones leave it idle for a round trip."""
    line = Line()
    line.credits.set({"b": Credit(FRAME * 5 // 4, FRAME // 2)})
    assert line.send(*"bbb") == "b" == line.look()
    line.acked["b"] += FRAME // 2
    assert line.look() == "bb", "half a frame is on the way yet"
    line.acked["b"] += FRAME * 9 // 10
    assert line.look() == "bb"
    line.acked["b"] += FRAME // 10
    assert line.look() == "bbb"


def test_a_frame_that_is_larger_than_a_credit_goes_alone() -> None:
    line = Line()
    line.credits.set({"b": Credit(10)})
    assert line.send(*"bb") == "b" == line.look()
    line.acked["b"] += FRAME
    assert line.look() == "bb"


def test_all_together_are_bounded_by_the_own_line() -> None:
    line = Line()
    line.credits.total = Credit(2 * FRAME)
    assert line.send(*"bcbc") == "bc" == line.look()
    line.acked["c"] += FRAME
    assert line.look() == "bcb"


def test_the_kernel_is_asked_only_if_what_it_has_said_does_not_do() -> None:
    asked: list[str] = []

    def acked(peer_id: str) -> int:
        asked.append(peer_id)
        return 0

    pacer = Pacer(lambda *_: True, lambda: 0.0, 1, acked)
    pacer.credits.is_on = True
    pacer.credits.set({"b": Credit(3 * FRAME)})
    for _ in range(3):
        pacer.send("b", b"", memoryview(bytes(FRAME)))
    assert asked == ["b"], "what it counts from"
    pacer.send("b", b"", memoryview(bytes(FRAME)))
    assert asked == ["b", "b"] and pacer.next_at < math.inf


def test_small_frames_do_not_wait_and_count() -> None:
    line = Line()
    line.credits.set({"b": Credit(10)})
    assert line.send(*"bb", num_bytes=100) == "bb" and line.credits.in_flight_bytes("b") == 200


@pytest.mark.parametrize("acked", [None, 4999])
def test_of_another_connection_nothing_is_known(acked: int | None) -> None:
    """Frames in flight on the old connection are sent again, or not at all: they do not count."""
    line = Line()
    line.credits.set({"b": Credit(10)})
    assert line.send(*"bb") == "b"
    line.acked["b"] = acked  # type: ignore[assignment]
    assert line.look() == "bb"


def test_where_the_kernel_says_nothing_and_where_a_link_is_closed_nothing_waits() -> None:
    line = Line()
    line.credits.set({"x": Credit(10), "b": Credit(10)})
    assert line.send(*"xxbb") == "xxb"
    line.pacer.forget("b")
    assert line.send("b") == "xxbb"
    line.pacer.flush()
    assert not line.pacer.is_on


@given(
    st.lists(st.tuples(st.sampled_from("bc"), st.integers(0, 3 * FRAME)), max_size=30),
    st.builds(Credit, st.integers(1, 4 * FRAME), st.integers(0, FRAME)),
)
def test_all_is_sent_in_order_and_never_more_than_a_credit_is_under_way(
    frames: list[tuple[str, int]], credit: Credit
) -> None:
    line, handed = Line(), {"b": 0, "c": 0}
    before = dict(line.acked)
    sizes: dict[str, list[int]] = {"b": [], "c": []}

    def take(peer_id: str, header: bytes, payload: memoryview) -> bool:
        under_way = handed[peer_id] - (line.acked[peer_id] - before[peer_id])
        is_allowed = under_way + payload.nbytes <= credit.most or under_way <= credit.least
        assert payload.nbytes <= 4096 or not under_way or is_allowed
        handed[peer_id] += payload.nbytes
        sizes[peer_id].append(payload.nbytes)
        return True

    pacer = Pacer(take, lambda: line.now, 1, line.acked.get)
    pacer.credits.is_on = True
    pacer.credits.set(dict.fromkeys("bc", credit))
    assert pacer.credits.of("b") == credit
    for peer_id, num_bytes in frames:
        pacer.send(peer_id, b"", memoryview(bytes(num_bytes)))
    while pacer.next_at < math.inf:
        line.now = max(line.now, pacer.next_at)
        for name in "bc":
            line.acked[name] += (handed[name] - (line.acked[name] - before[name]) + 1) // 2
        pacer.go_on()
    assert sizes == {name: [size for each, size in frames if each == name] for name in "bc"}

"""Paced frames: none is lost, and those to one peer stay in order."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.net.pacing import HEADROOM, LATE_S, SMALL_BYTES, Pacer

pytestmark = pytest.mark.light
HEADER = bytes(16)
RATE = 1_000_000
LENT_FROM = 10_000


class Sent:
    """A pacer whose frames are recorded, with their times."""

    def __init__(self, bytes_per_s: int = RATE) -> None:
        self.now = 0.0
        self.frames: list[tuple[float, str, int]] = []
        self.pacer = Pacer(self._take, lambda: self.now, LENT_FROM, lambda _: None)
        self.pacer.bytes_per_s = bytes_per_s

    def _take(self, peer_id: str, header: bytes, payload: memoryview) -> bool:
        self.frames.append((self.now, peer_id, len(header) + payload.nbytes))
        return True

    def send(self, peer_id: str, num_bytes: int) -> bool:
        return self.pacer.send(peer_id, HEADER, memoryview(bytes(num_bytes)))

    def run(self) -> None:
        """Run until no frame is held."""
        while (at := self.pacer.next_at) < math.inf:
            self.now = max(self.now, at)
            self.pacer.go_on()


def test_what_goes_to_three_at_once_leaves_one_after_the_other() -> None:
    sent = Sent()
    for peer_id in "bcd":
        assert sent.send(peer_id, 100_000)
    assert [peer_id for _, peer_id, _ in sent.frames] == ["b"] and sent.pacer.is_on
    sent.run()
    took_s = (100_000 + len(HEADER)) / (HEADROOM * RATE)
    assert [peer_id for _, peer_id, _ in sent.frames] == ["b", "c", "d"]
    assert [at for at, _, _ in sent.frames] == pytest.approx([0.0, took_s, 2 * took_s])


def test_peers_take_turns_and_small_frames_wait_for_none_but_those_to_the_same_peer() -> None:
    sent = Sent()
    for peer_id in "bbcc":
        sent.send(peer_id, 50_000)
    assert sent.send("d", SMALL_BYTES) and sent.frames[-1][1] == "d"
    sent.send("b", 0)
    sent.run()
    assert [(peer_id, size - len(HEADER)) for _, peer_id, size in sent.frames] == [
        *(("b", 50_000), ("d", SMALL_BYTES), ("b", 50_000)),
        *(("c", 50_000), ("b", 0), ("c", 50_000)),
    ]


def test_without_a_rate_nothing_waits_and_what_is_held_goes_when_it_is_lost() -> None:
    sent = Sent(0)
    assert not sent.pacer.is_on
    sent.pacer.bytes_per_s = RATE
    for peer_id in "bcd":
        sent.send(peer_id, 100_000)
    assert len(sent.frames) == 1
    sent.pacer.forget("c")
    sent.pacer.flush()
    assert [peer_id for _, peer_id, _ in sent.frames] == ["b", "d"] and not sent.pacer.is_on
    assert sent.pacer.next_at == math.inf


def test_what_is_held_is_what_was_said_also_where_small_payloads_are_written_again() -> None:
    said: list[bytes] = []

    def send(peer_id: str, header: bytes, payload: memoryview) -> bool:
        said.append(payload.tobytes())
        return True

    pacer = Pacer(send, lambda: 0.0, LENT_FROM, lambda _: None)
    pacer.bytes_per_s = 1
    payloads = [bytearray([number] * size) for number, size in enumerate((SMALL_BYTES + 1, LENT_FROM - 1, LENT_FROM))]
    for payload in payloads:
        pacer.send("b", HEADER, memoryview(payload))
    before = [bytes(payload) for payload in payloads]
    for payload in payloads:
        payload[:] = bytes(len(payload))
    pacer.flush()
    assert said[:2] == before[:2] and said[2] == bytes(LENT_FROM), "large ones are lent, as to the sockets"


FRAMES = st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 200_000), st.floats(0, 0.2)), max_size=40)


@given(FRAMES)
def test_all_is_sent_in_order_and_no_faster_than_the_line(frames: list[tuple[str, int, float]]) -> None:
    sent = Sent()
    for peer_id, num_bytes, later_s in frames:
        sent.now += later_s
        sent.pacer.go_on()
        sent.send(peer_id, num_bytes)
    sent.run()
    for name in "bcd":
        sizes = [size - len(HEADER) for _, peer_id, size in sent.frames if peer_id == name]
        assert sizes == [num_bytes for peer_id, num_bytes, _ in frames if peer_id == name]
    large = [(at, size) for at, _, size in sent.frames if size - len(HEADER) > SMALL_BYTES]
    for (at, size), (later, _) in pairwise(large):
        assert later - at >= size / (HEADROOM * RATE) - LATE_S - 1e-9

"""Measurements from hand-made kernel counters: rates, probes, and when a row is news."""

from itertools import pairwise

import pytest

from p2p.loop.measuring import BLOCK_S, LEAST_BYTES, NUM_CERTAIN, High, Line, Rate, after
from p2p.loop.probes import FIRST_PORTION, PROBE_BYTES, PROBE_S, SHARE, Probes
from p2p.net.flows import Flow
from tests.gossip.members import A, B, C, D, view_of


def test_what_was_reached_three_times_in_two_blocks_of_time_counts() -> None:
    high = High()
    assert high.value == 0
    high.add(0.0, 9)
    assert high.value == 9, "as long as there is no other"
    for value in (5, 90, 7, 3):
        high.add(BLOCK_S - 1, value)
    assert high.value == 7
    high.add(BLOCK_S + 1, 8)
    assert high.value == 8
    for now in (2, 3):
        high.add(now * BLOCK_S + now, 4)
    assert high.value == 4, "what has become slower is seen"


def test_a_rate_is_of_a_stretch_in_which_something_has_always_come() -> None:
    rate = Rate()
    for step in range(3):
        rate.add(10.0 + 0.2 * step, step * LEAST_BYTES)
    assert abs(rate.high.value - LEAST_BYTES * 5) <= 1
    rate.add(10.5, 2 * LEAST_BYTES)
    for step in range(1, 9):  # a pause, then the same rate: it counts neither as slower nor as faster
        rate.add(10.5 + 0.2 * step, (2 + step) * LEAST_BYTES)
    assert abs(rate.high.value - LEAST_BYTES * 5) <= 1


def test_little_says_nothing_of_a_rate_and_a_counter_that_went_back_begins_anew() -> None:
    rate = Rate()
    for step in range(20):
        rate.add(0.2 * step, step * 1000)
    assert rate.high.value == 0
    for now, total in ((4.0, 10 * LEAST_BYTES), (4.1, 3), (4.3, 3 + LEAST_BYTES)):
        rate.add(now, total)
    assert abs(rate.high.value - LEAST_BYTES * 5) <= 1


def test_the_rate_of_a_line_is_what_it_carries_while_packets_wait() -> None:
    line, carried = Line(), 0

    def look(now: float, num_bytes: int, *, is_queueing: bool) -> int:
        nonlocal carried
        carried += num_bytes
        line.add(now, {"b": flow(carried, is_queueing=is_queueing), "c": flow(carried, is_queueing=False)})
        return line.bytes_per_s

    for step in range(8):
        assert look(step * 0.1, 2 * LEAST_BYTES, is_queueing=False) == 0, "it would have carried more"
    assert look(0.8, 2 * LEAST_BYTES, is_queueing=True) == 0, "the queue began in this stretch"
    assert [look(0.9 + step * 0.1, 2 * LEAST_BYTES, is_queueing=True) for step in range(3)][:2] == [0, 0]
    known = line.bytes_per_s
    assert known == pytest.approx(40 * LEAST_BYTES, rel=1e-3)
    for step in range(9):
        assert look(2.0 + step * 0.1, LEAST_BYTES // 4, is_queueing=True) == known, "little says nothing"
    for step in range(3):
        look(3.0 + step * 0.1, 4 * LEAST_BYTES, is_queueing=False)
    assert line.bytes_per_s > known, "what is faster counts, queue or not"


def test_a_rate_is_the_lines_once_packets_have_waited_often_enough_at_about_that_rate() -> None:
    line, carried, known = Line(), 0, list[bool]()
    rate = 40 * LEAST_BYTES
    for step in range(2 * NUM_CERTAIN):
        carried += 4 * LEAST_BYTES
        line.add(step * 0.1, {"b": flow(carried, is_queueing=step >= 5)})
        known.append(line.explains(rate))
    assert known.index(True) == 5 + NUM_CERTAIN and all(known[5 + NUM_CERTAIN :]), "a queue at both ends of a stretch"
    assert line.explains(rate // 4) and line.explains(13 * rate // 10) and not line.explains(3 * rate // 2)


def test_a_connection_that_is_opened_anew_says_nothing_of_a_line() -> None:
    line = Line()
    for step in range(8):
        name = "b" if step % 2 else "c"
        line.add(step * 0.1, {name: flow((1 + step) * 100 * LEAST_BYTES, is_queueing=True)})
        line.add(step * 0.1 + 0.05, {})
    assert line.bytes_per_s == 0


def test_each_rank_begins_with_another_one() -> None:
    view = view_of(1, A, B, C)
    assert [after(me, view) for me in (A, B, C)] == [[B, C], [C, A], [A, B]]
    assert after(D, view) == []


class Sender:
    """A stand-in that probes are sent through; `sent`: receivers and sizes."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []

    def send_probe(self, peer_id: str, num_bytes: int) -> None:
        self.sent.append((peer_id, num_bytes))


def flow(acked: int, *, is_queueing: bool = False) -> Flow:
    return Flow(500, 0, acked, 0, acked, is_queueing)


def test_a_probe_grows_as_long_as_it_arrives_in_time_and_then_the_next_one_waits() -> None:
    sender = Sender()
    probes, now = Probes(sender), 5.0
    acked = {"b": 100, "c": 0}
    for _ in range(8):
        probes.go_on(now, {name: flow(number) for name, number in acked.items()})
        acked["b"] = 100 + sum(number for name, number in sender.sent if name == "b")
        now += 0.01
    portions = [number for name, number in sender.sent if name == "b"]
    assert sum(portions) == PROBE_BYTES and sender.sent[-1] == ("c", FIRST_PORTION)
    assert portions[:3] == [FIRST_PORTION, 2 * FIRST_PORTION, 4 * FIRST_PORTION] and probes.is_measured(
        "b", flow(acked["b"])
    )


def test_three_probes_come_in_a_row_and_then_a_tenth_of_the_time_is_theirs() -> None:
    sender = Sender()
    probes, began_at = Probes(sender), dict[str, float]()
    for look in range(2000):
        now = 1.0 + look * 0.01
        probes.go_on(now, {f"p{number}": flow(0) for number in range(8)})  # nothing arrives, so each probe times out
        for name, _ in sender.sent:
            began_at.setdefault(name, now)
    begins = list(began_at.values())
    pauses = [later - before for before, later in pairwise(begins)]
    assert len(begins) == 8 and max(pauses[:2]) < PROBE_S + 0.03
    assert all(pause == pytest.approx(PROBE_S / SHARE + PROBE_S, rel=0.1) for pause in pauses[3:])


def test_a_slow_link_gets_one_portion() -> None:
    sender = Sender()
    probes = Probes(sender)
    for now in (0.0, 0.1, PROBE_S + 0.01, PROBE_S + 0.02):
        probes.go_on(now, {"b": flow(10)})
    assert sender.sent == [("b", FIRST_PORTION)] and probes.is_measured("b", flow(10))


def test_who_has_been_sent_enough_is_not_probed() -> None:
    sender = Sender()
    probes = Probes(sender)
    probes.go_on(0.0, {"b": flow(PROBE_BYTES)})
    assert sender.sent == [] and probes.is_measured("b", flow(PROBE_BYTES))
    assert not probes.is_measured("b", flow(PROBE_BYTES)._replace(rtt_us=0)), "nothing is known of its round trip"


def test_a_probe_to_who_is_gone_is_over() -> None:
    sender = Sender()
    probes = Probes(sender)
    probes.go_on(0.0, {"b": flow(0), "c": flow(0)})
    for now in (0.1, 5.0):
        probes.go_on(now, {"c": flow(0)})
    assert [name for name, _ in sender.sent] == ["b", "c"]


def test_who_has_gone_is_forgotten_and_measured_anew_if_it_comes_back() -> None:
    probes = Probes(Sender())
    for now, acked in ((0.0, 0), (0.01, FIRST_PORTION)):
        probes.go_on(now, {"b": flow(acked)})
    probes.go_on(PROBE_S + 0.02, {"b": flow(FIRST_PORTION)})
    probes.keep({"b", "c"})
    assert probes.is_measured("b", flow(10))
    probes.keep({"c"})
    assert not probes.is_measured("b", flow(10))

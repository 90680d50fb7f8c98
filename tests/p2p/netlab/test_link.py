"""Arrival times of frames, by a simulated clock."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.netlab.link import FRAME_MAX_BYTES, MTU_BYTES, QUEUE_MIN_BYTES, Links, RateLimiter
from p2p.netlab.settings import LineSettings, PairSettings, parse_pair

MBIT = 10**6
MS = 10**6
SECOND = 10**9

frames = st.lists(st.tuples(st.integers(0, 5 * MS), st.integers(1, FRAME_MAX_BYTES)), min_size=1, max_size=60)
"""Frames: time after the previous one, and size."""
rates = st.integers(1_000, 10**11)


def links(
    pair: PairSettings | None = None,
    line: LineSettings | None = None,
    num_hosts: int = 2,
    pairs: Mapping[tuple[int, int], PairSettings] | None = None,
    seed: int = 0,
) -> Links:
    ends = [(a, b) for a in range(num_hosts) for b in range(num_hosts) if a != b]
    given = dict.fromkeys(ends, pair or PairSettings()) | dict(pairs or {})
    return Links([line or LineSettings()] * num_hosts, given, Random(seed))


def times(sent: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same frames with their sending times."""
    now, found = 0, []
    for after, size in sent:
        now += after
        found.append((now, size))
    return found


@given(frames, rates, st.integers(0, SECOND))
def test_no_window_of_time_holds_more_than_the_rate(sent: list[tuple[int, int]], rate: int, queue_ns: int) -> None:
    wire = RateLimiter(rate, queue_ns)
    left = [(wire.send(now, size), size) for now, size in times(sent)]
    through = [(at, size) for at, size in left if at is not None]
    for first, (begin, _) in enumerate(through):
        carried = 0
        for end, size in through[first + 1 :]:
            carried += size
            assert carried * 8 * SECOND <= (end - begin) * rate


@given(frames, rates)
def test_a_wire_is_never_idle_while_a_frame_waits(sent: list[tuple[int, int]], rate: int) -> None:
    wire = RateLimiter(rate, 10**18)
    free_at = 0
    for now, size in times(sent):
        left = wire.send(now, size)
        assert left is not None
        exact = size * 8 * SECOND / rate
        assert exact <= left - max(now, free_at) < exact + 1 + exact * 1e-9
        free_at = left


@given(frames, rates, st.integers(0, 100 * MS))
def test_nobody_waits_for_longer_than_the_queue_is(sent: list[tuple[int, int]], rate: int, queue_ns: int) -> None:
    wire = RateLimiter(rate, queue_ns)
    longest = max(queue_ns, QUEUE_MIN_BYTES * 8 * SECOND // rate + 1)
    for now, size in times(sent):
        left = wire.send(now, size)
        if left is not None:
            assert left - now <= longest + size * 8 * SECOND // rate + 1


@given(frames, st.integers(0, 50 * MS), st.floats(0, 1), st.integers(0, 2**32), st.none() | rates)
def test_jitter_stays_within_its_bounds_and_keeps_the_order(
    sent: list[tuple[int, int]], delay_ns: int, share: float, seed: int, rate: int | None
) -> None:
    jitter_ns = int(delay_ns * share)
    settings = PairSettings(delay_ns=delay_ns, jitter_ns=jitter_ns, rate_bit_per_s=rate)
    made, wire, last = links(settings, LineSettings(queue_ns=10**18), seed=seed), RateLimiter(rate, 10**18), 0
    for now, size in times(sent):
        due, left = made.egress(now, 0, 1, size), wire.send(now, size)
        assert due is not None and left is not None
        assert left + delay_ns - jitter_ns <= due <= left + delay_ns + jitter_ns
        assert due >= last
        last = due


@given(frames, st.integers(0, 50 * MS), st.integers(0, 50 * MS))
def test_order_is_kept_where_the_delay_changes(sent: list[tuple[int, int]], before: int, after: int) -> None:
    made, last = links(PairSettings(delay_ns=before)), 0
    for index, (now, size) in enumerate(times(sent)):
        if index == len(sent) // 2:
            made.pairs[0, 1].change(PairSettings(delay_ns=after))
        due = made.egress(now, 0, 1, size)
        assert due is not None and due >= last
        last = due


def test_jitter_is_uniform() -> None:
    made = links(PairSettings(delay_ns=20 * MS, jitter_ns=10 * MS))
    delays = [(made.egress(SECOND * step, 0, 1, 100) or 0) - SECOND * step for step in range(4000)]
    tenths = [
        sum(10 * MS + 2 * MS * tenth <= delay < 12 * MS + 2 * MS * tenth for delay in delays) for tenth in range(10)
    ]
    assert all(300 < count < 500 for count in tenths), tenths


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.3])
def test_so_large_a_share_is_lost_each_packet_by_itself(loss: float) -> None:
    made, num = links(PairSettings(loss=loss)), 100_000
    is_lost = [made.egress(step, 0, 1, MTU_BYTES) is None for step in range(num)]
    deviation = (loss * (1 - loss) / num) ** 0.5
    assert abs(sum(is_lost) / num - loss) < 4 * deviation
    after_loss = [second for first, second in pairwise(is_lost) if first]
    assert abs(sum(after_loss) / len(after_loss) - loss) < 4 * (loss * (1 - loss) / len(after_loss)) ** 0.5
    assert made.pairs[0, 1].counters.dropped_loss == sum(is_lost)


def test_packets_longer_than_a_path_carries_are_lost_and_each_goes_by_itself() -> None:
    made = links(PairSettings(mtu_bytes=1400))
    assert [made.egress(0, 0, 1, size) is None for size in (40, 1400, 1401, 1500)] == [False, False, True, True]
    assert made.pairs[0, 1].counters.dropped_mtu == 2 and made.packets_per_frame(0) == 1
    made.pairs[0, 1].change(PairSettings(**parse_pair("mtu=none")))
    assert made.egress(0, 0, 1, MTU_BYTES) is not None and made.packets_per_frame(0) > 1


@given(frames, st.integers(0, 60))
def test_a_cut_drops_all_also_what_is_under_way(sent: list[tuple[int, int]], at: int) -> None:
    made = links(PairSettings(delay_ns=20 * MS))
    under_way = []
    for index, (now, size) in enumerate(times(sent)):
        if index == at:
            made.pairs[0, 1].change(PairSettings(delay_ns=20 * MS, cut=True))
        if (due := made.egress(now, 0, 1, size, 2)) is not None:
            under_way.append((due, size))
    made.pairs[0, 1].change(PairSettings(cut=True))
    assert [made.ingress(due, 0, 1, size, 2) for due, size in under_way] == [None] * len(under_way)
    assert made.pairs[0, 1].counters.dropped_cut == 2 * len(sent)
    assert made.egress(SECOND, 1, 0, 100) is not None, "the other direction is another link"


def test_a_cut_drops_what_waits_for_the_line_of_its_target() -> None:
    made = links(line=LineSettings(down_bit_per_s=8 * MBIT))
    assert [made.ingress(0, 0, 1, 1000) for _ in range(3)] == [1 * MS, 2 * MS, 3 * MS]
    assert made.arrive(0, 1, 1000)
    made.pairs[0, 1].change(PairSettings(cut=True))
    assert not made.arrive(0, 1, 1000) and not made.arrive(0, 1, 1000)
    assert (made.pairs[0, 1].counters.packets, made.pairs[0, 1].counters.dropped_cut) == (1, 2)


def test_after_healing_frames_arrive_again() -> None:
    made = links(PairSettings(cut=True))
    made.pairs[0, 1].change(PairSettings())
    due = made.egress(5, 0, 1, 100)
    assert due == 5 and made.ingress(due, 0, 1, 100) == 5 and made.arrive(0, 1, 100)
    assert (made.pairs[0, 1].counters.packets, made.pairs[0, 1].counters.num_bytes) == (1, 100)


def test_a_line_is_shared_by_all_to_whom_its_host_sends() -> None:
    made = links(line=LineSettings(up_bit_per_s=8 * MBIT), num_hosts=4)
    assert [made.egress(0, 0, target, 1000) for target in (1, 2, 3)] == [1 * MS, 2 * MS, 3 * MS]
    assert made.egress(0, 1, 2, 1000) == 1 * MS, "another host has a line of its own"


def test_a_line_is_shared_by_all_from_whom_its_host_receives() -> None:
    made = links(line=LineSettings(down_bit_per_s=8 * MBIT, queue_ns=2 * MS), num_hosts=4)
    size = QUEUE_MIN_BYTES // 2
    arrivals = [made.ingress(0, source, 0, size) for source in (1, 2, 3, 1)]
    assert arrivals == [12 * MS, 24 * MS, 36 * MS, None], "incast fills the queue"
    assert made.pairs[1, 0].counters.dropped_queue == 1


def test_a_line_that_changes_carries_the_next_frame_as_it_is_then() -> None:
    made = links(line=LineSettings(up_bit_per_s=8 * MBIT))
    assert made.egress(0, 0, 1, 1000) == 1 * MS
    made.change_line(0, LineSettings(up_bit_per_s=80 * MBIT))
    assert made.egress(0, 0, 1, 1000) == 1 * MS + MS // 10
    made.change_line(0, LineSettings(up_bit_per_s=None))
    assert made.egress(0, 0, 1, 1000) == 1 * MS + MS // 10, "not before what is under way"
    assert made.egress(2 * MS, 0, 1, 1000) == 2 * MS


@pytest.mark.parametrize(
    ("line", "pair", "num_packets"),
    [
        (LineSettings(), PairSettings(), 43),
        (LineSettings(up_bit_per_s=10**9), PairSettings(), 43),
        (LineSettings(up_bit_per_s=200 * MBIT), PairSettings(), 20),
        (LineSettings(down_bit_per_s=200 * MBIT), PairSettings(), 20),
        (LineSettings(up_bit_per_s=10**9), PairSettings(rate_bit_per_s=20 * MBIT), 2),
        (LineSettings(up_bit_per_s=MBIT), PairSettings(), 1),
        (LineSettings(), PairSettings(loss=1e-6), 1),
    ],
)
def test_no_frame_is_too_large_for_its_rate_or_its_loss(
    line: LineSettings, pair: PairSettings, num_packets: int
) -> None:
    made = links(pair, line)
    assert made.packets_per_frame(0) == made.packets_per_frame(1) == num_packets


def test_frames_are_as_large_as_the_worst_way_out_allows() -> None:
    made = links(num_hosts=3, pairs={(0, 2): PairSettings(loss=0.5)})
    assert [made.packets_per_frame(host) for host in range(3)] == [1, 43, 43]


def test_the_same_seed_loses_the_same_frames() -> None:
    lost = []
    for seed in (1, 1, 2):
        made = links(replace(PairSettings(), loss=0.5), seed=seed)
        lost.append([made.egress(step, 0, 1, 100) is None for step in range(64)])
    assert lost[0] == lost[1] != lost[2]

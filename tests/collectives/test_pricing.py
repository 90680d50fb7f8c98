from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, Kind, Schedule, Transfer, all_reduce_schedule, even_chunks
from collectives.drawing import draw_simulation
from collectives.formulas import FORMULA_MIN_RANKS, FORMULAS, look_at
from collectives.goals import COLLECTIVES
from collectives.links import MEMORY_BYTES_PER_S, MEMORY_DELAY_NS, SECOND_NS, SEGMENT_BYTES, Links, equal_links
from collectives.price_table import (
    CANDIDATES,
    SIZES_BYTES,
    PriceTable,
    cheapest_broadcast,
    is_rounded_once,
    nearest_size,
    price_table,
    tabulate,
)
from collectives.pricing import EVENTS_PER_SLICE, run_slices, run_to_end, simulate, simulate_slices
from collectives.transfer_graph import build_graph
from tests.collectives.chain import chain_all_reduce

RATE, DELAY_NS, MESSAGE_NS = 25_000_000, 20_000_000, 100_000
SIZES = [4096 * 4**power for power in range(8)]
EVERYWHERE = tuple(name for name in CANDIDATES if name != "hierarchical")
BUILDS = {**ALGORITHMS, "chain": chain_all_reduce}


def schedules_of(name: str, world_size: int) -> list[Schedule]:
    return [BUILDS[name](rank, world_size) for rank in range(world_size)]


def cost(num_bytes: int) -> int:
    """One message on a link of the usual rate."""
    return MESSAGE_NS + num_bytes * SECOND_NS // RATE


# What a play says, worked out by hand.


def test_one_shot_is_a_delay_and_the_inputs_of_the_others_one_behind_the_other() -> None:
    links = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)
    played = simulate(schedules_of("one-shot", 4), 4096, links)
    assert played.done_ns == (DELAY_NS + 3 * cost(4096),) * 4
    assert played.committed_ns == played.time_ns + MESSAGE_NS + DELAY_NS


def test_a_ring_is_a_delay_and_a_chunk_for_each_hop() -> None:
    played = simulate(schedules_of("ring", 5), 5000, equal_links(5, RATE, DELAY_NS, MESSAGE_NS))
    assert played.time_ns == 8 * (DELAY_NS + cost(1000))
    assert len(played.sent) == 5 * 8


def test_a_long_chunk_goes_in_segments_of_which_the_first_is_passed_on_before_the_last_has_come() -> None:
    """Along a chain of three ranks and back; the second passes each on twice, and is always busy."""
    links, segments = equal_links(3, RATE, DELAY_NS, MESSAGE_NS), 10
    played = simulate(schedules_of("chain", 3), segments * SEGMENT_BYTES, links)
    assert played.time_ns == (DELAY_NS + cost(SEGMENT_BYTES)) + 2 * segments * cost(SEGMENT_BYTES) + DELAY_NS


def test_of_a_chunk_that_is_longer_still_several_segments_are_played_as_one_and_each_has_its_cost() -> None:
    links, size = equal_links(2, RATE, 0, MESSAGE_NS), 64 * SEGMENT_BYTES
    played = simulate(schedules_of("one-shot", 2), size, links, most_messages=16)
    assert len(played.sent) == 16
    assert played.time_ns == 64 * cost(SEGMENT_BYTES)


def test_to_several_peers_messages_leave_by_turns() -> None:
    """Of three segments for each of two others; what became ready first is not sent as a whole first."""
    links = equal_links(3, RATE, DELAY_NS, MESSAGE_NS)
    sent = simulate(schedules_of("one-shot", 3), 3 * SEGMENT_BYTES, links).sent
    for rank in range(3):
        peers = [each.peer for each in sorted(sent, key=lambda each: each.start_ns) if each.source == rank]
        assert peers in ([(rank + 1) % 3, (rank + 2) % 3] * 3, [(rank + 2) % 3, (rank + 1) % 3] * 3)


def test_who_has_a_slow_downlink_is_waited_for_and_who_sends_slowly_leaves_room_for_others() -> None:
    row = (0, 0, 0)
    slow_down = Links((RATE,) * 3, (RATE // 10, RATE, RATE), (row,) * 3, 0)
    assert simulate(schedules_of("one-shot", 3), 25_000, slow_down).done_ns == (20_000_000, 2_000_000, 2_000_000)
    slow_up = Links((RATE // 10, RATE, RATE), (RATE,) * 3, (row,) * 3, 0)
    assert simulate(schedules_of("one-shot", 3), 25_000, slow_up).done_ns == (2_000_000, 10_000_000, 20_000_000)


def test_what_comes_from_near_is_not_held_up_by_what_is_on_its_way_from_far() -> None:
    delays = ((0, 50_000_000, 50_000_000), (1_000_000,) * 3, (1_000_000,) * 3)
    links = Links((RATE,) * 3, (RATE,) * 3, delays, 0)
    first = next(sent for sent in simulate(schedules_of("one-shot", 3), 25_000, links).sent if sent.peer == 1)
    assert (first.source, first.arrived_ns) == (2, 1_000_000 + 2 * 1_000_000)


def test_nothing_is_sent_of_an_empty_chunk_and_alone_nothing_takes_time() -> None:
    links = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)
    assert len(simulate(schedules_of("ring", 4), 1, links).sent) == 6
    assert simulate(schedules_of("direct", 4), 0, links).time_ns == 0
    assert simulate(schedules_of("tree", 1), 1000, equal_links(1, RATE, DELAY_NS, MESSAGE_NS)).time_ns == 0


# What holds of every play.


@pytest.mark.parametrize("name", BUILDS)
@given(world_size=st.integers(1, 9), num_bytes=st.integers(0, 40 << 20), data=st.data())
@settings(deadline=None, max_examples=15)
def test_every_schedule_is_played_to_its_end_within_its_bounds(
    name: str, world_size: int, num_bytes: int, data: st.DataObject
) -> None:
    rates = st.lists(st.integers(1_000_000, 10**9), min_size=world_size, max_size=world_size).map(tuple)
    row = st.lists(st.integers(0, 10**8), min_size=world_size, max_size=world_size).map(tuple)
    delays = tuple(data.draw(row) for _ in range(world_size))
    links = Links(data.draw(rates), data.draw(rates), delays, data.draw(st.integers(0, 10**6)))
    schedules = schedules_of(name, world_size)
    played = simulate(schedules, num_bytes, links)
    sent_bytes = [sum(each.num_bytes for each in played.sent if each.source == rank) for rank in range(world_size)]
    for rank, schedule in enumerate(schedules):
        share = sum(schedule.chunks[each.chunk] for each in schedule.transfers if each.kind is Kind.SEND)
        expected = num_bytes * share / sum(schedule.chunks)
        rounding = sum(each.source == rank for each in played.sent) + len(schedule.transfers)
        assert abs(sent_bytes[rank] - expected) <= rounding
        took_ns = [each.num_bytes * SECOND_NS // links.up[rank] for each in played.sent if each.source == rank]
        assert played.time_ns >= sum(took_ns)  # each of which is rounded
    for sent in played.sent:
        delay = links.delay_ns[sent.source][sent.peer]
        assert sent.start_ns <= sent.left_ns and sent.reached_ns == sent.start_ns + delay
        assert sent.arrived_ns >= sent.left_ns + delay
    for rank in range(world_size):
        own = sorted((each.start_ns, each.left_ns) for each in played.sent if each.source == rank)
        assert all(left <= start for (_, left), (start, _) in pairwise(own)), "an uplink sends one message at a time"
    assert played.time_ns >= max((sent.arrived_ns for sent in played.sent), default=0)
    assert played == simulate(schedules, num_bytes, links)


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"all-reduce"}))
def test_the_other_collectives_are_played_as_they_are(collective: str) -> None:
    links = equal_links(5, RATE, DELAY_NS, MESSAGE_NS)
    for build in COLLECTIVES[collective].values():
        assert simulate([build(rank, 5) for rank in range(5)], 5000, links).time_ns >= DELAY_NS


def test_faster_links_are_never_slower_for_one_message_after_the_other() -> None:
    times = [simulate(schedules_of("ring", 4), 1 << 20, equal_links(4, rate, 0, 0)).time_ns for rate in (10**6, 10**7)]
    assert times[0] == pytest.approx(10 * times[1], rel=1e-3)


def test_ring_and_tree_cross_where_bytes_outweigh_hops() -> None:
    """Four hosts of 200 Mbit/s and 20 ms: seen at 643 KiB in the network lab (95 %: 610 to 842)."""
    links = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)

    def ring_wins(size: int) -> bool:
        ring, tree = (simulate(schedules_of(name, 4), size, links).time_ns for name in ("ring", "tree"))
        return ring < tree

    assert not ring_wins(512 << 10) and ring_wins(1 << 20)


# Formulas, and tables.


def formula(name: str, links: Links) -> Callable[[int], int]:
    return run_to_end(FORMULAS[name](run_to_end(look_at(links))))


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("link", [(25_000_000, 20_000_000), (10**9, 100_000), (1_250_000, 50_000_000)])
def test_a_formula_is_near_the_play(name: str, link: tuple[int, int]) -> None:
    for world_size in (FORMULA_MIN_RANKS, 12, 16, 23):
        links = equal_links(world_size, *link, MESSAGE_NS)
        price_ns = formula(name, links)
        for size in SIZES[::2]:
            played = simulate(schedules_of(name, world_size), size, links, most_messages=4000).time_ns
            assert 0.8 < price_ns(size) / played < 1.31, (world_size, size)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize(
    "sizes", [(8, 8), (5, 4), (4, 4, 4), (1,) * 7 + (8,), (2,) * 6], ids=lambda sizes: "+".join(map(str, sizes))
)
def test_where_ranks_share_hosts_a_formula_counts_what_their_lines_carry(name: str, sizes: tuple[int, ...]) -> None:
    links = hosts_of(sizes, RATE)
    schedules = [all_reduce_schedule(name, rank, links.world_size, links.hosts) for rank in range(links.world_size)]
    price_ns = formula(name, links)
    for size in SIZES[1::3]:
        assert 0.7 < price_ns(size) / simulate(schedules, size, links).time_ns < 1.5, size


def test_ranks_of_a_host_that_do_not_follow_each_other_cost_a_ring_a_crossing_each() -> None:
    apart = hosts_of((8, 8), RATE)
    mixed = replace(apart, hosts=(0, 1) * 8, delay_ns=delays_of((0, 1) * 8))
    schedules, size = [all_reduce_schedule("ring", rank, 16) for rank in range(16)], 1 << 24
    for links in (apart, mixed):
        assert 0.7 < formula("ring", links)(size) / simulate(schedules, size, links).time_ns < 1.4
    assert formula("ring", mixed)(size) > 4 * formula("ring", apart)(size)


@pytest.mark.parametrize("name", ["one-shot", "direct", "ring"])
def test_where_delays_differ_the_formula_takes_those_of_its_ways(name: str) -> None:
    n = 12
    delays = tuple(tuple(10_000_000 + 1_000_000 * abs(a - b) for b in range(n)) for a in range(n))
    links = Links((RATE,) * n, (RATE,) * n, delays, MESSAGE_NS)
    for size in SIZES[::3]:
        assert 0.8 < formula(name, links)(size) / simulate(schedules_of(name, n), size, links).time_ns < 1.31


def test_a_table_has_every_algorithm_at_every_size_and_plays_what_has_no_formula() -> None:
    links = equal_links(FORMULA_MIN_RANKS, RATE, DELAY_NS, MESSAGE_NS)
    builds = {"ring": ALGORITHMS["ring"], "mine": chain_all_reduce}
    table = run_to_end(price_table(builds, SIZES[:2], links))
    assert set(table) == {(name, size) for name in builds for size in SIZES[:2]}
    assert table["mine", SIZES[0]] == simulate(schedules_of("chain", FORMULA_MIN_RANKS), SIZES[0], links).time_ns
    assert table["ring", SIZES[0]] == formula("ring", links)(SIZES[0])


def test_where_ranks_are_few_the_table_is_played() -> None:
    links = equal_links(FORMULA_MIN_RANKS - 1, RATE, DELAY_NS, MESSAGE_NS)
    table = run_to_end(price_table(ALGORITHMS, [1 << 20], links))
    for name in ALGORITHMS:
        assert table[name, 1 << 20] == simulate(schedules_of(name, FORMULA_MIN_RANKS - 1), 1 << 20, links).time_ns


def test_a_table_is_made_in_slices_of_few_events_and_there_are_not_many_of_both() -> None:
    """What an event costs is a measurement: `python -m bench.prices`."""
    segment_bytes = 256 << 10  # of a WAN: there are more of them than anywhere else
    for world_size in range(2, 17):
        alone = replace(equal_links(world_size, RATE, DELAY_NS, MESSAGE_NS), segment_bytes=segment_bytes)
        for links in (alone, replace(two_hosts_of(world_size, RATE), segment_bytes=segment_bytes)):
            num_slices = sum(1 for _ in tabulate(links))
            assert num_slices < 6000, (world_size, links.hosts)
            if world_size >= FORMULA_MIN_RANKS:
                assert num_slices < 60, "formulas know"
    assert sum(1 for _ in price_table({"ring": ALGORITHMS["ring"]}, SIZES, equal_links(500, RATE, 0, 0))) > 60


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_slice_has_few_events_and_what_is_the_same_for_all_sizes_is_done_once(name: str) -> None:
    links = equal_links(8, RATE, DELAY_NS, MESSAGE_NS)
    course = run_to_end(build_graph(schedules_of(name, 8), links))
    for size in SIZES_BYTES:
        played = simulate(schedules_of(name, 8), size, links)
        ends, num_slices = list[int](), 0
        slices = run_slices(course, size)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                ends = end.value
                break
            num_slices += 1
        assert tuple(ends) == played.done_ns
        assert 2 * len(played.sent) <= (num_slices + 1) * EVENTS_PER_SLICE <= 3 * len(played.sent) + EVENTS_PER_SLICE


def test_a_thousand_ranks_cost_no_play() -> None:
    links = equal_links(1000, RATE, DELAY_NS, MESSAGE_NS)
    builds = {name: _never_called for name in FORMULAS}
    assert len(run_to_end(price_table(builds, SIZES, links))) == len(FORMULAS) * len(SIZES)


@settings(deadline=None)
@given(st.integers(0, 1 << 28))
def test_the_nearest_size_is_so_by_ratio(num_bytes: int) -> None:
    nearest = nearest_size(num_bytes)
    assert nearest in SIZES_BYTES
    if SIZES_BYTES[0] <= num_bytes <= SIZES_BYTES[-1]:
        assert nearest / 2 < num_bytes**2 / nearest < nearest * 2


def test_of_a_table_the_cheapest_is_taken_and_of_equals_the_first() -> None:
    table = run_to_end(tabulate(equal_links(4, RATE, DELAY_NS, MESSAGE_NS)))
    for num_bytes in (0, 5000, 300_000, 1 << 22, 1 << 28):
        prices = table.of(num_bytes)
        assert prices == {name: table.predicted[name, nearest_size(num_bytes)] for name in EVERYWHERE}
        assert table.choose(num_bytes) == next(name for name in EVERYWHERE if prices[name] == min(prices.values()))
    assert (table.choose(4096), table.choose(1 << 22)) == ("one-shot", "direct")


def test_what_was_measured_takes_the_place_of_what_was_predicted() -> None:
    predicted = run_to_end(tabulate(equal_links(4, RATE, DELAY_NS, MESSAGE_NS))).predicted
    size, other = 1 << 20, 1 << 16
    direct, ring = predicted["direct", size], predicted["ring", size]
    assert direct < ring
    slow = PriceTable(predicted, {("direct", size): 2 * direct})
    assert (slow.of(size)["direct"], slow.of(size)["ring"]) == (2 * direct, ring * isqrt(2 * direct**2) // direct)
    slower = PriceTable(predicted, {("direct", size): 9 * direct})
    assert slower.choose(size) != "direct" and not slower.is_measured(size), "what was not tried may be as was said"
    fast = PriceTable(predicted, {("direct", size): direct // 2})
    assert fast.of(size)["ring"] == ring * (direct // 2) // direct, "the model is wrong, for all alike"
    assert fast.choose(size) == "direct" and fast.is_measured(size) and not fast.is_measured(other)
    both = PriceTable(predicted, {("direct", size): 2 * ring, ("ring", size): ring})
    assert both.of(size)["ring"] == ring and both.of(size)["tree"] == predicted["tree", size]
    assert both.choose(size) != "direct"
    assert both.of(other) == {name: predicted[name, other] for name in EVERYWHERE}


def broadcast_over(rates: tuple[int, ...], delay_ns: int = 20_000_000) -> PriceTable:
    row = (delay_ns,) * len(rates)
    return PriceTable({}, links=Links(rates, rates, (row,) * len(rates), 500_000, 1 << 18))


def test_a_broadcast_of_few_bytes_goes_in_one_hop_and_a_long_one_around_a_ring() -> None:
    """Four lines of 200 Mbit/s: one hop is ahead of a tree below 573 KiB to 1.44 MiB, as measured (decision 174)."""
    table = broadcast_over((25_000_000,) * 4)
    taken = [table.choose_broadcast(size, root=1) for size in (4 << 10, 256 << 10, 4 << 20, 64 << 20)]
    assert taken == ["one-shot", "one-shot", "ring", "ring"]
    tree = broadcast_over((25_000_000,) * 16).choose_broadcast(256 << 10, root=3)
    assert tree == "binary-tree", "of many ranks"


def test_from_a_fast_root_a_broadcast_goes_to_all_at_once_where_from_a_slow_one_others_pass_it_on() -> None:
    table = broadcast_over((100_000_000, 10_000_000, 100_000_000, 100_000_000))
    assert [table.choose_broadcast(1 << 20, root) for root in (0, 1)] == ["one-shot", "binary-tree"]


def test_without_links_sizes_decide_of_a_broadcast() -> None:
    assert PriceTable({}).choose_broadcast(1 << 20, 0) is None
    links = equal_links(2, 1000, 10, 10)
    table = run_to_end(tabulate(links))
    assert table.choose_broadcast(1 << 10, 1) == cheapest_broadcast(links, 1 << 10, 1) == "one-shot"


def test_over_a_slow_uplink_a_sum_takes_the_way_that_spares_it() -> None:
    """One-shot sends the input three times, two trees less."""
    alike = run_to_end(tabulate(equal_links(4, RATE, DELAY_NS, MESSAGE_NS)))
    slow = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)
    slow = Links((RATE // 50, *slow.up[1:]), slow.down, slow.delay_ns, MESSAGE_NS)
    assert run_to_end(tabulate(slow)).choose(64 << 10, rounds_once=True) == "direct:0,86,85,85"
    assert (alike.choose(64 << 10), run_to_end(tabulate(slow)).choose(64 << 10)) == ("one-shot", "tree")


def test_where_lines_are_not_alike_ranks_own_what_they_can_carry() -> None:
    rates = tuple(each * RATE // 100 for each in (50, 100, 100, 200))
    alike = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)
    links = Links(rates, rates, alike.delay_ns, MESSAGE_NS)
    table, size = run_to_end(tabulate(links)), 16 << 20
    assert table.direct == "direct:0,51,51,154" == table.choose(size, rounds_once=True) and is_rounded_once(
        table.direct
    )
    even = simulate([all_reduce_schedule("direct", rank, 4) for rank in range(4)], size, links).time_ns
    assert 1.25 * table.predicted["direct", size] < min(even, table.predicted["ring", size])
    assert run_to_end(tabulate(alike)).direct == "direct"
    many = FORMULA_MIN_RANKS
    wide = Links(
        tuple(RATE // (each + 1) for each in range(many)), (RATE,) * many, equal_links(many, 1, 0, 0).delay_ns, 0
    )
    assert run_to_end(tabulate(wide)).direct == "direct", "formulas know of even shares alone"


def two_hosts_of(num_ranks: int, rate: int) -> Links:
    return hosts_of((num_ranks - num_ranks // 2, num_ranks // 2), rate)


def hosts_of(sizes: tuple[int, ...], rate: int) -> Links:
    """So many ranks on each, all with a line of that rate, between them the usual delay."""
    hosts = tuple(host for host, size in enumerate(sizes) for _ in range(size))
    return Links((rate,) * len(hosts), (rate,) * len(hosts), delays_of(hosts), MESSAGE_NS, hosts=hosts)


def delays_of(hosts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(DELAY_NS if one != other else MEMORY_DELAY_NS for other in hosts) for one in hosts)


def test_ranks_of_one_host_share_its_line_and_memory_is_quick() -> None:
    size, links = 1 << 24, two_hosts_of(4, RATE)
    schedules = schedules_of("direct", 4)
    shared, apart = simulate(schedules, size, links), simulate(schedules, size, replace(links, hosts=()))
    line_ns = size * SECOND_NS // RATE
    assert shared.time_ns >= 2 * line_ns, "a host sends four halves of an input, and so many come"
    assert apart.time_ns < 0.9 * shared.time_ns
    within = [each for each in shared.sent if links.hosts[each.source] == links.hosts[each.peer]]
    assert within and all(
        each.arrived_ns - each.start_ns < MEMORY_DELAY_NS + 8 * SEGMENT_BYTES * SECOND_NS // MEMORY_BYTES_PER_S
        for each in within
    ), "whatever the line is busy with"


@pytest.mark.parametrize("num_ranks", [4, 8, 16, 64])
def test_where_hosts_hold_several_what_leaves_them_once_is_a_candidate(num_ranks: int) -> None:
    table = run_to_end(tabulate(two_hosts_of(num_ranks, RATE)))
    assert table.choose(16 << 20) == "hierarchical" and table.direct == "direct"
    assert table.choose(16 << 20, rounds_once=True) == "direct", "it rounds within a host, and between them"
    assert table.predicted["hierarchical", 16 << 20] < 0.75 * table.predicted["direct", 16 << 20]
    assert ("hierarchical", 1 << 20) not in run_to_end(tabulate(two_hosts_of(2, RATE))).predicted, "one on each"


def test_smaller_messages_keep_a_slow_pipeline_full() -> None:
    """A chunk of 1 MB in one message waits at each of six hops until it is there."""
    links = equal_links(4, RATE, DELAY_NS, MESSAGE_NS)
    whole, parts = (
        simulate(schedules_of("ring", 4), 4 << 20, each).time_ns
        for each in (links, replace(links, segment_bytes=1 << 18))
    )
    assert parts < 0.8 * whole


def _never_called(rank: int, world_size: int) -> Schedule:
    raise AssertionError("a schedule of a thousand ranks was built")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Links((1,), (1, 1), ((0,),), 0), "sizes"),
        (lambda: Links((1,), (0,), ((0,),), 0), "at least 1 byte per second"),
        (lambda: Links((1,), (1,), ((-1,),), 0), "at least 0"),
        (lambda: Links((), (), (), 0), "sizes"),
        (lambda: simulate(schedules_of("ring", 3), 8, equal_links(2, 1, 0, 0)), "3 schedules .* of 2 ranks"),
    ],
)
def test_links_that_cannot_be_are_refused(make: Callable[[], object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make()


# Pictures.


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_picture_has_a_lane_for_each_rank_and_two_bars_for_each_message(name: str) -> None:
    played = simulate(schedules_of(name, 8), 1 << 20, equal_links(8, RATE, DELAY_NS, MESSAGE_NS))
    root = ElementTree.fromstring(draw_simulation(played, f"{name} & <others>"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in root.iter(f"{space}text")]
    assert texts[0] == f"{name} & <others>" and [f"rank {rank}" for rank in range(8)] == [
        text for text in texts if text and text.startswith("rank")
    ]
    messages = root.findall(f"{space}g")
    assert len(messages) == len(played.sent)
    for message, sent in zip(messages, played.sent, strict=True):
        up, down = message.findall(f"{space}rect")
        assert float(up.attrib["x"]) < float(down.attrib["x"]) < 1000
        assert int(down.attrib["y"]) - int(up.attrib["y"]) == 44 * (sent.peer - sent.source) + 14


def test_nothing_that_happens_is_a_picture_too() -> None:
    alone = simulate([all_reduce_schedule("ring", 0, 1)], 8, equal_links(1, 1, 0, 0))
    assert ElementTree.fromstring(draw_simulation(alone, "alone")).tag.endswith("svg")


def test_a_play_can_be_left_between_two_messages() -> None:
    slices = simulate_slices(schedules_of("ring", 8), 1 << 20, equal_links(8, RATE, DELAY_NS, MESSAGE_NS))
    assert sum(1 for _ in slices) >= 8 * 14 // 20


def test_links_of_hosts_name_one_for_each_rank() -> None:
    with pytest.raises(ValueError, match=r"^links of 2 ranks need a host for each, got \(0,\)$"):
        replace(equal_links(2, RATE, DELAY_NS, MESSAGE_NS), hosts=(0,))


def test_a_send_waits_for_all_of_another_chunk() -> None:
    """Rank 0 sends chunk 0 to rank 1, which has chunk 1, and sends both on to rank 2."""

    def done_ns(*, waits: bool) -> int:
        transfers = (
            (Transfer(Kind.SEND, 1, 0),),
            (
                Transfer(Kind.RECV, 0, 0),
                Transfer(Kind.SEND, 2, 1, after=(0,) if waits else ()),
                Transfer(Kind.SEND, 2, 0, after=(1,) if waits else (0,)),
            ),
            (Transfer(Kind.RECV, 1, 1), Transfer(Kind.RECV, 1, 0)),
        )
        schedules = [Schedule(even_chunks(2), each) for each in transfers]
        return simulate(schedules, 8 * SEGMENT_BYTES, equal_links(3, RATE, DELAY_NS, MESSAGE_NS)).done_ns[2]

    assert done_ns(waits=False) == 8 * cost(SEGMENT_BYTES) + DELAY_NS, "the line to rank 2 is never idle"
    assert done_ns(waits=True) == 12 * cost(SEGMENT_BYTES) + 2 * DELAY_NS, "first chunk 0, then chunk 1, then chunk 0"

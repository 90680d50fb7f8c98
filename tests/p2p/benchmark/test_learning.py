"""With which sizes peers train before the rounds, and when they have tried enough."""

from collectives import Medium
from collectives.links import equal_links
from collectives.price_table import PriceTable, tabulate
from collectives.pricing import run_to_end
from p2p.benchmark.plan import Plan
from p2p.benchmark.worker import MOST_LEARNED_BYTES, sizes_to_learn, taken, untried_sizes
from p2p.loop.measuring import BySize

KIB = 1 << 10


def plan(*sizes_bytes: int, operation: str = "all-reduce") -> Plan:
    return Plan(
        num_peers=4,
        algorithms=("auto",),
        baseline=None,
        sizes_bytes=sizes_bytes,
        num_iters=5,
        num_warmup=1,
        operation=operation,
    )


def test_sums_are_tried_at_the_sizes_of_the_run_as_far_as_they_have_prices_and_do_not_take_long() -> None:
    assert sizes_to_learn(plan(8, 256, 4 * KIB, 64 * KIB)) == (KIB, 4 * KIB, 64 * KIB)
    assert sizes_to_learn(plan(KIB, MOST_LEARNED_BYTES, 64 << 20)) == (KIB, MOST_LEARNED_BYTES)
    assert sizes_to_learn(plan(4 * KIB, 64 * KIB, operation="broadcast")) == (64 * KIB,), (
        "of sums alone durations count"
    )


def test_a_size_is_tried_until_what_is_taken_there_was_measured() -> None:
    sizes = (4 * KIB, 64 * KIB)
    prices = run_to_end(tabulate(equal_links(4, 25_000_000, 20_000_000, 500_000)))
    assert untried_sizes(None, sizes) == untried_sizes(BySize(4, Medium.WAN), sizes) == []
    assert untried_sizes(prices, sizes) == [*sizes]
    slow = {(prices.choose(sizes[0]), sizes[0]): 10**12, (prices.choose(sizes[1]), sizes[1]): 1}
    assert untried_sizes(PriceTable(prices.predicted, slow), sizes) == [sizes[0]], "another one is taken there now"
    every = {key: 5 for key in prices.predicted}
    assert untried_sizes(PriceTable(prices.predicted, every), sizes) == []


def test_prices_that_move_without_another_choice_are_no_news() -> None:
    sizes = (4 * KIB, 256 * KIB)
    prices = run_to_end(tabulate(equal_links(4, 25_000_000, 20_000_000, 500_000)))
    shares = PriceTable({**prices.predicted, ("direct", sizes[1]): 1}, direct="direct:1,2,3,4")
    others = PriceTable({**shares.predicted, ("direct", sizes[1]): 2}, direct="direct:2,2,3,3")
    assert shares.choose(sizes[1]) != others.choose(sizes[1])
    assert taken(shares, sizes) == taken(others, sizes)
    slow = {(prices.choose(sizes[0]), sizes[0]): 10**12}
    assert taken(PriceTable(prices.predicted, slow), sizes) != taken(prices, sizes)
    assert len({taken(each, sizes) for each in (None, BySize(4, Medium.WAN), prices)}) == 3, "a table is news"

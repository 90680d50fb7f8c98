"""Warm-up of links before the rounds: its sizes, and its end."""

from collectives import Medium
from collectives.links import equal_links
from collectives.price_table import PriceTable, tabulate
from collectives.pricing import run_to_end
from p2p.benchmark.measuring.link_warmup import MOST_BYTES, SETTLED_S, ConvergenceCheck, warmup_sizes
from p2p.benchmark.plan import Plan
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
    assert warmup_sizes(plan(8, 256, 4 * KIB, 64 * KIB)) == (KIB, 4 * KIB, 64 * KIB)
    assert warmup_sizes(plan(KIB, MOST_BYTES, 64 << 20)) == (KIB, MOST_BYTES)
    assert warmup_sizes(plan(4 * KIB, 64 * KIB, operation="broadcast")) == (64 * KIB,), "of sums alone durations count"


SIZES = (4 * KIB, 256 * KIB)


def over(num_peers: int) -> PriceTable:
    return run_to_end(tabulate(equal_links(num_peers, 25_000_000, 20_000_000, 500_000)))


def test_a_size_is_tried_until_what_is_taken_there_was_measured() -> None:
    prices, settling = over(4), ConvergenceCheck(SIZES, 0.0)
    assert settling.untried(None) == settling.untried(BySize(4, Medium.WAN)) == []
    assert settling.untried(prices) == [*SIZES]
    slow = {(prices.choose(SIZES[0]), SIZES[0]): 10**12, (prices.choose(SIZES[1]), SIZES[1]): 1}
    assert settling.untried(PriceTable(prices.predicted, slow)) == [SIZES[0]], "another one is taken there now"
    every = {key: 5 for key in prices.predicted}
    assert settling.untried(PriceTable(prices.predicted, every)) == []


def test_nothing_is_learned_as_long_as_sizes_decide_since_somebody_has_not_measured_all_links() -> None:
    settling = ConvergenceCheck(SIZES, 0.0)
    assert not settling.update(0.0, None)
    assert not any(settling.update(float(second), BySize(16, Medium.WAN)) for second in range(30))
    known = PriceTable(over(4).predicted, {key: 5 for key in over(4).predicted})
    assert not settling.update(30.0, known) and not settling.update(30.0 + SETTLED_S, known)
    assert settling.update(30.1 + SETTLED_S, known)


def test_prices_that_move_without_another_choice_are_no_news_and_another_choice_is() -> None:
    prices = over(4)
    measured = {key: 5 for key in prices.predicted}
    shares = PriceTable({**prices.predicted, ("direct", SIZES[1]): 1}, measured, direct="direct:1,2,3,4")
    others = PriceTable({**shares.predicted, ("direct", SIZES[1]): 2}, measured, direct="direct:2,2,3,3")
    settling = ConvergenceCheck(SIZES, 0.0)
    assert not settling.update(0.0, shares)
    assert settling.update(SETTLED_S + 0.1, others)
    slow = PriceTable(prices.predicted, {**measured, (shares.choose(SIZES[0]), SIZES[0]): 10**12})
    assert slow.choose(SIZES[0]) != shares.choose(SIZES[0])
    assert not settling.update(2 * SETTLED_S, slow)

"""The algorithm on which training settles, step by step, if the model is wrong: pure, with real prices and rows.

Steps have one sum each; its time is the model's price times a factor that the model does not know, with noise. Rows are
gathered when one is news, and their table is used some steps later.
"""

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Final

import pytest

from collectives.links import equal_links
from collectives.price_table import CANDIDATES, PriceTable, tabulate
from collectives.pricing import run_to_end
from p2p.loop.durations import FEWEST, KEPT_S, REMEMBERED_S, Durations
from p2p.loop.link_rows import Row

NUM_LATER: Final = 3
"""Steps from gathering rows to using their table."""
NOISE: Final = 0.08
SIZE: Final = 64 << 10


@lru_cache
def model(num_ranks: int) -> PriceTable:
    return run_to_end(tabulate(equal_links(num_ranks, 1_250_000, 20_000_000, 500_000)))


class Training:
    """One peer that represents all, since all have the same rows and take the same algorithm."""

    def __init__(self, num_ranks: int, left_out: Mapping[str, float], seed: int = 0) -> None:
        """`left_out`: true time of a sum over the model's price, by algorithm; 1 for the others."""
        self.now, self.took, self.table = 0.0, list[str](), model(num_ranks)
        self.durations, self.row, self._gathered_at = Durations(), Row(), 0.0
        self._random, self._left_out = Random(seed), left_out
        self._next: tuple[int, PriceTable] | None = None

    def true_s(self, name: str) -> float:
        return self._left_out.get(name, 1.0) * self.table.predicted[name, SIZE] / 1e9

    @property
    def regret(self) -> float:
        """Regret of the algorithm that is taken now."""
        return self.true_s(self.table.choose(SIZE)) / min(map(self.true_s, self._names)) - 1

    @property
    def _names(self) -> list[str]:
        return [name for name in CANDIDATES if (name, SIZE) in self.table.predicted]

    def step(self) -> None:
        name = self.table.choose(SIZE)
        took_s = self.true_s(name) * (1 + NOISE * self._random.uniform(-1, 1))
        self.now += took_s
        self.took.append(name)
        self.durations.add((name, SIZE), self.now, took_s, self.table.predicted[name, SIZE] / 1e9)
        if self._next is not None:
            left, table = self._next
            self._next = (left - 1, table) if left else None
            self.table = self.table if left else table
            return
        medians = self.durations.medians(self.now, self.table)
        row = Row(took={key: round(median_s * 1e6) for key, median_s in medians.items()})
        if row.is_news(self.row, self.now - self._gathered_at):
            self.gather(row)

    def gather(self, row: Row) -> None:
        measured_ns = {key: took_us * 1000 for key, took_us in row.took.items()}
        self.row, self._gathered_at = row, self.now
        self._next = NUM_LATER, PriceTable(self.table.predicted, measured_ns)

    def train(self, for_s: float) -> list[str]:
        """Train; returns the successive algorithms, each once per switch to it."""
        first, until = len(self.took), self.now + for_s
        while self.now < until:
            self.step()
        taken = self.took[first:]
        return [name for place, name in enumerate(taken) if place == 0 or taken[place - 1] != name]


MODELS_ARE_WRONG: Final = [
    {},
    {"one-shot": 3.0},
    {"one-shot": 3.0, "direct": 2.0},
    {"direct": 1.6, "halving-doubling": 1.5},
    dict.fromkeys(CANDIDATES, 1.7),
    {**dict.fromkeys(CANDIDATES, 1.4), "direct": 4.0},
    {**dict.fromkeys(CANDIDATES, 0.7), "one-shot": 5.0},
]


@pytest.mark.parametrize("num_ranks", [4, 8, 16])
@pytest.mark.parametrize("left_out", MODELS_ARE_WRONG)
def test_each_way_is_tried_at_most_once_and_the_best_one_kept(num_ranks: int, left_out: dict[str, float]) -> None:
    for seed in range(2):
        training = Training(num_ranks, left_out, seed)
        tried = training.train(45.0)
        assert len(tried) <= len(CANDIDATES) and training.regret <= 2 * NOISE
        assert training.train(30.0) == [tried[-1]], "and no other is turned to after that"


def test_what_was_tried_and_is_slow_is_remembered_when_rows_are_gathered_for_another_reason() -> None:
    training = Training(16, {"one-shot": 3.0, "direct": 5.0})
    tried = training.train(60.0)
    assert len(tried) > 1
    for _ in range(5):
        training.train(KEPT_S + 10)
        medians = training.durations.medians(training.now, training.table)
        training.gather(Row(took={key: round(each * 1e6) for key, each in medians.items()}))
        assert training.train(20.0) == [tried[-1]]
    old = training.durations.medians(training.now + REMEMBERED_S + 10, training.table)
    assert not old, "links may be others by then"


def test_a_sum_is_tried_for_some_steps_and_not_longer_than_it_takes_to_tell_the_others() -> None:
    training = Training(16, {"one-shot": 3.0})
    first = training.took[0] if training.took else training.table.choose(SIZE)
    tried = training.train(60.0)
    num_first = training.took.count(tried[0])
    assert tried[0] == first and num_first >= FEWEST
    if len(tried) > 1:
        assert num_first * training.true_s(first) < 3.0 + (NUM_LATER + FEWEST) * training.true_s(first)


def test_a_way_that_is_dearer_than_any_price_says_is_left_though_nothing_else_was_tried() -> None:
    """If all algorithms were assumed to be slower by the same factor, it would be kept for ever."""
    prices = model(16).predicted
    cheapest = model(16).choose(SIZE)
    told = PriceTable(prices, {(cheapest, SIZE): 5 * prices[cheapest, SIZE]})
    assert told.choose(SIZE) != cheapest
    training = Training(16, {cheapest: 5.0})
    assert training.regret > 0.5
    training.train(45.0)
    assert training.regret <= 2 * NOISE


@pytest.mark.parametrize("factor", [1.3, 2.0, 3.0, 6.0])
def test_where_one_way_alone_is_dearer_what_is_kept_is_at_most_the_root_of_that_off(factor: float) -> None:
    for num_ranks in (4, 8, 16):
        training = Training(num_ranks, {model(num_ranks).choose(SIZE): factor})
        training.train(60.0)
        assert training.regret <= (1 + NOISE) * factor**0.5 - 1

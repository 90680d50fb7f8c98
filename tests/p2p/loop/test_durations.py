"""Durations of sums that do not share the links with others."""

import numpy as np
import pytest

from collectives.price_table import SIZES_BYTES, PriceTable
from p2p.loop.durations import FEWEST, KEPT_S, REMEMBERED_S, Durations
from tests.p2p.step.group import Group, all_reduce, counts, enter, new_view

LEAST = SIZES_BYTES[0]


def large() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.ones(LEAST // 8)


class Watch:
    """The durations that rank 0 of a group records, by a simulated clock."""

    def __init__(self, group: Group) -> None:
        self.group, self.now = group, 100.0
        self.durations = Durations()

    def look(self, passed_s: float = 0.0) -> None:
        self.now += passed_s
        self.durations.watch(self.now, self.group.all[0].open_step)

    def step(self, *sizes: int, took_s: float = 0.3) -> None:
        """Run a step of sums that are all submitted together, and take `took_s`."""
        for size in sizes:
            for me in self.group.members:
                self.group.all[me].submit(counts(1) if size == 0 else all_reduce(np.ones(size // 8), "direct"))
            self.look()
        for me in self.group.members:
            self.group.all[me].close()
        self.now += took_s
        while self.group.in_flight:
            self.group.deliver(1)
            self.look()
        self.group.commit()
        self.look()

    @property
    def found(self) -> dict[tuple[str, int], float]:
        return {key: round(took_s, 6) for key, took_s in self.durations.medians(self.now).items()}


def test_the_median_of_several_counts_and_small_ones_beside_them_do_not() -> None:
    watch = Watch(new_view(3))
    for number in range(FEWEST):
        assert watch.found == {}
        watch.step(0, 8, LEAST, 8, took_s=0.1 * (number + 1))
    assert watch.found == {("direct", LEAST): 0.3}


def test_sums_that_share_the_links_are_not_counted() -> None:
    watch = Watch(new_view(2))
    for _ in range(FEWEST):
        watch.step(0, LEAST, 2 * LEAST)
    assert watch.found == {}


def test_what_a_view_has_cut_off_is_not_counted() -> None:
    watch = Watch(new_view(3))
    for _ in range(FEWEST):
        for me in watch.group.members:
            watch.group.all[me].submit(all_reduce(large(), "direct"))
            watch.group.all[me].close()
        watch.look()
        enter(watch.group, 0, 1, 2)
        watch.look(5.0)
        watch.group.deliver()
        watch.look(0.2)
        watch.group.commit()
    assert watch.found == {("direct", LEAST): 0.2}


def test_what_was_long_ago_and_what_was_among_others_is_forgotten() -> None:
    watch = Watch(new_view(2))
    for _ in range(FEWEST):
        watch.step(LEAST)
    assert watch.found == {("direct", LEAST): 0.3}
    watch.now += KEPT_S + 5
    assert watch.found == {}
    for _ in range(FEWEST):
        watch.step(LEAST)
    watch.durations.forget()
    assert watch.found == {}


def test_what_was_a_while_ago_counts_as_a_factor_of_the_price_that_it_has_now() -> None:
    durations, key = Durations(), ("ring", LEAST)
    for _ in range(FEWEST):
        durations.add(key, 100.0, 0.3, 0.1)
        durations.add(("direct", LEAST), 100.0, 0.3)
    later, table = 100.0 + KEPT_S + 1, PriceTable({key: 200_000_000, ("direct", LEAST): 5})
    assert durations.medians(100.0, table) == {key: 0.3, ("direct", LEAST): 0.3}
    assert durations.medians(later, table) == {key: pytest.approx(0.6)}, "the lines are half as fast as then"
    assert durations.medians(later) == durations.medians(later + REMEMBERED_S, table) == {}
    durations.add(key, later, 0.7, 0.2)
    assert durations.medians(later, table)[key] == pytest.approx(0.6), "one alone says little"

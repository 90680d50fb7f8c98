"""The price of each algorithm at each size: by plays for few ranks, by formulas for many."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from types import MappingProxyType
from typing import Final

from collectives.algorithms import HIERARCHICAL, SHARES, all_reduce_schedule, with_shares
from collectives.direct import direct_shares
from collectives.formulas import FORMULA_MIN_RANKS, FORMULAS, look_at
from collectives.goals import COLLECTIVES, schedule_of
from collectives.links import Links
from collectives.pricing import run_slices, simulate
from collectives.schedule import Build
from collectives.transfer_graph import build_graph


def price_table(
    builds: Mapping[str, Build], sizes_bytes: Sequence[int], links: Links
) -> Generator[None, None, dict[tuple[str, int], int]]:
    """The price of each algorithm at each size, in ns, computed in slices of less than a millisecond.

    From `formulas.FEW_RANKS` ranks on, an algorithm whose name has a formula is not played.
    """
    prices: dict[tuple[str, int], int] = {}
    n = links.world_size
    hosts = (yield from look_at(links)) if n >= FORMULA_MIN_RANKS else None
    for name, build in builds.items():
        if hosts is not None and name in FORMULAS:
            formula = yield from FORMULAS[name](hosts)
            for size_bytes in sizes_bytes:
                prices[name, size_bytes] = formula(size_bytes)
            yield
            continue
        schedules = []
        for rank in range(n):
            schedules.append(build(rank, n))
            yield
        course = yield from build_graph(schedules, links)
        for size_bytes in sizes_bytes:
            prices[name, size_bytes] = max((yield from run_slices(course, size_bytes)))
    return prices


SIZES_BYTES: Final = tuple(1 << power for power in range(10, 27))
"""From 1 KiB to 64 MiB: other sizes take the prices of the nearest."""

CANDIDATES: Final[tuple[str, ...]] = ("one-shot", "direct", "ring", "tree", "halving-doubling", HIERARCHICAL)
"""The algorithms to choose from; of two with the same price the first is taken."""

BROADCAST_MESSAGES: Final = 256
"""Messages in a play of a broadcast."""

ROUND_ONCE: Final = ("one-shot", "direct")
"""Algorithms that add up all inputs of an element at once, so that a sum of half types is rounded once."""


UNLIKE: Final = 1.2
"""Shares are kept even unless some rank should own more than this many times an even share."""


def is_rounded_once(algorithm: str) -> bool:
    """Whether the algorithm adds up all inputs of an element at once, for any shares."""
    return algorithm.partition(SHARES)[0] in ROUND_ONCE


@dataclass(frozen=True, slots=True)
class PriceTable:
    """The price of each candidate at each of `SIZES_BYTES`, in ns, over the links of some ranks.

    Attributes:
        predicted: of all candidates; of `hierarchical` only if a host has several ranks.
        measured: of some: includes effects that the model lacks (losses if many send to one, additions).
        direct: name of `direct`, with the shares of the ranks if they are not even.
        links: for prices of broadcasts; None: broadcasts are chosen by size.
    """

    predicted: Mapping[tuple[str, int], int]
    measured: Mapping[tuple[str, int], int] = field(default_factory=dict)
    direct: str = "direct"
    links: Links | None = None

    def of(self, num_bytes: int) -> dict[str, int]:
        """The price of each candidate at the nearest size: as measured, else predicted and corrected by measurements.

        If everything measured takes longer than predicted, the cause may be a busy machine, which affects all
        algorithms alike, or specific to these (many ranks send to one). So predictions are multiplied by the square
        root of the smallest ratio of measured to predicted; by that ratio itself if it is below 1. A caller that takes
        the cheapest and measures it thus tries each at most once, and ends with a measured one.
        """
        size = nearest_size(num_bytes)
        predicted = {name: self.predicted[name, size] for name in CANDIDATES if (name, size) in self.predicted}
        measured = {name: self.measured[name, size] for name in predicted if (name, size) in self.measured}
        if not measured:
            return predicted
        least = min(measured, key=lambda name: Fraction(measured[name], max(predicted[name], 1)))
        told, expected = measured[least], max(predicted[least], 1)
        told = isqrt(told * expected) if told > expected else told
        return {name: measured.get(name, price * told // expected) for name, price in predicted.items()}

    def choose(self, num_bytes: int, *, rounds_once: bool = False) -> str:
        """The cheapest candidate: the same on all ranks with the same links and measurements.

        `rounds_once`: only among those that add up all inputs of an element at once.
        """
        prices = self.of(num_bytes)
        cheapest = min(ROUND_ONCE if rounds_once else prices, key=prices.__getitem__)
        return self.direct if cheapest == "direct" else cheapest

    def is_measured(self, num_bytes: int) -> bool:
        """Whether the candidate that `choose` takes was measured."""
        return (self.choose(num_bytes).partition(SHARES)[0], nearest_size(num_bytes)) in self.measured

    def choose_broadcast(self, num_bytes: int, root: int) -> str | None:
        """The cheapest broadcast from `root`, the same on all ranks with the same links; None: choose by size.

        Played on demand, which takes some ms the first time: a table would be needed for each root.
        """
        return None if self.links is None else cheapest_broadcast(self.links, nearest_size(num_bytes), root)


@lru_cache(maxsize=1024)
def cheapest_broadcast(links: Links, num_bytes: int, root: int) -> str:
    """The cheapest algorithm of a broadcast; of two with the same price the first."""

    def price_ns(name: str) -> int:
        schedules = [schedule_of("broadcast", name, rank, links.world_size, root) for rank in range(links.world_size)]
        return simulate(schedules, num_bytes, links, most_messages=BROADCAST_MESSAGES).time_ns

    return min(COLLECTIVES["broadcast"], key=price_ns)


def _build(name: str, hosts: tuple[int, ...]) -> Build:
    return lambda rank, world_size: all_reduce_schedule(name, rank, world_size, hosts)


def nearest_size(num_bytes: int) -> int:
    """The nearest of `SIZES_BYTES`, by ratio."""
    power = max(num_bytes, 1).bit_length() - 1
    power += num_bytes * num_bytes >= 1 << (2 * power + 1)
    return min(max(1 << power, SIZES_BYTES[0]), SIZES_BYTES[-1])


def tabulate(
    links: Links, measured_ns: Mapping[tuple[str, int], int] = MappingProxyType({})
) -> Generator[None, None, PriceTable]:
    """The table for these links, in slices of less than a millisecond; schedules stay cached for their execution.

    In `direct` ranks may own different shares, if they are so few that it is played, and share no lines.
    """
    direct, candidates = "direct", CANDIDATES
    if not links.has_shared_lines:
        candidates = tuple(name for name in CANDIDATES if name != HIERARCHICAL)
    if links.world_size < FORMULA_MIN_RANKS and not links.has_shared_lines:
        shares = direct_shares([min(pair) for pair in zip(links.up, links.down, strict=True)])
        if max(shares) * links.world_size > UNLIKE * sum(shares):
            direct = with_shares(shares)
    named = {name: direct if name == "direct" else name for name in candidates}
    builds = {name: _build(each, links.hosts) for name, each in named.items()}
    return PriceTable((yield from price_table(builds, SIZES_BYTES, links)), measured_ns, direct, links)

"""What each algorithm costs at each size: played where ranks are few, by formulas where they are many."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from types import MappingProxyType
from typing import Final

from collectives.algorithms import HIERARCHICAL, SHARES, all_reduce_schedule, with_shares
from collectives.course import lay_out
from collectives.direct import direct_shares
from collectives.formulas import FEW_RANKS, FORMULAS, look_at
from collectives.goals import COLLECTIVES, schedule_of
from collectives.links import Links
from collectives.pricing import play, run_slices
from collectives.schedule import Build


def price_table(
    builds: Mapping[str, Build], sizes_bytes: Sequence[int], links: Links
) -> Generator[None, None, dict[tuple[str, int], int]]:
    """What each algorithm costs at each size, in ns, in slices of less than a millisecond.

    By name: from `formulas.FEW_RANKS` on an algorithm that has a formula is not played.
    """
    prices: dict[tuple[str, int], int] = {}
    n = links.world_size
    hosts = (yield from look_at(links)) if n >= FEW_RANKS else None
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
        course = yield from lay_out(schedules, links)
        for size_bytes in sizes_bytes:
            prices[name, size_bytes] = max((yield from run_slices(course, size_bytes)))
    return prices


SIZES_BYTES: Final = tuple(1 << power for power in range(10, 27))
"""From 1 KiB to 64 MiB: what is smaller or larger costs in proportion to the nearest."""

CANDIDATES: Final[tuple[str, ...]] = ("one-shot", "direct", "ring", "tree", "halving-doubling", HIERARCHICAL)
"""What is chosen from; of two that cost the same the first."""

BROADCAST_MESSAGES: Final = 256
"""Of a play of a broadcast."""

ROUND_ONCE: Final = ("one-shot", "direct")
"""Algorithms that add up all inputs of an element in one go, so that a sum of half types is rounded once."""


UNLIKE: Final = 1.2
"""If a rank should own so many times what it would of even shares, they are not even."""


def is_rounded_once(algorithm: str) -> bool:
    """Whether it adds up all inputs of an element in one go, whoever owns what."""
    return algorithm.partition(SHARES)[0] in ROUND_ONCE


@dataclass(frozen=True, slots=True)
class PriceTable:
    """What each candidate costs at each of `SIZES_BYTES`, in ns, over the links of some ranks.

    Attributes:
        predicted: of all; of `hierarchical` where hosts hold several ranks.
        measured: of some: there is more in it than in the model (losses where many send to one, the adding).
        direct: how `direct` is called, with the shares of the ranks if they are not alike.
        links: over which broadcasts are priced; None: sizes decide of these.
    """

    predicted: Mapping[tuple[str, int], int]
    measured: Mapping[tuple[str, int], int] = field(default_factory=dict)
    direct: str = "direct"
    links: Links | None = None

    def of(self, num_bytes: int) -> dict[str, int]:
        """What each costs at the nearest size: as measured, or as predicted and corrected by what was.

        If all that was measured takes longer than predicted, that may be a busy machine, and so for all alike, or be
        so of these alone (many send to one): what was not tried costs the root of the least of these factors more. So
        who takes what looks cheapest, and measures it, tries each at most once, and ends with one that was measured.
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
        """The cheapest: the same for all who have the same links, and have measured the same.

        `rounds_once`: of those that add up all inputs of an element in one go.
        """
        prices = self.of(num_bytes)
        cheapest = min(ROUND_ONCE if rounds_once else prices, key=prices.__getitem__)
        return self.direct if cheapest == "direct" else cheapest

    def is_measured(self, num_bytes: int) -> bool:
        """Whether what `choose` takes was tried."""
        return (self.choose(num_bytes).partition(SHARES)[0], nearest_size(num_bytes)) in self.measured

    def choose_broadcast(self, num_bytes: int, root: int) -> str | None:
        """The cheapest way of so many bytes from `root`, the same for all who have the same links; None: by size.

        Played when it is asked for, some ms the first time: a table would have to be made for each root.
        """
        return None if self.links is None else cheapest_broadcast(self.links, nearest_size(num_bytes), root)


@lru_cache(maxsize=1024)
def cheapest_broadcast(links: Links, num_bytes: int, root: int) -> str:
    """Of the algorithms of a broadcast, of two that cost the same the first."""

    def price_ns(name: str) -> int:
        schedules = [schedule_of("broadcast", name, rank, links.world_size, root) for rank in range(links.world_size)]
        return play(schedules, num_bytes, links, most_messages=BROADCAST_MESSAGES).time_ns

    return min(COLLECTIVES["broadcast"], key=price_ns)


def _build(name: str, hosts: tuple[int, ...]) -> Build:
    return lambda rank, world_size: all_reduce_schedule(name, rank, world_size, hosts)


def nearest_size(num_bytes: int) -> int:
    """Of `SIZES_BYTES`, by ratio."""
    power = max(num_bytes, 1).bit_length() - 1
    power += num_bytes * num_bytes >= 1 << (2 * power + 1)
    return min(max(1 << power, SIZES_BYTES[0]), SIZES_BYTES[-1])


def tabulate(
    links: Links, measured_ns: Mapping[tuple[str, int], int] = MappingProxyType({})
) -> Generator[None, None, PriceTable]:
    """The table of these links, in slices of less than a millisecond; schedules are kept for who runs them.

    Ranks own different shares in `direct` where they are so few that it is played, and each has a line of its own.
    """
    direct, candidates = "direct", CANDIDATES
    if not links.has_shared_lines:
        candidates = tuple(name for name in CANDIDATES if name != HIERARCHICAL)
    if links.world_size < FEW_RANKS and not links.has_shared_lines:
        shares = direct_shares([min(pair) for pair in zip(links.up, links.down, strict=True)])
        if max(shares) * links.world_size > UNLIKE * sum(shares):
            direct = with_shares(shares)
    named = {name: direct if name == "direct" else name for name in candidates}
    builds = {name: _build(each, links.hosts) for name, each in named.items()}
    return PriceTable((yield from price_table(builds, SIZES_BYTES, links)), measured_ns, direct, links)

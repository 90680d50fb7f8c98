"""One clock for records of several hosts, from the records themselves. Pure.

Nobody commits a step before all its members have finished it. So of two hosts x and y, in any step, x's commit less y's
finish is at least what x's clock is ahead of y's, and y's commit less x's finish at least what it is behind. Over many
steps these bounds are two one-way delays apart, and nobody has to trust NTP. Clocks drift, by `MOST_DRIFT` at the most,
so there are bounds for each window of steps, about its middle; what is far from there binds less. Bounds of two pairs
bind a third.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from ..telemetry.records import Kind, Record

WINDOW: Final = 200
"""Steps."""
MOST_DRIFT: Final = 2e-4
"""Of one clock against another; two crystals of 100 ppm."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one host in one step: when the last of its members had finished it, and the first had committed it."""

    finished_ns: int
    committed_ns: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a clock is ahead of the reference's, about a time of its own."""

    at_ns: int
    low_ns: int
    high_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.low_ns + self.high_ns) // 2


@dataclass(frozen=True, slots=True)
class Clocks:
    """Those of all hosts.

    Attributes:
        reference: the host whose clock all times are shown in.
        bounds: of each other host, one for each window of steps.
    """

    reference: str
    bounds: Mapping[str, Sequence[Bounds]]

    @property
    def plus_minus_ms(self) -> float:
        """A time between two hosts may be wrong by so much."""
        widths = [(each.high_ns - each.low_ns) / 2e6 for found in self.bounds.values() for each in found]
        return round(max(widths, default=0.0), 3)

    def to_reference(self, host: str, time_ns: int) -> int:
        """A time of a host, by the reference's clock; between windows, in a straight line."""
        found = self.bounds.get(host, ())
        if not found:
            return time_ns
        base = found[0].middle_ns  # differences are small, so that a float has them to the nanosecond
        offset = np.interp(
            time_ns - found[0].at_ns,
            [each.at_ns - found[0].at_ns for each in found],
            [each.middle_ns - base for each in found],
        )
        return time_ns - base - round(float(offset))

    def drift_ppm(self, host: str) -> float | None:
        """How much faster it runs than the reference; None: there is one window only."""
        first, last = self.bounds[host][0], self.bounds[host][-1]
        passed_ns = last.at_ns - first.at_ns
        return round((last.middle_ns - first.middle_ns) / passed_ns * 1e6, 1) if passed_ns > 0 else None


class ClocksDisagree(ValueError):
    """No clocks that drift so little could have made these records."""


def fit(steps: Sequence[Mapping[str, Moments]], window: int = WINDOW) -> Clocks:
    """The clocks of all hosts.

    Args:
        steps: moments by host, of each step that members of two hosts have committed, in order.
        window: so many steps make one bound.

    Raises:
        ClocksDisagree: there are none, whatever the offsets.
    """
    hosts = sorted({host for step in steps for host in step})
    counts = {host: sum(host in step for step in steps) for host in hosts}
    reference = max(hosts, key=lambda host: (counts[host], host), default="")
    found: dict[str, list[Bounds]] = {host: [] for host in hosts if host != reference}
    for start in range(0, len(steps), window):
        part = steps[start : start + window]
        middles = _middles(part)
        apart = _apart(part, middles)
        ahead = _ahead_at_most(part, middles, apart)
        if any(ahead[host, host] < 0 for host in middles):
            raise ClocksDisagree
        for host, index in middles.items():
            high, low = ahead[host, reference], ahead[reference, host] + apart[host, reference]
            if host != reference and max(high, low) < np.inf:
                found[host].append(Bounds(part[index][host].committed_ns, -int(low), int(high)))
    return Clocks(reference, found)


def _middles(steps: Sequence[Mapping[str, Moments]]) -> dict[str, int]:
    """Which step nearest to the middle each host has committed: its middle is the moment at which it has."""
    nearest = sorted(range(len(steps)), key=lambda index: abs(index - len(steps) // 2), reverse=True)
    return {host: index for index in nearest for host in steps[index]}


def _apart(steps: Sequence[Mapping[str, Moments]], middles: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Of each pair how far clocks may drift, at the most, from the middle of the first to that of the second.

    In one step each has committed behind the other's finish, so they lie no further apart than that is from its commit.
    """
    committed = {host: [step[host].committed_ns for step in steps if host in step] for host in middles}
    all_ns = sum(max(own) - min(own) for own in committed.values())
    found = {}
    for x, y in product(middles, middles):
        pair = [steps[middles[host]][host] for host in (x, y)]
        within_ns = max(each.committed_ns - each.finished_ns for each in pair)
        between_ns = 0 if x == y else within_ns if middles[x] == middles[y] else all_ns
        found[x, y] = _drift_of(between_ns)
    return found


def _drift_of(passed_ns: int) -> int:
    """How far two clocks drift apart meanwhile, at the most: with what is rounded when both are read."""
    return math.ceil(MOST_DRIFT * passed_ns) + 2 if passed_ns else 0


def _ahead_at_most(
    steps: Sequence[Mapping[str, Moments]], middles: Mapping[str, int], apart: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], float]:
    """Of each pair how far the first clock may be ahead of the second in its middle, by any way from one to the other.

    Sums are of ints, or infinite.
    """
    ahead: dict[tuple[str, str], float] = {
        pair: 0 if pair[0] == pair[1] else np.inf for pair in product(middles, middles)
    }
    for step in steps:
        for x, y in product(step, step):
            if x != y:
                drifted = _drift_of(abs(step[x].committed_ns - steps[middles[x]][x].committed_ns))
                ahead[x, y] = min(ahead[x, y], step[x].committed_ns - step[y].finished_ns + drifted)
    for via, x, y in product(middles, middles, middles):
        ahead[x, y] = min(ahead[x, y], ahead[x, via] + ahead[via, y] + apart[x, via])
    return ahead


def moments(records: Sequence[Record], lineages: Mapping[int, str]) -> dict[Key, Moments]:
    """Of one peer: each step that it has committed as a member. `lineages`: of its receipts, by step."""
    found: dict[Key, Moments] = {}
    finished: dict[int, int] = {}
    for record in records:
        if record.kind == Kind.FINISHED:
            finished[record.step] = record.time_ns
        elif record.kind == Kind.COMMITTED and record.step in finished and record.step in lineages:
            found[lineages[record.step], record.step] = Moments(finished[record.step], record.time_ns)
    return found


def merge(peers: Sequence[tuple[str, Mapping[Key, Moments]]], order: Sequence[Key]) -> list[dict[str, Moments]]:
    """The steps that members of two hosts have committed. `peers`: (host, its moments); `order`: of all steps."""
    found: list[dict[str, Moments]] = []
    for key in order:
        step: dict[str, Moments] = {}
        for host, own in peers:
            if (moment := own.get(key)) is not None:
                known = step.get(host, moment)
                step[host] = Moments(
                    max(known.finished_ns, moment.finished_ns), min(known.committed_ns, moment.committed_ns)
                )
        if len(step) > 1:
            found.append(step)
    return found

"""One clock for records of several hosts, derived from the records themselves. Pure.

No member commits a step before all its members have finished it. So for two hosts x and y, in any step, x's commit
minus y's finish is at least the lead of x's clock over y's, and y's commit minus x's finish is at least its lag. Over
many steps these bounds are two one-way delays apart, without any trust in NTP. Clocks drift, by `MOST_DRIFT` at most,
so each window of steps has its own bounds, for the middle of the window; steps far from the middle constrain them less.
Bounds of two pairs constrain a third.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Self

import numpy as np

from ..telemetry.records import Kind, Record

WINDOW: Final = 200
"""Steps."""
MOST_DRIFT: Final = 2e-4
"""The largest drift of one clock against another: two crystals of 100 ppm each."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Moments:
    """One step on one host: when the last of its members had finished the step, and the first had committed it."""

    finished_ns: int
    committed_ns: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on how far a clock is ahead of the reference clock, around the time `at_ns` of the former."""

    at_ns: int
    low_ns: int
    high_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.low_ns + self.high_ns) // 2


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all hosts.

    Attributes:
        reference: the host by whose clock all times are shown.
        bounds: for each other host, one per window of steps.
    """

    reference: str
    bounds: Mapping[str, Sequence[Bounds]]

    @property
    def plus_minus_ms(self) -> float:
        """The largest error of a time between two hosts."""
        widths = [(each.high_ns - each.low_ns) / 2e6 for found in self.bounds.values() for each in found]
        return round(max(widths, default=0.0), 3)

    def to_reference(self, host: str, time_ns: int) -> int:
        """Convert a time of a host to the reference clock; interpolated linearly between windows."""
        found = self.bounds.get(host, ())
        if not found:
            return time_ns
        base = found[0].middle_ns  # differences are small, so a float holds them to the nanosecond
        offset = np.interp(
            time_ns - found[0].at_ns,
            [each.at_ns - found[0].at_ns for each in found],
            [each.middle_ns - base for each in found],
        )
        return time_ns - base - round(float(offset))

    def drift_ppm(self, host: str) -> float | None:
        """How much faster the clock of `host` runs than the reference clock; None: there is only one window."""
        first, last = self.bounds[host][0], self.bounds[host][-1]
        passed_ns = last.at_ns - first.at_ns
        return round((last.middle_ns - first.middle_ns) / passed_ns * 1e6, 1) if passed_ns > 0 else None


class ClocksDisagree(ValueError):
    """These records contradict each other under any clocks that drift by at most `MOST_DRIFT`."""


def fit(steps: Sequence[Mapping[str, Moments]], window: int = WINDOW) -> Clocks:
    """Estimate the clocks of all hosts.

    Args:
        steps: moments by host, for each step that members on two or more hosts have committed, in order.
        window: steps per bound.

    Raises:
        ClocksDisagree: no offsets fit the records.
    """
    hosts = sorted({host for step in steps for host in step})
    counts = {host: sum(host in step for step in steps) for host in hosts}
    reference = max(hosts, key=lambda host: (counts[host], host), default="")
    found: dict[str, list[Bounds]] = {host: [] for host in hosts if host != reference}
    windows = [_Window.of(steps[start : start + window]) for start in range(0, len(steps), window)]
    zero = Bounds(0, 0, 0)
    for each in windows:
        if reference in each.at_ns:
            _add(found, each, reference, zero)
    apart = [each for each in windows if reference not in each.at_ns]
    while known := [each for each in apart if any(found[host] for host in each.at_ns)]:
        for each in known:
            _add(found, each, *_nearest(found, each))
        apart = [each for each in apart if each not in known]
    return Clocks(reference, {host: sorted(own, key=lambda each: each.at_ns) for host, own in found.items()})


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Some consecutive steps. `at_ns`: the middle of each host; `ahead`, `apart`: of pairs, as the functions below."""

    at_ns: Mapping[str, int]
    ahead: Mapping[tuple[str, str], float]
    apart: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, Moments]]) -> Self:
        """Raises ClocksDisagree: no offsets fit the records."""
        middles = _middles(steps)
        apart = _apart(steps, middles)
        ahead = _ahead_at_most(steps, middles, apart)
        if any(ahead[host, host] < 0 for host in middles):
            raise ClocksDisagree
        return cls({host: steps[index][host].committed_ns for host, index in middles.items()}, ahead, apart)


def _add(found: Mapping[str, list[Bounds]], window: _Window, via: str, known: Bounds) -> None:
    """Add the bounds of a window's hosts. `known`: those of the host `via` there; zero if it is the reference."""
    for host, at_ns in window.at_ns.items():
        high, low = window.ahead[host, via], window.ahead[via, host] + window.apart[host, via]
        if host in found and max(high, low) < np.inf:
            found[host].append(Bounds(at_ns, known.low_ns - int(low), known.high_ns + int(high)))


def _nearest(found: Mapping[str, Sequence[Bounds]], window: _Window) -> tuple[str, Bounds]:
    """The host with the nearest bounds in another window, and these, widened by the drift since then."""
    pairs = [(abs(each.at_ns - at_ns), host, each) for host, at_ns in window.at_ns.items() for each in found[host]]
    passed_ns, via, each = min(pairs, key=lambda pair: pair[:2])
    drift_ns = _drift_of(passed_ns)
    return via, Bounds(each.at_ns, each.low_ns - drift_ns, each.high_ns + drift_ns)


def _middles(steps: Sequence[Mapping[str, Moments]]) -> dict[str, int]:
    """For each host the index of the step nearest to the middle that it has committed; that commit is its middle."""
    nearest = sorted(range(len(steps)), key=lambda index: abs(index - len(steps) // 2), reverse=True)
    return {host: index for index in nearest for host in steps[index]}


def _apart(steps: Sequence[Mapping[str, Moments]], middles: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """For each pair of hosts the largest drift of their clocks between the middle of the first and of the second.

    Within one step each host commits after the other's finish, so the two commits lie no further apart than the longer
    of their times from finish to commit.
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
    """The largest drift between two clocks in this time, including the rounding when both are read."""
    return math.ceil(MOST_DRIFT * passed_ns) + 2 if passed_ns else 0


def _ahead_at_most(
    steps: Sequence[Mapping[str, Moments]], middles: Mapping[str, int], apart: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], float]:
    """For each pair of hosts the most that the first clock can be ahead of the second, at the middle of the first.

    Bounds via other hosts are included. Values are ints, or infinite.
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
    """Moments of each step that one peer has committed as a member. `lineages`: of its receipts, by step."""
    found: dict[Key, Moments] = {}
    finished: dict[int, int] = {}
    for record in records:
        if record.kind == Kind.FINISHED:
            finished[record.step] = record.time_ns
        elif record.kind == Kind.COMMITTED and record.step in finished and record.step in lineages:
            found[lineages[record.step], record.step] = Moments(finished[record.step], record.time_ns)
    return found


def merge(peers: Sequence[tuple[str, Mapping[Key, Moments]]], order: Sequence[Key]) -> list[dict[str, Moments]]:
    """Merge moments by host, for steps that members on two or more hosts have committed.

    `peers`: (host, moments) of each peer; `order`: the order of all steps.
    """
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

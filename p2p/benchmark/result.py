"""What came out: times, and the bandwidths that follow from them (nccl-tests, doc/PERFORMANCE.md). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One contender at one size, as one rank saw it.

    Attributes:
        ran: the algorithm that was carried out.
        wrong: elements of all verified results that were not the exact sum.
        times_s: one per iteration.
        cpu_times_s: likewise, of the processor, in all threads of the process.
    """

    algorithm: str
    ran: str
    size_bytes: int
    wrong: int
    times_s: tuple[float, ...]
    cpu_times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceResult:
    """One contender at one size, over all ranks.

    Attributes:
        wrong: elements, of all ranks.
        ranks: what each rank saw.
    """

    algorithm: str
    ran: str
    size_bytes: int
    wrong: int
    ranks: tuple[Measurement, ...]

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def times_s(self) -> tuple[float, ...]:
        """One per iteration, each that of its slowest rank."""
        return tuple(map(max, zip(*(rank.times_s for rank in self.ranks), strict=True)))

    @property
    def cpu_time_p50_s(self) -> float:
        """Of the processor, per rank: the median iteration's."""
        means = [sum(times) / len(times) for times in zip(*(rank.cpu_times_s for rank in self.ranks), strict=True)]
        return percentile(means, 50)

    @property
    def time_p50_s(self) -> float:
        return percentile(self.times_s, 50)

    @property
    def algbw_gb_per_s(self) -> float:
        """Size of the array over time; 1 GB is 1e9 bytes."""
        return self.size_bytes / self.time_p50_s / 1e9

    @property
    def busbw_gb_per_s(self) -> float:
        """Comparable with one link's peak at any world size.

        The factor is an optimal all-reduce's traffic per rank, 2(n-1)/n.
        """
        return self.algbw_gb_per_s * 2 * (self.world_size - 1) / self.world_size

    def to_json(self) -> dict[str, Any]:
        """With every sample, of each rank."""
        times_s = self.times_s
        return {
            "algorithm": self.algorithm,
            "ran": self.ran,
            "world_size": self.world_size,
            "size_bytes": self.size_bytes,
            "iters": len(times_s),
            "time_min_us": in_us(min(times_s)),
            **{f"time_p{percent}_us": in_us(percentile(times_s, percent)) for percent in (50, 90, 99)},
            "cpu_time_p50_us": in_us(self.cpu_time_p50_s),
            "algbw_gb_per_s": round(self.algbw_gb_per_s, 6),
            "busbw_gb_per_s": round(self.busbw_gb_per_s, 6),
            "wrong": self.wrong,
            "times_us": [list(map(in_us, rank.times_s)) for rank in self.ranks],
            "cpu_times_us": [list(map(in_us, rank.cpu_times_s)) for rank in self.ranks],
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, between two of them where it must be."""
    if not values:
        raise ValueError("there is no percentile of no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def in_us(time_s: float) -> float:
    """Microseconds, to the tenth."""
    return round(time_s * 1e6, 1)


def combine(ranks: Sequence[Sequence[Measurement]]) -> list[AllReduceResult]:
    """One result for each measurement that all ranks made, in the same order."""
    return [_combine_one(group) for group in zip(*ranks, strict=True)]


def _combine_one(group: Sequence[Measurement]) -> AllReduceResult:
    first = group[0]
    assert all((m.algorithm, m.ran, m.size_bytes) == (first.algorithm, first.ran, first.size_bytes) for m in group)
    return AllReduceResult(
        algorithm=first.algorithm,
        ran=first.ran,
        size_bytes=first.size_bytes,
        wrong=sum(m.wrong for m in group),
        ranks=tuple(group),
    )


def ratios_to(baseline: str, results: Sequence[AllReduceResult]) -> dict[tuple[str, int], float]:
    """Per algorithm and size: its median time over the baseline's; below 1 it is faster."""
    times = {result.size_bytes: result.time_p50_s for result in results if result.algorithm == baseline}
    return {
        (result.algorithm, result.size_bytes): result.time_p50_s / times[result.size_bytes]
        for result in results
        if result.algorithm != baseline and result.size_bytes in times
    }

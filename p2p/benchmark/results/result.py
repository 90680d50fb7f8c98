"""Results: every sample, and the bandwidths that follow from them (nccl-tests, doc/PERFORMANCE.md). Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..roles import ALL_REDUCE, BUSBW_FACTORS
from ..stages import EXCHANGE, STAGES


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One contender at one size, as measured by one rank.

    Attributes:
        ran: the algorithm of the last operation.
        wrong: number of wrong elements in all verified results.
        digest: of a result for which additions round; empty: there was none.
        times_s: one per round.
        cpu_times_s: processor time of all threads of the process, one per round.
        rans: the algorithm of each round; empty: `ran`, in all of them.
        stages_s: seconds of each of `STAGES`, for each round; empty: the contender has no stages.
    """

    algorithm: str
    ran: str = ""
    size_bytes: int
    wrong: int = 0
    digest: str = ""
    times_s: list[float] = field(default_factory=list)
    cpu_times_s: list[float] = field(default_factory=list)
    rans: list[str] = field(default_factory=list)
    stages_s: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender at one size, over all ranks.

    Attributes:
        wrong: number of wrong elements, of all ranks.
        ranks: the measurement of each peer.
        wire_bytes: bytes sent by the peer that sends most, by the schedule of `mostly_ran`; None: unknown.
        predicted_s: time of a simulated schedule over the given links, or else the measured ones; None: neither.
        predicted_by_rows_s: the same over the links that all peers have measured; None: they have not.
        operation: one of `roles.OPERATIONS`.
    """

    algorithm: str
    ran: str
    size_bytes: int
    wrong: int
    ranks: tuple[Measurement, ...]
    wire_bytes: int | None = None
    predicted_s: float | None = None
    predicted_by_rows_s: float | None = None
    operation: str = ALL_REDUCE

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def times_s(self) -> tuple[float, ...]:
        """The time of the slowest rank, for each round."""
        return tuple(map(max, zip(*(rank.times_s for rank in self.ranks), strict=True)))

    @property
    def rans(self) -> tuple[str, ...]:
        """The algorithm of each round."""
        return tuple(self.ranks[0].rans) or (self.ran,) * len(self.ranks[0].times_s)

    @property
    def mostly_ran(self) -> str:
        """The algorithm that ran in most rounds: bytes and predictions are its."""
        ((name, _),) = Counter(self.rans).most_common(1)
        return name

    @property
    def last_peers(self) -> dict[int, int]:
        """Number of rounds in which each peer was the slowest, if there are any; the most frequent first."""
        rounds = zip(*(rank.times_s for rank in self.ranks), strict=True)
        return dict(Counter(max(range(len(times)), key=times.__getitem__) for times in rounds).most_common())

    @property
    def stages_p50_s(self) -> dict[str, float]:
        """The median over rounds, by stage; empty: the contender has no stages.

        The value of a round is the slowest rank's; for the exchange the fastest rank's, since those of others contain
        the wait for a rank whose copy is slower.
        """
        found = {}
        for place, stage in enumerate(STAGES if all(rank.stages_s for rank in self.ranks) else ()):
            rounds = zip(*([each[place] for each in rank.stages_s] for rank in self.ranks), strict=True)
            found[stage] = percentile(list(map(min if stage == EXCHANGE else max, rounds)), 50)
        return found

    @property
    def hash_equal(self) -> bool | None:
        """Whether all ranks had the same bits where additions round; None: not compared."""
        digests = {rank.digest for rank in self.ranks}
        return None if digests == {""} else len(digests) == 1

    @property
    def cpu_time_p50_s(self) -> float:
        """Processor time per rank, the median over rounds."""
        means = [sum(times) / len(times) for times in zip(*(rank.cpu_times_s for rank in self.ranks), strict=True)]
        return percentile(means, 50)

    @property
    def time_p50_s(self) -> float:
        return percentile(self.times_s, 50)

    @property
    def cv(self) -> float:
        """Standard deviation of the times over their mean."""
        return float(np.std(self.times_s) / np.mean(self.times_s))

    @property
    def algbw_gb_per_s(self) -> float:
        """Size of the array over time; 1 GB is 1e9 bytes."""
        return self.size_bytes / self.time_p50_s / 1e9

    @property
    def busbw_gb_per_s(self) -> float:
        """Comparable with one link's peak at any world size, by the factor of the operation."""
        return self.algbw_gb_per_s * BUSBW_FACTORS[self.operation](self.world_size)

    @property
    def predicted_to_measured(self) -> float | None:
        return None if self.predicted_s is None else self.predicted_s / self.time_p50_s

    def to_json(self) -> dict[str, Any]:
        """The result for a file, with every sample of each rank."""
        times_s, ratio, stages = self.times_s, self.predicted_to_measured, self.stages_p50_s
        return {
            "operation": self.operation,
            "algorithm": self.algorithm,
            "ran": self.ran,
            "rans": None if {*self.rans} <= {self.ran} else list(self.rans),
            "world_size": self.world_size,
            "size_bytes": self.size_bytes,
            "iters": len(times_s),
            "time_min_us": in_us(min(times_s)),
            **{f"time_p{percent}_us": in_us(percentile(times_s, percent)) for percent in (5, 50, 90, 95, 99)},
            "time_cv": round(self.cv, 4),
            "cpu_time_p50_us": in_us(self.cpu_time_p50_s),
            "algbw_gb_per_s": round(self.algbw_gb_per_s, 6),
            "busbw_gb_per_s": round(self.busbw_gb_per_s, 6),
            "wrong": self.wrong,
            "hash_equal": self.hash_equal,
            "wire_bytes_per_peer": self.wire_bytes,
            "predicted_us": None if self.predicted_s is None else in_us(self.predicted_s),
            "predicted_to_measured": None if ratio is None else round(ratio, 4),
            "predicted_by_rows_us": None if self.predicted_by_rows_s is None else in_us(self.predicted_by_rows_s),
            "last_peers": {str(peer): number for peer, number in self.last_peers.items()},
            "times_us": [list(map(in_us, rank.times_s)) for rank in self.ranks],
            "cpu_times_us": [list(map(in_us, rank.cpu_times_s)) for rank in self.ranks],
            "stages_p50_us": {name: in_us(time_s) for name, time_s in stages.items()} or None,
            "stages_us": {
                name: [[in_us(each[place]) for each in rank.stages_s] for rank in self.ranks]
                for place, name in enumerate(stages)
            }
            or None,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of `values`, linearly interpolated between two of them."""
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


def combine(ranks: Sequence[Sequence[Measurement]], operation: str = ALL_REDUCE) -> list[Result]:
    """One result for each measurement that all ranks made, in the same order."""
    return [_combine_one(group, operation) for group in zip(*ranks, strict=True)]


def _combine_one(group: Sequence[Measurement], operation: str) -> Result:
    first = group[0]
    same = (first.algorithm, first.ran, first.size_bytes, first.rans)
    assert all((m.algorithm, m.ran, m.size_bytes, m.rans) == same for m in group)
    return Result(
        algorithm=first.algorithm,
        ran=first.ran,
        size_bytes=first.size_bytes,
        wrong=sum(m.wrong for m in group),
        ranks=tuple(group),
        operation=operation,
    )


def ratios_to(baseline: str, results: Sequence[Result]) -> dict[tuple[str, int], float]:
    """Median time over the baseline's, by algorithm and size; below 1 the algorithm is faster."""
    times = {result.size_bytes: result.time_p50_s for result in results if result.algorithm == baseline}
    return {
        (result.algorithm, result.size_bytes): result.time_p50_s / times[result.size_bytes]
        for result in results
        if result.algorithm != baseline and result.size_bytes in times
    }

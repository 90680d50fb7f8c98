"""Confidence intervals of medians: a paired, circular block bootstrap over rounds. Pure.

The moving-block bootstrap (Künsch 1989), with blocks that wrap around, since neighbouring rounds are correlated; paired
(the same rounds are drawn for all contenders of a size), since contenders take turns in each round, so that other load
on the machine affects all of them. An interval lies between two percentiles of the resamples. It covers the variation
within the run, not that between days.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_RESAMPLES: Final = 2000
SEED: Final = 20
LEVEL: Final = 0.95
AT_ONCE: Final = 2_000_000
"""Elements that are drawn at once: 16 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The measured value, and the bounds that hold 95 % (or another level) of all resamples."""

    value: float
    low: float
    high: float

    def to_json(self) -> list[float]:
        return [float(f"{each:.6g}") for each in (self.value, self.low, self.high)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Medians:
    """The p50 of each contender at each size.

    Attributes:
        measured: by contender, one value per size.
        resampled: by contender, a row per resample, a column per size.
    """

    sizes_bytes: tuple[int, ...]
    measured: Mapping[str, Floats]
    resampled: Mapping[str, Floats]

    def interval(self, name: str, place: int, level: float = LEVEL) -> Interval:
        """The interval of a contender at the size with that index."""
        return interval(self.measured[name][place], self.resampled[name][:, place], level)

    def ratio(self, name: str, other: str, place: int) -> Interval:
        """The time of `name` over that of `other`, at the size with that index."""
        return interval(
            self.measured[name][place] / self.measured[other][place],
            self.resampled[name][:, place] / self.resampled[other][:, place],
        )


def interval(value: float, resamples: npt.NDArray[Any], level: float = LEVEL) -> Interval:
    """`value`, and the percentiles of the resamples that hold `level` of them."""
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def block_length(num_rounds: int) -> int:
    """The block length: the square root of the number of rounds, and short enough that there are five blocks."""
    return max(1, min(isqrt(num_rounds), num_rounds // 5))


def draw_rounds(num_rounds: int, generator: np.random.Generator, num: int) -> npt.NDArray[np.int64]:
    """Draw the rounds of `num` resamples, a row for each."""
    length = block_length(num_rounds)
    starts = generator.integers(num_rounds, size=(num, -(-num_rounds // length)))
    rounds = (starts[:, :, None] + np.arange(length)) % num_rounds
    return rounds.reshape(num, -1)[:, :num_rounds]


def resample(
    sizes_bytes: Sequence[int],
    times_s: Mapping[str, Sequence[Floats]],
    *,
    seed: int = SEED,
    num: int = NUM_RESAMPLES,
) -> Medians:
    """The medians of resampled rounds.

    Args:
        sizes_bytes: in rising order.
        times_s: for each contender and size, a time per round; all contenders have the same rounds of a size.
        seed: of the drawn rounds.
        num: number of resamples.

    Raises:
        ValueError: a size has no rounds, or contenders have different numbers of rounds.
    """
    generator = np.random.default_rng(seed)
    resampled = {name: np.empty((num, len(sizes_bytes))) for name in times_s}
    for place, size_bytes in enumerate(sizes_bytes):
        counts = {len(times[place]) for times in times_s.values()}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(f"contenders need the same rounds of {size_bytes} bytes, and one at least, got {counts}")
        (num_rounds,) = counts
        rows = max(1, AT_ONCE // num_rounds)
        for first in range(0, num, rows):
            drawn = draw_rounds(num_rounds, generator, min(rows, num - first))
            for name, times in times_s.items():
                resampled[name][first : first + rows, place] = np.median(np.asarray(times[place])[drawn], axis=1)
    measured = {name: np.array([np.median(each) for each in times]) for name, times in times_s.items()}
    return Medians(sizes_bytes=tuple(sizes_bytes), measured=measured, resampled=resampled)

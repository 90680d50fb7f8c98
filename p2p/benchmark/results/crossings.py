"""Crossings: sizes from which another contender is faster; and fits: cost per operation and per byte. Pure.

Between two measured sizes the logarithm of the ratio of two times is taken as linear in the logarithm of the size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .bootstrap import Floats, Interval, Medians, interval

_FIT_STEPS: Final = 60
_MOST_STEP: Final = 1.0
"""Largest change of a logarithm in one step of a fit."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A size from which another contender is faster.

    Attributes:
        at_bytes: the size, with the interval of the resamples that cross as often and in the same directions; the
            interval is the whole range of sizes if no resample does.
        below, above: the faster contender below and above that size.
    """

    at_bytes: Interval
    below: str
    above: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two contenders.

    Attributes:
        crossings: of the measured medians.
        share: share of the resamples that cross as often and in the same directions.
        shares: share of the resamples by number of crossings.
        ratios: time of `a` over that of `b`, by size.
    """

    a: str
    b: str
    crossings: tuple[Crossing, ...]
    share: float
    shares: dict[int, float]
    ratios: tuple[Interval, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "crossings": [
                {"at_bytes": each.at_bytes.to_json(), "below": each.below, "above": each.above}
                for each in self.crossings
            ],
            "share": self.share,
            "shares": {str(number): share for number, share in self.shares.items()},
            "ratios": [ratio.to_json() for ratio in self.ratios],
        }


def compare_pair(medians: Medians, a: str, b: str) -> Pair:
    """Find the crossings of `a` and `b`."""
    whole = np.log(medians.measured[a] / medians.measured[b])[None]
    parts = np.log(medians.resampled[a] / medians.resampled[b])
    (changes,), (places,) = _crossings(medians.sizes_bytes, whole)
    all_changes, all_places = _crossings(medians.sizes_bytes, parts)
    counts = all_changes.sum(axis=1)
    number, is_above = int(changes.sum()), whole[0, 0] > 0
    alike = (counts == number) & ((parts[:, 0] > 0) == is_above)
    found = all_places[alike][all_changes[alike]].reshape(int(alike.sum()), number)
    crossings, anywhere = [], (medians.sizes_bytes[0], medians.sizes_bytes[-1])
    for index, place in enumerate(places[changes]):
        order = (b, a) if is_above ^ bool(index % 2) else (a, b)
        at = float(np.exp(place))
        at_bytes = interval(at, np.exp(found[:, index])) if len(found) else Interval(at, *anywhere)
        crossings.append(Crossing(at_bytes, *order))
    shares = {int(each): float(np.mean(counts == each)) for each in np.unique(counts)}
    ratios = tuple(medians.ratio(a, b, place) for place in range(len(medians.sizes_bytes)))
    return Pair(a, b, tuple(crossings), float(np.mean(alike)), shares, ratios)


def _crossings(sizes_bytes: Sequence[int], ratios: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    """For each row: between which sizes the log ratio changes its sign, and at which log size."""
    logs = np.log(np.asarray(sizes_bytes, np.float64))
    before, after = ratios[:, :-1], ratios[:, 1:]
    changes = (before > 0) != (after > 0)
    share = before / np.where(changes, before - after, 1.0)
    return changes, logs[:-1] + share * np.diff(logs)


@dataclass(frozen=True, slots=True)
class Fit:
    """time = alpha + size / rate, fitted by least squares of the errors of the logarithm.

    Attributes:
        alpha_s: time of an operation without bytes.
        rate_bytes_per_s: 1 / beta.
        worst_error: the largest share by which a size's p50 is off.
    """

    name: str
    alpha_s: Interval
    rate_bytes_per_s: Interval
    worst_error: float

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": self.name,
            "alpha_s": self.alpha_s.to_json(),
            "rate_bytes_per_s": self.rate_bytes_per_s.to_json(),
            "worst_error": round(self.worst_error, 4),
        }


def fit(medians: Medians, name: str) -> Fit | None:
    """Fit a contender's times; None for fewer than three sizes, which any curve would fit."""
    if len(medians.sizes_bytes) < 3:
        return None
    sizes = np.asarray(medians.sizes_bytes, np.float64)
    (whole,), parts = _fit(sizes, medians.measured[name][None]), _fit(sizes, medians.resampled[name])
    errors = np.exp(whole[0]) + sizes * np.exp(whole[1])
    return Fit(
        name,
        interval(np.exp(whole[0]), np.exp(parts[:, 0])),
        interval(np.exp(-whole[1]), np.exp(-parts[:, 1])),
        float(np.max(np.abs(errors / medians.measured[name] - 1))),
    )


def _fit(sizes: Floats, times: Floats) -> Floats:
    """Logarithms of alpha and beta for each row of times, by Gauss-Newton."""
    found = np.stack([np.log(times[:, 0]), np.log(times[:, -1] / sizes[-1])], axis=1)
    for _ in range(_FIT_STEPS):
        alpha, slope = np.exp(found[:, :1]), np.exp(found[:, 1:]) * sizes
        errors = np.log(times) - np.log(alpha + slope)
        first = alpha / (alpha + slope)
        second = 1 - first
        a, b, d = (first * first).sum(1) + 1e-9, (first * second).sum(1), (second * second).sum(1) + 1e-9
        x, y = (first * errors).sum(1), (second * errors).sum(1)
        step = np.stack([d * x - b * y, a * y - b * x], axis=1) / (a * d - b * b)[:, None]
        found += np.clip(step, -_MOST_STEP, _MOST_STEP)
    return found

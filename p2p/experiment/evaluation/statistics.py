"""Figures over repetitions: percentiles, and intervals by bootstrap. Pure."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

NUM_RESAMPLES: Final = 2000
SEED: Final = 0
SHARE: Final = 95.0


def describe(values: Sequence[float]) -> dict[str, Any]:
    """Number, p50, p99, minimum and maximum; from three values on also the 95 % interval of the median (fixed seed)."""
    if not values:
        return {"number": 0}
    found = np.asarray(values, np.float64)
    described: dict[str, Any] = {
        "number": len(values),
        "p50": _round(np.percentile(found, 50)),
        "p99": _round(np.percentile(found, 99)),
        "min": _round(found.min()),
        "max": _round(found.max()),
    }
    if len(values) >= 3:
        generator = np.random.default_rng(SEED)
        medians = np.median(generator.choice(found, (NUM_RESAMPLES, len(found))), axis=1)
        low, high = np.percentile(medians, [(100 - SHARE) / 2, (100 + SHARE) / 2])
        described["interval"] = [_round(low), _round(high)]
    return described


def _round(value: Any) -> float:
    return round(float(value), 3)

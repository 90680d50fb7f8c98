"""Analysis of the samples of a run: intervals, crossings, fits, the regret of `auto`, and a sentence. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..plan import BY_SIZE, Plan
from .bootstrap import LEVEL, NUM_RESAMPLES, SEED, Interval, Medians, resample
from .crossings import Fit, Pair, compare_pair, fit
from .regret import Cost, cost_of
from .result import Result, in_us
from .sentence import say


@dataclass(frozen=True, slots=True)
class Analysis:
    """Analysis of a run. `regrets`: of each `auto` against the other algorithms of the same way, by size."""

    medians: Medians
    pairs: tuple[Pair, ...]
    fits: tuple[Fit, ...]
    regrets: Mapping[str, tuple[Cost, ...]]
    sentence: str

    def p50(self, result: Result) -> Interval:
        """The median with its interval, in seconds."""
        return self.medians.interval(result.algorithm, self.medians.sizes_bytes.index(result.size_bytes))

    def to_json(self, results: Sequence[Result]) -> dict[str, Any]:
        rows = []
        for result in results:
            p50 = self.p50(result)
            low_to_high = [in_us(p50.low), in_us(p50.high)]
            rows.append({**result.to_json(), "time_p50_interval_us": low_to_high})
        return {
            "intervals": {"level": LEVEL, "resamples": NUM_RESAMPLES, "seed": SEED, "of": "p50, by blocks of rounds"},
            "results": rows,
            "pairs": [pair.to_json() for pair in self.pairs],
            "fits": [each.to_json() for each in self.fits],
            "regrets": {name: [each.choice.to_json() for each in found] for name, found in self.regrets.items()},
            "overheads": {
                name: [None if each.overhead is None else each.overhead.to_json() for each in found]
                for name, found in self.regrets.items()
            },
            "took": {name: [dict(each.took) for each in found] for name, found in self.regrets.items()},
            "sentence": self.sentence,
        }


def analyse(plan: Plan, results: Sequence[Result]) -> Analysis:
    """Analyse all results of a run."""
    times_s = {name: [np.array(each.times_s) for each in results if each.algorithm == name] for name in plan.contenders}
    medians = resample(plan.sizes_bytes, times_s)
    named = [name for name in plan.contenders if not is_auto(name)]
    compared = named if len(named) > 1 else list(plan.contenders)
    pairs = tuple(compare_pair(medians, a, b) for a, b in combinations(compared, 2))
    regrets = {}
    for name in filter(is_auto, plan.algorithms):
        others = [each for each in plan.algorithms if not is_auto(each) and way(each) == way(name)]
        if others:
            regrets[name] = tuple(_costs(plan.sizes_bytes, results, name, others))
    fits = tuple(found for name in plan.contenders if (found := fit(medians, name)) is not None)
    with_first = [pair for pair in pairs if pair.a == compared[0]]
    return Analysis(medians, pairs, fits, regrets, say(with_first, regrets, plan.sizes_bytes))


def _costs(sizes_bytes: Sequence[int], results: Sequence[Result], name: str, others: Sequence[str]) -> Iterator[Cost]:
    """The cost of `name` at each size, compared with the other algorithms of the same way."""
    cells = {(each.algorithm, each.size_bytes): each for each in results}
    for size_bytes in sizes_bytes:
        found = [cells[other, size_bytes] for other in others]
        named = {each.ran: np.array(each.times_s) for each in found}
        own = cells[name, size_bytes]
        yield cost_of(size_bytes, np.array(own.times_s), own.rans, named)


def is_auto(name: str) -> bool:
    return name.partition("@")[0] == BY_SIZE


def way(name: str) -> str:
    return name.partition("@")[2]

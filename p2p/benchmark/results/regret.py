"""The cost of `auto`: that of the algorithms it chose (regret), and that of choosing at all (overhead). Pure.

Where `auto` ran an algorithm that was also measured by name, both have samples of the same algorithm, whose p50s differ
only by chance. So the *choice* is judged by the p50s of algorithms, over all samples of each; the overhead of leaving
the choice open is judged round by round, by the time of `auto` over that of the same algorithm in its own turn.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bootstrap import AT_ONCE, NUM_RESAMPLES, SEED, Floats, Interval, draw_rounds, interval


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an `auto` at one size. 0.05 is 5 %.

    Attributes:
        took: number of rounds in which it ran each algorithm, the most frequent first.
        unnamed: the algorithms of `took` that were not measured by name; their p50s are of the rounds of `auto` only.
        choice: relative excess of the p50s of the chosen algorithms, averaged over rounds, over the best p50 that was
            measured by name; negative if they are better.
        overhead: median over rounds of the relative excess over the same algorithm, measured by name in that round;
            None: no chosen algorithm was measured by name.
    """

    took: Mapping[str, int]
    unnamed: tuple[str, ...]
    choice: Interval
    overhead: Interval | None


def cost_of(
    size_bytes: int,
    times_s: Floats,
    rans: Sequence[str],
    named: Mapping[str, Floats],
    *,
    seed: int = SEED,
    num: int = NUM_RESAMPLES,
) -> Cost:
    """Compute the cost of `auto` at one size.

    Args:
        size_bytes: of the arrays; part of the seed.
        times_s: of `auto`, a time per round.
        rans: the algorithm that `auto` ran in each round.
        named: times of the algorithms that were measured by name, in the same rounds, by the algorithm that ran.
        seed: of the drawn rounds, in blocks.
        num: number of resamples.

    Raises:
        ValueError: there are no rounds, or their numbers differ; or no algorithm was measured by name.
    """
    lengths = {len(times_s), len(rans), *map(len, named.values())}
    if len(lengths) != 1 or 0 in lengths or not named:
        raise ValueError(f"auto and those asked for by name need the same rounds, and one at least, got {lengths}")
    took = Counter(rans)
    its = {name: np.array([each == name for each in rans]) for name in {**named, **took}}
    both = {name: _both(times_s, each, named.get(name)) for name, each in its.items()}
    ratios = np.full((1, len(rans)), np.nan)
    for name, times in named.items():
        ratios[0, its[name]] = times_s[its[name]] / times[its[name]] - 1
    choices, overheads = [], []
    for drawn in (np.arange(len(rans))[None], *_drawn(len(rans), seed + size_bytes, num)):
        p50s = {name: _p50(samples, drawn) for name, samples in both.items()}
        best = np.min([p50s[name] for name in named], axis=0)
        taken = sum(np.nan_to_num(p50s[name]) * its[name][drawn].mean(axis=1) for name in took)
        choices.append(taken / best - 1)
        overheads.append(_p50(ratios, drawn))
    choice, overhead = np.concatenate(choices), np.concatenate(overheads)
    known = overhead[~np.isnan(overhead)]
    return Cost(
        dict(took.most_common()),
        tuple(name for name, _ in took.most_common() if name not in named),
        interval(choice[0], choice[1:]),
        None if np.isnan(overhead[0]) else interval(overhead[0], known[1:] if len(known) > 1 else known),
    )


def _both(times_s: Floats, its: npt.NDArray[np.bool_], own: Floats | None) -> Floats:
    """Samples of an algorithm, a column per round: a row of its own turns, and one of the rounds that `auto` ran it."""
    turns = np.where(its, times_s, np.nan)
    return turns[None] if own is None else np.stack([np.asarray(own, np.float64), turns])


def _drawn(num_rounds: int, seed: int, num: int) -> Iterator[npt.NDArray[np.int64]]:
    generator, rows = np.random.default_rng(seed), max(1, AT_ONCE // (2 * num_rounds))
    for first in range(0, num, rows):
        yield draw_rounds(num_rounds, generator, min(rows, num - first))


def _p50(samples: Floats, drawn: npt.NDArray[np.int64]) -> Floats:
    """The median of the samples of the drawn rounds, for each row of `drawn`; NaN if there are none."""
    ordered = np.sort(np.moveaxis(samples[:, drawn], 0, 2).reshape(len(drawn), -1), axis=1)  # NaN comes last
    number, rows = np.count_nonzero(~np.isnan(ordered), axis=1), np.arange(len(drawn))
    return np.asarray((ordered[rows, np.maximum(number - 1, 0) // 2] + ordered[rows, number // 2]) / 2)

"""What `auto` gave away: by what it took, and by being asked instead of the algorithm itself. Pure.

Where it ran an algorithm that was measured by name, too, its rounds and that one's are samples of the same thing: two
p50s of these differ by chance. So what it *took* is judged by the p50s of algorithms, with all samples of each; and
what it costs to leave the choice open, round by round, by its time over that of the same algorithm in its own turn.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bootstrap import AT_ONCE, NUM_RESAMPLES, SEED, Floats, Interval, draw_rounds, interval


@dataclass(frozen=True, slots=True)
class Cost:
    """Of an `auto` at one size. 0.05 is 5 %.

    Attributes:
        took: in how many rounds it ran each algorithm, the most frequent first.
        unnamed: those of them that nobody was asked for by name; their p50s are of its own rounds alone.
        choice: by how much p50s of what it took, the mean over its rounds, are above that of the best that was
            measured by name; below 0 they are below.
        overhead: by how much its median round took longer than the same algorithm in that round, asked for by name;
            None: nobody was asked for what it took.
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
    """What leaving the choice open has cost.

    Args:
        size_bytes: of the arrays; what is drawn differs with it.
        times_s: of `auto`, a time per round.
        rans: the algorithm that it ran, of each round.
        named: times of those that were asked for by name, of the same rounds, by the algorithm that they ran.
        seed: of what is drawn, in blocks of rounds.
        num: of resamples.

    Raises:
        ValueError: there are no rounds, or others of some; or nobody was asked for by name.
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
    """The samples of an algorithm, a column for each round: of its own turns, and of those in which `auto` ran it."""
    turns = np.where(its, times_s, np.nan)
    return turns[None] if own is None else np.stack([np.asarray(own, np.float64), turns])


def _drawn(num_rounds: int, seed: int, num: int) -> Iterator[npt.NDArray[np.int64]]:
    generator, rows = np.random.default_rng(seed), max(1, AT_ONCE // (2 * num_rounds))
    for first in range(0, num, rows):
        yield draw_rounds(num_rounds, generator, min(rows, num - first))


def _p50(samples: Floats, drawn: npt.NDArray[np.int64]) -> Floats:
    """Of the samples of the drawn rounds, for each row of these; NaN where there are none."""
    ordered = np.sort(np.moveaxis(samples[:, drawn], 0, 2).reshape(len(drawn), -1), axis=1)  # NaN comes last
    number, rows = np.count_nonzero(~np.isnan(ordered), axis=1), np.arange(len(drawn))
    return np.asarray((ordered[rows, np.maximum(number - 1, 0) // 2] + ordered[rows, number // 2]) / 2)

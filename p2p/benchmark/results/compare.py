"""`shoal bench compare A.json B.json`: is B slower than A, cell by cell, and how sure is that?

Runs that took turns (turns.py) ran on the same machine in the same rounds, so these are resampled together. Two runs
one after the other have no rounds in common, and each is resampled by itself: then a machine that was slower during one
of them looks like slower code. Over all sizes of an algorithm all rounds count, by the mean of the logarithms of their
times: a median would use half as much information where half of the times are twice as long as the others. The verdict
is faster or slower if the whole interval is on that side of 1, and the measured difference is more than a small one.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from p2p.errors import LaunchError

from ..plan import format_size
from .bootstrap import AT_ONCE, SEED, Floats, Interval, draw_rounds, interval
from .files import Report, read_reports
from .report import BUSY, FILE_WIDTH

SAME: Final = 0.03
"""A smaller relative difference counts as none."""
CHANCE: Final = 0.1
"""Probability of calling anything faster or slower in two runs of the same code, divided among all cells (Bonferroni),
or, over all sizes, among all algorithms."""
NUM_RESAMPLES: Final = 5000
"""Wide intervals need many resamples, since few lie beyond their ends."""
GAUSSIAN_MAD: Final = 1.4826
"""Standard deviation over median absolute deviation of a Gaussian."""
OF_MACHINE: Final = ("cpu", "cores", "memory_bytes", "system", "python", "devices")
OF_CONFIG: Final = (
    "operation",
    "root",
    "num_peers",
    "algorithms",
    "baseline",
    "sizes_bytes",
    "dtype",
    "net",
    "swarm",
    "per_host",
    "device",
)
DEFAULTS: Final[Mapping[str, Any]] = {
    "operation": "all-reduce",
    "root": 0,
    "swarm": None,
    "dtype": "float32",
    "net": None,
    "per_host": 1,
    "device": "cpu",
    "devices": [],
}
"""Defaults of settings that older files do not have."""

Ratios = tuple[float, Floats]
"""The measured and the resampled values of a ratio, or of one of its two times."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender at one size; size None: over all sizes, equally weighted.

    `ratio`: at a size, p50 in B over p50 in A; over all sizes, the ratio of the geometric means of all rounds.
    """

    algorithm: str
    size_bytes: int | None
    world_size: int
    ratio: Interval

    @property
    def verdict(self) -> str:
        """The verdict about B: `faster`, `slower`, `same` or `unclear`."""
        value, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        if low > 1 and value > 1 + SAME:
            return "slower"
        if high < 1 and value < 1 / (1 + SAME):
            return "faster"
        return "same" if low >= 1 / (1 + SAME) and high <= 1 + SAME else "unclear"


def compare_files(a: Path, b: Path) -> int:
    """Print a row per cell; returns 1 if B is slower in any of them.

    Raises:
        LaunchError: a file cannot be read, or the runs differ in machine or settings.
    """
    before, after = read_reports(a), read_reports(b)
    if len(before) != len(after):
        raise LaunchError(f"{a} has {len(before)} runs, {b} has {len(after)}: compare files of the same command")
    cells = [cell for pair in zip(before, after, strict=True) for cell in compare(*pair)]
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    console.print(make_table(cells, a.name, b.name))
    for line in notes(before, after, cells):
        console.print(line, markup=False, soft_wrap=True)
    return 1 if any(cell.verdict == "slower" for cell in cells) else 0


def compare(a: Report, b: Report) -> list[Cell]:
    """All cells of two runs. Raises LaunchError if the runs differ in more than their code."""
    if others := list(differences(a, b)):
        raise LaunchError(f"these runs cannot be compared: {'; '.join(others)}")
    cells_of = [[(row["algorithm"], row["size_bytes"]) for row in each["results"]] for each in (a, b)]
    if cells_of[0] != cells_of[1]:
        odd = sorted({*cells_of[0]} ^ {*cells_of[1]})
        raise LaunchError(f"these runs cannot be compared: one of them alone has {odd or 'its order of results'}")
    ratios_of = ratios_by_round if took_turns(a, b) else ratios_of_runs
    found = [(row, *ratios_of(row, other)) for row, other in zip(a["results"], b["results"], strict=True)]
    groups, of_cells = dict[tuple[str, int], list[Ratios]](), dict[tuple[str, int], list[Ratios]]()
    for row, ratios, _ in found:
        of_cells.setdefault((row["algorithm"], row["world_size"]), []).append(ratios)
    by_chance, cells = unexplained_stddev([*of_cells.values()]), list[Cell]()
    for row, ratios, of_means in found:
        name, num_peers = row["algorithm"], row["world_size"]
        groups.setdefault((name, num_peers), []).append(of_means)
        cells.append(Cell(name, row["size_bytes"], num_peers, wide(ratios, by_chance, 1 - CHANCE / len(found))))
    of_sizes = unexplained_stddev([*groups.values()])
    for (name, num_peers), each in groups.items():
        if len(each) > 1:
            values, resampled = zip(*each, strict=True)
            together = float(geometric_mean(np.array(values))), geometric_mean(np.array(resampled))
            share = of_sizes / len(each) ** 0.5
            cells.append(Cell(name, None, num_peers, wide(together, share, 1 - CHANCE / len(groups))))
    return cells


def unexplained_stddev(groups: Sequence[Sequence[Ratios]]) -> float:
    """Standard deviation of log ratios that resampling does not explain; `groups`: the ratios of each algorithm.

    Processes differ in memory placement and in how they wait, for their whole life. The estimate is the median
    deviation from the algorithm's median, so that an algorithm that is slower at all sizes adds nothing to it, and one
    that is slower at some sizes little.
    """
    deviations = []
    for group in groups:
        logs = np.log([value for value, _ in group])
        freedom = len(logs) / max(1, len(logs) - 1)  # the median uses one degree of freedom
        deviations.append(np.abs(logs - np.median(logs)) * freedom**0.5)
    spread = GAUSSIAN_MAD * np.median(np.concatenate(deviations))
    within = np.median([np.log(resampled).var() for group in groups for _, resampled in group])
    return float(max(0.0, spread**2 - within) ** 0.5)


def wide(ratios: Ratios, by_chance: float, level: float) -> Interval:
    """The interval of the resamples, widened by the scatter between processes."""
    inner = interval(*ratios, level)
    beyond = NormalDist().inv_cdf((1 + level) / 2) * by_chance
    low, high = (math.exp(math.hypot(math.log(end / inner.value), beyond)) for end in (inner.low, inner.high))
    return Interval(inner.value, inner.value / low, inner.value * high)


def geometric_mean(ratios: Floats) -> Floats:
    """The geometric mean over the first axis."""
    mean: Floats = np.exp(np.log(ratios).mean(axis=0))
    return mean


def took_turns(a: Report, b: Report) -> bool:
    """Whether the two runs took turns with each other."""
    one, other = a.get("turns") or {}, b.get("turns") or {}
    return one.get("id") is not None and one["id"] == other.get("id") and one["place"] != other["place"]


def differences(a: Report, b: Report) -> Iterator[str]:
    """Differences that prevent a comparison, with both values."""
    for where, names in (("machine", OF_MACHINE), ("config", OF_CONFIG)):
        for name in names:
            one, other = (report[where].get(name, DEFAULTS.get(name)) for report in (a, b))
            if one != other:
                yield f"{name} is {one!r} and {other!r}"
    for name in sorted((set(a["machine"]["packages"]) | set(b["machine"]["packages"])) - {"shoal"}):
        one, other = (report["machine"]["packages"].get(name) for report in (a, b))
        if one != other:
            yield f"{name} is {one} and {other}"


def ratios_by_round(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Ratios, Ratios]:
    """Ratios b over a of the p50s and of the geometric means, over the rounds that both have."""
    times: list[Floats] = [np.max(row["times_us"], axis=0) for row in (a, b)]
    num_rounds = min(map(len, times))
    return _ratios([each[:num_rounds] for each in times], (SEED, SEED))


def ratios_of_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Ratios, Ratios]:
    """The same ratios for two runs that have no rounds in common."""
    return _ratios([np.max(row["times_us"], axis=0) for row in (a, b)], (SEED, SEED + 1))


def _ratios(times: Sequence[Floats], seeds: tuple[int, int]) -> tuple[Ratios, Ratios]:
    """Ratios of the second times over the first, whose rounds are drawn with these seeds."""
    before, after = (
        _middles(each, draw_rounds(len(each), np.random.default_rng(seed), NUM_RESAMPLES))
        for each, seed in zip(times, seeds, strict=True)
    )
    return _over(after[0], before[0]), _over(after[1], before[1])


def _middles(times: Floats, drawn: npt.NDArray[np.int64]) -> tuple[Ratios, Ratios]:
    """Median and geometric mean, each measured and resampled."""
    logs = np.log(times)
    medians = float(np.median(times)), np.concatenate([np.median(times[each], axis=1) for each in _parts(drawn)])
    means = float(np.exp(logs.mean())), np.concatenate([np.exp(logs[each].mean(axis=1)) for each in _parts(drawn)])
    return medians, means


def _parts(drawn: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of `drawn` in parts of at most `AT_ONCE` elements."""
    rows = max(1, AT_ONCE // drawn.shape[1])
    yield from (drawn[first : first + rows] for first in range(0, len(drawn), rows))


def _over(after: Ratios, before: Ratios) -> Ratios:
    return after[0] / before[0], after[1] / before[1]


def make_table(cells: Sequence[Cell], a: str, b: str) -> Table:
    table = Table(title=f"time in {b} over time in {a}", title_justify="left", box=None)
    for heading in ("peers", "size", "algorithm", "ratio", "interval", "verdict"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "verdict") else "right", no_wrap=True)
    for cell in cells:
        ratio = cell.ratio
        size = "all" if cell.size_bytes is None else format_size(cell.size_bytes)
        where = (str(cell.world_size), size, cell.algorithm)
        table.add_row(*where, f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}", cell.verdict)
    return table


def notes(a: Sequence[Report], b: Sequence[Report], cells: Sequence[Cell]) -> Iterator[str]:
    """The number of each verdict, their meaning, and the warnings of the runs."""
    verdicts = [cell.verdict for cell in cells]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in ("faster", "slower", "same", "unclear"))
    yield (
        f"{counts}; the intervals, of {NUM_RESAMPLES:,} resamples of the ratio of the p50s, are so wide that one in "
        f"{1 / CHANCE:.0f} comparisons of the same code has one without 1: all above 1, and measured "
        f"above {1 + SAME:g}, is slower, the other way round faster; all between 1/{1 + SAME:g} and {1 + SAME:g} is "
        f"the same, anything else unclear"
    )
    for one, other in zip(a, b, strict=True):
        loads = [report["machine"]["load_1_min"] for report in (one, other)]
        if abs(loads[0] - loads[1]) > BUSY * one["machine"]["cores"]:
            yield (
                f"Warning: other processes used the machine more in one run than in the other (load {loads[0]} and "
                f"{loads[1]} before them), which may explain a difference: measure both again"
            )
    for name, reports in (("first", a), ("second", b)):
        for warning in dict.fromkeys(each for report in reports for each in report.get("warnings", ())):
            yield f"Warning, of the {name} run: {warning}"

"""`shoal bench compare A.json B.json`: is B slower than A, cell by cell, and how sure is that?

Runs that took turns (turns.py) have met the same machine in the same rounds, so these are resampled together. Two runs
one after the other have no rounds in common, and each is resampled by itself: then a machine that was slower during one
of them is taken for slower code. A verdict is given where the whole interval agrees.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from p2p.errors import LaunchError

from .bootstrap import SEED, Floats, Interval, Medians, interval, resample
from .files import Report, read_reports
from .plan import format_size
from .report import BUSY, FILE_WIDTH

SAME: Final = 0.03
"""A smaller share is no difference."""
CHANCE: Final = 0.1
"""Of calling anything faster or slower in two runs of the same code, shared by all cells (Bonferroni), or, over all
sizes, by all algorithms."""
NUM_RESAMPLES: Final = 5000
"""The ends of so wide intervals are rare."""
GAUSSIAN_MAD: Final = 1.4826
"""Standard deviation over median deviation."""
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
"""Of settings that older files do not have."""

Ratios = tuple[float, Floats]
"""What was measured, and what the resamples say."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender at one size; None: the geometric mean over all sizes. `ratio`: time in B over time in A."""

    algorithm: str
    size_bytes: int | None
    world_size: int
    ratio: Interval

    @property
    def verdict(self) -> str:
        """`faster` and `slower` are said of B."""
        low, high = self.ratio.low, self.ratio.high
        if low > 1 + SAME:
            return "slower"
        if high < 1 / (1 + SAME):
            return "faster"
        return "same" if low >= 1 / (1 + SAME) and high <= 1 + SAME else "unclear"


def compare_files(a: Path, b: Path) -> int:
    """Print a row per cell; returns 1 if one is slower in B.

    Raises:
        LaunchError: a file cannot be read, or was measured elsewhere, or otherwise.
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
    """All cells of two runs; LaunchError if these differ in more than the code that ran."""
    if others := list(differences(a, b)):
        raise LaunchError(f"these runs cannot be compared: {'; '.join(others)}")
    ratios_of = ratios_by_round if took_turns(a, b) else ratios_of_runs
    found = [(row, ratios_of(row, other)) for row, other in zip(a["results"], b["results"], strict=True)]
    by_chance, cells = scatter([ratios for _, ratios in found]), list[Cell]()
    groups = dict[tuple[str, int], list[Ratios]]()
    for row, ratios in found:
        name, num_peers = row["algorithm"], row["world_size"]
        groups.setdefault((name, num_peers), []).append(ratios)
        cells.append(Cell(name, row["size_bytes"], num_peers, wide(ratios, by_chance, 1 - CHANCE / len(found))))
    for (name, num_peers), each in groups.items():
        if len(each) > 1:
            values, resampled = zip(*each, strict=True)
            together = float(geometric_mean(np.array(values))), geometric_mean(np.array(resampled))
            share = by_chance / len(each) ** 0.5
            cells.append(Cell(name, None, num_peers, wide(together, share, 1 - CHANCE / len(groups))))
    return cells


def scatter(found: Sequence[Ratios]) -> float:
    """Standard deviation of the logarithms of ratios that resamples do not explain.

    Processes differ in where their memory lies and how they wait, for as long as they live. By the median deviation
    from the median, so that code that is slower as a whole, or at some sizes, adds little to it.
    """
    logs = np.log([value for value, _ in found])
    spread = GAUSSIAN_MAD * np.median(np.abs(logs - np.median(logs)))
    within = np.median([np.log(resampled).var() for _, resampled in found])
    return float(max(0.0, spread**2 - within) ** 0.5)


def wide(ratios: Ratios, by_chance: float, level: float) -> Interval:
    """The interval of the resamples, with what differs between processes by chance."""
    inner = interval(*ratios, level)
    beyond = NormalDist().inv_cdf((1 + level) / 2) * by_chance
    low, high = (math.exp(math.hypot(math.log(end / inner.value), beyond)) for end in (inner.low, inner.high))
    return Interval(inner.value, inner.value / low, inner.value * high)


def geometric_mean(ratios: Floats) -> Floats:
    """Over the first axis."""
    mean: Floats = np.exp(np.log(ratios).mean(axis=0))
    return mean


def took_turns(a: Report, b: Report) -> bool:
    """Whether these are the two runs of one meeting."""
    one, other = a.get("turns") or {}, b.get("turns") or {}
    return one.get("id") is not None and one["id"] == other.get("id") and one["place"] != other["place"]


def differences(a: Report, b: Report) -> Iterator[str]:
    """What differs and must not, with both values."""
    for where, names in (("machine", OF_MACHINE), ("config", OF_CONFIG)):
        for name in names:
            one, other = (report[where].get(name, DEFAULTS.get(name)) for report in (a, b))
            if one != other:
                yield f"{name} is {one!r} and {other!r}"
    for name in sorted((set(a["machine"]["packages"]) | set(b["machine"]["packages"])) - {"shoal"}):
        one, other = (report["machine"]["packages"].get(name) for report in (a, b))
        if one != other:
            yield f"{name} is {one} and {other}"


def ratios_by_round(a: Mapping[str, Any], b: Mapping[str, Any]) -> Ratios:
    """Of two results: p50 in b over p50 in a, over the rounds that both have."""
    times: list[Floats] = [np.max(row["times_us"], axis=0) for row in (a, b)]
    num_rounds = min(map(len, times))
    before, after = (each[:num_rounds] for each in times)
    medians = resample([a["size_bytes"]], {"a": [before], "b": [after]}, num=NUM_RESAMPLES)
    return _over(medians, "b", medians, "a")


def ratios_of_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Ratios:
    """The same of two runs that have no rounds in common."""
    medians = []
    for seed, row in enumerate((a, b)):
        times: Floats = np.max(row["times_us"], axis=0)
        medians.append(resample([row["size_bytes"]], {"": [times]}, seed=SEED + seed, num=NUM_RESAMPLES))
    before, after = medians
    return _over(after, "", before, "")


def _over(after: Medians, name: str, before: Medians, other: str) -> Ratios:
    measured = float(after.measured[name][0] / before.measured[other][0])
    return measured, after.resampled[name][:, 0] / before.resampled[other][:, 0]


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
    """How many there are of each verdict, what they mean, and what was warned of."""
    verdicts = [cell.verdict for cell in cells]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in ("faster", "slower", "same", "unclear"))
    yield (
        f"{counts}; an interval has so many of {NUM_RESAMPLES:,} resamples of the ratio of the p50s that of "
        f"{1 / CHANCE:.0f} comparisons of the same code one has any that does not hold 1: all above {1 + SAME:g} is "
        f"slower, all below 1/{1 + SAME:g} faster, all between these the same, anything else unclear"
    )
    for one, other in zip(a, b, strict=True):
        loads = [report["machine"]["load_1_min"] for report in (one, other)]
        if abs(loads[0] - loads[1]) > BUSY * one["machine"]["cores"]:
            yield (
                f"Warning: others used the machine in one run more than in the other (its load was {loads[0]} and "
                f"{loads[1]} before them), so what differs may be that: measure both again"
            )
    for name, reports in (("first", a), ("second", b)):
        for warning in dict.fromkeys(each for report in reports for each in report.get("warnings", ())):
            yield f"Warning, of the {name} run: {warning}"

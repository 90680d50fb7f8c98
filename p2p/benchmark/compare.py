"""`shoal bench compare A.json B.json`: is B slower than A, cell by cell, and how sure is that?

Two runs have no rounds in common, so each is resampled by itself. A verdict is given where the whole interval agrees.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from p2p.errors import LaunchError

from .bootstrap import NUM_RESAMPLES, SEED, Floats, Interval, interval, resample
from .files import Report, read_reports
from .plan import format_size
from .report import BUSY, FILE_WIDTH

SAME: Final = 0.03
"""A smaller share is no difference."""
LEVEL: Final = 0.99
"""Of the intervals here: of many cells, some are outside of 95 % by chance."""
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


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender at one size. `ratio`: time in B over time in A."""

    algorithm: str
    size_bytes: int
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
    found = list(zip(a["results"], b["results"], strict=True))
    return [
        Cell(before["algorithm"], before["size_bytes"], before["world_size"], ratio_of(before, after))
        for before, after in found
    ]


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


def ratio_of(a: Mapping[str, Any], b: Mapping[str, Any]) -> Interval:
    """Of two results: p50 in b over p50 in a."""
    medians = []
    for seed, row in enumerate((a, b)):
        times: Floats = np.max(row["times_us"], axis=0)
        medians.append(resample([row["size_bytes"]], {"": [times]}, seed=SEED + seed, num=NUM_RESAMPLES))
    before, after = medians
    resampled = after.resampled[""][:, 0] / before.resampled[""][:, 0]
    return interval(after.measured[""][0] / before.measured[""][0], resampled, LEVEL)


def make_table(cells: Sequence[Cell], a: str, b: str) -> Table:
    table = Table(title=f"time in {b} over time in {a}", title_justify="left", box=None)
    for heading in ("peers", "size", "algorithm", "ratio", f"{LEVEL:.0%} of resamples", "verdict"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "verdict") else "right", no_wrap=True)
    for cell in cells:
        ratio = cell.ratio
        where = (str(cell.world_size), format_size(cell.size_bytes), cell.algorithm)
        table.add_row(*where, f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}", cell.verdict)
    return table


def notes(a: Sequence[Report], b: Sequence[Report], cells: Sequence[Cell]) -> Iterator[str]:
    """How many there are of each verdict, what they mean, and what was warned of."""
    verdicts = [cell.verdict for cell in cells]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in ("faster", "slower", "same", "unclear"))
    yield (
        f"{counts}; of the ratio of the p50s, {LEVEL:.0%} of {NUM_RESAMPLES:,} resamples: all above {1 + SAME:g} is "
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

"""`shoal report compare A B`: whether anything is slower in B, or more is lost, and with which confidence. Pure.

Two reports have no samples in pairs, so each is resampled separately; a verdict is given if the whole interval agrees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...benchmark.results.bootstrap import SEED, Interval, interval, resample
from .report import COUNTS, DOS, TIMES, Evaluated, metrics, times

if TYPE_CHECKING:
    from rich.table import Table

SAME: Final = 0.03
"""A smaller relative difference counts as none."""
LEVEL: Final = 0.99
"""Confidence level: among many figures some lie outside a 95 % interval by chance."""
LEAST: Final = 5
"""Values that each side needs for a verdict."""
WORSE: Final = ("steps_lost", "samples_twice", "samples_missing", "receipts_unequal", "events_missed", "peers_failed")
"""Counts that should be 0."""
SUMS: Final = (*WORSE, "steps_unrecorded", "records_missed")
"""Sums over all repetitions; compared per repetition."""
OF_MACHINE: Final = ("cpu", "cores", "memory_bytes", "system", "python", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One time, in ms. `ratio`: the median in B over that in A; None: a side has too few values, or 0 as a median."""

    name: str
    a: Sequence[float]
    b: Sequence[float]
    ratio: Interval | None

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, `same`, `unclear`, `fewer than 5` or `no ratio`, about B."""
        if self.ratio is None:
            return f"fewer than {LEAST}" if min(len(self.a), len(self.b)) < LEAST else "no ratio"
        if self.ratio.low > 1 + SAME:
            return "slower"
        if self.ratio.high < 1 / (1 + SAME):
            return "faster"
        return "same" if self.ratio.low >= 1 / (1 + SAME) and self.ratio.high <= 1 + SAME else "unclear"


def compare(a: Sequence[Evaluated], b: Sequence[Evaluated]) -> list[Row]:
    """One row for each time that both have."""
    names = [name for name in TIMES if name != "beyond"]  # it may be negative, so it has no ratio
    both = [(f"{do} {name}", times(a, do, name), times(b, do, name)) for do in (*DOS, "gone") for name in names]
    both.append(("step", _step_times(a), _step_times(b)))
    return [Row(name=name, a=one, b=other, ratio=_ratio(one, other)) for name, one, other in both if one and other]


def counts(a: Sequence[Evaluated], b: Sequence[Evaluated]) -> dict[str, tuple[float, float]]:
    """Counts that differ, or that should be 0 and are not; sums are per repetition."""
    found = [
        {name: value / len(each) if name in SUMS else value for name, value in metrics(each).items()} for each in (a, b)
    ]
    names = [name for name in COUNTS if not name.endswith(("_p50", "_max")) and all(name in each for each in found)]
    both = {name: (found[0][name], found[1][name]) for name in names}
    return {name: (one, other) for name, (one, other) in both.items() if one != other or (name in WORSE and one)}


def is_worse(rows: Sequence[Row], counted: dict[str, tuple[float, float]]) -> bool:
    more_lost = any(name in WORSE and other > one for name, (one, other) in counted.items())
    return more_lost or any(row.verdict == "slower" for row in rows)


def notes(a: Sequence[Evaluated], b: Sequence[Evaluated]) -> Iterator[str]:
    """Differences in machine and plan."""
    machines = [_machine(each) for each in (a, b)]
    for name in OF_MACHINE:
        one, other = (machine.get(name) for machine in machines)
        if one != other:
            yield f"{name} is {one} in A, and {other} in B"
    plans = [[(cost.event.do, cost.event.planned) for cost in each[0].costs] for each in (a, b)]
    if plans[0] != plans[1]:
        yield "these are not the same events: what is compared is all of a kind"


def _machine(evaluated: Sequence[Evaluated]) -> dict[str, Any]:
    account = evaluated[0].run.log
    return {} if account is None else account.environment


def _step_times(evaluated: Sequence[Evaluated]) -> list[float]:
    return [step.took_ms for each in evaluated for step in each.steps if step.took_ms is not None]


def _ratio(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """B's median over A's, with an interval by block bootstrap, since neighbouring values are correlated."""
    if min(len(a), len(b)) < LEAST:
        return None
    drawn = [
        resample((0,), {"": [np.asarray(values)]}, seed=SEED + index).resampled[""][:, 0]
        for index, values in enumerate((a, b))
    ]
    if min(*(each.min() for each in drawn), median(a), median(b)) <= 0:
        return None
    return interval(median(b) / median(a), drawn[1] / drawn[0], LEVEL)


def table(rows: Sequence[Row], counted: dict[str, tuple[float, float]]) -> "Table":
    from rich.table import Table

    made = Table("figure", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("A", "B", "B/A", f"{LEVEL:.0%} interval"):
        made.add_column(column, justify="right")
    made.add_column("B is")
    for row in rows:
        ratio = row.ratio
        within = ("", "") if ratio is None else (f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")
        medians = (f"{median(values):.3g} ms ({len(values)})" for values in (row.a, row.b))
        made.add_row(row.name, *medians, *within, row.verdict)
    for name, (one, other) in counted.items():
        made.add_row(
            name.replace("_", " "), f"{one:g}", f"{other:g}", "", "", "worse" if name in WORSE and other > one else ""
        )
    return made

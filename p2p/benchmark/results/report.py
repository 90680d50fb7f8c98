"""Results for people: a table, conclusions in words, and warnings."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ..plan import CPU, Plan, format_size
from ..roles import what_of
from .analysis import Analysis
from .bootstrap import LEVEL, NUM_RESAMPLES
from .result import Result, in_us, percentile, ratios_to
from .stage_report import make_stage_table, stages_in_words

FILE_WIDTH: Final = 160
"""Columns of a table that is written to a file or a pipe."""
BUSY: Final = 0.5
"""Load per core before the run from which on a warning is printed."""
LEFT: Final = ("algorithm", "ran", "last peer")
HEADINGS: Final = (
    *("size", "algorithm", "ran", "p50 us", f"{LEVEL:.0%} of p50", "p99 us", "cv", "algbw GB/s", "busbw GB/s"),
    *("wrong", "bits", "sent", "pred/meas", "last peer"),
)


def warnings_of(plan: Plan, described: Mapping[str, Any], network: Mapping[str, Any] | None) -> list[str]:
    """Reasons why times may mislead, in words."""
    found, cores, load = [], described["cores"], described["load_1_min"]
    if plan.num_peers > cores and plan.swarm is None:
        found.append(f"{plan.num_peers} peers share {cores} cores: times include waiting for a core")
    if load > BUSY * cores:
        found.append(f"other processes used this machine: its load was {load} before the run, and it has {cores} cores")
    return found + list(network["warnings"] if network is not None else ())


def print_report(
    plan: Plan,
    results: Sequence[Result],
    analysis: Analysis,
    described: Mapping[str, Any],
    network: Mapping[str, Any] | None,
    warnings: Sequence[str],
) -> None:
    """Print one row per size and contender; the fastest of each size is marked."""
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    console.print(make_table(plan, results, analysis))
    stages = stages_in_words(results)
    if stages:
        console.print(make_stage_table(results))
    packages = ", ".join(f"{name} {found}" for name, found in described["packages"].items())
    said = [f"{described['cpu']}, {described['cores']} cores, load {described['load_1_min']}; {packages}"]
    if devices := described.get("devices"):
        said.append(f"devices: {', '.join(devices)}")
    said.append(
        f"time of the slowest peer of each round; next to its p50 those of {LEVEL:.0%} of {NUM_RESAMPLES:,} resamples, "
        "in blocks of rounds; cv: deviation over mean; sent: bytes, of the peer that sends most; "
        "last peer: slowest, how often"
    )
    said += stages
    if network is not None:
        said.append(f"network lab, {network['net']}: {network['said']}")
    if plan.baseline is not None:
        said.append(compare(results, plan.baseline))
    for line in (*said, *(f"Warning: {warning}" for warning in warnings), analysis.sentence):
        if line:
            console.print(line, markup=False, soft_wrap=True)


def make_table(plan: Plan, results: Sequence[Result], analysis: Analysis) -> Table:
    where = "" if plan.net is None else f", {plan.net}"
    on = "" if plan.device == CPU else f", {plan.device}"
    title = f"{what_of(plan.operation, plan.root)}, {plan.dtype}, {plan.num_peers} peers{on}{where}"
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=None)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=True)
    ratios: dict[tuple[str, int], float] = {}
    if plan.baseline is not None:
        ratios = ratios_to(plan.baseline, results)
        table.add_column(f"time / {plan.baseline}", justify="right", no_wrap=True)
    for size_bytes in plan.sizes_bytes:
        rows = [result for result in results if result.size_bytes == size_bytes]
        fastest = min(rows, key=lambda row: row.time_p50_s)
        for row in rows:
            ratio = ratios.get((row.algorithm, size_bytes))
            cells = [*cells_of(row, analysis), *(() if ratio is None else (f"{ratio:.2f}",))]
            table.add_row(*cells, style="bold" if row is fastest else "", end_section=row is rows[-1])
    return table


def cells_of(result: Result, analysis: Analysis) -> list[str]:
    p50, ratio = analysis.p50(result), result.predicted_to_measured
    (last, times), *_ = result.last_peers.items()
    return [
        format_size(result.size_bytes),
        result.algorithm,
        said_to_have_run(result),
        f"{in_us(p50.value):.1f}",
        f"{in_us(p50.low):.1f} to {in_us(p50.high):.1f}",
        f"{in_us(percentile(result.times_s, 99)):.1f}",
        f"{result.cv:.1%}",
        f"{result.algbw_gb_per_s:.4f}",
        f"{result.busbw_gb_per_s:.4f}",
        str(result.wrong),
        {True: "equal", False: "DIFFER", None: "-"}[result.hash_equal],
        "-" if result.wire_bytes is None else f"{result.wire_bytes:,}",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{last} ({times / len(result.times_s):.0%})",
    ]


def said_to_have_run(result: Result) -> str:
    """The algorithm that ran; if there are several, the most frequent one with its share of the rounds."""
    (name, number), *others = Counter(result.rans).most_common()
    return f"{name} ({number / len(result.rans):.0%})" if others else name


def compare(results: Sequence[Result], baseline: str) -> str:
    """One sentence: the best of shoal's algorithms against the baseline, at each size."""
    best: dict[int, float] = {}
    for (_, size_bytes), ratio in ratios_to(baseline, results).items():
        best[size_bytes] = min(ratio, best.get(size_bytes, ratio))
    worst = max(best, key=lambda size_bytes: best[size_bytes])
    num_slower = sum(ratio > 1 for ratio in best.values())
    return (
        f"best of ours against {baseline}, p50 to p50: slower at {num_slower} of {len(best)} sizes; "
        f"worst ratio {best[worst]:.2f}, at {format_size(worst)}"
    )

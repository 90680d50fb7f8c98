"""Results for people, as a table, and for programs, as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from .machine import commit
from .plan import Plan, format_size
from .result import AllReduceResult, in_us, percentile, ratios_to

FILE_WIDTH: Final = 120
"""Columns of a table that goes to a file or a pipe, which has no width of its own."""


def print_table(plan: Plan, results: Sequence[AllReduceResult], described: dict[str, Any]) -> None:
    """Print one row per size and contender; the fastest of each size is marked."""
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    console.print(make_table(plan, results))
    packages = ", ".join(f"{name} {found}" for name, found in described["packages"].items())
    console.print(f"{described['cpu']}, {described['cores']} cores, load {described['load_1_min']}; {packages}")
    if plan.baseline is not None:
        console.print(compare(results, plan.baseline))
    if plan.num_peers > described["cores"]:
        console.print(f"{plan.num_peers} peers share {described['cores']} cores: times include waiting for a core")


def make_table(plan: Plan, results: Sequence[AllReduceResult]) -> Table:
    title = f"all-reduce, float32, {plan.num_peers} peers, {plan.num_iters} iterations, slowest rank"
    table = Table(title=title, title_justify="left")
    for heading in ("size", "contender", "p50 us", "p90 us", "p99 us", "cpu us", "algbw GB/s", "busbw GB/s", "wrong"):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=True)
    ratios: dict[tuple[str, int], float] = {}
    if plan.baseline is not None:
        ratios = ratios_to(plan.baseline, results)
        table.add_column(f"time / {plan.baseline}", justify="right", no_wrap=True)
    for size_bytes in plan.sizes_bytes:
        rows = [result for result in results if result.size_bytes == size_bytes]
        fastest = min(rows, key=lambda row: row.time_p50_s)
        for row in rows:
            ratio = ratios.get((row.algorithm, size_bytes))
            cells = [*cells_of(row), *(() if ratio is None else (f"{ratio:.2f}",))]
            table.add_row(*cells, style="bold" if row is fastest else "", end_section=row is rows[-1])
    return table


def cells_of(result: AllReduceResult) -> list[str]:
    name = result.algorithm if result.ran == result.algorithm else f"{result.algorithm} ({result.ran})"
    return [
        format_size(result.size_bytes),
        name,
        *(f"{in_us(percentile(result.times_s, percent)):.1f}" for percent in (50, 90, 99)),
        f"{in_us(result.cpu_time_p50_s):.0f}",
        f"{result.algbw_gb_per_s:.3f}",
        f"{result.busbw_gb_per_s:.3f}",
        str(result.wrong),
    ]


def compare(results: Sequence[AllReduceResult], baseline: str) -> str:
    """In one sentence, how the best of ours stands at each size."""
    best: dict[int, float] = {}
    for (_, size_bytes), ratio in ratios_to(baseline, results).items():
        best[size_bytes] = min(ratio, best.get(size_bytes, ratio))
    worst = max(best, key=lambda size_bytes: best[size_bytes])
    num_slower = sum(ratio > 1 for ratio in best.values())
    return (
        f"best of ours against {baseline}, p50 to p50: slower at {num_slower} of {len(best)} sizes; "
        f"worst ratio {best[worst]:.2f}, at {format_size(worst)}"
    )


def write_json(path: Path, plan: Plan, results: Sequence[AllReduceResult], described: dict[str, Any]) -> None:
    """Write everything; `described` is the machine as it was before the run."""
    report = {
        "version": 2,
        "commit": commit(),
        "machine": described,
        "config": asdict(plan),
        "results": [result.to_json() for result in results],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")

"""Does `shoal bench compare` find real differences, and no others? Runs of the same code, which take turns.

    python -m bench.aa [--pairs 5] [--duration 90] [--json FILE]

In each pair two runs measure 40 cells (four algorithms at ten sizes) at the same time, and are compared: no cell, and
no algorithm over all its sizes, should be called slower or faster, except by chance. Then two runs measure at the same
time, each with a different algorithm slowed down by 10 %: it should be called slower there, over all sizes. Exits with
1 if more than one cell of a pair is called faster or slower, or fewer than nine of ten slowed algorithms are called
slower.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.plan import Plan, sizes_between
from p2p.benchmark.results.compare import Cell, compare
from p2p.benchmark.results.files import Report, read_reports
from p2p.benchmark.results.machine import commit, machine

MOST_CALLED: Final = 1
"""Cells of a pair of runs of the same code that may be called faster or slower."""
SLOWED: Final = ("direct", "tree")
"""The slowed algorithm of the second of two runs, and that of the first."""
SHARE: Final = 0.10
LEAST_FOUND: Final = 0.9
PLAN: Final = Plan(
    num_peers=2,
    algorithms=("ring", "tree", "direct", "one-shot"),
    baseline=None,
    sizes_bytes=sizes_between(4 << 10, 2 << 20, 2),
    num_iters=None,
    num_warmup=5,
    duration_s=90.0,
)


def measure(*plans: Plan) -> list[Report]:
    """Run all plans at the same time, in turns."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        runs, paths = [], [Path(folder, f"{number}.json") for number in range(len(plans))]
        for plan, path in zip(plans, paths, strict=True):
            text = replace(plan, turns=str(Path(folder, "turns"))).to_json()
            command = [sys.executable, "-m", "bench.aa", "--run", text, "--json", str(path)]
            runs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if codes := [code for run in runs if (code := run.wait())]:
            raise SystemExit(codes[0])
        return [report for path in paths for report in read_reports(path)]


def verdicts(cells: Sequence[Cell]) -> Counter[str]:
    return Counter(cell.verdict for cell in cells)


def said(found: Counter[str]) -> str:
    return ", ".join(f"{found[each]} {each}" for each in ("faster", "slower", "same", "unclear"))


def slowed_in(name: str, before: Report, after: Report) -> tuple[Cell, Counter[str]]:
    """Verdicts about an algorithm that was slowed in `after`: over all sizes, and by size."""
    *cells, over_all = [cell for cell in compare(before, after) if cell.algorithm == name]
    return over_all, verdicts(cells)


def told(slowed: Sequence[tuple[Cell, Counter[str]]]) -> str:
    return "; ".join(
        f"{cell.algorithm} {cell.verdict}, {cell.ratio.value:.2f} ({cell.ratio.low:.2f} to {cell.ratio.high:.2f}), "
        f"by size {said(found)}"
        for cell, found in slowed
    )


def main() -> int:
    """Measure, print a line per pair, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--duration", type=float, default=PLAN.duration_s, help="of each run, in seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", metavar="PLAN", help="measure this, and nothing else")
    options = parser.parse_args()
    if options.run is not None:
        return run_bench(Plan.from_json(options.run), os.environ, Outputs(json=options.json))
    plan = replace(PLAN, duration_s=options.duration)
    pairs, lines, num_called, num_found = list[dict[str, Any]](), [], [], 0
    for number in range(options.pairs):
        first, second = measure(plan, plan)
        here, there = measure(*(replace(plan, slowed={name: SHARE}) for name in reversed(SLOWED)))
        same = compare(first, second)
        alike = verdicts(same)
        num_called.append(alike["faster"] + alike["slower"])
        slowed = [slowed_in(name, *runs) for name, runs in zip(SLOWED, ((here, there), (there, here)), strict=True)]
        num_found += sum(over_all.verdict == "slower" for over_all, _ in slowed)
        loads = [report["machine"]["load_1_min"] for report in (first, here)]
        row = {"alike": dict(alike), "loads": loads} | {
            over_all.algorithm: {"over_all": over_all.ratio.to_json(), "by_size": dict(found)}
            for over_all, found in slowed
        }
        pairs.append(row | {"ratios": [[each.algorithm, each.size_bytes, *each.ratio.to_json()] for each in same]})
        lines.append(f"pair {number}: the same code {said(alike)}; slowed by 10 %: {told(slowed)}; loads {loads}")
    most = max(num_called)
    for line in lines:
        print(line)
    num_slowed = len(SLOWED) * options.pairs
    print(f"called though the same: at most {most} of 44; slowed and found: {num_found} of {num_slowed}")
    is_good = most <= MOST_CALLED and num_found >= LEAST_FOUND * num_slowed
    if options.json is not None:
        report: dict[str, Any] = {
            "commit": commit(),
            "machine": machine(),
            "duration_s": options.duration,
            "pairs": pairs,
        }
        options.json.write_text(json.dumps(report | {"is_good": is_good}, indent=1) + "\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

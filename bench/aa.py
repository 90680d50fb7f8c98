"""Does `shoal bench compare` see what is there, and nothing else? Runs of the same code, side by side.

    python -m bench.aa [--pairs 5] [--duration 60] [--json FILE]

In each pair 40 cells (four algorithms at ten sizes) are measured twice, and compared: none is slower or faster, but by
chance. Then one algorithm is slowed by 10 %, and compared with the first of these runs: its ten cells are slower.
Ends with 1 if more than one cell of a pair is called faster or slower, or fewer than nine of ten slowed ones are. On a
machine that others use it does: a run knows nothing of what they will do in the next one.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from p2p.benchmark.compare import Cell, compare
from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.files import Report, read_reports
from p2p.benchmark.machine import commit, machine
from p2p.benchmark.plan import Plan, sizes_between

MOST_CALLED: Final = 1
"""Cells of a pair of runs of the same code that may be called faster or slower."""
SLOWED: Final = "direct"
SHARE: Final = 0.10
LEAST_FOUND: Final = 0.9
PLAN: Final = Plan(
    num_peers=2,
    algorithms=("ring", "tree", "direct", "one-shot"),
    baseline=None,
    sizes_bytes=sizes_between(4 << 10, 2 << 20, 2),
    num_iters=None,
    num_warmup=5,
    duration_s=60.0,
)


def measure(plan: Plan) -> Report:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path = Path(folder, "run.json")
        if code := run_bench(plan, os.environ, Outputs(json=path)):
            raise SystemExit(code)
        (report,) = read_reports(path)
    return report


def verdicts(cells: Sequence[Cell]) -> Counter[str]:
    return Counter(cell.verdict for cell in cells)


def said(found: Counter[str]) -> str:
    return ", ".join(f"{found[each]} {each}" for each in ("faster", "slower", "same", "unclear"))


def main() -> int:
    """Measure, print a line per pair, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--duration", type=float, default=PLAN.duration_s, help="of each run, in seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plan = replace(PLAN, duration_s=options.duration)
    pairs, lines, num_called, num_found = list[dict[str, Any]](), [], [], 0
    for number in range(options.pairs):
        first, second, slowed = (measure(each) for each in (plan, plan, replace(plan, slowed={SLOWED: SHARE})))
        alike = verdicts(compare(first, second))
        found = verdicts([cell for cell in compare(first, slowed) if cell.algorithm == SLOWED])
        num_called.append(alike["faster"] + alike["slower"])
        num_found += found["slower"]
        loads = [report["machine"]["load_1_min"] for report in (first, second, slowed)]
        pairs.append({"alike": dict(alike), "slowed": dict(found), "loads": loads})
        lines.append(f"pair {number}: the same code {said(alike)}; slowed by 10 % {said(found)}; loads {loads}")
    most, num_slowed = max(num_called), len(plan.sizes_bytes) * options.pairs
    for line in lines:
        print(line)
    print(f"called though the same: at most {most} of 40; slowed and found: {num_found} of {num_slowed}")
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

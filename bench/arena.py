"""All-reduce through shared memory against Gloo, in the same processes, taking turns.

    python -m bench.arena -n 2,4 -b 4K -e 64M --cores 0,1 --json arena.json

What is measured is the exchange alone: inputs lie in the arena already, and no step commits. Every result is verified.
Times are per operation of a turn, the slowest rank's, the median over the turns. Ratios travel to other machines,
times do not.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.arena_peer import Trial
from bench.swarm import ONE_THREAD, ROOT
from p2p.benchmark.machine import commit, machine
from p2p.benchmark.plan import format_size, parse_size, sizes_between
from p2p.benchmark.result import AllReduceResult, Measurement, combine, in_us, percentile, ratios_to
from p2p.launch import die_with_parent

BASELINE: Final = "gloo"
LIMIT_S: Final = 900.0


def main() -> int:
    """Measure, print, and say by the exit code whether everything was right."""
    args = parse_args()
    if args.cores:
        os.sched_setaffinity(0, args.cores)  # the peers inherit it
    described = machine()
    console = Console(width=None if sys.stdout.isatty() else 120)
    reports: list[dict[str, Any]] = []
    for num_peers in args.peers:
        trial = Trial(
            num_peers=num_peers,
            sizes_bytes=sizes_between(args.first, args.last, args.factor),
            num_iters=args.iters,
            max_burst=args.burst,
            with_digest=args.digest,
        )
        results, num_caught = run(trial)
        console.print(make_table(trial, results, described["cores"]))
        console.print(f"woken by the safety net instead of a doorbell: {num_caught}")
        reports.append({"trial": asdict(trial), "num_caught": num_caught, "results": [r.to_json() for r in results]})
    console.print(f"{described['cpu']}, load {described['load_1_min']} at the start")
    report = {"version": 1, "commit": commit(), "machine": described, "trials": reports}
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(row["wrong"] for each in reports for row in each["results"]))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.arena", description="Shared memory against Gloo.")
    parser.add_argument("-n", dest="peers", type=parse_numbers, default="2,4", help="numbers of peers")
    parser.add_argument("-b", dest="first", type=parse_size, default="4K", help="smallest array")
    parser.add_argument("-e", dest="last", type=parse_size, default="64M", help="largest array")
    parser.add_argument("-f", dest="factor", type=int, default=4, help="from size to size")
    parser.add_argument("--iters", type=int, default=200, help="turns; fewer from 1M up")
    parser.add_argument("--burst", type=int, default=20, help="operations in a turn; fewer from 64K up")
    parser.add_argument("--cores", type=parse_numbers, default="", help="run on these cores only")
    parser.add_argument("--digest", action="store_true", help="hash each chunk that is added up")
    parser.add_argument("--json", type=Path, help="write everything there")
    return parser.parse_args()


def parse_numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def run(trial: Trial) -> tuple[list[AllReduceResult], int]:
    """Start all ranks, wait for them, and put together what they found."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-"))
    environ = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    peers = []
    try:
        for rank in range(trial.num_peers):
            command = [sys.executable, "-m", "bench.arena_peer", str(folder), str(rank), json.dumps(asdict(trial))]
            peers.append(subprocess.Popen(command, cwd=ROOT, env=environ, preexec_fn=die_with_parent()))
        codes = [peer.wait(LIMIT_S) for peer in peers]
        if any(codes):
            raise SystemExit(f"peers ended with {codes}")
        reports: list[dict[str, Any]] = [
            json.loads((folder / f"{rank}.json").read_text()) for rank in range(trial.num_peers)
        ]
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
        shutil.rmtree(folder)
    ranks = [[Measurement(**row) for row in report["measurements"]] for report in reports]
    return combine(ranks), sum(report["num_caught"] for report in reports)


def make_table(trial: Trial, results: list[AllReduceResult], num_cores: int) -> Table:
    hashed = ", chunks hashed" if trial.with_digest else ""
    title = f"all-reduce, float32, by reference, {trial.num_peers} peers on {num_cores} cores{hashed}"
    table = Table(title=title, title_justify="left")
    for heading in ("size", "contender", "p50 us", "p90 us", "busbw GB/s", "wrong", "faster than gloo"):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=True)
    ratios = ratios_to(BASELINE, results)
    for size_bytes in trial.sizes_bytes:
        rows = [result for result in results if result.size_bytes == size_bytes]
        fastest = min(rows, key=lambda row: row.time_p50_s)
        for row in rows:
            ratio = ratios.get((row.algorithm, size_bytes))
            table.add_row(
                format_size(size_bytes),
                row.algorithm,
                *(f"{in_us(percentile(row.times_s, percent)):.1f}" for percent in (50, 90)),
                f"{row.busbw_gb_per_s:.2f}",
                str(row.wrong),
                "" if ratio is None else f"{1 / ratio:.1f}x",
                style="bold" if row is fastest else "",
                end_section=row is rows[-1],
            )
    return table


if __name__ == "__main__":
    sys.exit(main())

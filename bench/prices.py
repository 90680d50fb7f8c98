"""Processor time of a table of prices, and accuracy of prices.

    python -m bench.prices [--ranks 2,4,8,9,16,64,1024] [--measured bench/results/wan-2026-11-26.json] [--json FILE]

Tables are of WAN links, with a rank on each host, or all ranks on two hosts; targets: at most 100 ms of processor time,
in slices of at most 1 ms, except for one in a hundred. Formulas are compared with the simulated schedule, where both
exist: within 0.8 to 1.3 with a rank on each host, and 0.7 to 1.5 on hosts with several. `--measured`: results of
`bench.wan`; of its parts `four` and `again`, prices over p50, for the links of `--net` and for measured rows: within
0.8 to 1.25. Exits with 1 if a figure misses its target, and names it.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.wan import FOURS, PRICES, price_by_rows
from collectives import all_reduce_schedule
from collectives.formulas import FORMULA_MIN_RANKS, FORMULAS, look_at
from collectives.links import MEMORY_DELAY_NS, Links, equal_links
from collectives.price_table import SIZES_BYTES, tabulate
from collectives.pricing import run_to_end, simulate
from p2p.benchmark.results.files import Report, read_reports
from p2p.benchmark.results.machine import commit, machine
from p2p.config import WAN_SEGMENT_BYTES

RATE, DELAY_NS, MESSAGE_NS = 25_000_000, 20_000_000, 100_000
MOST_MS: Final = 100.0
"""Target for the processor time of a table."""
MOST_SLICE_MS: Final = 1.0
FORMULA: Final = (0.8, 1.3)
"""Target for formula over simulated schedule."""
SHARED: Final = (0.7, 1.5)
"""The same target for hosts with several ranks."""
EVERYWHERE: Final = tuple(name for name in FORMULAS if name != "hierarchical")
"""Algorithms for hosts with one rank each."""
MOST_PLAYED: Final = 16
"""Most ranks of a simulated schedule, which takes long."""
SIZES_APART: Final = 4
"""Every fourth size of a table is also simulated."""


def links_of(world_size: int) -> Links:
    """Links of ranks on separate hosts."""
    return replace(equal_links(world_size, RATE, DELAY_NS, MESSAGE_NS), segment_bytes=WAN_SEGMENT_BYTES)


def links_of_two_hosts(world_size: int) -> Links:
    hosts = tuple(rank * 2 // world_size for rank in range(world_size))
    delays = tuple(tuple(DELAY_NS if one != other else MEMORY_DELAY_NS for other in hosts) for one in hosts)
    return replace(links_of(world_size), delay_ns=delays, hosts=hosts)


def cost(name: str, links: Links) -> dict[str, Any]:
    """Cost of one table."""
    gc.collect()
    times_s, start = [], time.process_time()
    for _ in tabulate(links):
        now = time.process_time()
        times_s.append(now - start)
        start = now
    times_s.append(time.process_time() - start)
    p99 = sorted(times_s)[int(0.99 * len(times_s))]
    found = {"took_ms": sum(times_s), "slice_p99_ms": p99, "slice_longest_ms": max(times_s)}
    return {"table": name, "num_slices": len(times_s), **{key: round(1e3 * value, 3) for key, value in found.items()}}


def formulas(name: str, links: Links) -> list[dict[str, Any]]:
    """Least and greatest ratio of formula to simulated schedule over some sizes, for each algorithm with a formula."""
    hosts, found = run_to_end(look_at(links)), []
    for algorithm in FORMULAS if links.has_shared_lines else EVERYWHERE:
        price_ns = run_to_end(FORMULAS[algorithm](hosts))
        schedules = [
            all_reduce_schedule(algorithm, rank, links.world_size, links.hosts) for rank in range(links.world_size)
        ]
        sizes = SIZES_BYTES[::SIZES_APART]
        ratios = [price_ns(size) / simulate(schedules, size, links).time_ns for size in sizes]
        low, high = (round(each, 3) for each in (min(ratios), max(ratios)))
        limits = SHARED if links.has_shared_lines else FORMULA
        found.append({"links": name, "algorithm": algorithm, "low": low, "high": high, "limits": limits})
    return found


def over_measured(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Price over p50 for each algorithm and size on four hosts, by the links of `--net`, and by measured rows."""
    return [
        {
            "part": report["part"],
            "algorithm": row["algorithm"],
            "size_bytes": row["size_bytes"],
            "by_net": row["predicted_to_measured"],
            "by_rows": None if (ratio := price_by_rows(row)) is None else round(ratio, 4),
        }
        for report in reports
        if report.get("part") in FOURS
        for row in report["results"]
        if row["algorithm"] != "auto"
    ]


def is_within(ratio: float, limits: tuple[float, float] = PRICES) -> bool:
    return limits[0] <= ratio <= limits[1]


def missed(found: dict[str, Any]) -> Iterator[str]:
    """Missed targets, in words."""
    for each in found["tables"]:
        if each["took_ms"] > MOST_MS:
            yield f"the table of {each['table']} takes {each['took_ms']:.1f} ms, more than {MOST_MS:g}"
        if each["slice_p99_ms"] > MOST_SLICE_MS:
            yield f"slices of that of {each['table']} take {each['slice_p99_ms']:.2f} ms (p99), not {MOST_SLICE_MS:g}"
    for each in found["formulas"]:
        if not all(is_within(each[end], each["limits"]) for end in ("low", "high")):
            where = f"{each['algorithm']}, {each['links']}"
            yield f"formula over play is {each['low']:.2f} to {each['high']:.2f} ({where}), not {each['limits']}"
    for each in found["measured"]:
        for way in ("by_net", "by_rows"):
            if each[way] is not None and not is_within(each[way]):
                where = f"{each['algorithm']} at {each['size_bytes']} bytes, {each['part']}, {way}"
                yield f"price over measured is {each[way]:.2f} ({where}), not {PRICES}"


def say_measured(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for way, what in (("by_net", "the links of --net"), ("by_rows", "links as measured")):
        ratios = [each[way] for each in rows if each[way] is not None]
        num_within = sum(map(is_within, ratios))
        if ratios:
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            yield f"price over {what} / p50: {spread}, {num_within} of {len(ratios)} within {PRICES[0]} to {PRICES[1]}"


def main(arguments: Sequence[str]) -> int:
    """Print a line or two per number of ranks, and missed targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8,9,16,64,1024")
    parser.add_argument("--measured", type=Path, help="JSON of bench.wan")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    reports = [] if args.measured is None else read_reports(args.measured)
    found: dict[str, Any] = {"commit": commit(), "machine": machine(), "tables": [], "formulas": []}
    for world_size in map(int, args.ranks.split(",")):
        kinds = {f"{world_size} ranks": links_of(world_size)}
        if world_size >= 4:
            kinds[f"{world_size} ranks on two hosts"] = links_of_two_hosts(world_size)
        for name, links in kinds.items():
            found["tables"].append(made := cost(name, links))
            print(
                f"{name}: {made['took_ms']:.1f} ms in {made['num_slices']} slices, "
                f"p99 {made['slice_p99_ms']:.2f} ms, longest {made['slice_longest_ms']:.2f} ms"
            )
            if FORMULA_MIN_RANKS <= world_size <= MOST_PLAYED:
                found["formulas"] += (ours := formulas(name, links))
                ratios = ", ".join(f"{each['algorithm']} {each['low']:.2f} to {each['high']:.2f}" for each in ours)
                print(f"{name}: formula over play: {ratios}")
    found["measured"] = over_measured(reports)
    print(*say_measured(found["measured"]), sep="\n", end="\n" if found["measured"] else "")
    found |= {"load_after": os.getloadavg()[0], "missed": (wrong := list(missed(found)))}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for each in wrong:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

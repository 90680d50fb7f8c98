"""Ring or tree, over the links of a network lab: crossings, prices and the regret of `auto`, for docs/ring-or-tree.md.

    python -m bench.wan [--parts four,again,eight,sixteen,joins] [--duration 110] [--json FILE]

`four`: hosts of 200 Mbit/s and 20 ms one way, up to 16 MB; `again`: the same, and do the two intervals of the crossing
overlap? `eight` hosts of 50 Mbit/s, up to 4 MB; `sixteen` of 10 Mbit/s, up to 1 MB; `joins`: how soon the links to a
fourth host are known, and what that costs the others (bench/rows.py). Writes all samples, but for those of `joins`, and
ends with 1 if something is not as it should be, and says what.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import rows
from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.files import Report, read_reports, to_json
from p2p.benchmark.plan import Plan, parse_size, sizes_between

NARROW: Final = 0.2
"""`--until`."""
WIDEST: Final = 2.0
"""High over low of the crossing of ring and tree."""
PRICES: Final = (0.8, 1.25)
"""Predicted over measured."""
MOST_REGRET: Final = 0.10
BEGIN, END = "<!-- measured -->", "<!-- end -->"
PARTS: Final[Mapping[str, tuple[int, str, str]]] = {
    "four": (4, "rate=200mbit,delay=20ms,queue=200ms", "16M"),
    "again": (4, "rate=200mbit,delay=20ms,queue=200ms", "16M"),
    "eight": (8, "rate=50mbit,delay=20ms,queue=200ms", "4M"),
    "sixteen": (16, "rate=10mbit,delay=20ms,queue=200ms", "1M"),
}
"""Hosts, links, and the largest size."""
JOINS: Final = "joins"


def measure(part: str, duration_s: float) -> Report:
    num_hosts, net, last = PARTS[part]
    plan = Plan(
        num_peers=num_hosts,
        algorithms=("ring", "tree", "direct", "auto"),
        baseline=None,
        sizes_bytes=sizes_between(4 << 10, parse_size(last), 4),
        num_iters=None,
        num_warmup=1,
        net=net,
        duration_s=duration_s,
        until=NARROW,
    )
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path, began_s = Path(folder, "run.json"), time.monotonic()
        if code := run_bench(plan, os.environ, Outputs(json=path)):
            raise SystemExit(code)
        (report,) = read_reports(path)
    return report | {"part": part, "wall_s": round(time.monotonic() - began_s, 1)}


def crossing(report: Report) -> Sequence[float] | None:
    """Of ring and tree: at, low and high, if there is one."""
    pair = next(pair for pair in report["pairs"] if {pair["a"], pair["b"]} == {"ring", "tree"})
    return pair["crossings"][0]["at_bytes"] if len(pair["crossings"]) == 1 else None


def price_by_rows(row: Mapping[str, Any]) -> float | None:
    """Over measured; None: of `auto`, or nobody has measured the links."""
    if row["algorithm"] == "auto" or row.get("predicted_by_rows_us") is None:
        return None
    return float(row["predicted_by_rows_us"] / row["time_p50_us"])


def problems(reports: Sequence[Report]) -> Iterator[str]:
    """What is not as it should be."""
    found = {report["part"]: crossing(report) for report in reports}
    for report in reports:
        part, at = report["part"], found[report["part"]]
        if part != "sixteen" and (at is None or at[2] > WIDEST * at[1]):
            yield f"{part}: ring and tree cross once, and the interval is at most a factor of {WIDEST:g} wide: {at}"
        for row in report["results"]:
            ratio = row["predicted_to_measured"]
            if part in ("four", "again") and row["algorithm"] != "auto" and not PRICES[0] <= ratio <= PRICES[1]:
                yield f"{part}: predicted / measured is {ratio:.2f} of {row['algorithm']} at {row['size_bytes']} bytes"
            by_rows = price_by_rows(row)
            if part in ("four", "again") and by_rows is not None and not PRICES[0] <= by_rows <= PRICES[1]:
                where = f"{row['algorithm']} at {row['size_bytes']} bytes"
                yield f"{part}: predicted over measured links / measured is {by_rows:.2f} of {where}"
            if row["wrong"] or not row["hash_equal"]:
                yield f"{part}: {row['algorithm']} at {row['size_bytes']} bytes is wrong, or not the same everywhere"
        for size_bytes, (regret, *_) in zip(report["config"]["sizes_bytes"], report["regrets"]["auto"], strict=True):
            if regret > MOST_REGRET:
                yield f"{part}: auto took {regret:.0%} longer than the best at {size_bytes} bytes"
        overheads = report.get("overheads", {}).get("auto", ())
        for size_bytes, overhead in zip(report["config"]["sizes_bytes"], overheads, strict=False):
            if overhead is not None and overhead[1] > MOST_REGRET:
                yield f"{part}: auto took {overhead[0]:.0%} longer than the same by name at {size_bytes} bytes"
    one, other = found.get("four"), found.get("again")
    if one and other and (one[1] > other[2] or other[1] > one[2]):
        yield f"the intervals of two runs do not overlap: {one} and {other}"


def rows_of(report: Report) -> Iterator[str]:
    """A table for the page: p50 in ms, and predicted over measured."""
    sizes = report["config"]["sizes_bytes"]
    names = report["config"]["algorithms"]
    cells = {(row["algorithm"], row["size_bytes"]): row for row in report["results"]}
    yield f"| p50 in ms (predicted / measured) | {' | '.join(f'{size >> 10} KB' for size in sizes)} |"
    yield f"|{'---|' * (len(sizes) + 1)}"
    for name in names:
        found = [cells[name, size] for size in sizes]
        texts = [f"{row['time_p50_us'] / 1e3:.0f} ({row['predicted_to_measured']:.2f})" for row in found]
        yield f"| {name} | {' | '.join(texts)} |"


def figures(reports: Sequence[Report]) -> str:
    """The part of the page that is measured."""
    lines = []
    for report in reports:
        machine = report["machine"]
        num_hosts, net = report["config"]["num_peers"], report["config"]["net"]
        where = f"{machine['cores']} cores, load {machine['load_1_min']} before the run, {report['wall_s']:.0f} s"
        lines += [f"{num_hosts} hosts, `{net}` ({where}; {report['network']['said']}):", "", *rows_of(report), ""]
        by_rows = [ratio for row in report["results"] if (ratio := price_by_rows(row)) is not None]
        if by_rows:
            lines += [f"Over links as measured: predicted / measured {min(by_rows):.2f} to {max(by_rows):.2f}.", ""]
        lines += [f"> {report['sentence']}", ""]
    return "\n".join([BEGIN, "", *lines, END])


def write_page(path: Path, reports: Sequence[Report]) -> None:
    """Put the figures where older ones are."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(before + figures(reports) + rest.partition(END)[2])


def main() -> int:
    """Measure, print the tables of the page, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join([*PARTS, JOINS]))
    parser.add_argument("--duration", type=float, default=110.0, help="of each part, in seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="whose figures are replaced")
    options = parser.parse_args()
    parts = options.parts.split(",")
    reports: list[dict[str, Any]] = [measure(part, options.duration) for part in parts if part != JOINS]
    joined = rows.measure() if JOINS in parts else None
    if reports:
        print(figures(reports))
    if reports and options.page is not None:
        write_page(options.page, reports)
    if options.json is not None:
        texts = ",\n".join(to_json(report).rstrip() for report in reports)
        options.json.write_text(f"[\n{texts}\n]\n")
    found = list(problems(reports))
    if joined is not None:
        print(rows.sentence(joined))
        found += rows.problems(joined)
    for problem in found:
        print(f"not as it should be: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

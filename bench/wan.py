"""Ring or tree over the links of a network lab: crossings, prices and the regret of `auto`, for docs/ring-or-tree.md.

    python -m bench.wan [--parts four,again,best,eight,sixteen,slow,...] [--json FILE]

`four`: hosts of 200 Mbit/s and 20 ms one way, up to 16 MB; `again`: ring and tree once more, and do the two intervals
of the crossing overlap? `best`: is the choice of `auto` the best of all algorithms? `eight` hosts of 50 Mbit/s, up to 4
MB; `sixteen` of 10 Mbit/s, up to 1 MB; `slow`: four of which one has 50 Mbit/s; `unequal`: 50 to 200 Mbit/s and 10 to
60 ms; `small`: 4 KB in one hop, committed, and with an early result; `long`: the share of the line that 32 MB use;
`joins`: how soon the links to a fourth host are known, and what that costs the others (bench/rows.py). Writes all
samples after each part, and at the end prints the total time (20 minutes; more than 25 are a failure). Exits with 1 if
a figure misses its target, and names it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import rows
from collectives.links import equal_links
from collectives.price_table import tabulate
from collectives.pricing import run_to_end
from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.plan import Plan, format_size, parse_size, sizes_between
from p2p.benchmark.results.files import Report, read_reports, to_json

CONTENDERS: Final = ("ring", "tree", "direct", "auto")
ALL: Final = ("ring", "tree", "direct", "one-shot", "halving-doubling", "auto")
NARROW: Final = 0.2
"""Value of `--until`."""
WIDEST: Final = 2.0
"""Target for the interval of the crossing of ring and tree: high over low."""
LONGEST_S: Final = 120.0
"""Target for the time until the crossing is found, with four hosts."""
PRICES: Final = (0.8, 1.25)
"""Target for predicted over measured time."""
FEW: Final = (0.7, 1.3)
"""The same target for many hosts, whose peers share cores."""
MOST_REGRET: Final = 0.10
DELAY_S: Final = 0.02
"""One-way delay."""
MOST_DELAYS: Final = {"one-shot": 2.5, "one-shot@early": 1.3}
LEAST_OF_LINE: Final = 0.9
LEAST_GAIN: Final = 1.4
FOR_RATES: Final = "direct/50/100/100/200"
"""`direct` with shares by the rates of the links."""
BEGIN, END = "<!-- measured -->", "<!-- end -->"
FOUR: Final = "rate=200mbit,delay=20ms,queue=200ms"
LINE_BYTES_PER_S: Final = 25e6
JOINS: Final = "joins"


@dataclass(frozen=True, slots=True)
class Part:
    """One run: `algorithms` at sizes from `first` to `last`, each four times the one before.

    `num_iters`: rounds of each size; None: as many as there is time for, or until the crossing is narrow enough.
    """

    num_hosts: int
    net: str
    first: str = "4K"
    last: str = "4M"
    algorithms: tuple[str, ...] = CONTENDERS
    num_iters: int | None = None

    def plan(self, duration_s: float) -> Plan:
        is_open = self.num_iters is None
        return Plan(
            num_peers=self.num_hosts,
            algorithms=self.algorithms,
            baseline=None,
            sizes_bytes=sizes_between(parse_size(self.first), parse_size(self.last), 4),
            num_iters=self.num_iters,
            num_warmup=1,
            net=self.net,
            duration_s=duration_s if is_open else None,
            until=NARROW if is_open else None,
        )


PARTS: Final[Mapping[str, Part]] = {
    "four": Part(4, FOUR, last="16M"),
    "again": Part(4, FOUR, algorithms=("ring", "tree")),
    "best": Part(4, FOUR, last="16M", algorithms=ALL, num_iters=4),
    "eight": Part(8, "rate=50mbit,delay=20ms,queue=200ms"),
    "sixteen": Part(16, "rate=10mbit,delay=20ms,queue=200ms", "16K", "1M", num_iters=3),
    "slow": Part(4, f"{FOUR}; 0: rate=50mbit", last="16M", algorithms=ALL, num_iters=3),
    "unequal": Part(
        4,
        "rate=100mbit,delay=20ms,queue=200ms; 0: rate=50mbit; 3: rate=200mbit; 0-1: delay=10ms; 1-3: delay=60ms",
        *("4M", "16M", ("ring", "direct", FOR_RATES, "auto")),
        num_iters=8,
    ),
    "small": Part(4, FOUR, "4K", "4K", ("one-shot", "one-shot@early", "auto"), num_iters=100),
    "long": Part(4, FOUR, "32M", "32M", ("ring", "direct", "auto"), num_iters=4),
}
FOURS: Final = ("four", "again")
MOST_TOTAL_S: Final = 25 * 60.0
"""Limit of all parts together."""
MANY: Final = (64, 256, 1024)
"""Numbers of ranks for which there are only prices."""


def measure(name: str, duration_s: float) -> Report:
    plan = PARTS[name].plan(duration_s)
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path, began_s = Path(folder, "run.json"), time.monotonic()
        if code := run_bench(plan, os.environ, Outputs(json=path)):
            raise SystemExit(code)
        (report,) = read_reports(path)
    return report | {"part": name, "wall_s": round(time.monotonic() - began_s, 1)}


def crossing(report: Report) -> Sequence[float] | None:
    """The crossing of ring and tree, if there is exactly one: value, low and high."""
    pairs = [pair for pair in report["pairs"] if {pair["a"], pair["b"]} == {"ring", "tree"}]
    crossings = pairs[0]["crossings"] if pairs else []
    return crossings[0]["at_bytes"] if len(crossings) == 1 else None


def price_by_rows(row: Mapping[str, Any]) -> float | None:
    """Price by measured rows over measured time; None: for `auto`, or if the links were not measured."""
    if row["algorithm"] == "auto" or row.get("predicted_by_rows_us") is None:
        return None
    return float(row["predicted_by_rows_us"] / row["time_p50_us"])


def problems(reports: Sequence[Report]) -> Iterator[str]:
    """Missed targets, in words."""
    for report in reports:
        name = report["part"]
        for what in (*_of_rows(report), *_of_auto(report), *_OF_PARTS.get(name, _nothing)(report)):
            yield f"{name}: {what}"
    total_s = max((report.get("total_s", 0.0) for report in reports), default=0.0)
    if total_s > MOST_TOTAL_S:
        yield f"all of it took {total_s / 60:.1f} minutes of the {MOST_TOTAL_S / 60:.0f} that it may take"
    found = {report["part"]: crossing(report) for report in reports}
    one, other = found.get("four"), found.get("again")
    if one and other and (one[1] > other[2] or other[1] > one[2]):
        yield f"the intervals of two runs do not overlap: {one} and {other}"


def _of_rows(report: Report) -> Iterator[str]:
    limits = {**dict.fromkeys(FOURS, PRICES), "sixteen": FEW}.get(report["part"])
    for row in report["results"]:
        where = f"{row['algorithm']} at {row['size_bytes']} bytes"
        if row["wrong"] or not row["hash_equal"]:
            yield f"{where} is wrong, or not the same everywhere"
        is_priced = limits is not None and row["algorithm"] != "auto"
        if report["part"] == "sixteen":
            is_priced = row["algorithm"] in ("ring", "tree")
        ratio, by_rows = row["predicted_to_measured"], price_by_rows(row)
        if is_priced and limits is not None and not limits[0] <= ratio <= limits[1]:
            yield f"predicted / measured is {ratio:.2f} of {where}"
        if report["part"] in FOURS and by_rows is not None and not PRICES[0] <= by_rows <= PRICES[1]:
            yield f"predicted over measured links / measured is {by_rows:.2f} of {where}"


def _of_auto(report: Report) -> Iterator[str]:
    sizes_bytes = report["config"]["sizes_bytes"]
    for size_bytes, (regret, *_) in zip(sizes_bytes, report["regrets"].get("auto", ()), strict=False):
        if regret > MOST_REGRET:
            yield f"auto took {regret:.0%} longer than the best at {size_bytes} bytes"
    for size_bytes, overhead in zip(sizes_bytes, report.get("overheads", {}).get("auto", ()), strict=False):
        if overhead is not None and overhead[1] > MOST_REGRET:
            yield f"auto took {overhead[0]:.0%} longer than the same by name at {size_bytes} bytes"


def _nothing(report: Report) -> Iterator[str]:
    return iter(())


def _of_crossing(report: Report) -> Iterator[str]:
    at = crossing(report)
    if at is None or at[2] > WIDEST * at[1]:
        yield f"ring and tree cross once, and the interval is at most a factor of {WIDEST:g} wide: {at}"


def _of_four(report: Report) -> Iterator[str]:
    yield from _of_crossing(report)
    if report["wall_s"] > LONGEST_S:
        yield f"it took {report['wall_s']:.0f} s of the {LONGEST_S:.0f} that it may take"
    if dropped := sum(pair["dropped_queue"] for pair in report["network"]["pairs"]):
        yield f"{dropped} packets were dropped"


def _of_small(report: Report) -> Iterator[str]:
    for row in report["results"]:
        delays, most = row["time_p50_us"] / 1e6 / DELAY_S, MOST_DELAYS.get(row["algorithm"])
        if most is not None and delays > most:
            yield f"{row['algorithm']} took {delays:.2f} delays of the {most} that it may take"


def line_share(report: Report) -> float:
    """Share of each line that the best algorithm used: it sends 2 (n - 1) / n of the array each way."""
    n = report["config"]["num_peers"]
    best = min(report["results"], key=lambda row: float(row["time_p50_us"]))
    return float(2 * (n - 1) / n * best["size_bytes"] / (best["time_p50_us"] / 1e6) / LINE_BYTES_PER_S)


def _of_long(report: Report) -> Iterator[str]:
    if (share := line_share(report)) < LEAST_OF_LINE:
        yield f"the best used {share:.0%} of the line, {LEAST_OF_LINE:.0%} expected"


def gain(report: Report) -> float:
    """Speed-up of `direct` with shares, by name or as chosen by `auto`, over the ring, at the largest size."""
    times = {row["algorithm"]: row["time_p50_us"] for row in report["results"]}  # the last one of each
    return float(times["ring"] / times.get(FOR_RATES, times["auto"]))


def _of_unequal(report: Report) -> Iterator[str]:
    if (ratio := gain(report)) < LEAST_GAIN:
        took = report["took"]["auto"][-1] if report.get("took") else "?"
        what = f"direct by shares is {ratio:.2f} times as fast as the ring at the largest size, not {LEAST_GAIN}"
        yield f"{what}; auto took {took}"


_OF_PARTS: Final = {
    **dict.fromkeys(FOURS, _of_four),
    **{"eight": _of_crossing, "small": _of_small, "long": _of_long, "unequal": _of_unequal},
}


def rows_of(report: Report) -> Iterator[str]:
    """A table for the page: p50 in ms, and predicted over measured time."""
    sizes = report["config"]["sizes_bytes"]
    names = report["config"]["algorithms"]
    cells = {(row["algorithm"], row["size_bytes"]): row for row in report["results"]}
    yield f"| p50 in ms (predicted / measured) | {' | '.join(format_size(size) + 'B' for size in sizes)} |"
    yield f"|{'---|' * (len(sizes) + 1)}"
    for name in names:
        found = [cells[name, size] for size in sizes]
        texts = [f"{row['time_p50_us'] / 1e3:.0f} ({row['predicted_to_measured']:.2f})" for row in found]
        yield f"| {name} | {' | '.join(texts)} |"


def priced() -> Iterator[str]:
    """A table of the model's prices for more hosts than one machine can run."""
    sizes = sizes_between(4 << 10, 16 << 20, 4)
    yield f"| price in ms | {' | '.join(format_size(size) + 'B' for size in sizes)} |"
    yield f"|{'---|' * (len(sizes) + 1)}"
    for num_ranks in MANY:
        links = equal_links(num_ranks, int(LINE_BYTES_PER_S), int(DELAY_S * 1e9), 500_000)
        prices = run_to_end(tabulate(links)).predicted
        for name in ("ring", "tree", "direct", "one-shot"):
            cells = [f"{prices[name, size] / 1e6:,.0f}" for size in sizes]
            yield f"| {name}, {num_ranks:,} ranks | {' | '.join(cells)} |"


def figures(reports: Sequence[Report]) -> str:
    """The part of the page with figures: measured ones, and those by price only."""
    lines = []
    for report in reports:
        machine = report["machine"]
        num_hosts, net = report["config"]["num_peers"], report["config"]["net"]
        where = f"{machine['cores']} cores, load {machine['load_1_min']} before the run, {report['wall_s']:.0f} s"
        lines += [f"{num_hosts} hosts, `{net}` ({where}; {report['network']['said']}):", "", *rows_of(report), ""]
        by_rows = [ratio for row in report["results"] if (ratio := price_by_rows(row)) is not None]
        if by_rows:
            lines += [f"Over links as measured: predicted / measured {min(by_rows):.2f} to {max(by_rows):.2f}.", ""]
        lines += [f"> {report['sentence']}", ""] if report["sentence"] else []
    head = f"By price only, lines of 200 Mbit/s, {DELAY_S * 1e3:.0f} ms one way, 0.5 ms a message; nobody has run that:"
    if total_s := max((report.get("total_s", 0.0) for report in reports), default=0.0):
        lines += [f"All of it, with what follows a join, has taken {total_s / 60:.1f} minutes.", ""]
    short = [f"- {problem}" for problem in problems(reports)]
    said = ["Not as they should be:", "", *short] if short else ["All of it is as it should be."]
    return "\n".join([BEGIN, "", *lines, *said, "", head, "", *priced(), "", END])


def write_page(path: Path, reports: Sequence[Report]) -> None:
    """Replace the figures on the page."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(before + figures(reports) + rest.partition(END)[2])


def main() -> int:
    """Measure, print the tables of the page, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join([*PARTS, JOINS]))
    parser.add_argument("--duration", type=float, default=80.0, help="of each part with a crossing, in seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="whose figures are replaced")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in (*PARTS, JOINS)]:
        parser.error(f"--parts names {', '.join([*PARTS, JOINS])}, got {unknown[0]!r}")
    reports: list[dict[str, Any]] = []
    began_s = time.monotonic()
    write(options.json, reports)
    for part in parts:
        if part != JOINS:
            reports.append(measure(part, options.duration))
            write(options.json, reports)
            print(f"{part}: {reports[-1]['wall_s']:.0f} s", flush=True)
    joined = rows.measure() if JOINS in parts else None
    total_s = round(time.monotonic() - began_s, 1)
    reports = [report | {"total_s": total_s} for report in reports]
    write(options.json, reports)
    if reports:
        print(figures(reports))
    if reports and options.page is not None:
        write_page(options.page, reports)
    found = list(problems(reports))
    if joined is not None:
        print(rows.sentence(joined))
        found += rows.problems(joined)
        if options.json is not None:
            rows.write(options.json.with_name(f"rows-of-{options.json.name}"), joined | {"total_s": total_s})
    print(f"{len(parts)} parts have taken {total_s / 60:.1f} minutes")
    for problem in found:
        print(f"not as it should be: {problem}")
    return 1 if found else 0


def write(path: Path | None, reports: Sequence[Report]) -> None:
    """Write all reports so far; the first call, without any, checks that the file can be written."""
    if path is not None:
        texts = ",\n".join(to_json(dict(report)).rstrip() for report in reports)
        path.write_text(f"[\n{texts}\n]\n")


if __name__ == "__main__":
    sys.exit(main())

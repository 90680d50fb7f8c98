"""Plots the results of bench/rounds.py: loss against bytes, and against time over measured links.

    python -m bench.rounds_plot ROUNDS.json FILE.svg [--links WAN.json ...]

WAN.json is a result of bench/wan_rounds.py, with one codec each: tokens per second over a link.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.simulated_workers import NUM_WINDOWS, NUM_WORKERS, Setting
from examples.gpt import CONTEXT
from p2p.benchmark.results.charts import Panel, Series, draw_panels

Row = Mapping[str, Any]

TOKENS: Final = NUM_WORKERS * NUM_WINDOWS * CONTEXT
"""Tokens of all workers in a step."""
LOSS: Final = "loss on files held out, in nats per byte"


def draw(rows: Sequence[Row], links: Sequence[Row]) -> str:
    """The text of an SVG file.

    Args:
        rows: runs. For each codec, and for data-parallel steps, the one with seed 0, rounds of 10 steps and the usual
            outer optimizer is drawn.
        links: results of bench/wan_rounds.py.
    """
    shown = [(row["setting"], row["curve"]) for row in rows if _is_usual(row["setting"])]
    by_bytes = [
        Series(_name(setting), tuple(sent / 1e6 for _, sent, _ in curve), tuple(loss for *_, loss in curve))
        for setting, curve in shown
    ]
    panels = [Panel(LOSS, "MB that each of 4 workers sends", "", tuple(by_bytes))]
    rates = dict(_rates(links))
    by_time = [
        Series(name, tuple(step * TOKENS / rate for step, _, _ in curve), tuple(loss for *_, loss in curve))
        for setting, curve in shown
        if (rate := rates.get(name := _name(setting)))
    ]
    if by_time:
        net = links[0]["config"]["net"]
        panels.append(Panel(f"the same, where 4 live peers have {net}", "seconds", "", tuple(by_time)))
    return draw_panels(panels, "What it costs to exchange little, and seldom")


def _is_usual(setting: Row) -> bool:
    usual = asdict(Setting(codec=setting["codec"], inner_steps=setting["inner_steps"]))
    return setting == usual and setting["inner_steps"] in (0, Setting().inner_steps)


def _name(setting: Row) -> str:
    return str(setting["codec"]) if setting["inner_steps"] else "DataParallel"


def _rates(links: Sequence[Row]) -> Iterator[tuple[str, float]]:
    """Names of lines, with tokens per second."""
    for each in links:
        for result in each["results"]:
            if result["strategy"] == "parallel":
                yield "DataParallel", result["tokens_per_s"]
            if result["strategy"] == f"rounds-{Setting().inner_steps}":
                yield each["config"]["codec"], result["tokens_per_s"]


def main(words: Sequence[str] | None = None) -> int:
    """Draw, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path, metavar="ROUNDS.json")
    parser.add_argument("picture", type=Path, metavar="FILE.svg")
    parser.add_argument("--links", type=Path, nargs="*", default=[], metavar="WAN.json")
    options = parser.parse_args(words)
    links = [json.loads(path.read_text()) for path in options.links]
    options.picture.write_text(draw(json.loads(options.rounds.read_text())["runs"], links))
    return 0


if __name__ == "__main__":
    sys.exit(main())

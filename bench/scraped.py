"""Does `shoal run --web` make steps longer? Two peers train, with ten scrapes a second and one page open, and without.

    python -m bench.scraped

Turns last some seconds; a seed draws the order within each pair of turns. Step times are from the flight recorders.
Prints the medians, and their ratio with its bootstrap interval over pairs of turns, which should contain 1.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.here import ROOT, environment
from bench.looking import SCRAPES_PER_S, Looking
from p2p.telemetry.page import SUFFIX, read_page
from p2p.telemetry.records import Kind

SCRIPT: Final = ROOT / "bench" / "small_training.py"
LEVEL: Final = 0.95
NUM_RESAMPLES: Final = 10_000


def committed(home: Path) -> dict[int, int]:
    """The last steps of the first peer, with their times in ns."""
    first = min(home.glob(f"*/*{SUFFIX}"))
    return {each.step: each.time_ns for each in read_page(first).records if each.kind == Kind.COMMITTED}


def took_ms(home: Path, since_ns: int) -> list[float]:
    """Durations of the steps that began after `since_ns`."""
    done = committed(home)
    return [
        (time_ns - done[step - 1]) / 1e6
        for step, time_ns in done.items()
        if step - 1 in done and done[step - 1] >= since_ns
    ]


def turn(home: Path, port: int, for_s: float, *, is_scraped: bool) -> list[float]:
    """Step times of one turn, in ms."""
    began, since_ns = time.monotonic(), time.monotonic_ns()
    pause = threading.Event()
    if not is_scraped:
        pause.wait(for_s)
        return took_ms(home, since_ns)
    with closing(Looking(port, "kept", 2)) as looking:
        for number in range(1, round(for_s * SCRAPES_PER_S) + 1):
            looking.scrape()
            pause.wait(max(0.0, began + number / SCRAPES_PER_S - time.monotonic()))
        return took_ms(home, since_ns)


def measure(args: argparse.Namespace) -> list[tuple[list[float], list[float]]]:
    """Pairs of turns: without, and with scrapes."""
    generator = random.Random(args.seed)
    with TemporaryDirectory(prefix="shoal-scraped-") as folder:
        home = Path(folder) / "home"
        command = [sys.executable, "-m", "p2p", "run", "-n", "2", "--web", "127.0.0.1:0", "--home", str(home)]
        with subprocess.Popen([*command, str(SCRIPT)], stderr=subprocess.PIPE, text=True, env=environment()) as run:
            try:
                return measure_run(run, home, args.pairs, args.for_s, generator)
            finally:
                run.send_signal(signal.SIGINT)
                run.communicate(timeout=60)


def measure_run(
    run: "subprocess.Popen[str]", home: Path, num_pairs: int, for_s: float, generator: random.Random
) -> list[tuple[list[float], list[float]]]:
    """Measure a run that has just been started."""
    assert run.stderr is not None
    port = 0
    for line in run.stderr:  # until it trains
        if found := re.search(r"http://.*:(\d+)/", line):
            port = int(found[1])
        if "first step" in line:
            break
    threading.Thread(target=lambda: [None for _ in run.stderr or ()], daemon=True).start()
    turn(home, port, for_s, is_scraped=True)  # warm-up
    pairs = []
    for number in range(num_pairs):
        order = generator.sample([False, True], 2)
        taken = {is_scraped: turn(home, port, for_s, is_scraped=is_scraped) for is_scraped in order}
        pairs.append((taken[False], taken[True]))
        off, on = median(taken[False]), median(taken[True])
        print(f"pair {number}: {off:.2f} ms without, {on:.2f} with, load {os.getloadavg()[0]:.1f}", flush=True)
    return pairs


def ratio(pairs: Sequence[tuple[list[float], list[float]]], seed: int) -> tuple[float, float, float]:
    """Ratio of p50 with scrapes to p50 without, and its interval, by resampling pairs of turns."""
    ratios = np.log([median(on) / median(off) for off, on in pairs])
    draws = np.random.default_rng(seed).integers(0, len(ratios), (NUM_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.exp(np.median(ratios))), float(np.exp(low)), float(np.exp(high))


def main(arguments: Sequence[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--for-s", type=float, default=3.0, help="each turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    pairs = measure(args)
    value, low, high = ratio(pairs, args.seed)
    off, on = (median([each for pair in pairs for each in pair[index]]) for index in (0, 1))
    num_steps = sum(len(each) for pair in pairs for each in pair)
    print(f"{num_steps} steps: p50 {off:.2f} ms without, {on:.2f} ms with {SCRAPES_PER_S} scrapes a second and a page")
    print(f"ratio of p50 {value:.3f} ({low:.3f} to {high:.3f}, {LEVEL:.0%} of draws of {len(pairs)} pairs of turns)")
    if args.json:
        values = {"p50_ms": [off, on], "ratio": [value, low, high], "load": os.getloadavg()[0], "steps": num_steps}
        args.json.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

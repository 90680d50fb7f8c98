"""How much loss do small, rare exchanges cost? A table of codecs, rounds and outer optimizers.

    python -m bench.rounds --quick [--json FILE]    # three seeds, five ways to exchange: `make rounds-quick`
    python -m bench.rounds [--json FILE]            # codec x inner steps x outer optimizer: `make rounds`

Four simulated workers in one process (bench/simulated_workers.py) train with 8 windows of 64 bytes each, on the source
of Python's standard library. Losses are of held-out files, in nats per byte. Runs that are in FILE already are not
repeated, if text, Python and torch are the same; with --minutes no run begins after that many, and another call
continues.
"""

import argparse
import json
import multiprocessing
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from bench.simulated_workers import NUM_WINDOWS, NUM_WORKERS, Setting, hash_of_texts, run
from collectives import CODECS
from p2p.benchmark.results.machine import commit, machine

Row = dict[str, Any]
SEEDS: Final = (0, 1, 2)
TENTH: Final = 60
"""A tenth of the steps."""
LONG: Final = 1800


def quick() -> Iterator[Setting]:
    """Settings of the README's figures."""
    for seed in SEEDS:
        yield Setting(inner_steps=0, seed=seed)
        yield from (Setting(codec=codec, seed=seed) for codec in ("float32", "int4", "sign", "sparse16"))


def whole() -> Iterator[Setting]:
    """The quick settings, further settings with several seeds, and all others with one."""
    yield from quick()
    for seed in SEEDS:
        yield from (Setting(codec=codec, dense_steps=TENTH, seed=seed) for codec in CODECS)
        yield from (Setting(codec=codec, has_residual=False, seed=seed) for codec in ("sign", "sparse16"))
        yield from (Setting(codec=codec, is_replaced=True, seed=seed) for codec in ("int4", "sign", "sparse16"))
    for codec in CODECS:
        for inner_steps in (1, 10, 30):
            for outer_lr, momentum in ((0.7, 0.5), (1.0, 0.0)):
                yield Setting(codec=codec, inner_steps=inner_steps, outer_lr=outer_lr, momentum=momentum)
    yield Setting(inner_steps=0, steps=LONG)
    yield from (Setting(codec=codec, steps=LONG) for codec in ("float32", "sparse16"))


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table, and return the exit code: 3 if something is still missing."""
    options = parse(words)
    pattern = re.compile(options.only)
    everyone = dict.fromkeys(quick() if options.quick else whole())
    wanted = [setting for setting in everyone if pattern.search(name_of(asdict(setting)))]
    told = {"text": hash_of_texts(), "python": platform.python_version(), "torch": torch.__version__}
    described = machine()
    known = read(options.json, told)
    missing = [setting for setting in wanted if asdict(setting) not in [row["setting"] for row in known]]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for row in measured(pool, missing, options.jobs, 60 * options.minutes, row_of):
            known.append(row)
            print(f"{name_of(row['setting'])}: {row['loss']:.4f}, {row['cpu_s']:.0f} s of processor time", flush=True)
            if options.json is not None:
                everything: Row = {"version": 1, "commit": commit(), "machine": described, **told}
                everything |= {"workers": NUM_WORKERS, "windows": NUM_WINDOWS, "runs": known}
                options.json.write_text(json.dumps(everything, indent=1) + "\n")
    settings = [asdict(setting) for setting in wanted]
    rows = [row for row in known if row["setting"] in settings]
    Console(width=140).print(table(rows, known))
    left = len(wanted) - len(rows)
    if left:
        print(f"{left} of {len(wanted)} runs are missing: call it again with the same --json")
    return 3 if left else 0


def measured(
    pool: Executor, settings: Sequence[Setting], jobs: int, limit_s: float, work: Callable[[Setting], Row]
) -> Iterator[Row]:
    """Run `settings` in `pool`, `jobs` at a time; none begins after `limit_s`."""
    end_s = time.monotonic() + limit_s
    left = iter(settings)
    running = {pool.submit(work, setting) for setting in islice(left, jobs)}
    while running:
        done = next(as_completed(running))
        running.remove(done)
        if time.monotonic() < end_s and (setting := next(left, None)) is not None:
            running.add(pool.submit(work, setting))
        yield done.result()


def row_of(setting: Setting) -> Row:
    began_s = time.process_time()
    outcome = run(setting)
    return {"setting": asdict(setting), **asdict(outcome), "cpu_s": time.process_time() - began_s}


def read(path: Path | None, told: Row) -> list[Row]:
    """The runs in an existing file."""
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text())
    differing = [f"{name} {found.get(name)}, here {value}" for name, value in told.items() if found.get(name) != value]
    if differing:
        raise SystemExit(f"{path} has runs of another kind ({'; '.join(differing)}): name another file")
    runs: list[Row] = found["runs"]
    return runs


def table(rows: Sequence[Row], known: Sequence[Row]) -> Table:
    """One line for each setting of `rows`, with the mean loss of its seeds, compared with references in `known`."""
    shown = Table(title="loss on files held out, in nats per byte")
    shown.add_column("exchange", min_width=34)
    for name in ("exchanges", "bytes", "sent per byte", "seeds", "loss", "apart", "over DP", "over float32"):
        shown.add_column(name, justify="right")
    losses = by_setting(known)
    first = {without_seed(row["setting"]): row for row in rows}
    for key in first:
        of_seeds = losses[key]
        setting = first[key]["setting"]
        number = (setting["steps"] - setting["dense_steps"]) // setting["inner_steps"] if setting["inner_steps"] else 0
        shown.add_row(
            name_of(setting | {"seed": None}),
            str(number or setting["steps"]),
            f"{first[key]['bytes_per_exchange']:,}",
            f"{first[key]['sent_per_token']:.4g}",
            str(len(of_seeds)),
            f"{mean(of_seeds.values()):.4f}",
            f"{100 * (max(of_seeds.values()) / min(of_seeds.values()) - 1):.1f} %" if len(of_seeds) > 1 else "",
            *(
                over(of_seeds, losses.get(without_seed(asdict(reference)), {}))
                for reference in (
                    Setting(inner_steps=0, steps=setting["steps"]),
                    Setting(**setting | {"codec": "float32", "has_residual": True, "is_replaced": False}),
                )
            ),
        )
    return shown


def by_setting(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """The loss of each seed, for each setting."""
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        losses.setdefault(without_seed(row["setting"]), {})[row["setting"]["seed"]] = row["loss"]
    return losses


def over(losses: dict[int, float], reference: dict[int, float]) -> str:
    """Excess of the losses over the reference, for the seeds that both have, in words."""
    common = losses.keys() & reference.keys()
    if not common or losses is reference:
        return ""
    return f"{100 * (mean(losses[seed] / reference[seed] for seed in common) - 1):+.2f} %"


def without_seed(setting: Row) -> str:
    return json.dumps(setting | {"seed": None})


def name_of(setting: Row) -> str:
    if not setting["inner_steps"]:
        words = ["DataParallel"]
    else:
        words = [f"{setting['codec']}, {setting['inner_steps']} steps, {setting['outer_lr']}/{setting['momentum']}"]
    words += [f"{setting['steps']} steps in all"] * (setting["steps"] != Setting().steps)
    words += [f"{setting['dense_steps']} dense"] * bool(setting["dense_steps"])
    words += ["no residual"] * (not setting["has_residual"]) + ["one replaced"] * setting["is_replaced"]
    words += [f"seed {setting['seed']}"] * (setting["seed"] is not None)
    return ", ".join(words)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three seeds of five settings only")
    parser.add_argument("--only", default="", metavar="REGEX", help="those whose names, in the table, it is found in")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after so many")
    parser.add_argument("--json", type=Path, help="the results; those that are there are not run again")
    options = parser.parse_args(words)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, is {options.jobs}")
    return options


if __name__ == "__main__":
    sys.exit(main())

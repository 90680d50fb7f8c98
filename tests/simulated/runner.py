"""Runs many seeds on all cores: `python -m tests.simulation`."""

import argparse
import os
from collections import Counter
from collections.abc import Iterator

from tests.simulation import Failure, Outcome, run

from .mutants import MUTANTS
from .pool import pool


def main() -> int:
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    arguments = _arguments()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    seen: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        outcomes = run_all(seeds, arguments.jobs, arguments.mutant)
        for outcome in progress.track(outcomes, total=len(seeds), description="seeds"):
            if isinstance(outcome, Failure):
                progress.console.print(str(outcome), markup=False, highlight=False, soft_wrap=True)
                failures[outcome.invariant] += 1
                if not arguments.keep_going:
                    break
                continue
            if arguments.verbose:
                line = f"seed={outcome.seed} {outcome.trace} {_summary(outcome.seen)}"
                progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            seen += outcome.seen
            seen["events"] += outcome.num_events
            seen["runs"] += 1
    print(_summary(seen))
    print(f"violated: {dict(failures)}" if failures else "no invariant violated")
    return 1 if failures else 0


def run_all(seeds: range, num_jobs: int, mutant: str | None = None) -> Iterator[Outcome | Failure]:
    """Run all seeds; outcomes come in the order of the seeds."""
    if num_jobs == 1:
        _mutate(mutant)
        yield from map(attempt, seeds)
        return
    with pool(num_jobs, _mutate, mutant) as executor:
        try:
            yield from executor.map(attempt, seeds, chunksize=4)
        finally:
            executor.shutdown(cancel_futures=True)


def attempt(seed: int) -> Outcome | Failure:
    """The outcome of a run, or its failure."""
    try:
        return run(seed)
    except Failure as failure:
        return Failure(failure.invariant, failure.text)  # without its cause, which may not be picklable


def _mutate(mutant: str | None) -> None:
    for where, name, replacement in MUTANTS[mutant].patches if mutant else ():
        setattr(where, name, replacement)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Deterministic simulation of the protocol, checked throughout."
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many runs")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed; the others follow it")
    usable = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=usable, metavar="N", help="processes; default: usable cores")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    parser.add_argument("--keep-going", action="store_true", help="show every failure, not only the first")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME", help=f"one of: {'; '.join(MUTANTS)}")
    return parser.parse_args()


def _summary(seen: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(seen.items()))

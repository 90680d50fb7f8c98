"""Looks for the run that shows each missing rule: `python -m tests.simulated.mutants`."""

import argparse
import os
from concurrent.futures import as_completed
from dataclasses import dataclass

from tests.simulation import Failure, run

from .mutant import Mutant, without
from .mutants import MUTANTS
from .plan import FIRST_MIXED
from .pool import pool
from .scenarios import SCENARIOS

NUM_TRIES = 40


@dataclass(frozen=True, slots=True)
class Catch:
    """The result of the hunt for one mutant.

    Attributes:
        invariant: the one that broke; empty if none of the expected ones did.
        where: the seed or the scenario.
        others: other invariants that broke first, by seed; they do not count.
    """

    name: str
    invariant: str
    where: str
    num_runs: int
    others: tuple[str, ...] = ()


def what_breaks(mutant: Mutant, seed: int) -> str:
    """The invariant that `seed` breaks without the rule, and holds with it; empty if there is none."""
    with without(mutant):
        try:
            run(seed)
            return ""
        except Failure as failure:
            invariant = failure.invariant
    try:
        run(seed)
    except Failure:
        return ""
    return invariant


def hunt(name: str, seeds: range) -> Catch:
    """Find the first of `seeds` that breaks an invariant expected of the mutant."""
    mutant = MUTANTS[name]
    others: list[str] = []
    for num_runs, seed in enumerate(seeds, 1):
        invariant = what_breaks(mutant, seed)
        if invariant in mutant.breaks:
            return Catch(name, invariant, f"seed {seed}", num_runs, tuple(others))
        if invariant:
            others.append(f"{invariant} at {seed}")
    return Catch(name, "", "", len(seeds), tuple(others))


def play(name: str) -> Catch:
    """Run the mutant's scenario."""
    mutant = MUTANTS[name]
    try:
        with without(mutant):
            SCENARIOS[mutant.scenario]()
        invariant = ""
    except Failure as failure:
        invariant = failure.invariant
    SCENARIOS[mutant.scenario]()
    return Catch(name, invariant if invariant in mutant.breaks else "", f"scenario: {mutant.scenario}", 1)


def known(name: str) -> Catch:
    """Catch a mutant by its recorded seed or one of the next ones, since seeds shift, or else by its scenario."""
    mutant = MUTANTS[name]
    catch = Catch(name, "", "", 0)
    if mutant.seed is not None:
        catch = hunt(name, range(mutant.seed, mutant.seed + NUM_TRIES))
    return play(name) if mutant.scenario and not catch.invariant else catch


def search(name: str, num_seeds: int, from_zero: bool) -> Catch:
    """Catch a mutant within `num_seeds` seeds, or by its scenario if drawn runs do not show it."""
    mutant = MUTANTS[name]
    if mutant.seed is None and mutant.scenario:
        return play(name)
    if mutant.seed is not None and not from_zero:
        catch = hunt(name, range(mutant.seed, mutant.seed + 1))
        if catch.invariant:
            return catch
    # Only seeds from `FIRST_MIXED` on have several kinds of hardware.
    first = FIRST_MIXED if (mutant.seed or 0) >= FIRST_MIXED else 0
    catch = hunt(name, range(first, first + num_seeds))
    return play(name) if mutant.scenario and not catch.invariant else catch


def main() -> int:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
    from rich.table import Table

    arguments = _arguments()
    catches: list[Catch] = []
    names = [name for name in MUTANTS if arguments.only in name]
    names.sort(key=lambda name: MUTANTS[name].seed or 0, reverse=True)  # the longest hunts begin first
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress, pool(arguments.jobs) as executor:
        hunts = [executor.submit(search, name, arguments.seeds, arguments.from_zero) for name in names]
        for done in progress.track(as_completed(hunts), total=len(hunts), description="mutants"):
            catch = done.result()
            catches.append(catch)
            progress.console.print(
                f"{catch.name}: {catch.invariant or 'NOT CAUGHT'} {catch.where}, {catch.num_runs} runs"
            )
    table = Table("mutant", "caught by", "in", "runs", "not counted")
    for catch in sorted(catches, key=lambda catch: list(MUTANTS).index(catch.name)):
        caught = catch.invariant or "[red]nothing"
        table.add_row(catch.name, caught, catch.where, str(catch.num_runs), ", ".join(catch.others[:3]))
    Console().print(table)
    missed = [catch.name for catch in catches if not catch.invariant]
    print(f"{len(catches) - len(missed)} of {len(catches)} mutants are caught")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulated.mutants", description="Hunts all mutants.")
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="try so many for each, at most")
    parser.add_argument("--from-zero", action="store_true", help="try all of them, not the known one first")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains this")
    usable = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=usable, metavar="N", help="processes; default: usable cores")
    return parser.parse_args()

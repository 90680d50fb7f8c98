"""The commands `shoal experiment` and `shoal report`."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from ..benchmark.results.report import FILE_WIDTH
from ..errors import ExperimentError, ShoalError
from .config import Experiment
from .evaluation.compare import compare, counts, is_worse, notes, table
from .evaluation.page import About, page
from .evaluation.plots import plot
from .evaluation.report import Evaluated, check_expectations, evaluate, failures, is_missed, metrics, to_json
from .folder import read_run, runs_in, unfinished_in, write_whole
from .run.plan import timeline
from .run.runner import ExperimentRunner, plans

MOST_SAID = 5
JSON, HTML, TOML = "report.json", "report.html", "experiment.toml"


def experiment(
    path: Path, out: Path | None, *, repeat: int, seed: int, is_dry: bool, say: Callable[[str], None]
) -> int:
    """Check a file, run it `repeat` times, and report; returns the exit code.

    Raises:
        ExperimentError: no run took place.
    """
    if repeat < 1:
        raise ExperimentError(f"--repeat is at least 1, got {repeat}")
    asked = Experiment.read(path)
    folder, conductor = out or _free(Path(f"{path.stem}-report")), ExperimentRunner(os.environ, say)
    try:
        check_expectations(asked)
        planned = plans(asked, seed, repeat)
        conductor.check(asked, planned, folder)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    if is_dry:
        for each, plan in planned:
            say("\n".join([*timeline(asked, plan), f"     seed {each}"]))
        return 0
    try:
        is_done = conductor.run(asked, planned, folder)
    except ShoalError:
        raise
    except Exception:  # a bug in this program: completed runs are reported all the same
        with suppress(ShoalError):
            report(folder, None, say)
        raise
    try:
        code = report(folder, None, say)
    except ExperimentError as error:
        say(f"{error}; what ran is in {folder}, and shoal report reads it again")
        code = 1
    return code if is_done else 130


def report(folder: Path, out: Path | None, say: Callable[[str], None], plots: Path | None = None) -> int:
    """Evaluate a folder, and write report.json and report.html into it, or into `out`; 1 if expectations are not met.

    Raises:
        ExperimentError: the folder holds no readable run, or the report cannot be written.
    """
    evaluated, unread = _readable(folder)
    about = _about(folder, evaluated)
    target = out or folder
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / JSON, json.dumps(to_json(about.name, evaluated, about.expect), indent=1) + "\n")
        write_whole(target / HTML, page(about, evaluated))
        drawn = [] if plots is None else plot(evaluated, plots)
    except OSError as error:
        raise ExperimentError(f"cannot write the report to {error.filename or target}: {error.strerror}") from error
    found, wrong = metrics(evaluated), failures(evaluated, about.expect)
    least = "at least " if len(evaluated) > 1 else ""
    say(f"{least}{found['steps']:g} steps, {found['steps_lost']:g} lost; {target / HTML}")
    if about.loss and not any(each.run.log and each.run.log.losses for each in evaluated):
        say(f"loss = {about.loss!r} matches no line that the peers printed")
    for line in [
        *map(str, drawn),
        *(line for each in evaluated for line in each.run.cut_short()),
        *_missed(evaluated),
        *(line for each in evaluated for line in each.failed),
        *unread,
    ]:
        say(line)
    for line in wrong:
        say(f"not as expected: {line}")
    return 1 if wrong or unread else 0


def _readable(folder: Path) -> tuple[list[Evaluated], list[str]]:
    """All readable runs, and what is wrong with the others. ExperimentError: no run is readable."""
    evaluated, unread, runs = [], list[ExperimentError](), runs_in(folder)
    for each in runs:
        try:
            evaluated.append(evaluate(read_run(each)))
        except ExperimentError as error:
            unread.append(error)
    if not evaluated:
        raise unread[0]
    lines = [
        f"{each} has no run.json, so it is {'read from its receipts and traces' if each in runs else 'left out'}: "
        "it ended before that was written"
        for each in unfinished_in(folder)
    ]
    return evaluated, [*(f"left out: {error}" for error in unread), *lines]


def evaluate_all(folder: Path) -> list[Evaluated]:
    """Evaluate each run in `folder`. ExperimentError: it holds no run, or one cannot be read."""
    return [evaluate(read_run(each)) for each in runs_in(folder)]


def _about(folder: Path, evaluated: Sequence[Evaluated]) -> About:
    text = (folder / TOML).read_text() if (folder / TOML).is_file() else ""
    asked = Experiment.parse(text, folder.name, folder) if text else None
    account = evaluated[0].run.log
    name = folder.absolute().name if account is None else account.name
    return About(name, text, *((asked.expect, asked.run.loss) if asked is not None else ({}, "")))


def compare_reports(a: Path, b: Path) -> int:
    """Print the comparison of two reports; 1 if anything is slower in B, or more is lost.

    Raises:
        ExperimentError: one of the folders holds no run.
    """
    before, after = evaluate_all(a), evaluate_all(b)
    rows, counted = compare(before, after), counts(before, after)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    console.print(f"A is {a}, {len(before)} runs; B is {b}, {len(after)} runs", markup=False, soft_wrap=True)
    console.print(table(rows, counted))
    for line in notes(before, after):
        console.print(line, markup=False, soft_wrap=True)
    return 1 if is_worse(rows, counted) else 0


def _missed(evaluated: Sequence[Evaluated]) -> list[str]:
    """Events that have not happened, or were not over, and why; at most `MOST_SAID` of them."""
    lines = []
    for cost in (cost for each in evaluated for cost in each.costs if is_missed(cost)):
        what = "has not happened" if cost.event.why_not else "was not over"
        lines.append(
            f"event {cost.event.number} ({cost.event.who}) {what}: {cost.why.get('back') or cost.why['resumed']}"
        )
    return lines if len(lines) <= MOST_SAID else [*lines[:MOST_SAID], f"and {len(lines) - MOST_SAID} more"]


def _free(path: Path) -> Path:
    """`path`, with a number appended if it exists already."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found

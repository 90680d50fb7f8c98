"""The commands `shoal experiment` and `shoal report`."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ExperimentError
from .conduct import Conductor, plans
from .config import Experiment
from .folder import read_run, runs_in
from .page import About, page
from .plan import timeline
from .report import Evaluated, check_expectations, evaluate, failures, is_missed, metrics, to_json

MOST_SAID = 5
JSON, HTML, TOML = "report.json", "report.html", "experiment.toml"


def experiment(
    path: Path, out: Path | None, *, repeat: int, seed: int, is_dry: bool, say: Callable[[str], None]
) -> int:
    """Check a file, run it as often as asked, and report; the exit code.

    Raises:
        ExperimentError: nothing was run.
    """
    if repeat < 1:
        raise ExperimentError(f"--repeat is at least 1, got {repeat}")
    asked = Experiment.read(path)
    try:
        check_expectations(asked)
        planned = plans(asked, seed, repeat)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    if is_dry:
        for each, plan in planned:
            say("\n".join([*timeline(asked, plan), f"     seed {each}"]))
        return 0
    folder = out or _free(Path(f"{path.stem}-report"))
    is_done = Conductor(os.environ, say).conduct(asked, planned, folder)
    code = report(folder, None, say)
    return code if is_done else 130


def report(folder: Path, out: Path | None, say: Callable[[str], None]) -> int:
    """Evaluate a folder, and write report.json and report.html into it, or into `out`; 1 if not all is as expected.

    Raises:
        ExperimentError: there is no run in it.
    """
    evaluated = [evaluate(read_run(each)) for each in runs_in(folder)]
    text = (folder / TOML).read_text() if (folder / TOML).is_file() else ""
    asked = Experiment.parse(text, folder.name, folder) if text else None
    account = evaluated[0].run.account
    name = folder.absolute().name if account is None else account.name
    about = About(name, text, asked.expect if asked is not None else {})
    target = out or folder
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / JSON).write_text(json.dumps(to_json(name, evaluated, about.expect), indent=1) + "\n")
        (target / HTML).write_text(page(about, evaluated))
    except OSError as error:
        raise ExperimentError(f"cannot write the report to {target}: {error.strerror}") from error
    found, wrong = metrics(evaluated), failures(evaluated, about.expect)
    least = "at least " if len(evaluated) > 1 else ""
    say(f"{least}{found['steps']:g} steps, {found['steps_lost']:g} lost; {target / HTML}")
    for line in [*_missed(evaluated), *(line for each in evaluated for line in each.failed)]:
        say(line)
    for line in wrong:
        say(f"not as expected: {line}")
    return 1 if wrong else 0


def _missed(evaluated: Sequence[Evaluated]) -> list[str]:
    """Events that have not happened, or were not over, and why; not all of very many."""
    lines = []
    for cost in (cost for each in evaluated for cost in each.costs if is_missed(cost)):
        what = "has not happened" if cost.event.why_not else "was not over"
        lines.append(f"event {cost.event.number} ({cost.event.who}) {what}: {cost.why['resumed']}")
    return lines if len(lines) <= MOST_SAID else [*lines[:MOST_SAID], f"and {len(lines) - MOST_SAID} more"]


def _free(path: Path) -> Path:
    """This folder, or with a number, if it is there."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found

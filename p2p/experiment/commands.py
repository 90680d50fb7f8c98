"""The commands `shoal experiment`, `shoal report` and `shoal postmortem`, which import dependencies when they run."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ExperimentError


def add_to(app: typer.Typer) -> None:
    """Add the three commands."""
    app.command(short_help="Run a script with joins, leaves, kills and pauses as planned, and report what each cost.")(
        experiment
    )
    app.command(short_help="Report on a folder of an experiment, or of the receipts of any run; or compare two.")(
        report
    )
    app.command(short_help="Show which peer failed first, and why, from the files of a run.")(postmortem)


def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="What to run, what happens, what to expect.")],
    repeat: Annotated[int, typer.Option(help="Number of runs, with seeds that count up.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A new folder.  [default: FILE-report]", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, and show what would happen.")] = False,
) -> None:
    """Run an unchanged script, and do to its peers what FILE says; leaves report.html and report.json.

    Exits with 0 if all is as expected; 1 if not, or if an event has not happened; 2 if nothing was run; 130 after
    Ctrl-C, SIGTERM or SIGHUP.
    """
    from .command import experiment as run_experiment

    raise typer.Exit(run_experiment(file, out, repeat=repeat, seed=seed, is_dry=dry_run, say=_say))


def _say(text: str) -> None:
    """Print a line. The run continues after the terminal or the pipe is closed."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER | compare A B", help="Folder of `shoal experiment` or `shoal run --receipts`."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report.  [default: the same]", show_default=False)
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plot", metavar="DIR", help="Also draw it there: SVG, and PNG and PDF with the extra `report`."),
    ] = None,
) -> None:
    """Evaluate receipts and traces, and write report.html and report.json. Exits with 1 if not all is as expected.

    `compare A B` prints each time in both, with the interval of its ratio, and differences in what is lost; exits
    with 1 if anything is slower in B, or more is lost.
    """
    from .command import compare_reports
    from .command import report as write_report

    if str(folders[0]) == "compare" and len(folders) == 3:
        raise typer.Exit(compare_reports(*folders[1:]))
    if len(folders) != 1:
        raise ExperimentError(f"report takes one FOLDER, or `compare A B`, got {' '.join(map(str, folders))}")
    raise typer.Exit(write_report(folders[0], out, print, plots))


def postmortem(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `shoal experiment` or `shoal run --receipts`, or a registry with pages.")
    ],
) -> None:
    """Show which peers failed, in the order of causes: by what, in which step, at what, and what the others waited for.

    Exits with 1 if a peer has failed.
    """
    from .evaluation.postmortem import postmortem as tell

    raise typer.Exit(tell(folder, print))

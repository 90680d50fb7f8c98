"""Results in files: JSON with every sample (version 2, docs/benchmark.md), CSV with a row per contender and size."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from p2p.errors import LaunchError, ShoalError

from ..plan import Plan
from ..stages import STAGES
from .analysis import Analysis
from .machine import commit
from .result import Result

VERSION: Final = 2
NEEDED: Final = ("version", "machine", "config", "results")
NOT_IN_CSV: Final = (
    *("times_us", "cpu_times_us", "rans", "last_peers", "time_p50_interval_us"),
    *("stages_p50_us", "stages_us"),
)

Report = dict[str, Any]


def make_report(
    plan: Plan,
    results: Sequence[Result],
    analysis: Analysis,
    described: Mapping[str, Any],
    network: Mapping[str, Any] | None,
    warnings: Sequence[str],
    turns: Mapping[str, Any] | None = None,
) -> Report:
    """Contents of the JSON file. `described`: the machine before the run; `turns`: as `Turns.meeting`."""
    return {
        "version": VERSION,
        "command": plan.operation,
        "commit": commit(),
        "turns": turns,
        "machine": dict(described),
        "config": asdict(plan),
        "network": network,
        "warnings": list(warnings),
        **analysis.to_json(results),
    }


def check_writable(option: str, path: Path) -> None:
    """Raise LaunchError if the file could not be written."""
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise LaunchError(f"{option} is a file in a folder that can be written, got {path}")


def write_all(texts: Mapping[Path, str | bytes]) -> None:
    """Write files; a new file that cannot be written completely is removed.

    Raises:
        ShoalError: some files could not be written; names all of them.
    """
    failed = []
    for path, text in texts.items():
        is_new = not path.exists()
        try:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        except OSError as error:
            failed.append(f"{path} ({error.strerror})")
            if is_new:
                with suppress(OSError):
                    path.unlink()
    if failed:
        raise ShoalError(f"the results above could not be written to {', '.join(failed)}")


def to_json(report: Report) -> str:
    """The report as JSON, one line for each result: lists of samples are long."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in report["results"])
    rest = json.dumps({**report, "results": []}, indent=1)
    return rest.replace('"results": []', f'"results": [\n{rows}\n ]', 1) + "\n"


def to_csv(report: Report) -> str:
    """The report as CSV, a row for each contender and size; nested values are only in the JSON."""
    text = io.StringIO()
    config = report["config"]
    settings = {"dtype": config["dtype"], "net": config["net"] or "", "commit": report["commit"] or ""}
    has_stages = any(result["stages_p50_us"] for result in report["results"])
    rows = []
    for result in report["results"]:
        low, high = result["time_p50_interval_us"]
        row = {name: value for name, value in result.items() if name not in NOT_IN_CSV}
        found = result["stages_p50_us"] or {}
        stages = {f"{name}_p50_us": found.get(name, "") for name in STAGES} if has_stages else {}
        rows.append({**row, "time_p50_low_us": low, "time_p50_high_us": high, **stages, **settings})
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_reports(path: Path) -> list[Report]:
    """Reports in a file that `shoal bench` wrote; `bench.all_reduce` writes several into one.

    Raises:
        LaunchError: the file does not exist, is truncated, or has another version.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise LaunchError(f"{path} is no JSON, or is cut short: {error}") from None
    reports = found if isinstance(found, list) else [found]
    if not reports:
        raise LaunchError(f"{path} has no runs: its writer ended before the first one")
    for report in reports:
        if not isinstance(report, dict) or "version" not in report:
            raise LaunchError(f"{path} has no version: it is not a result of `shoal bench`")
        if report["version"] != VERSION:
            raise LaunchError(f"{path} has version {report['version']!r}, and this shoal reads version {VERSION}")
        if missing := [name for name in NEEDED if name not in report]:
            raise LaunchError(f"{path} lacks {', '.join(missing)}: it is not a result of `shoal bench`")
        if not isinstance(report["machine"], dict) or not isinstance(report["machine"].get("packages"), dict):
            raise LaunchError(f"{path} does not say on which machine, and with which packages, it was measured")
    return reports

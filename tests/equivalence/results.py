"""What the last full run found, kept in results.json: the page is made of it, and `make test` compares with it."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .compared import Outcome
from .elastic import Replayed
from .registry import Verdict

FILE: Final = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True)
class Found:
    """Of one case; `replayed` is None where no peers come and go."""

    outcome: Outcome
    replayed: Replayed | None


def read() -> dict[str, Found]:
    """By name of the case."""
    if not FILE.exists():
        return {}
    rows: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
    return {name: _found(row) for name, row in rows.items()}


def about() -> dict[str, Any]:
    """The commit, the machine and so on of the last full run."""
    everything: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return {key: value for key, value in everything.items() if key not in ("version", "cases")}


def write(path: Path, found: Mapping[str, Found], run: Mapping[str, Any]) -> None:
    """`run`: what `about` returns."""
    rows = {
        name: {key: value for key, value in dataclasses.asdict(each).items() if value} for name, each in found.items()
    }
    path.write_text(json.dumps({"version": 1, **run, "cases": rows}, indent=1) + "\n", encoding="utf-8")


def _found(row: Mapping[str, Any]) -> Found:
    outcome = Outcome(**{**row["outcome"], "verdict": Verdict(row["outcome"]["verdict"])})
    replayed = row.get("replayed")
    return Found(outcome, Replayed(**{**replayed, "verdict": Verdict(replayed["verdict"])}) if replayed else None)

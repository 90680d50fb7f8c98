import os
import subprocess
from pathlib import Path

import pytest

from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import check_expectations
from p2p.experiment.run.plan import make_plan

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "examples" / "experiments").glob("*.toml"))

SHOAL = """#!/bin/sh
mkdir "$4"
"""
"""Replaces the program; requires that the folder does not exist, as `--out` requires an empty one."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiments_that_ship_can_be_run(path: Path) -> None:
    experiment = Experiment.read(path)
    check_expectations(experiment)
    assert experiment.expect
    assert all(make_plan(experiment, seed).events for seed in range(20))
    experiment.run.target(experiment.folder, Path("run"))


def test_there_are_experiments_that_ship() -> None:
    assert len(FILES) == 11


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `make experiments` without installing or running anything."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "shoal").write_text(SHOAL)
    (folder / "bin" / "shoal").chmod(0o755)
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    command: list[str | Path] = [
        "make",
        "-f",
        ROOT / "Makefile",
        "-o",
        ".venv/.installed",
        "experiments",
        f"BIN={folder}/bin",
        *words,
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "OUT"))}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_all_that_ship_run_as_often_as_asked_each_time_into_a_folder_of_their_own(tmp_path: Path) -> None:
    for number in (1, 2):
        done = make(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        folders = [*(tmp_path / "experiments").iterdir()]
        assert len(folders) == number
        assert {path.stem for path in FILES} == {path.name for path in folders[-1].iterdir()}


def test_they_fail_as_one_does_or_when_they_took_too_long(tmp_path: Path) -> None:
    done = make(tmp_path, "OUT=one", "EXPERIMENTS_S=-1")
    assert done.returncode and "s, and may take -1 s" in done.stdout, done.stdout + done.stderr
    done = make(tmp_path, "OUT=one")
    assert done.returncode and "not as expected: 2-to-1-to-8 " in done.stdout

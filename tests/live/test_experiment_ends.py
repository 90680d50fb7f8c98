"""Experiments that go wrong in the middle, or have little in them: each ends, and what ran is reported."""

import json
import os
from pathlib import Path

import pytest

from p2p.experiment import command
from p2p.experiment.conduct import Conductor, plans
from p2p.experiment.config import Experiment
from p2p.experiment.folder import read_run
from p2p.experiment.report import Evaluated, evaluate, failures

pytestmark = pytest.mark.light

SCRIPT = """
import numpy as np
import p2p

with p2p.join() as peer:
    peer.wait_view()
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""

RUN = """
[run]
script = "script.py"
peers = 2
until_step = 10
limit_s = 40
"""


def conduct(folder: Path, text: str) -> tuple[Experiment, Evaluated]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "x.toml").write_text(text)
    experiment = Experiment.read(folder / "x.toml")
    assert Conductor(os.environ, print).conduct(experiment, plans(experiment, 0, 1), folder / "out")
    return experiment, evaluate(read_run(folder / "out" / "run-1"))


def test_a_run_in_which_nothing_is_done_ends_at_its_step(tmp_path: Path) -> None:
    experiment, evaluated = conduct(tmp_path, RUN)
    assert failures([evaluated], experiment.expect) == []
    assert evaluated.run.account is not None and evaluated.run.account.ended_by == "until"

"""Small versions of the shipped experiments: fewer steps, shorter times, and no expectations about times."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.here import ROOT
from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import Evaluated, evaluate, failures
from p2p.experiment.events import Event
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans
from p2p.forking.zygote import Zygote

pytestmark = pytest.mark.torch

FILES = sorted((ROOT / "examples" / "experiments").glob("*.toml"))
SHORT = ("kill-rank-0",)
"""Experiments that `make test` runs; the others are similar but longer, or need a lab."""
IN_A_LAB = "flapping-link", "partition", "slow-link"

LESS = 4
"""Divisor of steps and seconds."""
WAIT_S = 0.1

Run = Callable[[str], tuple[list[str], Evaluated]]


def small(shipped: Experiment) -> Experiment:
    """The same events in the same order, at smaller step numbers."""
    run = shipped.run
    if shipped.name == "mass-restart":  # the restart has to be after a checkpoint, and data are of whole epochs
        return replace(shipped, run=replace(run, args=("--epochs", "2", *run.args[2:])))
    is_gpt = Path(run.script).name == "gpt.py"
    run = replace(
        run,
        args=("--steps", "1000", "--global-batch", "8") if is_gpt else run.args,
        until_step=run.until_step and -(-run.until_step // LESS),
        until_s=run.until_s and run.until_s / LESS,
        cycles=1,
        limit_s=100,
    )
    expect = {key: bound for key, bound in shipped.expect.items() if "_ms" not in key and key != "goodput"}
    return replace(shipped, run=run, events=tuple(map(_sooner, shipped.events)), expect=expect)


def _sooner(event: Event) -> Event:
    drawn = event.random and replace(event.random, per_minute=event.random.per_minute * LESS)
    return replace(
        event,
        random=drawn,
        at_step=event.at_step and event.at_step // LESS,
        at_s=event.at_s and event.at_s / LESS,
        wait_s=min(event.wait_s, WAIT_S),
        jitter_s=min(event.jitter_s, WAIT_S),
        for_s=event.for_s / LESS,
    )


@pytest.fixture
def conduct(tmp_path: Path, torch_zygote: Zygote) -> Run:
    """Runs an experiment; returns unmet expectations and the evaluation. Peers are forks, except on a lab's hosts."""

    def run(name: str) -> tuple[list[str], Evaluated]:
        experiment = small(Experiment.read(ROOT / "examples" / "experiments" / f"{name}.toml"))
        conductor = ExperimentRunner(
            {**os.environ, "OMP_NUM_THREADS": "1"},
            print,
            lambda words, environ, output: torch_zygote.start(Path(words[1]), words[2:], environ, output, output),
        )
        conductor = replace(conductor, start=None) if name in IN_A_LAB else conductor
        assert conductor.run(experiment, plans(experiment, 0, 1), tmp_path / "out")
        evaluated = evaluate(read_run(tmp_path / "out" / "run-1"))
        return failures([evaluated], experiment.expect), evaluated

    return run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[] if path.stem in SHORT else [pytest.mark.long])
        for path in FILES
        if path.stem not in IN_A_LAB
    ],
)
def test_on_this_host_each_loses_nothing_and_all_its_events_happen(conduct: Run, name: str) -> None:
    wrong, evaluated = conduct(name)
    assert wrong == []
    kills = [cost for cost in evaluated.costs if cost.event.do == "kill"]
    assert {cost.by for cost in kills} <= {"the kernel"}
    assert len(kills) == {"kill-rank-0": 3, "200-kills": 5}.get(name, len(kills))


@pytest.mark.long
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("name", IN_A_LAB)
def test_in_a_lab_each_loses_nothing_and_all_its_events_happen(conduct: Run, name: str) -> None:
    wrong, evaluated = conduct(name)
    assert wrong == []
    assert all(cost.event.time_ns for cost in evaluated.costs)
    cuts = [cost.event for cost in evaluated.costs if cost.event.do == "cut"]
    assert len(cuts) == {"flapping-link": 3, "partition": 1}.get(name, 0)
    assert all(each.until_ns > each.time_ns for each in cuts)


@pytest.mark.long
@pytest.mark.usefixtures("namespaces")
def test_a_link_that_becomes_slow_is_named_as_the_reason_for_longer_steps(conduct: Run) -> None:
    wrong, evaluated = conduct("slow-link")
    assert wrong == []
    (link,) = evaluated.costs
    words = re.fullmatch(r"step (\d+) -> (\d+) ms: link host 0 -> host 1 \+(\d+) ms", link.why["longer"])
    assert words is not None, link.why
    assert 40 <= int(words[3]) <= int(words[2]) - int(words[1]) + 10  # the lower bound of a part of that time

from pathlib import Path

import pytest

from p2p.experiment.config import Experiment
from p2p.experiment.plan import make_plan
from p2p.experiment.report import check_expectations

FILES = sorted((Path(__file__).parents[3] / "examples" / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiments_that_ship_can_be_run(path: Path) -> None:
    experiment = Experiment.read(path)
    check_expectations(experiment)
    assert experiment.expect
    assert all(make_plan(experiment, seed).events for seed in range(20))
    experiment.run.target(experiment.folder, Path("run"))


def test_there_are_experiments_that_ship() -> None:
    assert len(FILES) == 10

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from p2p.experiment import command
from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import Evaluated, evaluate, failures, metrics
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans
from p2p.experiment.run.testbed import Starter
from p2p.forking.zygote import Zygote
from p2p.telemetry.records import Kind, Why

pytestmark = pytest.mark.torch

TRAIN = """
import os
import signal
import sys
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset
import p2p

keep = p2p.Checkpoint(sys.argv[2], every=10) if len(sys.argv) > 2 else None


class Halt:
    # Part of the state; a joiner holds on while it loads it.
    def state_dict(self):
        return {"done": peer.done}

    def load_state_dict(self, state):
        while state["done"] > 0:
            signal.pause()


halt = [Halt()] if "halt" in os.environ else []
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(2000, 8)
dataset = TensorDataset(inputs, inputs.norm(dim=1, keepdim=True))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with p2p.join() as peer:
    model = p2p.DataParallel(peer, model, optimizer, extra=halt, checkpoint=keep)
    is_to_be_killed = keep is not None and peer.done == 0
    loader = peer.loader(dataset, global_batch=40, epochs=int(sys.argv[1]))
    for epoch in loader.epochs():
        for x, y in loader:
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.4f}", flush=True)
            if is_to_be_killed:
                peer._session.membership.keeper._writer.wait()  # what was due is whole before the next step
                while peer.done == 25:
                    signal.pause()
"""

ALL = r"""
[run]
script = "train.py"
args = [10000]
peers = 3
until_step = 50
limit_s = 40
loss = 'loss (\d+\.\d+)'

[[event]]
at_step = 10
do = "kill"
who = "rank 0"
during = "exchange"

[[event]]
after = "previous resumed"
do = "join"

[[event]]
after = "previous resumed"
do = "leave"
who = "newest"

[[event]]
after = "previous resumed"
do = "pause"
who = "random"
for_s = 0.2

[expect]
steps_lost = 0
samples_twice = 0
samples_missing = 0
goodput = "> 0.9"
"""

RESTART = r"""
[run]
script = "train.py"
args = [1, "{run}/checkpoints"]
peers = 2
limit_s = 40

[[event]]
at_step = 25
do = "restart_all"

[expect]
steps_lost = "<= 5"
samples_twice = 0
samples_missing = 0
samples = 2000
"""

Run = Callable[[str], tuple[Experiment, Evaluated]]


@pytest.fixture
def start(torch_zygote: Zygote) -> Starter:
    return lambda command, environ, output: torch_zygote.start(Path(command[1]), command[2:], environ, output, output)


@pytest.fixture
def conduct(tmp_path: Path, start: Starter) -> Run:
    """Runs and evaluates an experiment; none of its processes may run afterwards."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(text: str) -> tuple[Experiment, Evaluated]:
        path = tmp_path / "x.toml"
        path.write_text(text)
        experiment = Experiment.read(path)
        assert ExperimentRunner(os.environ, print, start).run(experiment, plans(experiment, 1, 1), tmp_path / "out")
        evaluated = evaluate(read_run(tmp_path / "out" / "run-1"))
        assert evaluated.run.log is not None
        for process in evaluated.run.log.processes:
            assert process.code is not None
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, 0)
        return experiment, evaluated

    return run


def test_a_kill_a_join_a_leave_and_a_pause_cost_no_step_and_are_all_accounted_for(conduct: Run, tmp_path: Path) -> None:
    experiment, evaluated = conduct(ALL)
    assert failures([evaluated], experiment.expect) == []
    kill, join, leave, pause = evaluated.costs
    assert metrics([evaluated])["steps_unrecorded"] == 0  # the killed peer's last records are in its trace
    assert kill.by == "the kernel" and kill.at.startswith("exchanging step")
    assert leave.by == "its own word"
    for cost in (kill, join, leave):
        assert sum(cost.phases_ms.values()) == pytest.approx(cost.times_ms["resumed"], abs=5)
        assert cost.gap_ms is not None
    assert "back_after_it_went_on" in pause.times_ms
    records = [record for track in evaluated.run.tracks.values() for record in track.records]
    whys = {record.view: Why(0) for record in records if record.kind == Kind.INSTALLED}
    for record in records:
        if record.kind == Kind.INSTALLED:
            whys[record.view] |= Why(record.how) & ~Why.FIRST  # by all members of a view, except those new in it
    for each in (Why.DIED, Why.CAME, Why.LEFT):
        assert any(each in why for why in whys.values())  # of a slow machine, also for others
    assert {view for view, why in whys.items() if why} <= {each.view for each in records if each.kind == Kind.PROPOSED}
    account = evaluated.run.log
    assert account is not None and account.ended_by == "until"
    assert [process.missed for process in account.processes] == [0] * 4
    assert account.losses
    for split in evaluated.splits.values():
        assert split.step > 0 and 0 <= split.last <= 1
    assert command.report(tmp_path / "out", None, print) == 0
    assert (tmp_path / "out" / "report.html").stat().st_size < 300_000
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("experiment.toml", "report.html", "report.json", "run-1")
    }


def test_a_run_that_is_killed_as_a_whole_goes_on_from_its_checkpoint_and_counts_each_sample_once(conduct: Run) -> None:
    experiment, evaluated = conduct(RESTART)
    assert failures([evaluated], experiment.expect) == []
    (restart,) = evaluated.costs
    assert restart.lost == len(evaluated.chain.lost)
    assert sum(restart.phases_ms.values()) == pytest.approx(restart.times_ms["resumed"], abs=5)
    assert len(evaluated.run.lineages()) == 2


def test_a_joiner_is_paused_twice_in_a_row_and_dies_while_its_state_comes_and_nobody_minds(conduct: Run) -> None:
    """The joiner receives its state until its death."""
    join = '[[event]]\nat_step = 10\ndo = "join"\n'
    kill = join.replace("join", "kill") + 'who = "newest"\nduring = "state transfer"\n'
    pause = kill.replace("kill", "pause") + "for_s = 0.2\n"
    run = ALL[: ALL.index("[[event]]")] + '[run.env]\nhalt = "yes"\n'
    experiment, evaluated = conduct(run + join + 2 * pause + kill + ALL[ALL.index("[expect]") :])
    assert failures([evaluated], experiment.expect) == []
    came, *pauses, died = evaluated.costs
    paused, again = sorted(pauses, key=lambda each: each.event.time_ns)  # the director may begin with either
    assert died.event.peers == came.event.peers == paused.event.peers == again.event.peers == [3]
    assert paused.event.until_ns <= again.event.time_ns and again.event.until_ns <= died.event.time_ns
    assert died.why["agreed"] == "it had no seat yet, so no peer had to continue without it"
    assert came.why["counted"] == "it was counted in no step, since it was ended before"


def test_events_that_the_script_did_not_live_to_see_are_named(conduct: Run) -> None:
    experiment, evaluated = conduct(
        ALL.replace("[10000]", "[1]").replace("step = 10", "step = 1000").replace("step = 50", "step = 1001")
    )
    assert "events_missed is 4, expected == 0" in failures([evaluated], experiment.expect)
    assert evaluated.costs[0].why["resumed"] == "the script ended at step 50, before that"


def test_a_script_that_never_joins_is_reported_with_what_it_said(conduct: Run, tmp_path: Path) -> None:
    text = re.sub("script = .*", 'script = "other.py"', ALL)
    (tmp_path / "other.py").write_text("import sys\nprint('no peer')\nsys.exit(4)\n")
    _, evaluated = conduct(text)
    assert evaluated.costs[0].why["resumed"] == "the script ended before its first step"
    assert evaluated.failed == [f"peer {index} ended with 4: no peer" for index in range(3)]
    assert command.report(tmp_path / "out", None, print) == 1

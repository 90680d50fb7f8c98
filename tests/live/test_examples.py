"""Each example runs, with few peers and few steps."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from examples.custom_loop import GLOBAL_BATCH, make_dataset, make_training, train_alone
from p2p.data.sampler import Order, Sampler
from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt, parse_receipt
from tests.live.churn import check_samples
from tests.live.swarm import Swarm

ROOT = Path(__file__).parents[2]
NUM_SAMPLES, FOREVER = 1000, 1_000_000
POLL_S = 0.005
STAY_S = 90.0

never = threading.Event()


class Run:
    """Runs an example to its end with two forked peers, which must leave no files behind."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder

    def __call__(self, script: str, *arguments: str) -> str:
        """Run `script`; returns the peers' output."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        path = ROOT / "examples" / f"{script}.py"
        with (
            tempfile.TemporaryDirectory(prefix="shoal-") as home,  # tmp_path can be too long for a socket
            (self._folder / "output").open("w+") as output,
        ):
            environ = {**clean, "SHOAL_HOME": home, "SHOAL_MIN_PEERS": "2", "PYTHONUNBUFFERED": "1"}
            fds = output.fileno(), output.fileno()
            peers = [self._zygote.start(path, arguments, environ, *fds, folder=ROOT) for _ in range(2)]
            codes = [peer.wait(STAY_S) for peer in peers]
            output.seek(0)
            said = output.read()
            assert codes == [0, 0], said
            names = {path.name for path in Path(home).glob(f"{script.replace('_', '-')}-*/*")}
            assert names == {"lock"}
        return said


@pytest.fixture
def run(torch_zygote: Zygote, tmp_path: Path) -> Run:
    return Run(torch_zygote, tmp_path)


@pytest.mark.timeout(100)
@pytest.mark.long
def test_four_strategies_train_on_the_same_text(run: Run, tmp_path: Path) -> None:
    output = run("strategies", "--steps", "10", "--global-batch", "4", "--picture", str(tmp_path / "picture.png"))
    for name in ("synchronous", "local steps", "sparse deltas", "rounds by time"):
        assert len(re.findall(rf"{name}: \d+ commits of 40 samples", output)) == 2, output
        (row,) = re.findall(rf"^\S* *{name} +([\d.]+) +[\d.]+ +([\d.]+)$", output, re.MULTILINE)
        assert float(row[0]) > 0 and float(row[1]) < 5.5, output


@pytest.mark.timeout(100)
def test_two_peers_train_a_gpt(run: Run) -> None:
    output = run("gpt", "--steps", "10", "--global-batch", "4")
    assert output.count("step 10: loss") == 2, output


@pytest.mark.long
@pytest.mark.timeout(100)
def test_two_peers_train_on_a_dataset_with_workers_and_validate_and_what_was_stopped_is_trained_further(
    run: Run, tmp_path: Path
) -> None:
    words = "--images", "300", "--checkpoints", str(tmp_path / "images")
    output = run("images", "--epochs", "1", *words)
    assert output.count("epoch 0: step 5, loss ") == 1, output
    assert output.count("of 512, 2 peers") == 1, output
    output = run("images", "--epochs", "2", *words)
    assert f"resuming from {tmp_path}/images/00000005: step 5 of run " in output
    assert output.count("epoch 1: step 10, loss ") == 1, output
    assert output.count("of 512, 2 peers") == 1, output
    assert "epoch 0" not in output


@pytest.mark.timeout(100)
def test_a_schedule_of_ones_own_is_proven_drawn_priced_and_measured(run: Run, tmp_path: Path) -> None:
    svg = tmp_path / "own.svg"
    output = run("own_schedule", "--svg", str(svg))
    assert re.search(r"recursive-doubling +\d+\.\d ms +\d+\.\d+ ms", output), output
    assert svg.read_text().count("<title>") == 8 * 3


def agreed(swarm: Swarm) -> list[Receipt]:
    """The receipts of all steps; checks that they are the same at all peers that have them."""
    lines = {line for content in swarm.receipt_files().values() for line in content.splitlines()}
    receipts = sorted((parse_receipt(json.loads(line)) for line in lines), key=lambda each: each.step)
    assert [each.step for each in receipts] == list(range(len(receipts)))
    return receipts


def wait_for_members(swarm: Swarm, number: int) -> None:
    while not (receipts := agreed(swarm)) or len(receipts[-1].contributions) != number:
        never.wait(POLL_S)


def replay_custom_loop(receipts: list[Receipt]) -> list[float]:
    """Losses of each round of one process that repeats the work of each member on the receipt, one after the other."""
    inputs, targets = make_dataset(NUM_SAMPLES).tensors
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=FOREVER))
    training, losses = make_training(), []
    for receipt in receipts:
        rows, ends = [], []
        for part in receipt.contributions:
            if part.num_samples:
                ends.append(copy.deepcopy(training))
                chosen = order.indices(part.samples)
                state = train_alone(*ends[-1], inputs[chosen], targets[chosen])
                rows.append([tensor * (part.num_samples / receipt.num_samples) for tensor in state])
        means = [torch.stack(each).sum(0) for each in zip(*rows, strict=True)]
        training = ends[0]
        model, optimizer = training
        kept = [*model.parameters(), *(state["momentum_buffer"] for state in optimizer.state.values())]
        with torch.no_grad():
            for tensor, mean in zip(kept, means[1:], strict=True):
                tensor.copy_(mean)
        losses.append(float(means[0]))
    return losses


@pytest.mark.torch
@pytest.mark.light
def test_a_loop_of_ones_own_trains_as_its_receipts_say_through_a_join_and_a_kill(swarm: Swarm) -> None:
    script = (ROOT / "examples" / "custom_loop.py").read_text()
    words = "--samples", str(NUM_SAMPLES), "--epochs", str(FOREVER)
    swarm.leaves_files = True
    founders = [swarm.start(script, *words, min_peers=2) for _ in range(2)]
    wait_for_members(swarm, 2)
    joined = swarm.start(script, *words)
    wait_for_members(swarm, 3)
    founders[0].kill()
    founders[0].end()
    wait_for_members(swarm, 2)
    done = len(agreed(swarm))
    while len(agreed(swarm)) < done + 10:
        never.wait(POLL_S)
    for peer in (founders[1], joined):
        peer.send_signal(signal.SIGTERM)
        assert peer.end() == 128 + signal.SIGTERM, peer.report()
    receipts = agreed(swarm)
    check_samples(receipts)
    assert {len(each.contributions) for each in receipts[1:]} >= {2, 3}
    replayed = replay_custom_loop(receipts[1:])
    lines = [line for peer in (*founders, joined) for line in peer.stdout]
    said = {
        int(step): float(loss) for line in lines for step, loss in re.findall(r"round (\d+), .* loss ([\d.]+)", line)
    }
    assert max(said) > done
    for step, loss in said.items():
        assert loss == pytest.approx(replayed[step - 1], rel=1e-3, abs=1e-4), step


@pytest.mark.long
@pytest.mark.timeout(150)
def test_an_experiment_with_a_join_a_kill_and_a_leave_proves_that_nothing_is_lost() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [sys.executable, "-m", "examples.join_and_leave"]
    with tempfile.TemporaryDirectory(prefix="shoal-") as home:
        environ["SHOAL_HOME"] = home
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    events = re.findall(r"^step +\d+: .*, world size (\d)$", done.stdout, re.MULTILINE)
    assert events == ["2", "3", "2", "1"]
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"join_and_leave: OK - \d+ steps, 0 lost, the same bits at all; \d+ epochs, .*", last), last


def test_an_example_fits_on_two_screens() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name

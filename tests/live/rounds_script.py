"""The script of the peers of test_rounds.py, and of their replay: a model without randomness, trained in rounds."""

import hashlib
import os
import select
import sys
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor

import p2p
from p2p.step.operation import Operation
from tests.p2p.staging.standin import StandIn

NUM_SAMPLES, BATCH, INNER_STEPS = 480, 24, 5


@dataclass(frozen=True)
class Training:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler


def make_dataset() -> torch.utils.data.TensorDataset:
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((NUM_SAMPLES, 8), np.float32))
    return torch.utils.data.TensorDataset(inputs, torch.sin(inputs[:, :2] * 2))


def make_training(*, is_timed: bool = False) -> Training:
    """`is_timed`: the learning rate depends on the committed samples, and the schedule does not change it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 if is_timed else 1 / (1 + step / 100))
    return Training(model, optimizer, schedule)


def set_rate(training: Training, num_samples: int) -> None:
    """Set the learning rate after `num_samples` samples of all peers."""
    training.optimizer.param_groups[0]["lr"] = 0.01 / (1 + num_samples / 2400)


def train(training: Training, inputs: Tensor, targets: Tensor, model: torch.nn.Module | None = None) -> float:
    """One inner step; `model`: the wrapper."""
    loss = ((model or training.model)(inputs) - targets).pow(2).mean()
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    training.schedule.step()
    found: float = loss.item()
    return found


def digest(vector: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    return hashlib.sha1(vector.tobytes()).hexdigest()[:12]


def told(timeout_s: float = 0.015) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return sys.stdin.readline().strip() if ready else ""


def given_to_joiners(training: Training, model: p2p.DiLoCo | p2p.DataParallel) -> list[Tensor]:
    """Tensors that are written in each round, and copied for joiners."""
    moments = [each for state in training.optimizer.state.values() for each in state.values()]
    vectors = [model._outer.anchor, model._outer.momentum] if isinstance(model, p2p.DiLoCo) else []
    found = [*training.model.parameters(), *moments, *vectors]
    return [each for each in found if isinstance(each, Tensor)]


def spoil(model: p2p.DiLoCo, peer: p2p.Peer) -> None:
    """Let this peer send scales that are NaN in round 4."""
    gather = model._rounds._gather

    def spoiled(index: int, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Operation:
        if peer.done == 3:
            payload[:] = 255
        return gather(index, payload)

    model._rounds._gather = spoiled  # type: ignore[method-assign]


def main() -> None:
    """`CODEC EPOCHS [KEY=VALUE ...]`. Prints each anchor; words come by stdin.

    `wait`: wait until another word comes; `quick`: do not wait any more. Keys: `spoils=1`: see `spoil`; `nan=N`: in
    step N of this peer the loss is NaN; `cpu=default`: another instruction set than the others'; `round_s=T`: rounds
    end by time; `device=SEED`: tensors live on a stand-in; `slow=S`: each step of this peer takes S seconds longer;
    `dense=N`: N dense steps, each of which is printed, too; with the codec `parallel` all steps are dense, by
    `DataParallel`. Other keys are arguments of `p2p.DiLoCo`.
    """
    given = dict(word.split("=") for word in sys.argv[3:])
    if "cpu" in given:
        os.environ["ATEN_CPU_CAPABILITY"] = given["cpu"]  # torch reads it once, at its first operation
    torch.set_num_threads(1)
    timed: dict[str, Any] = {"round_s": float(given["round_s"])} if "round_s" in given else {}
    training = make_training(is_timed=bool(timed))
    word, num_steps = "quick" if "quick" in given else "", 0
    numbers: dict[str, Any] = {name: float(given[name]) for name in ("outer_lr", "momentum", "decay") if name in given}
    with p2p.join() as peer:
        print("here", peer.peer_id)
        training.optimizer.register_step_post_hook(lambda *_: print("exchanges", peer.done + 1, flush=True))
        device = StandIn(int(given.get("device", 0)))
        if "device" in given:
            peer._session.device_of = device.device_of
        options: dict[str, Any] = {"extra": [] if timed else [training.schedule], "state_digest": "all", **numbers}
        options |= {"nonfinite": "skip"} if "nan" in given else {}
        model: p2p.DiLoCo | p2p.DataParallel
        if sys.argv[1] == "parallel":
            model = p2p.DataParallel(peer, training.model, training.optimizer, **options)
        else:
            options |= {"codec": sys.argv[1], "dense_steps": int(given.get("dense", 0))}
            model = p2p.DiLoCo(peer, training.model, training.optimizer, **options)
        device.watched = lambda: given_to_joiners(training, model)
        if "spoils" in given:
            assert isinstance(model, p2p.DiLoCo)
            spoil(model, peer)
        length = (
            {} if sys.argv[1] == "parallel" else timed or {"inner_steps": int(given.get("inner_steps", INNER_STEPS))}
        )
        loader = peer.loader(make_dataset(), global_batch=BATCH, epochs=int(sys.argv[2]), **length)
        for _ in loader.epochs():
            for inputs, targets in loader:
                num_steps += 1
                if timed:
                    set_rate(training, peer.samples)
                    Event().wait(float(given.get("slow", 0)))
                train(training, inputs * float("nan" if num_steps == int(given.get("nan", 0)) else 1), targets, model)
                if model.has_committed:
                    flat = torch.cat([each.detach().flatten() for each in training.model.parameters()])
                    is_dense = sys.argv[1] == "parallel" or peer.done <= int(given.get("dense", 0))
                    print("dense" if is_dense else "round", peer.done, digest(flat.numpy()), peer.world_size)
                if word != "quick":
                    word = told() or word
                if word == "wait":
                    print("waits", peer.done + 1)
                    word = sys.stdin.readline().strip()
    assert (device.num_copies > 0) == ("device" in given)

"""An ordinary script whose behaviour follows a plan: how it trains, and what it calls where.

With DIES_AT it is killed just before a call after that many steps.
"""

import copy
import json
import os
import signal
import sys
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import p2p

NUM_VALID = 17


class Script:
    """The script of one peer, which follows `plan` (tests/live/drawn.py)."""

    def __init__(self, peer: p2p.Peer, plan: dict[str, Any], keep: p2p.Checkpoint | None) -> None:
        self._peer, self._plan, self._is_dense = peer, plan, plan["wrap"] is None
        norm = [nn.BatchNorm1d(3)] if plan["norm"] else []
        self._model = nn.Sequential(nn.Linear(2, 3), *norm, nn.Tanh(), nn.Linear(3, 1))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.01)
        self._schedule = torch.optim.lr_scheduler.StepLR(self._optimizer, 20, 0.9)
        self._by_epoch = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, 0.99)
        self._average = AveragedModel(self._model)
        extra: list[Any] = [self._schedule, self._by_epoch, *[self._average][: self._is_dense]]
        wrap, how = (p2p.DataParallel, self._plan_changes()) if self._is_dense else (p2p.DiLoCo, plan["wrap"])
        self._wrapped = wrap(peer, self._model, self._optimizer, extra=extra, checkpoint=keep, **how)
        data = dataset(plan["size"])
        self._loaders = [
            peer.loader(data, epochs=epochs, seed=seed, **plan["loader"]) for seed, epochs in enumerate(plan["epochs"])
        ]
        self._valid = peer.loader(dataset(NUM_VALID), global_batch=8)
        self._dies_at = int(os.environ.get("DIES_AT", sys.maxsize))

    def run(self) -> None:
        """Train all epochs of all loaders."""
        for loader in self._loaders:
            for _ in loader.epochs():
                for x, y in loader:
                    self._call_at("top")
                    Event().wait(self._plan["pause_s"])  # stands for computation
                    for _ in range(self._plan["updates"]):
                        self._update(x, y)
                    if self._is_dense and self._wrapped.has_committed:
                        self._schedule.step()
                        self._average.update_parameters(self._model)
                        self._call_at("bottom")
                    print("step", self._peer.done)
                self._call(self._plan["behind"])
                if self._plan["looks_on"]:
                    self._look()
                self._by_epoch.step()
        assert self._by_epoch.last_epoch == sum(self._plan["epochs"]), self._by_epoch.last_epoch
        sums = (each.double().sum().item() for each in self._wrapped.state_dict().values())
        print("end", self._peer.samples, *sums)

    def _plan_changes(self) -> dict[str, Any]:
        changes = {int(step): kind for step, kind in self._plan["changes"].items()}
        if "unfreeze" in changes.values():
            self._model[0].requires_grad_(False)
        return {"changes": {step: getattr(self, f"_{kind}") for step, kind in changes.items()}}

    def _unfreeze(self) -> None:
        self._model[0].requires_grad_(True)

    def _grow(self) -> None:
        self._model.append(last := nn.Linear(1, 1))
        self._average.module.append(copy.deepcopy(last))  # type: ignore[operator]
        self._optimizer.add_param_group({"params": last.parameters()})

    def _update(self, x: Tensor, y: Tensor) -> None:
        self._optimizer.zero_grad()
        if self._plan["accumulates"] and len(x) > 3:
            with self._wrapped.no_sync():
                (self._wrapped(x[:2]) - y[:2]).pow(2).mean().backward()
            x, y = x[2:], y[2:]
        (self._wrapped(x) - y).pow(2).mean().backward()
        if self._wrapped.has_committed or not self._is_dense:
            self._optimizer.step()

    def _call_at(self, place: str) -> None:
        what, every = self._plan[place]
        is_edge = self._peer.done > 0 if self._is_dense else self._wrapped.has_committed
        if every and is_edge and self._peer.done % every == 0:
            if self._peer.done >= self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._call(what)

    def _call(self, what: str) -> None:
        if what == "sum":
            self._peer.all_reduce(ones := np.ones(1))
            assert ones[0] == self._peer.world_size
        elif what == "gather":
            assert (self._peer.all_gather(np.array([self._peer.done])) == self._peer.done).all()
        elif what == "barrier":
            self._peer.barrier()
        elif what == "evaluate":
            self._evaluate()

    def _look(self) -> None:
        """Evaluate a few samples without `no_grad`."""
        self._model.eval()
        for x, y in zip(*(torch.split(each, 4) for each in dataset(NUM_VALID).tensors), strict=True):
            (self._wrapped(x) - y).pow(2).sum().item()
        self._model.train()

    def _evaluate(self) -> None:
        total, number = 0.0, 0
        self._model.eval()
        with torch.set_grad_enabled(self._plan["looks_on"]):
            for x, y in self._valid.evaluate():
                total, number = total + (self._wrapped(x) - y).pow(2).sum().item(), number + len(x)
        self._model.train()
        _, number = self._peer.combine({"loss": total / max(number, 1)}, samples=number)
        assert 0 < number <= NUM_VALID  # the part of a peer that leaves in between is missing


def dataset(size: int) -> TensorDataset:
    """A dataset, the same at each peer."""
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(size))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def main() -> None:
    """Arguments: the plan, and a folder for checkpoints, or none."""
    plan = json.loads(sys.argv[1])
    keep = p2p.Checkpoint(sys.argv[2], every=plan["every"]) if len(sys.argv) > 2 else None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with p2p.join() as peer:
        print("here", peer.peer_id)
        Script(peer, plan, keep).run()


if __name__ == "__main__":
    main()

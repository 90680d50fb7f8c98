"""An ordinary script, of which a plan says what it does: how it trains, and what it calls where.

With DIES_AT it is killed as it is about to call something behind so many steps.
"""

import json
import os
import signal
import sys
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import p2p

NUM_VALID = 17


def main() -> None:
    """Arguments: the plan of tests/live/drawn.py, and a folder for checkpoints, or none."""
    plan = json.loads(sys.argv[1])
    dies_at = int(os.environ.get("DIES_AT", sys.maxsize))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(3)] if plan["norm"] else []
    model = nn.Sequential(nn.Linear(2, 3), *norm, nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
    average = AveragedModel(model)
    data, valid_data = dataset(plan["size"]), dataset(NUM_VALID)
    keep = p2p.Checkpoint(sys.argv[2], every=plan["every"]) if len(sys.argv) > 2 else None
    with p2p.join() as peer:
        print("here", peer.peer_id)
        is_dense, wrap = plan["wrap"] is None, p2p.DataParallel if plan["wrap"] is None else p2p.DiLoCo
        extra: list[Any] = [schedule, average] if is_dense else [schedule]
        wrapped = wrap(peer, model, optimizer, extra=extra, checkpoint=keep, **plan["wrap"] or {})
        loaders = [
            peer.loader(data, epochs=epochs, seed=i, **plan["loader"]) for i, epochs in enumerate(plan["epochs"])
        ]
        valid = peer.loader(valid_data, global_batch=8)

        def evaluate() -> None:
            total, number = 0.0, 0
            model.eval()
            with torch.no_grad():
                for x, y in valid.evaluate():
                    total, number = total + (wrapped(x) - y).pow(2).sum().item(), number + len(x)
            model.train()
            _, number = peer.combine({"loss": total / max(number, 1)}, samples=number)
            assert number <= NUM_VALID  # the part of who leaves in between is missing

        def add() -> None:
            peer.all_reduce(ones := np.ones(1))
            assert ones[0] == peer.world_size

        def gather() -> None:
            assert (peer.all_gather(np.array([peer.done])) == peer.done).all()

        calls = {"sum": add, "evaluate": evaluate, "gather": gather, "barrier": peer.barrier}

        def call_at(place: str) -> None:
            what, every = plan[place]
            is_edge = peer.done > 0 if is_dense else wrapped.has_committed
            if every and is_edge and peer.done % every == 0:
                if peer.done >= dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls[what]()

        for loader in loaders:
            for _ in loader.epochs():
                for x, y in loader:
                    call_at("top")
                    Event().wait(plan["pause_s"])  # its computation
                    for _ in range(plan["updates"]):
                        optimizer.zero_grad()
                        if plan["accumulates"] and len(x) > 3:
                            with wrapped.no_sync():
                                (wrapped(x[:2]) - y[:2]).pow(2).mean().backward()
                            x, y = x[2:], y[2:]
                        (wrapped(x) - y).pow(2).mean().backward()
                        if wrapped.has_committed or not is_dense:
                            optimizer.step()
                    if is_dense and wrapped.has_committed:
                        schedule.step()
                        average.update_parameters(model)
                        call_at("bottom")
                    print("step", peer.done)
                if plan["behind"]:
                    calls[plan["behind"]]()
        print("end", peer.samples, *(each.double().sum().item() for each in wrapped.state_dict().values()))


def dataset(size: int) -> TensorDataset:
    """The same at each peer."""
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(size))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


if __name__ == "__main__":
    main()

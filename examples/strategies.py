"""Four ways to train the same model on the same text: what each sends, how long it takes, and where its loss is then.

    shoal run -n 4 examples/strategies.py

You will see a table: averaging gradients in each step (synchronous), local steps that are averaged in each tenth,
deltas of half a bit per parameter (sparse), and rounds by time, in which nobody waits for a slow peer. With matplotlib
(`pip install shoal[report]`) strategies.png has the loss against bytes sent and against time.

"Synchronous or asynchronous", a textbook asks. None of these is asynchronous: what commits is the same at every peer.
They differ in how often peers wait for each other. On one host, where sending costs nothing, synchronous steps are
best; give peers a slow link (`shoal lab`, docs/lab.md) and look again.
"""

import argparse
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import p2p
from collectives import codec_of
from examples.gpt import CONTEXT, GPT, load_text

Point = tuple[float, float, float]
"""Bytes that each peer has sent, in millions; seconds; loss on text that is held out."""

LOCAL: dict[str, Any] = {"inner_steps": 10}
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "synchronous": ("", {}),
    "local steps": ("float32", LOCAL),
    "sparse deltas": ("sparse16", LOCAL),
    "rounds by time": ("int4", {"round_s": 1.0}),
}
"""By name: the codec of the deltas, and the length of a round."""


def train(name: str, windows: Tensor, held_out: Tensor, global_batch: int) -> tuple[int, list[Point]]:
    """One peer, one strategy: its rank, and a point each time the peers have the same parameters."""
    codec, length = STRATEGIES[name]
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    num_parameters = sum(each.numel() for each in model.parameters())
    points: list[Point] = []
    sent = 0.0
    with p2p.join(swarm=f"strategies-{name.replace(' ', '-')}") as peer:
        wrapped = p2p.DiLoCo(peer, model, optimizer, codec=codec) if codec else p2p.DataParallel(peer, model, optimizer)
        peer.barrier()
        began_s = time.monotonic()
        for batch in peer.loader(windows, global_batch=global_batch, **length):
            loss = wrapped(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if wrapped.has_committed:
                others = peer.world_size - 1
                payload = codec_of(codec).num_bytes(num_parameters) if codec else 8 * num_parameters / peer.world_size
                sent += others * payload / 1e6
                if codec or peer.done % 10 == 0:
                    with torch.no_grad():
                        found = wrapped(held_out[:, :-1], held_out[:, 1:]).item()
                    points.append((sent, time.monotonic() - began_s, found))
        print(f"{name}: {peer.done} commits of {peer.samples} samples", flush=True)
        return peer.rank, points


def show(found: dict[str, list[Point]], path: Path) -> None:
    """Print a table, and draw a picture if matplotlib is installed."""
    print(f"{'':16}{'MB sent':>10}{'seconds':>10}{'loss':>10}")
    for name, points in found.items():
        sent, elapsed_s, loss = points[-1]
        print(f"{name:16}{sent:10.2f}{elapsed_s:10.1f}{loss:10.3f}", flush=True)
    with suppress(ImportError):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        for axes, column, label in zip(figure.subplots(1, 2, sharey=True), (0, 1), ("MB sent", "seconds"), strict=True):
            for name, points in found.items():
                axes.plot([each[column] for each in points], [each[2] for each in points], label=name)
            axes.set(xlabel=f"{label}, each peer", ylabel="loss on held-out text", xscale="linear" if column else "log")
            axes.legend()
        figure.savefig(path)
        print(f"{path} has the picture", flush=True)


def main() -> None:
    """Train with each strategy, one after the other; the peer with rank 0 at the end shows the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of a global batch, in each strategy")
    parser.add_argument("--global-batch", type=int, default=32, help="samples of an inner step, over all peers")
    parser.add_argument("--picture", type=Path, default=Path("strategies.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    windows = load_text((options.steps * options.global_batch + 64) * CONTEXT + 1)
    found = {}
    for name in STRATEGIES:
        rank, found[name] = train(name, windows[64:], windows[:64], options.global_batch)
    if rank == 0:
        show(found, options.picture)


if __name__ == "__main__":
    main()

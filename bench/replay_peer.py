"""One of the peers of bench/replay.py: trains the small GPT of examples/gpt.py, and records its own losses.

    python replay_peer.py STEPS [INDEX:STEP:PLACE ...]

Prints its peer_id. Writes one line of JSON per step into `PEER_ID.losses.jsonl` beside the receipts, and the digest of
the last model into `PEER_ID.end`. The peer that was started as number INDEX kills itself in step STEP: with `buckets`
during the backward pass, when some buckets are sent and others are incomplete; with `steps` before the step.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import p2p
from examples.gpt import CONTEXT, GPT, load_text

GLOBAL_BATCH: Final = 16
BUCKET_BYTES: Final = 256 << 10
"""Small enough that this model has at least six buckets."""

SEED: Final = 0

BETWEEN_BUCKETS, BETWEEN_STEPS = "buckets", "steps"


@dataclass(frozen=True, slots=True)
class Victim:
    """The peer that kills itself, its step, and the place in the step."""

    index: int
    step: int
    place: str


def parse_victim(text: str) -> Victim:
    """Parse INDEX:STEP:PLACE."""
    index, step, place = text.split(":")
    return Victim(int(index), int(step), place)


def make_training(num_steps: int) -> tuple[Tensor, GPT, torch.optim.Optimizer]:
    """Samples for `num_steps` steps, a model that is the same in each process, and its optimizer."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    windows = load_text(num_bytes=num_steps * GLOBAL_BATCH * CONTEXT + 1)
    model = GPT()
    return windows, model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> float:
    """Train one step on `batch`; returns the mean loss before the update."""
    loss = model(batch[:, :-1], batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.item())


def kill_between_buckets(model: GPT, is_now: Callable[[], bool]) -> None:
    """Kill this process when the backward pass leaves the last block: only its and the head's buckets are full then."""

    def end(parameter: nn.Parameter) -> None:
        if is_now():
            os.kill(os.getpid(), signal.SIGKILL)

    inside: Any = model.get_parameter("blocks.0.perceptron.2.weight")
    inside.register_post_accumulate_grad_hook(end)


def main(num_steps: int, victims: list[Victim]) -> None:
    """Train until every sample was used once."""
    windows, model, optimizer = make_training(num_steps)
    index = int(os.environ["SHOAL_LAUNCH_INDEX"])
    ends = {victim.place: victim.step for victim in victims if victim.index == index}
    with p2p.join() as peer:
        print(peer.peer_id, flush=True)
        parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=BUCKET_BYTES, state_digest="all")
        kill_between_buckets(model, lambda: peer.done + 1 == ends.get(BETWEEN_BUCKETS))
        folder = Path(os.environ["SHOAL_RECEIPTS"])
        with (folder / f"{peer.peer_id}.losses.jsonl").open("w", buffering=1, encoding="utf-8") as lines:
            for batch in peer.loader(windows, global_batch=GLOBAL_BATCH, seed=SEED):
                if peer.done + 1 == ends.get(BETWEEN_STEPS):
                    os.kill(os.getpid(), signal.SIGKILL)
                _, num_samples, _ = peer._session.share.counts
                loss = train_step(parallel, optimizer, batch)
                line = {"step": peer.done, "loss": loss, "num_samples": num_samples}
                lines.write(json.dumps({"peer_id": peer.peer_id, **line}) + "\n")
        content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        (folder / f"{peer.peer_id}.end").write_text(hashlib.blake2b(content).hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), [parse_victim(text) for text in sys.argv[2:]])

"""Hugging Face's Trainer, as its users write it, with a kill and a join; one process replays it by the receipts.

Needs transformers and accelerate, which are no requirement of this project: skipped without them. Passed with
transformers 5.23.0, accelerate 1.15.0.
"""

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bench.zygote import WITH_TORCH, Zygote
from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import read_receipts
from tests.equivalence.harness import new_swarm
from tests.live.swarm import name

MISSING = [package for package in ("transformers", "accelerate") if find_spec(package) is None]
pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")]

NUM_SAMPLES, GLOBAL_BATCH, NUM_STEPS = 96, 12, 40


def make() -> tuple[Any, torch.optim.Optimizer, Any]:
    """A tiny GPT-2, with what changes it."""
    from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

    torch.manual_seed(2)
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=8, **off))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, get_cosine_schedule_with_warmup(optimizer, 4, NUM_STEPS)


def dataset() -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(0, 32, (NUM_SAMPLES, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def train(made: tuple[Any, torch.optim.Optimizer, Any], batches: Any, folder: str, turn: Any) -> None:
    """`turn` is called before each step, and after it with True; the training ends where it then returns True."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Turns(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turn(False)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = turn(True)

    model, optimizer, schedule = made
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    arguments = TrainingArguments(folder, max_steps=10 * NUM_STEPS, use_cpu=True, max_grad_norm=1.0, **quiet)
    trainer = Trainer(model=model, args=arguments, optimizers=(optimizer, schedule), callbacks=[Turns()])
    trainer.get_train_dataloader = lambda: batches
    trainer.train()


class Batches:
    """What Trainer takes for a DataLoader: one long epoch."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return iter(self._batches)

    def __len__(self) -> int:
        return 10 * NUM_STEPS


def bits(model: torch.nn.Module) -> npt.NDArray[np.float32]:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


TRAIN = """
import os, signal, sys
import torch
import p2p
from tests.live.test_trainer import GLOBAL_BATCH, NUM_STEPS, Batches, bits, dataset, make, train

torch.set_num_threads(1)
made = make()
with p2p.join() as peer:
    print("here", peer.peer_id)
    p2p.DataParallel(peer, made[0], made[1], extra=[made[2]], state_digest="all")
    loader = peer.loader(dataset(), global_batch=GLOBAL_BATCH, epochs=10**6)

    def turn(is_over):
        if "dies" in sys.argv and peer.done + 1 == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_over:
            print("step", peer.done, peer.world_size)
        if is_over and peer.done == 12 and "waits" in sys.argv:
            sys.stdin.readline()
        return peer.done >= NUM_STEPS

    train(made, Batches(batch for epoch in loader.epochs() for batch in loader), sys.argv[1], turn)
    print("end", bits(made[0]).tobytes().hex())
"""


ALONE = """
import json, sys
import torch
from tests.live.test_trainer import NUM_STEPS, Batches, bits, dataset, make, train

torch.set_num_threads(1)
made, samples, steps = make(), dataset(), iter(range(1, NUM_STEPS + 1))
rows = [[samples[index] for index in row] for row in json.loads(sys.argv[2])]
batches = [{key: torch.stack([sample[key] for sample in row]) for key in row[0]} for row in rows]
train(made, Batches(batches), sys.argv[1], lambda is_over: is_over and next(steps) == NUM_STEPS)
print("end", bits(made[0]).tobytes().hex())
"""


def values(line: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(line.split()[1]), np.float32)


def test_trainer_trains_as_in_one_process_with_a_kill_and_a_join(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with Zygote(os.environ, (*WITH_TORCH, "transformers.trainer", "accelerate")) as zygote, new_swarm(zygote) as swarm:
        victim, *peers = (swarm.start(TRAIN, folder, *more, min_peers=3) for more in (["dies"], ["waits"], []))
        assert victim.end() == -signal.SIGKILL, victim.report()
        peers[0].expect_step(12)
        peers.append(swarm.start(TRAIN, folder))
        peers[2].expect("here")
        peers[0].tell("go on")
        assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
        (end,) = {peer.stdout[-1] for peer in peers}
        receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")[1:]
        assert {len(receipt.contributions) for receipt in receipts} == {2, 3} and len(receipts[-1].contributions) == 3

        order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=len(receipts)))
        counted = [
            order.indices(union(part for entry in each.contributions for part in entry.samples)) for each in receipts
        ]
        alone = swarm.start(ALONE, folder, json.dumps([list(map(int, row)) for row in counted]))
        assert alone.end() == 0, alone.report()
    difference = np.abs(values(end) - values(alone.stdout[-1])).max()
    assert difference <= 1e-5, difference

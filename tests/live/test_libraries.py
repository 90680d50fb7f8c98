"""Training loops of other libraries, as users write them, with a kill and a join; one process replays the receipts.

Needs transformers, accelerate and lightning, which are no requirements of this project: skipped without them. Passed
with transformers 5.24.0, accelerate 1.15.0, lightning 2.6.6 (torch 2.13.0, and 2.14.1 for CUDA 13, without a GPU).
"""

import json
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from bench.here import environment
from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.forking.zygote import WITH_TORCH, Zygote
from p2p.step.receipts import read_receipts
from tests.equivalence.harness import new_swarm
from tests.live.swarm import name

NEEDED: Final = {
    "transformers": ("transformers.trainer", "accelerate"),
    "accelerate": ("accelerate",),
    "lightning": ("lightning.pytorch",),
}

NUM_SAMPLES, GLOBAL_BATCH, STEPS_TOGETHER = 96, 12, 20
LONG: Final = 10**6
"""More batches than any epoch has."""

Made = tuple[Any, torch.optim.Optimizer, Any]
Wrap = Callable[..., tuple[Any, Any]]
"""Takes model, optimizer and schedule before the training; returns the wrapper to call, and a loader."""
Turn = Callable[[bool], bool]
"""Called before each step, and after it with True; the training ends when it then returns True."""


class Net(nn.Module):
    """A model of one layer, for libraries that have no models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.embedding(input_ids).mean(1)), labels[:, 0])


def make(library: str) -> Made:
    """A model with its optimizer and schedule."""
    torch.manual_seed(2)
    model: nn.Module = tiny_gpt2() if library == "transformers" else Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=40)
    return model, optimizer, schedule


def tiny_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=8, **off))


def dataset() -> list[dict[str, Tensor]]:
    rows = torch.randint(0, 32, (NUM_SAMPLES, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


class Batches:
    """A loader in the place of a library's DataLoader. The library reads at most its length, so that is too large."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return LONG


# Libraries


def train_with_transformers(made: Made, wrap: Wrap, folder: str, turn: Turn) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Turns(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turn(False)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = turn(True)

    model, optimizer, schedule = made
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    arguments = TrainingArguments(folder, max_steps=LONG, use_cpu=True, max_grad_norm=1.0, **quiet)
    trainer = Trainer(model=model, args=arguments, optimizers=(optimizer, schedule), callbacks=[Turns()])
    _, loader = wrap(model, optimizer, schedule)
    epochs = getattr(loader, "epochs", lambda: [0])
    trainer.get_train_dataloader = lambda: Batches(batch for _ in epochs() for batch in loader)
    trainer.train()


def train_with_accelerate(made: Made, wrap: Wrap, folder: str, turn: Turn) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule = accelerator.prepare(*made)
    model, loader = wrap(model, optimizer, schedule)
    loader = accelerator.prepare(loader)
    while True:
        for batch in loader:
            turn(False)
            accelerator.backward(model(**batch))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if turn(True):
                return


def train_with_lightning(made: Made, wrap: Wrap, folder: str, turn: Turn) -> None:
    from lightning import pytorch

    class Module(pytorch.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = made[0]

        def configure_optimizers(self) -> Any:
            _, optimizer, schedule = made
            self.parallel, self.loader = wrap(self.net, optimizer, schedule)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def train_dataloader(self) -> Any:
            return Batches(self.loader)

        def training_step(self, batch: Any, index: int) -> Any:
            turn(False)
            return self.net(**batch)

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop = turn(True)

    warnings.simplefilter("ignore")
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pytorch.Trainer(accelerator="cpu", max_epochs=LONG, gradient_clip_val=1.0, logger=False, **quiet)
    trainer.fit(Module())


TRAINED_BY: Final = {
    "transformers": train_with_transformers,
    "accelerate": train_with_accelerate,
    "lightning": train_with_lightning,
}


def bits(model: nn.Module) -> npt.NDArray[np.float32]:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


TRAIN = """
import os, signal, sys
import torch
import p2p
from tests.live.test_libraries import GLOBAL_BATCH, STEPS_TOGETHER, TRAINED_BY, bits, dataset, make

torch.set_num_threads(1)
library, folder, *words = sys.argv[1:]
made, sizes = make(library), []
with p2p.join() as peer:
    print("here", peer.peer_id)

    def wrap(model, optimizer, schedule):
        parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule], state_digest="all")
        return parallel, peer.loader(dataset(), global_batch=GLOBAL_BATCH, epochs=10**6)

    def turn(is_over):
        if "dies" in words and peer.done + 1 == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_over:
            print("step", peer.done, peer.world_size)
            sizes.append(peer.world_size)
        if is_over and peer.done == 12 and "waits" in words:
            sys.stdin.readline()
        return 2 in sizes and sizes[-STEPS_TOGETHER:] == [3] * STEPS_TOGETHER

    TRAINED_BY[library](made, wrap, folder, turn)
    print("end", bits(made[0]).tobytes().hex())
"""


ALONE = """
import json, sys
import torch
from tests.live.test_libraries import TRAINED_BY, bits, dataset, make

torch.set_num_threads(1)
library, folder, rows = sys.argv[1:]
made, samples, rows = make(library), dataset(), json.loads(rows)
batches = [{key: torch.stack([samples[index][key] for index in row]) for key in samples[0]} for row in rows]
steps = iter(range(1, len(rows) + 1))
turn = lambda is_over: is_over and next(steps) == len(rows)
TRAINED_BY[library](made, lambda model, *_: (model, batches), folder, turn)
print("end", bits(made[0]).tobytes().hex())
"""


def values(line: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(line.split()[1]), np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("library", TRAINED_BY)
def test_it_trains_as_in_one_process_with_a_kill_and_a_join(tmp_path: Path, library: str) -> None:
    if missing := [each for each in NEEDED[library] if find_spec(each.split(".")[0]) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    folder = str(tmp_path)
    with Zygote(environment(), (*WITH_TORCH, *NEEDED[library])) as zygote, new_swarm(zygote) as swarm:
        victim, *peers = (swarm.start(TRAIN, library, folder, *more, min_peers=3) for more in (["dies"], ["waits"], []))
        assert victim.end() == -signal.SIGKILL, victim.report()
        peers[0].expect_step(12)
        peers.append(swarm.start(TRAIN, library, folder))
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
        alone = swarm.start(ALONE, library, folder, json.dumps([list(map(int, row)) for row in counted]))
        assert alone.end() == 0, alone.report()
    difference = np.abs(values(end) - values(alone.stdout[-1])).max()
    print(f"{library}: largest difference {difference:.1e}")
    assert difference <= 1e-5, difference

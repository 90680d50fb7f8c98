"""A run that is killed as a whole at random moments, repeatedly, and resumes from its checkpoints until its end.

Invariants: it resumes from a complete checkpoint each time, and loses at most the steps between two checkpoints and
those committed while one was written; over all starts each sample counts once in each epoch, as the receipts prove; and
the losses equal those of one process that replays the receipts.
"""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from p2p.checkpoint.folder import checkpoints
from p2p.checkpoint.manifest import read_manifest
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import Receipt, read_receipts
from tests.live.swarm import Process, Swarm, name

NUM_SAMPLES, GLOBAL_BATCH, FEATURES = 90, 8, 6
POLL_S: Final = 0.001
PACE_S: Final = 0.02
TOLERANCE: Final = 1e-3

never = threading.Event()

TRAIN = """
import os, sys, time
import torch
import p2p
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

given = dict(word.split("=", 1) for word in sys.argv[1:])
def number(key, default):
    return int(given.get(key, default))

from tests.live.resumes import dataset, make_model
torch.set_num_threads(1)
model = make_model(number("width", 16), number("seed", 0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
settings = p2p.Checkpoint(given["folder"], every=number("every", 5), keep=number("keep", 3) or None,
                          resume=given.get("resume"))
with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule], checkpoint=settings)
    loader = peer.loader(TensorDataset(*dataset(number("samples", 90))), global_batch=number("batch", 8),
                         epochs=number("epochs", 3))
    print("begins", peer.done, loader.epoch)
    for epoch in loader.epochs():
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.mse_loss(parallel(x), y)
            loss.backward()
            optimizer.step()
            if peer.done == number("fails", -1):
                raise RuntimeError(f"at step {peer.done}")
            schedule.step()
            time.sleep(0.003)  # more of a computation; a writer gets its turn
            parts = peer.receipt.contributions if peer.receipt else []
            print("step", peer.done, loss.item(), sum(e.num_samples for e in parts if e.peer_id == peer.peer_id))
            if peer.done == number("wait", -1) or peer.done >= number("pace", 1 << 60):
                sys.stdin.readline()
    print("end", peer.done)
"""


def dataset(number: int = NUM_SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(number, FEATURES, generator=generator)
    return inputs, inputs.square().sum(1, keepdim=True)


def make_model(width: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 1))


class Start:
    """One start of the run: some peers, and what they have committed."""

    def __init__(self, swarm: Swarm, peers: Sequence[Process]) -> None:
        self._swarm, self.peers = swarm, peers
        self.begins = {int(peer.expect("begins").split()[1]) for peer in peers}

    @property
    def first(self) -> int:
        """Training steps done before this start: the same at all founders."""
        (first,) = self.begins
        return first

    def receipts(self) -> dict[int, Receipt]:
        """Receipts of training steps, by step; checks that all peers have the same."""
        known: dict[int, Receipt] = {}
        for peer in self.peers:
            for receipt in read_receipts(self._swarm.receipts / f"{name(peer)}.receipts.jsonl"):
                assert known.setdefault(receipt.step, receipt) == receipt
        trained = [known[step] for step in sorted(known) if known[step].num_samples]
        return dict(enumerate(trained, self.first + 1))

    def losses(self) -> dict[int, float]:
        """Mean loss of each step over the samples of all peers; only of steps whose losses were all printed."""
        told: dict[int, list[tuple[float, int]]] = {}
        for peer in self.peers:
            for words in (line.split() for line in peer.stdout if line.startswith("step ")):
                if len(words) == 4:
                    told.setdefault(int(words[1]), []).append((float(words[2]), int(words[3])))
        receipts = self.receipts()
        whole = {step: rows for step, rows in told.items() if len(rows) == len(receipts[step].contributions)}
        return {step: sum(loss * n for loss, n in rows) / sum(n for _, n in rows) for step, rows in whole.items()}

    def kill(self) -> int:
        """Kill all peers; returns the last training step that any has committed."""
        for peer in self.peers:
            peer.kill()
        for peer in self.peers:
            peer.end()
        return max(self.receipts(), default=self.first)


def check(starts: Sequence[Start], epochs: int, width: int) -> None:
    """Check that each sample counts once in each epoch, and that losses equal those of one process.

    The model of start i was created with seed i.
    """
    receipts: dict[int, Receipt] = {}
    losses: dict[int, float] = {}
    for start in starts:  # steps after the checkpoint from which the next start resumed are lost
        receipts = {step: each for step, each in receipts.items() if step <= start.first} | start.receipts()
        losses = {step: each for step, each in losses.items() if step <= start.first} | start.losses()
    assert sorted(receipts) == list(range(1, len(receipts) + 1))
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=epochs))
    used = Counter(
        (first // NUM_SAMPLES, i)
        for each in receipts.values()
        for part in each.contributions
        for first, number in part.samples
        for i in order.indices(((first, number),))
    )
    assert used == {(epoch, i): 1 for epoch in range(epochs) for i in range(NUM_SAMPLES)}
    seed = max(index for index, start in enumerate(starts) if start.first == 0)
    replayed = replay([receipts[step] for step in sorted(receipts)], order, width, seed)
    assert len(losses) > len(receipts) // 2
    for step, loss in losses.items():
        assert abs(loss - replayed[step - 1]) <= TOLERANCE * max(1.0, abs(loss)), (step, loss, replayed[step - 1])


def replay(receipts: Sequence[Receipt], order: Order, width: int, seed: int) -> list[float]:
    """Losses of each step of one process that trains on the samples of all peers."""
    inputs, targets = dataset()
    model = make_model(width, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
    losses = []
    for receipt in receipts:
        chosen = [i for part in receipt.contributions for i in order.indices(part.samples)]
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs[chosen]), targets[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


class Killed:
    """One run that is killed as a whole repeatedly.

    Attributes:
        num_unfinished: kills while a checkpoint was written.
        most_lost: most committed steps that one kill lost.
    """

    def __init__(self, swarm: Swarm, folder: Path, seed: int, *, every: int, width: int) -> None:
        self._swarm, self._folder = swarm, folder
        self._random = Random(seed)
        self._every, self._width = every, width
        self.num_unfinished = self.most_lost = 0
        self._starts: list[Start] = []

    @property
    def processes(self) -> list[Process]:
        """All processes that were ever started."""
        return [peer for start in self._starts for peer in start.peers]

    def run(self, num_kills: int) -> None:
        """Kill the run, check where it resumes, and let it complete."""
        epochs = 1 + num_kills * 3
        for kill in range(num_kills):
            start = self._start(kill, epochs)
            steps = self._random.randrange(1, 2 * self._every)
            start.peers[0].expect_step(start.first + steps)
            if self._random.random() < 0.5:
                self._wait_for_writing(start)
            last = start.kill()
            step = newest_step(self._folder)
            begun = [int(path.name.split(".")[1]) for path in self._folder.glob(".0*")]
            while_written = last - max(begun) if begun else 0
            self.num_unfinished += bool(begun)
            self.most_lost = max(self.most_lost, last - step)
            assert last - step <= self._every + while_written, (last, step, begun)
        start = self._start(num_kills, epochs)
        assert [peer.end() for peer in start.peers] == [0] * len(start.peers), start.peers[0].report()
        check(self._starts, epochs, self._width)

    def _start(self, index: int, epochs: int) -> Start:
        number, expected = self._random.randrange(1, 4), newest_step(self._folder)
        words = (f"folder={self._folder}", f"every={self._every}", f"epochs={epochs}", f"width={self._width}")
        peers = [self._swarm.start(TRAIN, *words, f"seed={index}", min_peers=number) for _ in range(number)]
        start = Start(self._swarm, peers)
        assert start.first == expected
        self._starts.append(start)
        return start

    def _wait_for_writing(self, start: Start) -> None:
        """Wait until a checkpoint is begun, or the run is over."""
        while not any(self._folder.glob(".0*")) and not any(peer.has_ended() for peer in start.peers):
            never.wait(POLL_S)


def newest_step(folder: Path) -> int:
    """Step of the checkpoint from which a run would resume; 0: there is none."""
    newest = max((read_manifest(path) for path in checkpoints(folder)), key=lambda each: each.recency, default=None)
    return 0 if newest is None else newest.step


def files(folder: Path) -> list[str]:
    """Names of all files in a folder."""
    return sorted(os.listdir(folder))

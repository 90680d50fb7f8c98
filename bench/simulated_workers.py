"""Training in rounds by several workers, simulated in one process, and data-parallel training to compare it with.

A GPT of 0.14 million parameters (examples/gpt.py at width 64) learns the source of Python's standard library. Workers
run the outer step of real peers (p2p/training/rounds/outer.py), on payloads that are passed in memory.
"""

import hashlib
import math
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from examples.gpt import CONTEXT, GPT
from p2p.training.rounds.outer import OuterConfig, OuterOptimizer

NUM_WORKERS: Final = 4
NUM_WINDOWS: Final = 8
"""Windows of CONTEXT bytes, per worker and step."""
WIDTH: Final = 64
WARM_UP: Final = 40
"""Steps until the full learning rate; after that half a cosine down to a tenth of it."""
HELD_OUT: Final = 12
"""One in this many files is held out."""
NUM_VALIDATED: Final = 512
"""Windows for validation, spread evenly over the held-out files."""
NUM_POINTS: Final = 6
"""Points of the curve, at the ends of rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting of one run.

    Attributes:
        inner_steps: of a round; 0: gradients are averaged in every step, as p2p.DataParallel does.
        dense_steps: number of steps with averaged gradients before rounds begin.
        has_residual: False: the codec's error is dropped instead of sent later.
        is_replaced: after half of the steps a joiner replaces a worker.
    """

    codec: str = "float32"
    inner_steps: int = 10
    outer_lr: float = 0.7
    momentum: float = 0.5
    decay: float = 1.0
    lr: float = 8e-3
    steps: int = 600
    dense_steps: int = 0
    has_residual: bool = True
    is_replaced: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        steps = self.steps - self.dense_steps
        if self.inner_steps and (steps < self.inner_steps or steps % self.inner_steps):
            raise ValueError(f"{steps} steps are no whole number of rounds of {self.inner_steps}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        loss: on held-out files, in nats per byte, at the end.
        bytes_per_exchange: payload of one worker.
        sent_per_token: bytes that a worker sends to three others for each byte of text that it trains on; in
            data-parallel steps, with `direct`, twice three quarters of the gradients.
        curve: (steps, bytes sent by a worker, loss).
    """

    loss: float
    bytes_per_exchange: int
    sent_per_token: float
    curve: list[tuple[int, float, float]]


@cache
def texts() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The modules of the standard library: those to train on, and the held-out ones."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [
        [path.read_bytes() for index, path in enumerate(paths) if (index % HELD_OUT == 0) is held]
        for held in (False, True)
    ]
    training, held_out = (np.frombuffer(b"".join(part), np.uint8) for part in parts)
    if min(training.size, held_out.size) <= NUM_VALIDATED * CONTEXT:
        raise SystemExit(f"no text to learn: this Python has {len(paths)} source files, {training.size} bytes")
    return training, held_out


def hash_of_texts() -> str:
    """Hash of both texts."""
    found = hashlib.sha256()
    for text in texts():
        found.update(text.tobytes())
    return found.hexdigest()


def run(setting: Setting) -> Outcome:
    """Train with one thread; returns the outcome."""
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)
    model = GPT(WIDTH)
    num_parameters = sum(each.numel() for each in model.parameters())
    exchanged = 2 * (NUM_WORKERS - 1) / NUM_WORKERS * 4 * num_parameters
    size, sent = 4 * num_parameters, 0.0
    curve: list[tuple[int, float, float]] = []
    worker = Worker(model, setting)
    every = max(setting.steps // NUM_POINTS // max(setting.inner_steps, 1), 1) * max(setting.inner_steps, 1)
    num_dense = setting.dense_steps if setting.inner_steps else setting.steps
    for step in range(num_dense):
        worker.step(step, range(NUM_WORKERS))
        sent += exchanged
        if (step + 1) % every == 0:
            curve.append((step + 1, sent, validate(model)))
    if setting.inner_steps:
        workers = [worker, *(worker.copy() for _ in range(1, NUM_WORKERS))]
        rounds = Rounds(workers, setting)
        size = rounds.num_bytes
        for step in range(num_dense, setting.steps, setting.inner_steps):
            if setting.is_replaced and step <= setting.steps // 2 < step + setting.inner_steps:
                rounds.replace(NUM_WORKERS - 1)
            rounds.run(step)
            sent += size * (NUM_WORKERS - 1)
            if (step + setting.inner_steps) % every == 0:
                curve.append((step + setting.inner_steps, sent, validate(model)))
    loss = curve[-1][2] if curve and curve[-1][0] == setting.steps else validate(model)
    return Outcome(loss, size, sent / (setting.steps * NUM_WINDOWS * CONTEXT), curve)


class Worker:
    """A model, and the optimizer of its inner steps."""

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        self.model = model
        self._setting = setting
        self.renew()

    def renew(self) -> None:
        """Reset the optimizer's moments to zero."""
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=self._setting.lr, betas=(0.9, 0.99), fused=True)

    def copy(self) -> "Worker":
        """A copy of this worker, including the optimizer's moments."""
        other = Worker(deepcopy(self.model), self._setting)
        other._optimizer.load_state_dict(deepcopy(self._optimizer.state_dict()))
        return other

    def step(self, step: int, workers: Iterable[int]) -> None:
        """Train one step on the windows of `workers`."""
        windows = torch.cat([windows_of(self._setting.seed, worker, step) for worker in workers])
        for group in self._optimizer.param_groups:
            group["lr"] = rate(step, self._setting)
        loss = self.model(windows[:, :-1], windows[:, 1:])
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()


class Rounds:
    """Rounds of all workers, in one process.

    Attributes:
        num_bytes: size of one worker's payloads in each exchange.
    """

    def __init__(self, workers: Sequence[Worker], setting: Setting) -> None:
        self._workers = workers
        self._setting = setting
        self._outers = [self._outer(worker) for worker in workers]
        self.num_bytes = sum(each.size for each in self._outers[0].zero_payloads())

    def _outer(self, worker: Worker) -> OuterOptimizer:
        how = self._setting
        config = OuterConfig(codec=how.codec, outer_lr=how.outer_lr, momentum=how.momentum, decay=how.decay)
        return OuterOptimizer(dict(worker.model.named_parameters()), config)

    def run(self, first: int) -> None:
        """Run the inner steps of all workers, beginning with step `first`; then an exchange."""
        for rank, worker in enumerate(self._workers):
            for step in range(first, first + self._setting.inner_steps):
                worker.step(step, [rank])
        exchange(self._outers, [NUM_WINDOWS * self._setting.inner_steps] * len(self._workers))
        for outer in self._outers:
            if outer.residual is not None and not self._setting.has_residual:
                outer.residual[:] = 0

    def replace(self, rank: int) -> None:
        """Replace worker `rank` by a joiner: no residual, moments of zero."""
        self._workers[rank].renew()
        self._outers[rank].load_state_dict(self._outers[0].state_dict())


def exchange(outers: Sequence[OuterOptimizer], num_samples: Sequence[int]) -> None:
    """Carry out a committed exchange of all workers.

    Raises:
        AssertionError: their anchors differ.
    """
    payloads = [outer.payloads() for outer in outers]
    gathered = [np.stack(rows) for rows in zip(*payloads, strict=True)]
    for rank, outer in enumerate(outers):
        outer.apply(gathered, num_samples, rank)
    assert len({outer.anchor.tobytes() for outer in outers}) == 1, "anchors differ"


def rate(step: int, setting: Setting) -> float:
    """The learning rate of a step; steps count from 0."""
    if step < WARM_UP:
        return setting.lr * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(setting.steps - WARM_UP, 1)
    return setting.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def windows_of(seed: int, worker: int, step: int) -> torch.Tensor:
    """Random windows of the text: (windows, CONTEXT + 1) bytes."""
    text, _ = texts()
    first = np.random.default_rng([seed, worker, step]).integers(0, text.size - CONTEXT, NUM_WINDOWS)
    return _windows(text, first)


@torch.no_grad()
def validate(model: nn.Module) -> float:
    """The loss on the held-out files."""
    _, text = texts()
    losses = [float(model(each[:, :-1], each[:, 1:])) for each in _validated(text)]
    return sum(losses) / len(losses)


def _validated(text: NDArray[np.uint8]) -> Iterator[torch.Tensor]:
    first = np.linspace(0, text.size - CONTEXT - 1, NUM_VALIDATED).astype(np.int64)
    return (_windows(text, each) for each in np.split(first, 8))


def _windows(text: NDArray[np.uint8], first: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(text[first[:, None] + np.arange(CONTEXT + 1)].astype(np.int64))

"""Habits of training code: buffers, optimizers, models that are saved. More of what test_data_parallel.py compares."""

import copy
import logging

import torch
from torch import Tensor, nn

from p2p import Peer
from tests.live.gradient_cases import CASES, main
from tests.live.training_cases import assert_same_everywhere, case, linear, raises, wrap

__all__ = ["CASES", "main"]


class Said(logging.Handler):
    """What the peer says in the log meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("p2p").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("p2p").removeHandler(self)


class Codebook(nn.Module):
    """Buffers as scripts have them: computed from what comes, in place and by another tensor; and a table."""

    ema: Tensor
    total: Tensor
    table: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("table", torch.tensor([0.1, 0.7, 1.3]))
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.ema.data.mul_(0.5).add_(x.mean(0), alpha=0.5)
        self.total = self.total + len(x)
        self.largest = torch.maximum(self.largest, x.max().detach())
        output: Tensor = self.layer(x) * self.table
        return output


def train_codebook(peer: Peer, mode: str, num_samples: int = 1) -> tuple[Codebook, list[str]]:
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, buffers=mode)
    parallel.num_samples(num_samples)
    with Said() as lines:
        for x in torch.randn(20, 2, 6, 4):
            optimizer.zero_grad()
            parallel(x[peer.rank, : 6 - peer.rank]).square().mean().backward()
            optimizer.step()
            if mode == "rank0":
                assert_same_everywhere(peer, model.ema)
    return model, lines


@case
def buffers_that_differ_are_named_once(peer: Peer) -> None:
    _, (line,) = train_codebook(peer, "check")
    assert line.startswith("buffer ema is not the same at peers ") and "buffers='mean' or 'rank0'" in line, line


@case
def buffers_may_differ(peer: Peer) -> None:
    model, lines = train_codebook(peer, "local")
    assert lines == []
    least = model.ema.clone()
    peer.all_reduce(least, op="min")
    assert (least < model.ema).any() or peer.rank, "each has its own"


@case
def buffers_are_those_of_rank_0(peer: Peer) -> None:
    model, lines = train_codebook(peer, "rank0")
    assert lines == [] and model.total == 120, "six samples at rank 0, in 20 steps"


@case
def buffers_are_averaged_over_samples(peer: Peer) -> None:
    model = Codebook()
    alone = [copy.deepcopy(model) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = wrap(peer, model, optimizer, buffers="mean")
    parallel.num_samples(3 - 2 * peer.rank)
    for x in torch.randn(5, 2, 6, 4):
        optimizer.zero_grad()
        parallel(x[peer.rank]).square().mean().backward()
        optimizer.step()
        for each, part in zip(alone, x, strict=True):
            each(part)
        mean = alone[0].ema * 0.75 + alone[1].ema * 0.25
        for each in alone:
            each.ema.copy_(mean)
        assert torch.allclose(model.ema, mean, rtol=1e-6, atol=1e-7)
        assert_same_everywhere(peer, model.ema)
    assert torch.equal(model.table, torch.tensor([0.1, 0.7, 1.3])), "what nobody has changed is not touched"


@case
def layers_that_exchange_statistics_are_refused(peer: Peer) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    raises(ValueError, "layer 1 is a SyncBatchNorm", lambda: wrap(peer, model, optimizer))
    raises(ValueError, "buffers must be one of check, mean", lambda: wrap(peer, model[0], optimizer, buffers="all"))
    assert peer.view is None
    wrap(peer, *linear())

"""Parameters whose memory order differs from the order of indices, and unused ones: founders, joiners, after a kill."""

import signal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import read_receipts
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_SAMPLES, GLOBAL_BATCH = 300, 12
KINDS: dict[str, dict[str, Any]] = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}


class Branch(nn.Module):
    """A convolution in channels_last, a linear layer whose weight is the transpose of another tensor, and a buffer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.linear = nn.Linear(36, 3)
        self.linear.weight = nn.Parameter(self.linear.weight.detach().t().contiguous().t())
        self.register_buffer("table", torch.arange(72.0).view(1, 2, 6, 6))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(torch.tanh(self.conv(images)).flatten(1))
        return outputs


def make() -> tuple[nn.ModuleDict, list[torch.optim.Optimizer]]:
    torch.manual_seed(2)
    model = nn.ModuleDict({kind: Branch() for kind in [*KINDS, "adagrad"]})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(model[kind].parameters(), lr=0.003, **options) for kind, options in KINDS.items()
    ]
    return model, [*optimizers, torch.optim.Adagrad(model["adagrad"].parameters(), lr=0.01, fused=True)]


def dataset() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(NUM_SAMPLES, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    return images, images[:, 0, 0, :3].square() + 1


def train(
    model: nn.Module,
    branches: nn.ModuleDict,
    optimizers: list[torch.optim.Optimizer],
    batch: tuple[torch.Tensor, torch.Tensor],
    step: int,
) -> None:
    """Train step `step`; `model` computes the output of each branch. One in five steps leaves a branch unused."""
    images, targets = batch
    unused = step // 5 % len(branches) if step % 5 == 0 else -1
    losses = [functional.mse_loss(outputs, targets) for outputs in model(images, unused)]
    for optimizer in optimizers:
        optimizer.zero_grad()
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    for number, branch in enumerate(branches.values()):
        for parameter in branch.parameters():
            assert (parameter.grad is None) == (number == unused)
            assert parameter.grad is None or parameter.grad.stride() == parameter.stride()
    for optimizer in optimizers:
        optimizer.step()


class AllOf(nn.Module):
    def __init__(self, branches: nn.ModuleDict) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, images: torch.Tensor, unused: int) -> list[torch.Tensor]:
        return [branch(images) for number, branch in enumerate(self.branches.values()) if number != unused]


def layout(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[tuple[int, ...]]:
    """The strides of parameters, buffers and moments."""
    moments = [t for optimizer in optimizers for state in optimizer.state.values() for t in state.values()]
    return [tensor.stride() for tensor in [*model.state_dict().values(), *moments]]


def bits(model: nn.Module) -> npt.NDArray[np.float32]:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in model.state_dict().values()])


TRAIN = """
import os, signal, sys
import torch
from torch.utils.data import TensorDataset
import p2p
from tests.live.test_layouts import GLOBAL_BATCH, AllOf, bits, dataset, layout, make, train

def die(parameter):
    if peer.done + 1 == 8:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
branches, optimizers = make()
with p2p.join() as peer:
    print("here", peer.peer_id)
    if "joins" in sys.argv:
        with torch.no_grad():
            for tensor in branches.state_dict().values():
                tensor.zero_()
    parallel = p2p.DataParallel(
        peer, AllOf(branches), optimizers[0], extra=optimizers[1:], bucket_bytes=3000, state_digest="all"
    )
    if "dies" in sys.argv:
        branches["fused"].conv.weight.register_post_accumulate_grad_hook(die)
    loader = peer.loader(TensorDataset(*dataset()), global_batch=GLOBAL_BATCH, epochs=10**6)
    for epoch in loader.epochs():
        began = peer.world_size
        for batch in loader:
            train(parallel, branches, optimizers, batch, peer.done + 1)
            print("step", peer.done, peer.world_size)
            if peer.done == 12 and "waits" in sys.argv:
                sys.stdin.readline()
        if epoch > 0 and began == 3:  # an epoch with the joiner, the same one on all
            break
    print("layout", layout(branches, optimizers))
    print("end", bits(branches).tobytes().hex())
"""


@pytest.mark.long
def test_what_lies_in_memory_in_another_order_trains_as_in_one_process(swarm: Swarm) -> None:
    victim = swarm.start(TRAIN, "dies", min_peers=3)
    victim.expect("here")
    peers = [swarm.start(TRAIN, *arguments, min_peers=3) for arguments in (["waits"], [])]
    assert victim.end() == -signal.SIGKILL, victim.report()
    peers[0].expect_step(12)
    joiner = swarm.start(TRAIN, "joins")
    joiner.expect("here")
    peers[0].tell("go on")
    peers.append(joiner)
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    (layout_line, bits_line) = {tuple(peer.stdout[-2:]) for peer in peers}.pop()
    assert {tuple(peer.stdout[-2:]) for peer in peers} == {(layout_line, bits_line)}

    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    assert {len(receipt.contributions) for receipt in receipts[1:8]} == {3}
    assert len(receipts[8].contributions) == 2 and len(receipts[-1].contributions) == 3
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    branches, optimizers = make()
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=len(receipts)))
    images, targets = dataset()
    for receipt in receipts[1:]:
        chosen = order.indices(union(part for each in receipt.contributions for part in each.samples))
        train(AllOf(branches), branches, optimizers, (images[chosen], targets[chosen]), receipt.step)
    torch.set_num_threads(before)
    assert layout_line == f"layout {layout(branches, optimizers)}"
    found = np.frombuffer(bytes.fromhex(bits_line.split()[1]), np.float32)
    print("largest difference", np.abs(found - bits(branches)).max())
    assert np.allclose(found, bits(branches), rtol=0, atol=1e-4), np.abs(found - bits(branches)).max()

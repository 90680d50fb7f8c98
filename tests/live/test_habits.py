"""Skipped steps, gradients that the script computes, losses over tokens: with a kill and a join, replayed."""

import signal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import read_receipts
from tests.cases import some_of
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_SAMPLES, GLOBAL_BATCH = 300, 12


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def dataset() -> TensorDataset:
    """Sequences of five tokens, of which the first few count; in a tenth of the sequences none does."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 6, (NUM_SAMPLES,), generator=generator) * (torch.arange(NUM_SAMPLES) % 10 != 3)
    return TensorDataset(torch.randn(NUM_SAMPLES, 5, 4, generator=generator), lengths)


def losses(outputs: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The loss of each token that counts."""
    return (outputs[..., 0] - tokens.square().sum(-1)).square()[torch.arange(5) < lengths[:, None]]


def is_bad(tokens: Tensor) -> bool:
    """Whether this peer skips the batch."""
    return bool(tokens.max() > 2.6)


def gradients_by_hand(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    every = torch.full((len(tokens),), 5)

    def loss(values: dict[str, Tensor]) -> Any:
        return losses(torch.func.functional_call(model, values, (tokens,)), tokens, every).mean()

    found: dict[str, Tensor] = torch.func.grad(loss)({key: value.detach() for key, value in model.named_parameters()})
    return found


def bits(model: nn.Module) -> npt.NDArray[np.float32]:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


TRAIN = """
import os, signal, sys
import torch
import p2p
from tests.live.test_habits import GLOBAL_BATCH, bits, dataset, gradients_by_hand, is_bad, losses, make

torch.set_num_threads(1)
kind, (model, optimizer) = sys.argv[1], make()

def die(_):
    if peer.done + 1 == 8:
        os.kill(os.getpid(), signal.SIGKILL)

with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=100, state_digest="all")
    if "dies" in sys.argv:
        model[2].weight.register_post_accumulate_grad_hook(die)
    loader = peer.loader(dataset(), global_batch=GLOBAL_BATCH, epochs=10**6)
    for epoch in loader.epochs():
        began = peer.world_size
        for tokens, lengths in loader:
            optimizer.zero_grad()
            if kind == "gradients":
                die(None) if "dies" in sys.argv else None
                parallel.reduce_gradients(gradients_by_hand(model, tokens))
            elif kind == "tokens":
                number = int(lengths.sum())
                parallel.num_samples(number)
                (losses(parallel(tokens), tokens, lengths).sum() / max(number, 1)).backward()
            else:
                loss = losses(parallel(tokens), tokens, torch.full((len(tokens),), 5)).mean()
                parallel.skip_step() if is_bad(tokens) else loss.backward()
            optimizer.step()
            print("step", peer.done, peer.world_size)
            if peer.done == 12 and "waits" in sys.argv:
                sys.stdin.readline()
        if epoch > 0 and began == 3:  # an epoch with the joiner, the same one on all
            break
    print("end", bits(model).tobytes().hex())
"""


@pytest.mark.parametrize("kind", some_of(["skips", "gradients", "tokens"], 0))
def test_it_trains_as_in_one_process_with_a_kill_and_a_join(swarm: Swarm, kind: str) -> None:
    victim = swarm.start(TRAIN, kind, "dies", min_peers=3)
    victim.expect("here")
    peers = [swarm.start(TRAIN, kind, *more, min_peers=3) for more in (["waits"], [])]
    assert victim.end() == -signal.SIGKILL, victim.report()
    peers[0].expect_step(12)
    peers.append(swarm.start(TRAIN, kind))
    peers[2].expect("here")
    peers[0].tell("go on")
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    (end,) = {peer.stdout[-1] for peer in peers}
    found = np.frombuffer(bytes.fromhex(end.split()[1]), np.float32)

    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    assert {len(receipt.contributions) for receipt in receipts[1:8]} == {3}
    assert len(receipts[8].contributions) == 2 and len(receipts[-1].contributions) == 3
    used = sorted(p for r in receipts for e in r.contributions for f, n in e.samples for p in range(f, f + n))
    assert used == list(range(len(used))) and len(used) % NUM_SAMPLES == 0, "each sample is on one receipt an epoch"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model, optimizer = make()
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=len(receipts)))
    num_skipped = 0
    for receipt in receipts[1:]:
        chosen = order.indices(union(part for e in receipt.contributions if e.weight for part in e.samples))
        tokens, lengths = dataset()[chosen]
        num_skipped += sum(entry.num_samples > 0 == entry.weight for entry in receipt.contributions)
        every = torch.full((len(tokens),), 5)
        optimizer.zero_grad()
        if len(chosen):
            losses(model(tokens), tokens, lengths if kind == "tokens" else every).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.set_num_threads(before)
    assert (num_skipped > 10) == (kind == "skips"), num_skipped
    print("largest difference", np.abs(found - bits(model)).max())
    assert np.allclose(found, bits(model), rtol=0, atol=1e-4), np.abs(found - bits(model)).max()

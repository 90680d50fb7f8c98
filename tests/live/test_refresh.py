"""Models that change in the middle of a run: agreed by all, replayed in one process, with a kill and a join."""

import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import read_receipts
from tests.live.swarm import Swarm, name
from tests.live.test_habits import bits
from tests.live.test_status import peers_when

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_SAMPLES, GLOBAL_BATCH = 60, 12


def make() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def grow(model: Any, optimizer: Any, width: int = 3) -> None:
    torch.manual_seed(2)
    model.append(nn.Linear(3, width))
    optimizer.add_param_group({"params": model[3].parameters(), "lr": 0.02})


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(3)))


TRAIN = """
import os, signal, sys
import torch
import p2p
from tests.live.test_refresh import GLOBAL_BATCH, bits, dataset, grow, make

torch.set_num_threads(1)
what, (model, optimizer) = sys.argv[1:], make()
time = 16 if "late" in what else 6

with p2p.join() as peer:
    print("here", peer.peer_id)
    if "grown" in what:
        grow(model, optimizer)
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=100, state_digest="all")
    print("wrapped")
    loader = peer.loader(dataset(), global_batch=GLOBAL_BATCH, epochs=10**6)
    for epoch in loader.epochs():
        began = peer.world_size, len(model)
        for (x,) in loader:
            if peer.done == time and "alone" not in what:
                if "held" in what:
                    print("held")
                    sys.stdin.readline()
                grow(model, optimizer, 4 if "wide" in what else 3)
                parallel.refresh()
                print("refreshed", peer.done)
            if "dies" in what and peer.done == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = (parallel(x) - 1).square().mean()  # a joiner may have the state now
            if "waits" in what and peer.done == 12:
                sys.stdin.readline()
            loss.backward()
            optimizer.step()
            print("step", peer.done, peer.world_size)
        if epoch > 3 and began == (3, 4):  # an epoch with the joiner, of the grown model
            break
    print("end", bits(model).tobytes().hex())
"""


def test_a_refresh_is_a_step_of_all_and_the_run_goes_on_with_a_kill_and_a_join(swarm: Swarm) -> None:
    victim = swarm.start(TRAIN, "dies", min_peers=3)
    victim.expect("here")
    peers = [swarm.start(TRAIN, *more, min_peers=3) for more in (["waits"], [])]
    assert victim.end() == -signal.SIGKILL, victim.report()
    peers[0].expect_step(12)
    late = swarm.start(TRAIN)
    assert late.end() == 1, late.report()
    refusal = "tensor 4 is missing here, 3.weight float32[3, 3] in the swarm"
    assert any(refusal in line for line in late.stderr), late.report()
    peers.append(swarm.start(TRAIN, "grown"))
    peers[2].expect("here")
    peers[0].tell("go on")
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    assert [peer.stdout.count("refreshed 6") for peer in peers] == [1, 1, 0]
    (end,) = {peer.stdout[-1] for peer in peers}
    found = np.frombuffer(bytes.fromhex(end.split()[1]), np.float32)

    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    used = sorted(p for r in receipts for e in r.contributions for f, n in e.samples for p in range(f, f + n))
    assert used == list(range(len(used))) and len(used) % NUM_SAMPLES == 0, "each sample is on one receipt an epoch"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, optimizer = make()
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=len(receipts)))
    for receipt in receipts[1:]:
        chosen = order.indices(union(part for e in receipt.contributions if e.weight for part in e.samples))
        if not len(chosen):
            grow(model, optimizer)
            continue
        optimizer.zero_grad()
        (model(dataset()[chosen][0]) - 1).square().mean().backward()
        optimizer.step()
    torch.set_num_threads(threads)
    assert len(model) == 4 and np.allclose(found, bits(model), rtol=0, atol=1e-5), np.abs(found - bits(model)).max()


@pytest.mark.long
def test_who_has_joined_before_a_refresh_takes_part_in_it(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, "late", "waits", min_peers=2) for _ in range(2)]
    for peer in peers:  # neither is in an exchange, during which it would give no state
        peer.expect_step(12)
    peers.append(swarm.start(TRAIN, "late"))
    peers[2].expect("wrapped")
    for peer in peers[:2]:
        peer.tell("go on")
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    assert [peer.stdout.count("refreshed 16") for peer in peers] == [1] * 3
    assert len({peer.stdout[-1] for peer in peers}) == 1


@pytest.mark.long
def test_who_asked_before_a_refresh_and_is_given_the_state_after_it_is_refused_with_what_it_lacks(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, *more, min_peers=2) for more in (["held"], [])]
    peers[0].expect("held")
    early = swarm.start(TRAIN)
    early.expect("here")
    peers_when(
        swarm,
        lambda seen: any(record["kind"] == "asked" for record in seen.get(name(early), {}).get("records", [])),
    )
    peers[0].tell("go on")
    assert early.end() == 1, early.report()
    refusal = "tensor 4 is missing here, 3.weight float32[3, 3] in the swarm"
    assert any(refusal in line for line in early.stderr), early.report()
    peers.append(swarm.start(TRAIN, "grown"))
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    assert len({peer.stdout[-1] for peer in peers}) == 1


@pytest.mark.parametrize(
    ("other", "called"),
    [("alone", "a training step on "), ("wide", "refresh to gradients of 6 parameters in 4 buckets of 100 bytes")],
)
def test_who_refreshes_alone_or_to_another_model_is_told_of_both_calls(swarm: Swarm, other: str, called: str) -> None:
    peers = [swarm.start(TRAIN, *more, min_peers=2) for more in ([], [other])]
    assert [peer.end() for peer in peers] == [1, 1], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        line = "\n".join(peer.stderr)
        assert line.count("refresh to gradients of 6 parameters") == (1 if other == "alone" else 2), line
        assert called in line and all(name(each) in line for each in peers), line

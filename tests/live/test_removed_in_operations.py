"""A peer that is removed in an operation outside of its training steps returns to that operation."""

import signal

import pytest

from p2p.step.receipts import read_receipts
from tests.cases import some_of
from tests.live.swarm import Process, Swarm, name

TRAIN = """
import os, signal, sys
import numpy as np
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
stops, has_loader = sys.argv[1:2], sys.argv[2] == "loader"

def total(number):
    result = np.full(1, float(number))
    peer.all_reduce(result)
    assert result[0] == number * peer.world_size, (result, number, peer.world_size)

def at(place):
    if stops == [place] and peer.done == 25:
        stops.clear()
        print("stops")
        os.kill(os.getpid(), signal.SIGSTOP)

def batches():
    for _ in loader.epochs():
        yield from (x for (x,) in loader)
        if peer.done > 40 and peer.world_size == 3:
            break

def own_data():
    while peer.done <= 40 or peer.done % 10 or peer.world_size < 3:
        yield dataset.tensors[0][peer.done % 60:][:2]

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
dataset = torch.utils.data.TensorDataset(torch.arange(60.0)[:, None])
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_view_change(lambda view: print("view of", len(view.members)))
    parallel = p2p.DataParallel(peer, model, optimizer)
    valid = peer.loader(torch.utils.data.TensorDataset(torch.arange(10.0)[:, None]), batch_per_peer=2)
    loader = peer.loader(dataset, epochs=100_000, global_batch=6) if has_loader else None
    for x in batches() if has_loader else own_data():
        at("first")
        total(1)
        at("second")
        total(10)
        optimizer.zero_grad()
        parallel(x).mean().backward()
        at("step")
        optimizer.step()
        if peer.done % 5 == 0:
            at("rare")
            total(100)
        at("last")
        for number in (1000, 10_000):
            total(number)
        if peer.done % 3 == 1:
            at("evaluation")
            evaluated = sum(len(x) for (x,) in valid.evaluate())
            assert peer.combine(1.0, samples=evaluated) == (1.0, 10)
        if peer.done % 5 == 1:
            total(100_000)
    print("end", peer.done, [each.tolist() for each in model.parameters()])
"""
"""All operations are equal, and called from one line: they differ only by the calls before them."""

PLACES = [
    (where, data)
    for data in ("loader", "own data")
    for where in ("first", "second", "step", "rare", "last", "evaluation")
]


@pytest.mark.light
@pytest.mark.parametrize(("where", "data"), some_of(PLACES, 0, 3, 5, 6))
def test_it_has_the_result_of_the_same_operation_later_and_then_the_state(swarm: Swarm, where: str, data: str) -> None:
    peers = [swarm.start(TRAIN, stops, data, min_peers=3) for stops in (where, "no", "no")]
    come_back(peers)
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
    assert len({peer.expect("end") for peer in peers}) == 1
    assert "comes back" in "\n".join(peers[0].stderr)
    complete, its_own = (
        read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl") for peer in (peers[1], peers[0])
    )
    assert [receipt.step for receipt in complete] == list(range(len(complete)))
    assert {receipt.step for receipt in its_own} < {receipt.step for receipt in complete}
    assert all(receipt == complete[receipt.step] for receipt in its_own), "of what it was given it has no receipt"


CUSTOM = """
import os, signal, sys
import numpy as np
import p2p

stops, what = sys.argv[1:]
is_last = False

def at(place):
    global stops
    if stops == place and peer.done == 25:
        stops = ""
        print("stops")
        os.kill(os.getpid(), signal.SIGSTOP)

def train(indices):
    global is_last
    has_sample = np.zeros(len(dataset), np.int64)
    with peer.step() as step:
        at("step")
        has_sample[indices] = step.samples > 0
        peer.all_reduce(has_sample)
    assert has_sample.max() == 1 and has_sample.sum() == peer.receipt.num_samples, has_sample
    is_last = peer.done > 40 and len(peer.receipt.contributions) == 3

def batches():
    for _ in loader.epochs():
        for indices in loader:
            yield indices
            if is_last:
                return

dataset = list(range(60))
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_view_change(lambda view: print("view of", len(view.members)))
    loader = peer.loader(dataset, epochs=100_000, global_batch=6)
    for indices in batches():
        while True:
            try:
                train(indices)
                at("operation")
                peer.barrier()
                break
            except p2p.RemovedFromView:
                peer.wait_view()
                if what == "next":
                    break
    print("end", peer.done, peer.samples)
"""
"""Without a model: the script comes back by itself, and calls the step of its batch again, or goes on to the next."""


@pytest.mark.light
@pytest.mark.torch
@pytest.mark.parametrize(("stops", "what"), [("step", "again"), ("step", "next"), ("operation", "next")])
def test_what_it_holds_of_a_loader_counts_no_more_and_it_comes_back_with_a_batch(
    swarm: Swarm, stops: str, what: str
) -> None:
    peers = [swarm.start(CUSTOM, place, what, min_peers=3) for place in (stops, "no", "no")]
    come_back(peers)
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
    assert len({peer.expect("end") for peer in peers}) == 1
    receipts = read_receipts(swarm.receipts / f"{name(peers[1])}.receipts.jsonl")
    parts = sorted(part for receipt in receipts for each in receipt.contributions for part in each.samples)
    assert [start for start, _ in parts] == [0, *(start + number for start, number in parts[:-1])], "each sample once"


def come_back(peers: list[Process]) -> None:
    stopped, *others = peers
    stopped.expect("stops")
    for peer in others:
        peer.expect_line("view of 2")
    stopped.send_signal(signal.SIGCONT)

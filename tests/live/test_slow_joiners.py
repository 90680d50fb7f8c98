"""Joiners whose steps take far longer than the members', so that they never catch up by fed steps."""

from itertools import pairwise

import pytest

from p2p.step.receipts import read_receipts
from p2p.telemetry.records import Kind
from tests.live.swarm import Process, Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.long]

TRAIN = """
import sys
import time
import numpy as np
import torch
import p2p
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
torch.manual_seed(2)
model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
data = torch.randn(600, 32, generator=torch.Generator().manual_seed(1))
extra_s = 0.15 if "slow" in sys.argv else 0.0


def add_up():
    total = np.ones(1)
    peer.all_reduce(total)
    assert total[0] == peer.world_size


with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer)
    loader = peer.loader(data, global_batch=12, epochs=10**6, seed=3)
    num_together = 0
    for x in (x for _ in loader.epochs() for x in loader):
        if "before" in sys.argv:
            add_up()
        loss = functional.mse_loss(parallel(x), x)
        time.sleep(0.005 + extra_s)  # its computation
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_together = num_together + 1 if peer.world_size == 3 else 0
        if "metric" in sys.argv:
            add_up()
        print("step", peer.last_step, peer.world_size)
        if num_together == 10:
            break
"""
"""All peers end ten steps after all three have a seat. `metric`: an operation of the script's own follows each update;
`before`: it precedes each step of the model."""

MOST_TRIES = 2
"""A view with the joiner comes when members can give it the state, unless agreement takes longer than their wait."""


def longest_gap_s(swarm: Swarm, member: Process, until_ns: int) -> float:
    """The longest time between two steps of `member`, up to the first step after `until_ns`."""
    times = [record.time_ns for record in swarm.records(member, Kind.COMMITTED)]
    return max(after - before for before, after in pairwise(times[20:]) if before <= until_ns) / 1e9


@pytest.mark.parametrize("how", ["plain", "metric", "before"])
def test_who_takes_thirty_times_as_long_has_a_seat_soon(swarm: Swarm, how: str) -> None:
    peers = [swarm.start(TRAIN, how, min_peers=2) for _ in range(2)]
    peers[0].expect_step(50)
    joiner = swarm.start(TRAIN, how, "slow")
    everybody = [*peers, joiner]
    assert [peer.end() for peer in everybody] == [0, 0, 0], "\n".join(peer.report() for peer in everybody)
    known = [read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl") for peer in everybody]
    assert known[0] == known[1]
    assert [receipt.step for receipt in known[0]] == list(range(len(known[0])))
    assert known[0][-len(known[2]) :] == known[2]
    asked, seats = swarm.records(joiner, Kind.ASKED), swarm.records(joiner, Kind.ACTIVE)
    assert len(asked) <= MOST_TRIES
    seat_s = (seats[-1].time_ns - asked[0].time_ns) / 1e9
    gap_s = max(longest_gap_s(swarm, peer, seats[-1].time_ns) for peer in peers)
    print(f"{how}: a seat after {seat_s:.2f} s and {len(asked)} tries; no step for {gap_s:.2f} s at most")

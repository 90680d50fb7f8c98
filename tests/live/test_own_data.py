"""Scripts that read their data themselves: a joiner gets a warning about it, and disturbs no other peer."""

import re

import pytest

from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import select, sys
import torch
import p2p
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def is_told():
    return select.select([sys.stdin], [], [], 0.002)[0]

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(256, 4)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
with p2p.join() as peer:
    parallel = p2p.DataParallel(peer, model, optimizer)
    shard = DistributedSampler(data, peer.world_size, peer.rank) if "sampler" in sys.argv else None
    loader = DataLoader(data, 8, sampler=shard)
    while not is_told():
        for x, y in loader:
            parallel(x)  # to look at it
            loss = (parallel(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("step", peer.done, peer.world_size)
            if peer.done % 8 == 0 and is_told():
                break
"""
"""Trains until stdin is closed or has a line, and a multiple of 8 steps is done; a sampler divides the data by rank.

All peers, including joiners, drop one forward pass in each step."""


def test_a_joiner_with_data_of_its_own_is_told_where_the_swarm_is_and_who_is_left_alone_that_it_is(
    swarm: Swarm,
) -> None:
    founders = [swarm.start(TRAIN, min_peers=2) for _ in range(2)]
    founders[0].expect_step(8)
    joined = swarm.start(TRAIN)
    line = joined.expect_line("this script reads its data without peer.loader, so its loop starts .*", is_error=True)
    found = re.search(r"the swarm has trained (\d+) steps, .* batch number `peer.done`, or use peer.loader", line)
    assert found is not None and int(found[1]) >= 8
    for founder in founders:
        founder.expect_line("this script reads its data .*, and the members changed at step .*", is_error=True)
        founder.kill()
        founder.end()
    joined.expect_line(
        "this script reads its data .* this peer trains alone, after [23] members before: .*", is_error=True
    )
    joined.tell("stop")
    assert joined.end() == 0, joined.report()
    swarm.leaves_files = True


def test_a_joiner_that_shares_out_by_rank_ends_alone_and_is_told_why(swarm: Swarm) -> None:
    founders = [swarm.start(TRAIN, "sampler", min_peers=2) for _ in range(2)]
    founders[0].expect_step(8)
    joined = swarm.start(TRAIN, "sampler")
    assert joined.end() == 1
    (told,) = [line for line in joined.stderr if line.startswith("this peer has just joined")]
    assert "its rank is 2 of 2, after all members: a DistributedSampler refuses that; use peer.loader" in told
    step = int(founders[0].stdout[-1].split()[1])
    for founder in founders:
        founder.expect_step(step + 8)
        assert founder.complaints() == []
    for founder in founders:
        founder.kill()
        founder.end()
    swarm.leaves_files = True


ENDLESS = """
import p2p
from torch.utils.data import IterableDataset

class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield 1

with p2p.join() as peer:
    peer.loader(Endless(), global_batch=4)
"""


def test_data_that_nobody_can_ask_for_by_number_are_refused_in_one_line(swarm: Swarm) -> None:
    peers = [swarm.start(ENDLESS, min_peers=2) for _ in range(2)]
    assert [peer.end() for peer in peers] == [1, 1]
    for peer in peers:
        assert len(peer.stderr) == 1, peer.report()
        line = peer.stderr[0]
        assert line.startswith("shoal: Endless has no samples that can be read by index"), line
        assert "a DataLoader of your own" in line

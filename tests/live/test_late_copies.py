"""A separate thread copies a state after the script would change it: the next update waits for the copy."""

import pytest

from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import sys, threading
import torch
import xxhash
import p2p
from p2p.training.state.state_copies import StateCopies
from torch import nn

num_joined = 3
is_updated, were_early = threading.Event(), []
aside = StateCopies.aside

def late(self, tell, copy, then):
    is_updated.clear()
    def wait_and_copy():
        were_early.append(is_updated.wait(0.3))
        copy()
    return aside(self, tell, wait_and_copy, then)

StateCopies.aside = late
torch.set_num_threads(1)
torch.manual_seed(len(sys.argv))
model = nn.Sequential(nn.Linear(8, 500), nn.BatchNorm1d(500), nn.Linear(500, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with p2p.join(rejoin=False) as peer:
    print("here", flush=True)
    parallel = p2p.DataParallel(peer, model, optimizer, state_digest="all")
    loader = peer.loader(torch.randn(600, 8, generator=torch.Generator().manual_seed(1)), global_batch=12, epochs=10**6)
    last = 0
    for x in (x for _ in loader.epochs() for x in loader):
        parallel(x).square().mean().backward()
        optimizer.step()
        is_updated.set()
        optimizer.zero_grad()
        if peer.world_size == num_joined and not last:
            last = peer.last_step + 10
        if last and peer.last_step >= last:
            break
    digest = xxhash.xxh3_128()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print("early", *were_early, flush=True)
    print("end", digest.hexdigest(), flush=True)
"""


def test_a_joiner_has_the_bits_of_one_step_however_late_they_are_copied(swarm: Swarm) -> None:
    members = [swarm.start(TRAIN, min_peers=2) for _ in range(2)]
    for member in members:
        member.expect("here")
    joiner = swarm.start(TRAIN, "joins", min_peers=2)
    ends = [peer.expect_line("end .*") for peer in (*members, joiner)]
    assert [peer.end() for peer in (*members, joiner)] == [0, 0, 0]
    assert len(set(ends)) == 1
    were_early = {word for member in members for word in member.expect("early").split()[1:]}
    assert were_early == {"False"}, "no update was made before the copy was"

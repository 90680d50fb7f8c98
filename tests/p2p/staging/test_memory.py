"""Memory of staging does not grow with the steps."""

import resource
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from p2p import DataParallel, Peer, PeerConfig
from p2p.config import LoopConfig
from tests.p2p.staging.standin import StandIn

NUM_STEPS, NUM_FIRST = 10_000, 200
MOST_GROWTH_KB = 4 << 10
"""Limit of the process's growth in 10,000 steps: less than half a KiB per step."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_steps_take_no_more_memory_than_the_first() -> None:
    device, before = StandIn(5), torch.get_num_threads()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, taken = torch.ones(2, 4), set()
    loop = LoopConfig(device_of=device.device_of, device_adds=True)
    try:
        with TemporaryDirectory(prefix="shoal") as folder:
            config = PeerConfig(swarm="pond", home=Path(folder) / "home", step_timeout_s=60.0, loop=loop)
            with Peer(config) as peer:
                arena = peer._session.loop.resources.host_memory._arena
                assert arena is not None
                parallel = DataParallel(peer, model, optimizer, bucket_bytes=64)
                for step in range(NUM_STEPS):
                    optimizer.zero_grad()
                    parallel(x).square().mean().backward()
                    optimizer.step()
                    if step % 10 == 0:
                        peer.all_reduce(torch.ones(3))
                    num_open = sum(map(len, device._queues.values()))
                    taken.add((arena.free_bytes, sum(device.pinned.values()) - sum(device.pinned)))
                    assert num_open < 50
                    if step == NUM_FIRST:
                        first, first_kb = len(taken), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                assert len(taken) == first
                assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first_kb < MOST_GROWTH_KB
    finally:
        torch.set_num_threads(before)

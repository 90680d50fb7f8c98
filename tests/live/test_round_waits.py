"""A peer that has ended its round waits for slower peers, as long as they make progress."""

import re

import pytest

from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

SLOW = """
import sys, time
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
is_slow = "slow" in sys.argv
with p2p.join(step_timeout_s=2.5) as peer:
    print("here", peer.peer_id)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replica = p2p.DiLoCo(peer, model, optimizer, inner_steps=8)
    while True:
        if is_slow and peer.done:
            print("waits")
            sys.stdin.readline()
            break
        time.sleep(0.4 * is_slow)  # its computation
        replica(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        if replica.has_committed:
            print("round", peer.done)
"""
"""One round in which a step takes 0.4 s at one of two peers, which then stops making steps."""


def test_a_slow_peer_is_waited_for_as_long_as_it_makes_steps(swarm: Swarm) -> None:
    quick, slow = [swarm.start(SLOW, which, min_peers=2) for which in ("quick", "slow")]
    quick.expect("round 1")
    slow.expect("waits")
    assert quick.end() == 1, quick.report()
    said = rf".*step 2 did not commit in 2.5 s: peer {name(slow)} .* has called no operation of step 2 yet; .*"
    assert re.fullmatch(said, quick.stderr[-1]), quick.report()
    slow.tell("go on")
    assert slow.end() == 0, slow.report()

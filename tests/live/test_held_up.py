"""Joiners whose script pauses for longer than the steps that are kept for it."""

import pytest

from gossip.fed_steps import MOST_FED
from tests.cases import some_of
from tests.live.swarm import Swarm

pytestmark = pytest.mark.torch

TRAIN = """
import os, select, sys
import numpy as np
import torch
import p2p
from torch import nn

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return sys.stdin.readline().strip() if ready else ""

torch.set_num_threads(1)
torch.manual_seed(2)
models = {"first": nn.Linear(2, 2), "second": nn.Linear(2, 3)}
optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in models.items()}
x = torch.ones(3, 2)
stands_still = "joiner" in sys.argv
num_turns = 0

with p2p.join() as peer:
    parallel = p2p.DataParallel(peer, models, optimizers)
    while command() != "leave":
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            parallel[name](x).square().mean().backward()
            optimizer.step()
            if stands_still:
                print("stands still", peer.last_step, flush=True)
                sys.stdin.readline()
                stands_still = False
        total = np.ones(1)
        peer.all_reduce(total)
        assert total[0] == peer.world_size
        num_turns += 1
        if num_turns == 1 or num_turns % 100 == 0:
            print("step", peer.last_step, peer.world_size, flush=True)
    print("left", flush=True)
"""
"""Two models in turn, and then an operation of the script's own. A joiner pauses after its first update until it is
told to continue."""


@pytest.mark.long
@pytest.mark.parametrize("num_missed", some_of([MOST_FED + 200, 3 * MOST_FED], 0))
def test_who_stands_still_until_there_is_no_room_for_what_is_fed_has_a_seat_later(
    swarm: Swarm, num_missed: int
) -> None:
    first = swarm.start(TRAIN)
    first.expect_step(1)
    joiner = swarm.start(TRAIN, "joiner")
    first.expect_step(int(joiner.expect("stands still").split()[-1]) + num_missed)
    joiner.tell("on")
    joiner.expect_line(r"step \d+ 2")
    for peer in (first, joiner):
        peer.tell("leave")
    assert [first.end(), joiner.end()] == [0, 0], first.report() + joiner.report()

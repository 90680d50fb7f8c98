"""A stopped peer continues after its run has ended and others have begun another run with the same name."""

import signal

import pytest

from p2p.step.receipts import read_receipts
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import os, select, signal, sys
import numpy as np
import torch
import p2p

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return sys.stdin.readline().strip() if ready else ""

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
word, place = "", sys.argv[1]
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_view_change(lambda view: print("members", len(view.members)))
    parallel = p2p.DataParallel(peer, model, optimizer)
    for x in peer.loader(torch.randn(1_000_000, 4), global_batch=4):
        if place == "step" and peer.done == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        if place == "operation" and peer.done == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        peer.all_reduce(wish := np.array([word == "stop"], np.int64))
        print("step", peer.done, peer.rank, peer.world_size)
        if wish[0]:
            break
        word = word or command()
    print("end", peer.done)
"""
"""Trains until a peer gets the word `stop`; is stopped once, before the place named by its argument."""


@pytest.mark.parametrize("place", ["step", "operation"])
def test_who_was_stopped_until_its_run_was_over_does_not_go_on_in_another_one(swarm: Swarm, place: str) -> None:
    others = [swarm.start(TRAIN, "nowhere", min_peers=3)]
    others[0].expect("here")
    others.append(swarm.start(TRAIN, "nowhere", min_peers=3))
    stopped = swarm.start(TRAIN, place, min_peers=3)
    for peer in others:
        peer.expect_line("members 2")
    others[0].tell("stop")
    assert [peer.end() for peer in others] == [0, 0]
    newcomer = swarm.start(TRAIN, "nowhere")
    newcomer.expect("here")  # it started while the stopped peer was a member, and founds once that is removed
    stopped.send_signal(signal.SIGCONT)
    newcomer.expect_step(1)
    assert stopped.end() == 0, stopped.report()
    newcomer.tell("stop")
    assert newcomer.end() == 0, newcomer.report()
    assert not any(line.startswith("end") for line in stopped.stdout), "it has not gone on in its loop"
    assert stopped.stderr[-1].startswith("shoal: the run of this peer, after 5 steps of training, is over or")
    files = (swarm.receipts / f"{name(peer)}.receipts.jsonl" for peer in (stopped, others[0], newcomer))
    before, whole, after = ({each.lineage for each in read_receipts(path)} for path in files)
    assert before == whole and before.isdisjoint(after)

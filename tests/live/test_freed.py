"""Resources that remain after a peer has left, in a process that continues, such as a notebook."""

import pytest

from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

THREE = """
import gc, weakref
import torch
import p2p

torch.set_num_threads(1)
dataset = torch.utils.data.TensorDataset(torch.randn(48, 4))

def train(wrapper, given, length):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    with p2p.join() as peer:
        wrapped = wrapper(peer, model, optimizer, **given)
        for (x,) in peer.loader(dataset, global_batch=8, **length):
            optimizer.zero_grad()
            wrapped(x).sum().backward()
            optimizer.step()
        print("trained", peer.done)
    return [weakref.ref(each) for each in (model, optimizer, wrapped, peer)]

ways = [(p2p.DataParallel, {}, {}), (p2p.DiLoCo, {}, {"inner_steps": 2})]
ways.append((p2p.DiLoCo, {"dense_steps": 40}, {"inner_steps": 2}))
for way in ways:
    left = train(*way)
    gc.collect()
    print("left", [type(each()).__name__ for each in left if each() is not None])
"""


def test_a_peer_that_has_left_keeps_no_model_and_neither_does_its_model(swarm: Swarm) -> None:
    peer = swarm.start(THREE)
    assert peer.end() == 0, peer.report()
    assert [line for line in peer.stdout if line.startswith("left")] == ["left []"] * 3
    assert sum(line.startswith("trained") for line in peer.stdout) == 3

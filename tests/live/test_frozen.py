"""A joiner does not receive frozen parameters that it already has, and trains on the same bits as all others."""

import pytest

from p2p.telemetry.records import Kind
from tests.devices import need
from tests.live.swarm import Swarm

pytestmark = pytest.mark.torch

NUM_BYTES = 4_000_000

TRAIN = """
import logging, sys
import torch
import xxhash
import p2p
from torch import nn

device = None
if "device" in sys.argv:
    from tests.p2p.staging.standin import StandIn as Device
if "gpu" in sys.argv:
    from tests.p2p.staging.gpu import Gpu as Device

torch.set_num_threads(1)
torch.manual_seed(0)

class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(1000, 1000, bias=False).requires_grad_(False)
        self.head = nn.Linear(1000, 1)

    def forward(self, x):
        return self.head(self.backbone(x))

def tensors_of_the_state():
    return [*model.state_dict().values(), *(t for s in optimizer.state.values() for t in s.values() if t is not None)]

model = Adapted()
if "other" in sys.argv:
    nn.init.zeros_(model.backbone.weight)
if {"device", "gpu"} & {*sys.argv}:
    device = Device(0)
    device.watched = tensors_of_the_state
    model.to(device.where)
class Changes(logging.Handler):
    "Another thread of the script changes weights, once a state is on its way."

    def emit(self, record):
        if "comes from" in record.getMessage():
            logging.getLogger("p2p").removeHandler(self)
            model.backbone.weight.data.add_(1)

if "changes" in sys.argv:
    logging.getLogger("p2p").addHandler(Changes())
    logging.getLogger("p2p").setLevel(logging.INFO)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-8, momentum=0.9)
with p2p.join() as peer:
    print("here", peer.peer_id)
    if device is not None:
        peer._session.device_of = device.device_of
    if "rounds" in sys.argv:
        parallel = p2p.DiLoCo(peer, model, optimizer)
    else:
        parallel = p2p.DataParallel(peer, model, optimizer)
    num_together = 0
    length = {"inner_steps": 2} if "rounds" in sys.argv else {}
    loader = peer.loader(torch.randn(1, 1000).expand(10**5, -1), global_batch=6, **length)
    for x in loader:
        if device is not None:
            x = x.to(device.where)
        parallel(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "moves" in sys.argv:  # as an average of weights does: nothing that torch, or anybody else, is told of
            model.backbone.weight.data.mul_(0.999)
        print("step", peer.last_step, peer.world_size)
        num_together += peer.world_size == 3
        if num_together == 5:
            break
    digest = xxhash.xxh3_64()
    for each in model.state_dict().values():
        digest.update(each.detach().cpu().numpy().tobytes())
    print("end", digest.hexdigest())
"""
"""A frozen layer of 4 MB, and a small one that is trained. All end after five steps of three members."""


def join(swarm: Swarm, *words: str, members: str = "host", joiner: str = "host", every: str = "") -> int:
    """Two peers train, and another joins with `words`; `every`: a word for all. Returns bytes of the last state."""
    peers = [swarm.start(TRAIN, members, every, min_peers=2) for _ in range(2)]
    peers[0].expect_line(r"step \d+ 2")
    peers.append(swarm.start(TRAIN, joiner, every, *words))
    assert [peer.end() for peer in peers] == [0] * 3, "\n".join(peer.report() for peer in peers)
    assert len({peer.expect("end ") for peer in peers}) == 1, "all have the same bits"
    return int(swarm.records(peers[2], Kind.WHOLE)[-1].value)


PLACES = [
    ("host", "host"),
    pytest.param("host", "device", marks=pytest.mark.long),
    pytest.param("device", "host", marks=pytest.mark.long),
    pytest.param("device", "device", marks=pytest.mark.long),
    pytest.param("gpu", "gpu", marks=pytest.mark.gpu),
]
"""Places of the members, and of the joiner."""


@pytest.mark.parametrize(("members", "joiner"), PLACES)
def test_a_joiner_is_not_sent_the_frozen_parameters_that_it_has(swarm: Swarm, members: str, joiner: str) -> None:
    need("cuda:0" if "gpu" in (members, joiner) else "cpu")
    assert join(swarm, members=members, joiner=joiner) < NUM_BYTES / 10


@pytest.mark.long
def test_a_joiner_in_rounds_is_not_sent_them_either(swarm: Swarm) -> None:
    assert join(swarm, every="rounds") < NUM_BYTES / 10


@pytest.mark.parametrize(("members", "joiner"), PLACES)
def test_what_is_changed_behind_the_back_of_all_is_sent_as_it_is_by_then(
    swarm: Swarm, members: str, joiner: str
) -> None:
    need("cuda:0" if "gpu" in (members, joiner) else "cpu")
    assert join(swarm, members=members, joiner=joiner, every="moves") > NUM_BYTES


def test_a_joiner_that_has_them_no_more_when_the_state_comes_is_given_all(swarm: Swarm) -> None:
    assert join(swarm, "changes") > NUM_BYTES


def test_a_joiner_without_the_weights_of_the_others_has_them_of_the_swarm(swarm: Swarm) -> None:
    assert join(swarm, "other") > 0

"""Three peers whose tensors live on a stand-in for a device, or not: the same bits, whoever dies in whatever phase."""

import signal

import pytest

from tests.cases import some_of
from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_STEPS, DYING_IN = 20, 4

TRAIN = """
import os, signal, sys
import torch
import p2p
from torch import nn
from tests.live.test_devices import DYING_IN, NUM_STEPS
from tests.p2p.staging.standin import StandIn

index, where, phase = int(sys.argv[1]), sys.argv[2], sys.argv[3]
NUM_BUCKETS = 4

class Device(StandIn):
    "Is killed in a phase of one step."
    in_step = num_fetches = num_stores = 0

    def begin_step(self, step):
        self.in_step, self.num_fetches, self.num_stores = step, 0, 0

    def die(self, at, is_it):
        if self.in_step != DYING_IN or not is_it:
            return
        if phase == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == f"lost in {at}":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def mark(self):  # a bucket is full, and in its buffer
        self.die("flatten", self.num_fetches == 2)
        return super().mark()

    def fetch(self, source, into, after):
        mark = super().fetch(source, into, after)
        self.num_fetches += 1
        self.die("D2H", self.num_fetches == 3)
        return mark

    def store(self, source, into, after):
        self.num_stores += 1
        self.die("exchange", self.num_stores == 1)  # others may be under way
        mark = super().store(source, into, after)
        self.die("H2D", self.num_stores == 2)
        self.die("commit", self.num_stores == NUM_BUCKETS)  # all are complete here
        return mark

torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    print("here", flush=True)
    device = Device(index)
    if where == "device":
        peer._session.device_of = device.device_of
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=8, state_digest="all")
    counted, receipts = [], []
    for step in range(NUM_STEPS):
        device.begin_step(step + 1)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + peer.rank))
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        counted.append(f"{peer.done}:{len(peer.receipt.contributions)}")
        receipts.append(peer.receipt)
    device.drain()
    assert (device.num_copies > 0) == (where == "device")
    print("receipts", *counted)
    print("parameters", *(parameter.double().sum().item().hex() for parameter in model.parameters()))
    print("digests", *(each.state_digest for each in receipts))
    print("in whole", *receipts)
"""


def train(swarm: Swarm, places: list[str], phase: str = "none") -> list[list[str]]:
    """What those say that live to the end; the last one is killed in `phase`."""
    peers = [
        swarm.start(TRAIN, str(index), place, phase if index == 2 else "none", min_peers=3)
        for index, place in enumerate(places)
    ]
    codes = [peer.end() for peer in peers]
    dead = 0 if phase == "none" else 1 if phase.startswith("lost") else -signal.SIGKILL
    assert codes == [0, 0, dead], "\n".join(peer.report() for peer in peers)
    assert dead != 1 or peers[2].stderr[-1].endswith("an illegal memory access was encountered")
    return [peer.stdout for peer in peers[: 3 if phase == "none" else 2]]


def test_devices_in_all_in_one_and_in_none_make_the_same_bits(swarm: Swarm) -> None:
    said = []
    for places in (["device"] * 3, ["host", "device", "host"], ["host"] * 3):
        peers = train(swarm, places)
        assert len(peers) == 3 and all(lines == peers[0] for lines in peers), peers
        said.append(peers[0][:-1])  # whole receipts have names of peers, and times are summed, too
    assert all(lines == said[0] for lines in said), said
    assert said[0][-1].startswith("digests ") and len(set(said[0][-1].split())) == NUM_STEPS + 1
    assert said[0][1] == "receipts " + " ".join(f"{step}:3" for step in range(1, NUM_STEPS + 1))


PHASES = ["flatten", "D2H", "exchange", "H2D", "commit", "lost in D2H", "lost in H2D"]


@pytest.mark.parametrize("phase", some_of(PHASES, 1, 4, 6))
def test_no_step_is_lost_in_whichever_phase_a_peer_with_a_device_is_killed(swarm: Swarm, phase: str) -> None:
    swarm.leaves_files = True  # the others are through before the kernel has taken all of the killed process back
    one, other = train(swarm, ["device", "host", "device"], phase)
    assert one == other
    counts = [entry.split(":") for entry in one[1].split()[1:]]
    assert [int(step) for step, _ in counts] == [*range(1, NUM_STEPS + 1)]
    members = [int(number) for _, number in counts]
    assert members[: DYING_IN - 1] == [3] * (DYING_IN - 1) and members[DYING_IN:] == [2] * (NUM_STEPS - DYING_IN)
    is_early = phase in ("flatten", "D2H", "lost in D2H")  # otherwise it may have finished the step, and counts
    assert members[DYING_IN - 1] == 2 or not is_early


JOINS = """
import sys, threading
import torch
import p2p
from torch import nn
from tests.p2p.staging.standin import StandIn

where = sys.argv[1]

class Device(StandIn):
    num_given = 0

    def fetch(self, source, into, after):
        self.num_given += threading.current_thread().name == "shoal-copy"
        return super().fetch(source, into, after)

torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    device = Device(4)
    if where == "device":
        peer._session.device_of = device.device_of
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=8, state_digest="all")
    device.watched = lambda: [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    print("here", flush=True)
    together = 0
    while together < 5:
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * peer.done + peer.rank))
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        together += len(peer.receipt.contributions) == 2
    print("given", device.num_given > 0)
    print("parameters", *(parameter.double().sum().item().hex() for parameter in model.parameters()))
"""


@pytest.mark.parametrize(
    ("founder", "joiner"), some_of([("device", "host"), ("host", "device"), ("device", "device")], 0, 1)
)
def test_a_state_goes_from_a_device_to_the_host_and_back(swarm: Swarm, founder: str, joiner: str) -> None:
    first = swarm.start(JOINS, founder, min_peers=1)
    first.expect("here")
    second = swarm.start(JOINS, joiner, min_peers=1)
    assert [peer.end() for peer in (first, second)] == [0, 0], first.report() + second.report()
    (_, given, parameters), (*_, others) = first.stdout, second.stdout
    assert given == f"given {founder == 'device'}" and parameters == others

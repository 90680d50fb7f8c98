"""Three peers with tensors on a device or not: the same bits, whichever peer dies in whichever phase.

A place is the `host`, or a `device`, the stand-in; `another` is a stand-in with a numerics class of its own, as has a
`gpu`.
"""

import signal
from collections.abc import Sequence

import pytest

from tests.cases import some_of
from tests.devices import need
from tests.live.swarm import Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_STEPS, DYING_IN = 20, 4
ERROR = "an illegal memory access was encountered"

TRAIN = """
import os, signal, sys
import torch
import p2p
from torch import nn
from tests.live.test_devices import DYING_IN, NUM_STEPS
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.standin import StandIn

index, where, phase = int(sys.argv[1]), sys.argv[2], sys.argv[3]
NUM_BUCKETS = 4

class Device(Gpu if where == "gpu" else StandIn):
    "Is killed in a phase of one step."
    in_step = num_fetches = num_stores = 0

    def begin_step(self, step):
        self.in_step, self.num_fetches, self.num_stores = step, 0, 0

    def die(self, at, is_it):
        if self.in_step != DYING_IN or not is_it:
            return
        if phase == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == f"broken in {at}":
            self.lose()
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
device = Device(index)
if where == "another":
    device.numerics = "of its own"
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(device.where)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    print("here", flush=True)
    if where != "host":
        peer._session.device_of = device.device_of
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=8, state_digest="all")
    counted, receipts = [], []
    for step in range(NUM_STEPS):
        device.begin_step(step + 1)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + peer.rank))
        optimizer.zero_grad()
        parallel(x.to(device.where)).square().mean().backward()
        optimizer.step()
        counted.append(f"{peer.done}:{len(peer.receipt.contributions)}")
        receipts.append(peer.receipt)
    device.drain()
    assert (device.num_copies > 0) == (where != "host")
    print("receipts", *counted)
    print("parameters", *(parameter.double().sum().item().hex() for parameter in model.parameters()))
    print("digests", *(each.state_digest for each in receipts))
    print("results", *(each.digest for each in receipts))
    print("in whole", *receipts)
"""


def train(swarm: Swarm, places: list[str], phase: str = "none") -> list[list[str]]:
    """Train; returns the output of the surviving peers. The last peer is killed in `phase`."""
    peers = [
        swarm.start(TRAIN, str(index), place, phase if index == 2 else "none", min_peers=3)
        for index, place in enumerate(places)
    ]
    codes = [peer.end() for peer in peers]
    dead = 0 if phase == "none" else 1 if phase.startswith(("lost", "broken")) else -signal.SIGKILL
    assert codes == [0, 0, dead], "\n".join(peer.report() for peer in peers)
    if dead == 1:
        said = [line for line in peers[2].stderr if line.startswith("shoal: ")]  # torch's own errors follow
        assert said and "device" in said[-1] and said[-1].split(": ")[-1] == ERROR, peers[2].report()
    return [peer.stdout for peer in peers[: 3 if phase == "none" else 2]]


def lines_of(peers: Sequence[Sequence[str]], name: str) -> list[str]:
    return [line for said in peers for line in said if line.startswith(f"{name} ")]


def test_devices_in_all_in_one_and_in_none_make_the_same_bits(swarm: Swarm) -> None:
    said = []
    for places in (["device"] * 3, ["host", "device", "host"], ["host"] * 3):
        peers = train(swarm, places)
        assert len(peers) == 3 and all(lines == peers[0] for lines in peers), peers
        said.append(peers[0][:-2])  # without receipts, which have names of peers, and sums of times
    assert all(lines == said[0] for lines in said), said
    assert said[0][-1].startswith("digests ") and len(set(said[0][-1].split())) == NUM_STEPS + 1
    assert said[0][1] == "receipts " + " ".join(f"{step}:3" for step in range(1, NUM_STEPS + 1))


MIXED = [
    *(pytest.param("another", num, marks=pytest.mark.long) for num in (1, 2)),
    *(pytest.param("gpu", num, marks=pytest.mark.gpu) for num in (1, 2, 3)),
]


@pytest.mark.parametrize(("place", "num_devices"), MIXED)
def test_peers_of_several_numerics_classes_have_the_same_results(swarm: Swarm, place: str, num_devices: int) -> None:
    """Those of one class also have the same parameters."""
    need("cuda:0" if place == "gpu" else "cpu")
    peers = train(swarm, [place] * num_devices + ["host"] * (3 - num_devices))
    for name in ("receipts", "results"):
        lines = lines_of(peers, name)
        assert len(lines) == 3 and len(set(lines)) == 1, lines
    parameters = lines_of(peers, "parameters")
    assert len(set(parameters[:num_devices])) == 1 and len(set(parameters[num_devices:])) == (num_devices < 3)


PHASES = ["flatten", "D2H", "exchange", "H2D", "commit", "lost in D2H", "lost in H2D", "broken in D2H", "broken in H2D"]
KILLED = [
    *some_of([("device", phase) for phase in PHASES], 1, 4, 7),
    *(pytest.param("gpu", phase, marks=pytest.mark.gpu) for phase in PHASES),
]


@pytest.mark.parametrize(("place", "phase"), KILLED)
def test_no_step_is_lost_in_whichever_phase_a_peer_with_a_device_is_killed(
    swarm: Swarm, place: str, phase: str
) -> None:
    need("cuda:0" if place == "gpu" else "cpu")
    swarm.leaves_files = True  # the others end before the kernel has released all of the killed process
    one, other = train(swarm, [place, "host", place], phase)
    assert place == "gpu" or one == other
    assert all(len(set(lines_of((one, other), name))) == 1 for name in ("receipts", "results"))
    counts = [entry.split(":") for entry in one[1].split()[1:]]
    assert [int(step) for step, _ in counts] == [*range(1, NUM_STEPS + 1)]
    members = [int(number) for _, number in counts]
    assert members[: DYING_IN - 1] == [3] * (DYING_IN - 1) and members[DYING_IN:] == [2] * (NUM_STEPS - DYING_IN)
    is_early = phase in (
        "flatten",
        "D2H",
        "lost in D2H",
        "broken in D2H",
    )  # in later phases it may have finished the step, and then counts
    assert members[DYING_IN - 1] == 2 or not is_early


JOINS = """
import sys, threading
import torch
import p2p
from torch import nn
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.standin import StandIn

where = sys.argv[1]

class Device(Gpu if where == "gpu" else StandIn):
    num_given = 0

    def fetch(self, source, into, after):
        self.num_given += threading.current_thread().name == "shoal-copy"
        return super().fetch(source, into, after)

torch.set_num_threads(1)
torch.manual_seed(3)
device = Device(4)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)).to(device.where)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    if where != "host":
        peer._session.device_of = device.device_of
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=8, state_digest="all")
    device.watched = lambda: [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    print("here", flush=True)
    together = 0
    while together < 5:
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * peer.done + peer.rank))
        optimizer.zero_grad()
        parallel(x.to(device.where)).square().mean().backward()
        optimizer.step()
        together += len(peer.receipt.contributions) == 2
    print("result", peer.receipt.digest)
    print("given", device.num_given > 0)
    print("parameters", *(parameter.double().sum().item().hex() for parameter in model.parameters()))
"""


JOINED = [
    *some_of([("device", "host"), ("host", "device"), ("device", "device")], 0, 1),
    *(pytest.param(*pair, marks=pytest.mark.gpu) for pair in (("gpu", "host"), ("host", "gpu"), ("gpu", "gpu"))),
]


@pytest.mark.parametrize(("founder", "joiner"), JOINED)
def test_a_state_goes_from_a_device_to_the_host_and_back(swarm: Swarm, founder: str, joiner: str) -> None:
    need("cuda:0" if "gpu" in (founder, joiner) else "cpu")
    first = swarm.start(JOINS, founder, min_peers=1)
    first.expect("here")
    second = swarm.start(JOINS, joiner, min_peers=1)
    assert [peer.end() for peer in (first, second)] == [0, 0], first.report() + second.report()
    (_, result, given, parameters), (_, same, _, others) = first.stdout, second.stdout
    assert given == f"given {founder != 'host'}" and result == same
    assert parameters == others or {founder, joiner} == {"gpu", "host"}  # which round differently

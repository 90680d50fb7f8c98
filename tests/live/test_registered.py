"""Memory registered with a device does not grow with steps, joins or deaths."""

import pytest

from tests.devices import need
from tests.live.swarm import Swarm

NUM_FIRST = 20
"""Steps after which a peer that trains alone has allocated all its memory."""

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import mmap, os, select, sys
import torch
import p2p
from p2p.config import LoopConfig
from torch import nn
from tests.live.test_registered import NUM_FIRST
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.standin import StandIn

where, num_steps = sys.argv[1], int(sys.argv[2])
device = (Gpu if where == "gpu" else StandIn)(0)
size = 1 << 19 if where == "gpu" else 300  # of which the device adds up parts

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return sys.stdin.readline().strip() if ready else ""

torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 2)).to(device.where)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
device.watched = lambda: model.parameters()
extent_bytes = 64 << 10 if where == "gpu" else mmap.PAGESIZE
loop = LoopConfig(device_of=device.device_of, device_adds=True, extent_bytes=extent_bytes)
with p2p.Peer(p2p.PeerConfig.from_environment(os.environ, loop=loop)) as peer:
    parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=200)
    print("here", flush=True)
    said, alone, word, x = "", 0, "", torch.ones(2, 6, device=device.where)
    while word != "leave":
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        summed = torch.ones(size, device=device.where)
        peer.all_reduce(summed, algorithm="direct")
        assert (summed == peer.world_size).all()
        registered = sum(end - begin for begin, end in device.pinned.copy().items())
        if peer.last_step == NUM_FIRST:
            alone = registered
        now = f"{peer.world_size} {'more' if registered > alone else 'same'}"
        if word:
            print(word)
        if now != said or word or peer.last_step in (NUM_FIRST, num_steps):
            print(now)
            print("step", peer.last_step)
        said, word = now, command()
print("left", sum(end - begin for begin, end in device.pinned.items()))
"""


CASES = [
    pytest.param("device", 10, 1000, marks=pytest.mark.long),
    pytest.param("gpu", 10, 1000, marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("where", "num_rounds", "num_steps"), CASES)
@pytest.mark.timeout(600)
def test_memory_of_who_has_come_and_gone_is_registered_no_more(
    swarm: Swarm, where: str, num_rounds: int, num_steps: int
) -> None:
    """In each round one joiner is killed, and another leaves."""
    need("cuda:0" if where == "gpu" else "cpu")
    first = swarm.start(TRAIN, where, str(num_steps))
    first.expect(f"step {NUM_FIRST}")
    for number in range(2 * num_rounds):
        first.tell(f"comes {number}")
        first.expect(f"comes {number}")
        other = swarm.start(TRAIN, where, "0")
        first.expect_line("2 more", after=f"comes {number}")
        if number % 2:
            other.tell("leave")
            assert other.end() == 0 and other.stdout[-1] == "left 0", other.report()
        else:
            other.kill()
        first.tell(f"gone {number}")
        first.expect_line("1 same", after=f"gone {number}")
    first.expect_step(num_steps)
    first.tell("leave")
    assert first.end() == 0 and first.stdout[-1] == "left 0", first.report()

"""Joiners whose script changes parameters by tensors that the members' state lacks, and some that only seem to."""

import re

import pytest

from tests.cases import some_of
from tests.live.swarm import Process, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import logging, select, sys
import torch
from torch import nn
import p2p

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.note = "made"

    def forward(self, x):
        self.seen += 1
        return self.second(torch.tanh(self.first(x)))

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]

torch.set_num_threads(1)
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
torch.manual_seed(1)
model, what = Model(), sys.argv[1]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999**step)
second = torch.optim.SGD(model.second.parameters(), lr=0.01, momentum=0.9)
average = torch.optim.swa_utils.AveragedModel(model)
extra = {
    "schedule": [],
    "by hand": [],
    "second": [schedule],
    "average": [schedule, average],
    "freezes": [schedule],
    "direct": [schedule],
    "nothing": [schedule, second, average],
}[what]
data, turn = torch.randn(64, 4, generator=torch.Generator().manual_seed(2)), 0
with p2p.join() as peer:
    print("here", peer.peer_id)
    if "joins" in sys.argv:
        model.note = "joined"
        for tensor in model.state_dict().values():
            if isinstance(tensor, torch.Tensor):
                tensor.zero_()
    parallel = p2p.DataParallel(peer, model, optimizer, extra=extra)
    called = model if what == "direct" else parallel
    wish = torch.zeros(1)
    while not wish.item():
        if peer.done == 9 and what == "freezes":
            model.first.requires_grad_(False)
        if peer.done == 12 and what == "freezes":
            frozen = model.first.weight.detach().clone()
        if what == "by hand":
            optimizer.param_groups[0]["lr"] = 0.01 * 0.999**peer.done
        optimizer.zero_grad()
        called(data[peer.done % 16 * 4:][:4]).square().mean().backward()
        optimizer.step()
        if what in ("second", "nothing"):
            second.step()
        if what not in ("by hand", "direct"):
            schedule.step()
        turn += 1
        if what == "average":
            average.update_parameters(model) if turn < 12 or "joins" in sys.argv else None
        elif what == "nothing":
            average.update_parameters(model)
        if peer.done == 12:
            model.note = "twelve"
        print("step", peer.done, peer.world_size)
        if peer.done == 12:
            sys.stdin.readline()
        if peer.done % 8 == 0:
            wish.fill_(bool(select.select([sys.stdin], [], [], 0.002)[0]))
            peer.all_reduce(wish)
    print("end", model.note, model.first.weight.sum().item(), float(model.seen) > 10)
"""


def founder_and_joiner(swarm: Swarm, what: str) -> list[Process]:
    """A founder, and a joiner that has asked for its seat."""
    founder = swarm.start(TRAIN, what)
    founder.expect_step(12)
    joiner = swarm.start(TRAIN, what, "joins")
    joiner.expect("here")
    founder.tell("go on")
    return [founder, joiner]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "schedule",
            r"lr of group 0 of AdamW is 0\.\d+ here, 0\.\d+ there; put whatever changes it \(a schedule, .*extra",
        ),
        (
            "second",
            r"parameter second\.(weight|bias) is [0-9a-f]{16} here, [0-9a-f]{16} there; put whatever changes it",
        ),
        ("average", r"n_averaged of AveragedModel is \d+ here, \d+ there; put whatever changes it"),
    ],
)
def test_a_joiner_that_is_not_like_the_members_is_refused_alone(swarm: Swarm, what: str, words: str) -> None:
    founder, joiner = founder_and_joiner(swarm, what)
    assert joiner.end() == 1
    founder.tell("stop")
    assert founder.end() == 0, founder.report()
    pattern = rf"shoal: this peer received the members' state, but differs from them in step \d+: {words}.*continues"
    assert re.match(pattern, joiner.stderr[-1]), joiner.report()
    warned = [
        line for line in founder.stdout if line.startswith("lr of group 0 of AdamW changed to 0.00999, it was 0.01")
    ]
    assert len(warned) == (what == "schedule"), "it is said once, before anybody joins"


@pytest.mark.parametrize("what", some_of(["nothing", "by hand", "freezes", "direct"], 1, 3))
def test_a_joiner_that_is_like_the_members_trains_with_them(swarm: Swarm, what: str) -> None:
    founder, joiner = founder_and_joiner(swarm, what)
    joiner.expect_line(r"step \d+ 2")
    founder.tell("stop")
    assert [founder.end(), joiner.end()] == [0, 0], founder.report() + joiner.report()
    assert founder.stdout[-1] == joiner.stdout[-1] and "end twelve" in joiner.stdout[-1]


OPERATIONS = """
import select, sys, time
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
average = torch.optim.swa_utils.AveragedModel(model)
with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer, extra=[average])
    wish = torch.zeros(1)
    while not wish.item():
        time.sleep(0.01 if "joins" in sys.argv else 0.5)  # it waits for the members, and may ask for its seat meanwhile
        optimizer.zero_grad()
        parallel(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if "joins" in sys.argv:
            average.update_parameters(model)
        wish.fill_(bool(select.select([sys.stdin], [], [], 0)[0]))
        peer.all_reduce(wish)
        print("step", peer.done, peer.world_size)
"""


def test_a_joiner_that_is_not_like_the_members_is_refused_also_where_an_operation_follows_each_update(
    swarm: Swarm,
) -> None:
    founder = swarm.start(OPERATIONS)
    founder.expect_step(2)
    joiner = swarm.start(OPERATIONS, "joins")
    assert joiner.end() == 1, joiner.report()
    assert "n_averaged of AveragedModel is" in joiner.stderr[-1], joiner.report()
    founder.tell("stop")
    assert founder.end() == 0, founder.report()


PHASES = """
import logging, sys
import torch
from torch import nn
import p2p

torch.set_num_threads(1)
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
torch.manual_seed(1)
nets = nn.ModuleDict({"g": nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), "d": nn.Linear(3, 1)})
optimizers = {name: torch.optim.AdamW(net.parameters(), lr=0.001) for name, net in nets.items()}
first, _, other = sys.argv[1].partition(",")
with p2p.join() as peer:
    print("here", peer.peer_id)
    if other:
        p2p.DataParallel(peer, nets, optimizers[first], extra=[optimizers[other]], state_digest="all")
    else:
        p2p.DataParallel(peer, dict(nets.items()), optimizers, state_digest="all")

    def update(name, loss):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        optimizers[name].step()
        print("step", peer.done, peer.world_size)
        return together + 1 if peer.world_size == 2 else 0

    together = 0
    while together < 40:
        noise = torch.randn(6, 4)
        fake = nets["g"](noise)
        together = update("d", (nets["d"](fake.detach()) - nets["d"](torch.randn(6, 3))).mean())
        together = update("g", -nets["d"](fake).mean())  # over what was computed before the step of `d`
        if peer.done >= 12 and "waits" in sys.argv:
            sys.argv.remove("waits")
            sys.stdin.readline()
    print("end", [parameter.sum().item() for parameter in nets.parameters()])
"""


@pytest.mark.parametrize("optimizers", some_of(["d,g", "g,d", "by name"], 1))
def test_a_joiner_of_a_loop_with_two_updates_finds_its_place_in_it(swarm: Swarm, optimizers: str) -> None:
    founder = swarm.start(PHASES, optimizers, "waits")
    founder.expect_step(12)
    joiner = swarm.start(PHASES, optimizers)
    joiner.expect("here")
    founder.tell("go on")
    assert [founder.end(), joiner.end()] == [0, 0], founder.report() + joiner.report()
    # It looks for its place without a seat (decision 90). With a seat it may be elsewhere if it received the state of
    # the barrier; then it returns.
    assert sum("which continue without it" in line for line in joiner.stdout) <= 1, joiner.report()
    assert founder.stdout[-1] == joiner.stdout[-1]

"""Edge cases of rounds: states given in the middle of one, what is sent, and what is refused before sending."""

from collections import Counter

import pytest

from p2p.step.receipts import read_receipts
from p2p.telemetry.records import Kind
from p2p.training.rounds.outer import payload_bytes
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

PACKED = """
import hashlib
import sys
import torch
import p2p
from p2p.training.state.module_state import tensors_of
from p2p.training.rounds.round_state import RoundReplica

def digest(tensors):
    return hashlib.sha1(b"".join(each.float().numpy().tobytes() for each in tensors)).hexdigest()

def packed():
    return digest([*map(torch.atleast_1d, wrapped._replica._lower()[1])])

torch.set_num_threads(1)
torch.manual_seed(0)
if sys.argv[1] == "mutant":
    freeze = RoundReplica.freeze
    def lend(self):
        freeze(self)
        self._tensors = tensors_of(self._module)
    RoundReplica.freeze = lend
dtype = getattr(torch, sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)).to(dtype)
model[2].weight = model[0].weight  # tied
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer, extra=[average], inner_steps=4)
    given, saved = [], []
    for x in torch.randn(11, 8, 4).to(dtype):
        optimizer.zero_grad()
        loss = wrapped(x).pow(2).mean()
        given.append(packed())
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        mine = [each.clone() for each in model.state_dict().values()]
        saved.append(digest(map(torch.atleast_1d, wrapped.state_dict().values())))
        with wrapped.anchor():
            assert digest(map(torch.atleast_1d, model.state_dict().values())) == saved[-1]
            model.train(not wrapped.has_committed)(x)  # which changes buffers in the middle of a round
        model.train()
        assert all(torch.equal(*pair) for pair in zip(mine, model.state_dict().values()))
    print(*([given.index(each) for each in given]))
    print(*([saved.index(each) for each in saved]))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_joiner_gets_and_what_is_saved_stays_what_the_last_round_has_left(swarm: Swarm, dtype: str) -> None:
    said = {}
    for kind in ("shipped", "mutant"):
        peer = swarm.start(PACKED, kind, dtype)
        assert peer.end() == 0, peer.report()
        said[kind] = peer.stdout[1:]
    assert said["shipped"] == ["0 0 0 0 4 4 4 4 8 8 8", "0 0 0 3 3 3 3 7 7 7 7"]
    assert said["mutant"] != said["shipped"]


SENT = """
import torch
import p2p

torch.set_num_threads(1)
with p2p.join(arena_bytes=0) as peer:
    print("here", peer.peer_id)
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=1)
    for _ in range(3):
        wrapped(torch.randn(2, 512)).sum().backward()
        optimizer.step()
"""


def test_each_sends_its_payload_to_each_other_one_and_little_else(swarm: Swarm) -> None:
    peers = swarm.start_all(3, SENT)
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
    payload = payload_bytes("int4", 512 * 513)
    for peer in peers:
        sent = [each.value for each in swarm.records(peer, Kind.SENT)]
        assert len(sent) == 3 and all(2 * payload < each < 1.02 * 2 * payload for each in sent)


REFUSED = """
import sys
import torch
import p2p
from p2p.training.rounds import exchange
from p2p.training.rounds.outer import OuterConfig

torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
with p2p.join() as peer:
    print("here", peer.peer_id)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2 if sys.argv[1] == "model" and sys.argv[2:] else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if sys.argv[1] == "memory" and sys.argv[2:]:
        exchange.memory_bytes = lambda: 200
    wrapped = p2p.DiLoCo(peer, model, optimizer)
    if sys.argv[1] == "payload" and sys.argv[2:]:
        encode = wrapped._outer.codec.encode
        wrapped._outer.codec.encode = lambda values: encode(values) | 255
    if sys.argv[1] == "learning rate":
        wrapped._outer.config = OuterConfig(codec="int4", outer_lr=0.5 if sys.argv[2:] else 0.7)
    loader = peer.loader(data, global_batch=1 if sys.argv[1] == "batch" else 2, inner_steps=2, epochs=2000)
    print("goes on")
    for (x,) in (batch for _ in loader.epochs() for batch in loader):
        optimizer.zero_grad()
        wrapped(x).mean().backward()
        optimizer.step()
        if wrapped.has_committed:
            print("round", peer.done, peer.world_size)
            if sys.stdin.readline() == "end\\n":
                break
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("model", "weight"),
        (
            "memory",
            "ValueError: an exchange of 2 members keeps 2 payloads of int4 until its commit, 260 bytes, but only 200",
        ),
        ("batch", "global_batch is 1, but there are 2 members with this one, and each needs a sample in every inner"),
    ],
)
def test_a_joiner_that_does_not_fit_is_one_clear_line_and_the_swarm_goes_on(swarm: Swarm, case: str, said: str) -> None:
    member = swarm.start(REFUSED, case)
    member.expect("round 1 1")
    joiner = swarm.start(REFUSED, case, "joiner")
    number = 1
    while not joiner.has_ended():
        number += 1
        member.tell("go on")
        member.expect(f"round {number} ")
    member.tell("end")
    assert joiner.end() == 1 and said in joiner.stderr[-1], joiner.report()
    assert member.end() == 0, member.report()


def test_what_nobody_could_decode_is_not_sent(swarm: Swarm) -> None:
    peer = swarm.start(REFUSED, "payload", "spoiled")
    assert peer.end() == 1, peer.report()
    assert "no member could decode what this peer would send in round 1 (block 0 of 1, int4: " in peer.stderr[-1]


def test_an_exchange_says_how_it_is_applied(swarm: Swarm) -> None:
    """The peer's description is that of the others, but it applies the exchange differently."""
    peers = [swarm.start(REFUSED, "learning rate", *words, min_peers=2) for words in ((), ("other",))]
    assert [peer.end() for peer in peers] == [1, 1], peers[0].report()
    for peer in peers:
        assert "outer_lr 0.7" in peer.stderr[-1] and "outer_lr 0.5" in peer.stderr[-1]


FAILING = """
import sys
import torch
import p2p

torch.set_num_threads(1)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        if index in eval(sys.argv[2]):
            raise OSError("torn")
        return torch.full((4,), float(index))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer)
    loader = peer.loader(Rows(), global_batch=8, shuffle=False, epochs=2, **eval(sys.argv[1]))
    for batch in (batch for _ in loader.epochs() for batch in loader):
        optimizer.zero_grad()
        wrapped(batch).mean().backward()
        optimizer.step()
        print("update", peer.done)
"""


@pytest.mark.parametrize(("torn", "first"), [([50], 50), ([49], 49), ([52], 52), ([8, 9], 8)])
def test_a_round_by_time_ends_in_front_of_a_sample_that_cannot_be_loaded(
    swarm: Swarm, torn: list[int], first: int
) -> None:
    peers = swarm.start_all(2, FAILING, "dict(round_s=60)", str(torn))
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    receipts = [read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl")[1:] for peer in peers]
    assert receipts[0] == receipts[1]
    mine = next(each for each in receipts[0][0].contributions if each.samples[0][0] == 0)
    assert (mine.samples, mine.num_samples, mine.failed) == (((0, first),), first, ((first, 1),))
    used = Counter(each for receipt in receipts[0] for row in receipt.contributions for each in positions(row.samples))
    assert used == dict.fromkeys((each for each in range(240) if each % 120 not in torn), 1)


def test_a_round_of_which_nothing_counts_has_as_many_inner_steps(swarm: Swarm) -> None:
    peers = swarm.start_all(2, FAILING, "dict(inner_steps=5)", "[10]")
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    said = [[line for line in peer.stdout if line.startswith("update")] for peer in peers]
    assert said[0] == said[1]


def positions(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [each for start, number in ranges for each in range(start, start + number)]

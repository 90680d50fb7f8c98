"""Training with torch by real peers; few and small tests, since each peer imports torch."""

import json
import math
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import Receipt, read_receipts
from tests.live.swarm import Process, Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 600, 12, 2, 5


def dataset() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_SAMPLES, 6, generator=generator)
    return inputs, inputs.square().sum(1, keepdim=True)


def make_model() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def make_optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Comparison with one process

COMPARE = """
import copy, sys
import torch
from torch import nn
import p2p

torch.manual_seed(0)
torch.set_num_threads(1)
inputs, targets = torch.randn(5, 10, 4), torch.randn(5, 10, 3)
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}

class Forked(nn.Module):
    "A trunk, and a head for each parity; a batch without its samples does not use a head."

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x, places):
        hidden = torch.tanh(self.trunk(x))
        parts = [self.heads[int(p >= 7)](h) for h, p in zip(hidden, places.tolist())]
        return torch.stack(parts)

def step(parallel, model, optimizer, x, y, places):
    loss = (parallel(x, places) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm.item()

for name, make in OPTIMIZERS.items():
    with p2p.join(swarm=name) as peer:
        model = Forked()
        alone = copy.deepcopy(model)
        optimizer, optimizer_alone = make(model), make(alone)
        parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=100, state_digest="all")
        mine = slice(0, 7) if peer.rank == 0 else slice(7, 10)  # 7 samples and 3, and a head each
        parallel.num_samples(mine.stop - mine.start)
        places = torch.arange(10)
        for x, y in zip(inputs, targets):
            norm = step(parallel, model, optimizer, x[mine], y[mine], places[mine])
            norm_alone = step(alone, alone, optimizer_alone, x, y, places)
            assert abs(norm - norm_alone) < 1e-5, (norm, norm_alone)
        assert model.heads[2].weight.grad is None  # used by nobody
        for (key, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6), (name, key, ours - theirs)
        assert [entry.num_samples for entry in peer.receipt.contributions] == [7, 3]
        print("same", name, peer.done)
"""


def test_unequal_parts_of_a_batch_train_as_one_process_does_with_all_of_it(swarm: Swarm) -> None:
    peers = [swarm.start(COMPARE, min_peers=2) for _ in range(2)]
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    assert [peer.stdout for peer in peers] == [["same sgd 5", "same adamw 5"]] * 2


# A stream of samples, with peers that join and leave

TRAIN = """
import json, os, signal, sys, time
import torch
import p2p
from torch.nn import functional
from torch.utils.data import TensorDataset
from tests.live.test_training import EPOCHS, GLOBAL_BATCH, SEED, dataset, make_model, make_optimizer

def die(parameter):
    if peer.done + 1 == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
model = make_model()
if "other" in sys.argv:
    model[2] = torch.nn.Linear(16, 2)
optimizer, schedule = make_optimizer(model)
with p2p.join() as peer:
    print("here", peer.peer_id)
    given = json.loads(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].startswith("{") else {}
    batches = {name: given.pop(name) for name in ("batch_per_peer",) if name in given} or {"global_batch": GLOBAL_BATCH}
    parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule], bucket_bytes=8, state_digest="all", **given)
    print("from", peer.done)
    if len(sys.argv) > 1:  # when this gradient is ready, the buckets of the layer before are not submitted yet
        model[2].weight.register_post_accumulate_grad_hook(die)
    loader = peer.loader(TensorDataset(*dataset()), epochs=EPOCHS, seed=SEED, **batches)
    for x, y in (batch for _ in loader.epochs() for batch in loader):
        loss = functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print("step", peer.done)
        if peer.done == 10 and "wait" in sys.argv:
            sys.stdin.readline()
        if peer.done >= 10 and "wait" in sys.argv and peer.world_size < 3:
            time.sleep(0.1)  # of 90 steps as long as this a joiner sees some
    print("end", b"".join(p.detach().numpy().tobytes() for p in model.parameters()).hex())
"""


def final_bits(peers: list[Process]) -> bytes:
    """Check that all peers end with equal parameters; returns their bits."""
    assert [peer.end() for peer in peers] == [0] * len(peers), "\n".join(peer.report() for peer in peers)
    (bits,) = {peer.stdout[-1] for peer in peers}
    return bytes.fromhex(bits.split()[1])


def as_set(num_samples: int) -> float:
    return 1.0


def check_replay(receipts: list[Receipt], bits: bytes, factor: Callable[[int], float] = as_set) -> None:
    """Check that one process ends with about the same parameters on the receipts' samples, and that none is missing."""
    stream = range(NUM_SAMPLES * EPOCHS)
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED))
    inputs, targets = dataset()
    model = make_model()
    optimizer, schedule = make_optimizer(model)
    used: list[int] = []
    for receipt in receipts[1:]:
        counted = union(part for entry in receipt.contributions for part in entry.samples)
        used += [p for first, number in counted for p in range(first, first + number)]
        chosen = order.indices(counted)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs[chosen]), targets[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * factor(len(chosen))
        optimizer.step()
        optimizer.param_groups[0]["lr"] = rate
        schedule.step()
    assert Counter(used) == dict.fromkeys(stream, 1)
    replayed = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    assert np.allclose(np.frombuffer(bits, np.float32), replayed, rtol=1e-2, atol=1e-3)


def receipts_of(swarm: Swarm, peer: Process) -> list[Receipt]:
    receipts = read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl")
    first = receipts[0].step
    assert [receipt.step for receipt in receipts] == list(range(first, first + len(receipts)))
    return receipts


def test_a_kill_between_two_buckets_loses_no_step_and_no_sample(swarm: Swarm) -> None:
    victim = swarm.start(TRAIN, "17", min_peers=3)
    victim.expect("here")
    peers = [swarm.start(TRAIN, min_peers=3) for _ in range(2)]
    assert victim.end() == -signal.SIGKILL, victim.report()
    bits = final_bits(peers)
    files = swarm.receipt_files()
    assert files[name(peers[0])] == files[name(peers[1])] and files[name(peers[0])].startswith(files[name(victim)])
    receipts = receipts_of(swarm, peers[0])
    assert [len(receipt.contributions) for receipt in receipts[15:19]] == [3, 3, 2, 2]
    check_replay(receipts, bits)


def test_a_joiner_gets_the_state_of_the_swarm_and_another_model_is_refused(swarm: Swarm) -> None:
    first = swarm.start(TRAIN, "-1", "wait", min_peers=2)
    first.expect("here")
    second = swarm.start(TRAIN, min_peers=2)
    first.expect_step(10)
    joiner, other = swarm.start(TRAIN), swarm.start(TRAIN, "-1", "other")
    assert other.end() == 1
    assert re.fullmatch(
        r"shoal: this model is not the swarm's: "
        r"tensor 2 is 2\.weight float32\[2, 16\] here, 2\.weight float32\[1, 16\] in the swarm",
        other.stderr[-1],
    ), other.report()
    joiner.expect("here")
    first.tell("go on")
    bits = final_bits([first, second, joiner])
    assert int(joiner.expect("from").split()[1]) >= 10
    files = swarm.receipt_files()
    assert files[name(first)] == files[name(second)] and files[name(first)].endswith(files[name(joiner)])
    receipts = receipts_of(swarm, first)
    from_joining = receipts_of(swarm, joiner)
    joined = [entry.num_samples for receipt in from_joining for entry in receipt.contributions[2:]]
    assert joined[0] == 0 and all(joined[1:]), "its first step counts for nothing"
    assert all(receipt.state_digest for receipt in receipts[1:])
    check_replay(receipts, bits)


def test_a_batch_per_peer_and_its_learning_rate_follow_a_kill_and_a_join(swarm: Swarm) -> None:
    policy = {"batch_per_peer": 4, "lr_scaling": "sqrt", "lr_batch": 8}
    victim = swarm.start(TRAIN, "7", json.dumps(policy), min_peers=3)
    victim.expect("here")
    first = swarm.start(TRAIN, "-1", json.dumps(policy), "wait", min_peers=3)
    second = swarm.start(TRAIN, "-1", json.dumps(policy), min_peers=3)
    assert victim.end() == -signal.SIGKILL, victim.report()
    first.expect_step(10)
    joiner = swarm.start(TRAIN, "-1", json.dumps(policy))
    wrong_rate = swarm.start(TRAIN, "-1", json.dumps({**policy, "lr_scaling": "linear"}))
    wrong_batch = swarm.start(TRAIN, "-1", json.dumps({**policy, "batch_per_peer": 5}))
    assert wrong_rate.end() == 1
    assert wrong_rate.stderr[-1] == (
        "shoal: it does not train as they do: learning rates linear in the samples of a step, those of the script at 8 "
        "here, learning rates sqrt in the samples of a step, those of the script at 8 in the swarm"
    ), wrong_rate.report()
    for peer in (joiner, wrong_batch):
        peer.expect("here")
    first.tell("go on")
    assert wrong_batch.end() == 1
    assert re.search("not the swarm's: .*batch_per_peer=5.* here, .*batch_per_peer=4.* there", wrong_batch.stderr[-1])
    bits = final_bits([first, second, joiner])
    receipts = receipts_of(swarm, first)
    counted = [[each.num_samples for each in receipt.contributions] for receipt in receipts]
    assert counted[6:9] == [[4, 4, 4], [4, 4], [4, 4]] and [4, 4, 4] in counted[10:]
    check_replay(receipts, bits, lambda num_samples: math.sqrt(num_samples / 8))

"""Real peers that train in rounds: one process replays the receipts, with bit-identical anchors."""

import copy
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from p2p.data.cutter import Cutter
from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler, SamplerState, fold
from p2p.data.timed import TimedSampler
from p2p.step.receipts import Receipt, read_receipts
from p2p.telemetry.records import Kind
from p2p.training.rounds.outer import OuterConfig, OuterOptimizer
from tests.cases import some_of
from tests.live.rounds_script import (
    BATCH,
    INNER_STEPS,
    NUM_SAMPLES,
    Training,
    digest,
    make_dataset,
    make_training,
    set_rate,
    train,
)
from tests.live.swarm import Process, Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

EPOCHS = 60
SCRIPT = "from tests.live.rounds_script import main\nmain()\n"


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Replay:
    """Replays the work of all members of a run in one process, round by round."""

    def __init__(self, codec: str, epochs: int, *, is_timed: bool, dense_steps: int) -> None:
        self._config = OuterConfig(codec=codec)
        self._workers: dict[str, tuple[Training, OuterOptimizer]] = {}
        self._is_timed, self._num_samples = is_timed, 0
        self._first = self._worker(make_training(is_timed=is_timed))
        self._sampler = Sampler(NUM_SAMPLES, BATCH * INNER_STEPS, epochs=epochs)
        if is_timed:
            self._sampler = TimedSampler(NUM_SAMPLES, BATCH, epochs=epochs)
        self._cutter = Cutter(self._sampler, Order(self._sampler), None, None if is_timed else INNER_STEPS)
        self._dense_steps = dense_steps
        self._dense = Sampler(NUM_SAMPLES, BATCH, epochs=epochs)
        self._state = SamplerState()
        self.members: tuple[str, ...] = ()
        self._data = make_dataset()
        self._dense_cutter = Cutter(self._dense, self._cutter.order, None)

    def _worker(self, training: Training) -> tuple[Training, OuterOptimizer]:
        return training, OuterOptimizer(dict(training.model.named_parameters()), self._config)

    def _newcomer(self) -> tuple[Training, OuterOptimizer]:
        """A joiner: with the common anchor and schedule, without moments and residual."""
        training, outer = self._worker(make_training(is_timed=self._is_timed))
        training.schedule.load_state_dict(self._first[0].schedule.state_dict())
        training.optimizer.param_groups[0]["lr"] = self._first[0].optimizer.param_groups[0]["lr"]
        outer.load_state_dict(copy.deepcopy(self._first[1].state_dict()))
        return training, outer

    def step(self, receipt: Receipt) -> str:
        """Train as this receipt says; returns the digest of the common state after it."""
        self._state = self._sampler.drop_tail(self._state)
        found = self._average(receipt) if receipt.step <= self._dense_steps else self._round(receipt)
        counted = [part for each in receipt.contributions for part in each.samples]
        self._state = fold(self._state, union(counted))
        self._num_samples += receipt.num_samples
        self.members = tuple(each.peer_id for each in receipt.contributions)
        return found

    def _average(self, receipt: Receipt) -> str:
        """A dense step of one member, or of two with equally many samples: their mean is rounded once in any order."""
        plan, (training, outer) = self._dense.plan(self._state, self.members), self._first
        gradients = []
        for each in receipt.contributions:
            if each.num_samples:
                assert each.samples == plan.positions(plan.slices[each.peer_id])
                ((inputs, targets),) = [self._data[part] for part in self._dense_cutter.cut(plan, each.peer_id)]
                training.optimizer.zero_grad()
                (training.model(inputs) - targets).pow(2).mean().backward()
                gradients.append([one.grad.clone() for one in training.model.parameters() if one.grad is not None])
        assert len({each.num_samples for each in receipt.contributions if each.num_samples}) == 1 >= len(gradients) - 1
        for parameter, *parts in zip(training.model.parameters(), *gradients, strict=True):
            parameter.grad = torch.stack(parts).sum(0) / len(parts)
        if receipt.step == self._dense_steps:
            outer.reset_anchor()
        training.optimizer.step()
        training.schedule.step()
        if receipt.step == self._dense_steps:
            for each in receipt.contributions:
                self._workers[each.peer_id] = self._newcomer()
                self._workers[each.peer_id][0].model.load_state_dict(training.model.state_dict())
                state = copy.deepcopy(training.optimizer.state_dict())
                self._workers[each.peer_id][0].optimizer.load_state_dict(state)
        return digest(torch.cat([each.detach().flatten() for each in training.model.parameters()]).numpy())

    def _round(self, receipt: Receipt) -> str:
        plan = self._sampler.plan(self._state, self.members)
        counted = [each for each in receipt.contributions if each.num_samples]
        ranks = [each.peer_id for each in receipt.contributions]
        num_steps = len(self._cutter.cut(plan, ""))
        rows: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
        for each in counted:
            training, outer = self._workers.setdefault(each.peer_id, self._newcomer())
            part, num_used = plan.slices[each.peer_id], 0
            assert each.num_samples <= part.length if self._is_timed else each.num_samples == part.length
            assert each.samples == plan.positions(part._replace(length=each.num_samples))
            for indices in self._cutter.cut(plan, each.peer_id):
                if num_used < each.num_samples:
                    if self._is_timed:
                        set_rate(training, self._num_samples)
                    train(training, *self._data[indices])
                    num_used += len(indices)
            assert num_used == each.num_samples
            rows[each.peer_id] = outer.payloads()
        self._workers = {who: self._workers[who] for who in ranks if who in self._workers}
        idle = [self._first, *(worker for who, worker in self._workers.items() if who not in rows)]
        for training, _ in idle:
            training.optimizer.state.clear()
            training.optimizer.zero_grad()
            for _ in range(num_steps):
                training.optimizer.step()
                training.schedule.step()
        nothing = self._first[1].zero_payloads()
        gathered = [np.stack([rows.get(who, nothing)[cut] for who in ranks]) for cut in range(len(nothing))]
        weights = [each.weight for each in receipt.contributions]
        self._first[1].apply(gathered, weights, None)
        for who, (_, outer) in self._workers.items():
            outer.apply(gathered, weights, ranks.index(who))
        used = {each.peer_id: each.num_samples for each in counted}
        self._state = self._sampler.update_quotas(self._state, plan, used, ranks)
        return digest(self._first[1].anchor)


def replay(
    receipts: list[Receipt], codec: str, epochs: int, *, is_timed: bool = False, dense_steps: int = 0
) -> list[str]:
    """Replay receipts; returns the anchor's digest after each round, or the parameters' after each dense step."""
    run = Replay(codec, epochs, is_timed=is_timed, dense_steps=dense_steps)
    run.members = tuple(each.peer_id for each in receipts[0].contributions)
    with one_thread():
        return [run.step(receipt) for receipt in receipts[1:]]


def check_receipts(swarm: Swarm, peers: list[Process], epochs: int) -> list[Receipt]:
    """Check that all peers have the same receipts, which count each sample once in each epoch."""
    known: dict[int, Receipt] = {}
    for peer in peers:
        for receipt in read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl"):
            assert known.setdefault(receipt.step, receipt) == receipt
    receipts = [known[step] for step in sorted(known)]
    assert [receipt.step for receipt in receipts] == list(range(len(receipts)))
    used = Counter(
        position
        for receipt in receipts
        for each in receipt.contributions
        for first, number in each.samples
        for position in range(first, first + number)
    )
    assert used == dict.fromkeys(range(epochs * NUM_SAMPLES), 1)
    return receipts


def check_anchors(
    peers: list[Process],
    receipts: list[Receipt],
    codec: str,
    epochs: int,
    *,
    is_timed: bool = False,
    dense_steps: int = 0,
) -> None:
    """Check that each peer has printed the replay's anchor after each round."""
    expected = replay(receipts, codec, epochs, is_timed=is_timed, dense_steps=dense_steps)
    for peer in peers:
        whole = [
            words for words in map(str.split, rounds_of(peer)) if len(words) == 4
        ]  # the last line of a killed peer may be truncated
        said = {int(step): anchor for _, step, anchor, _ in whole}
        assert said and said == {step: expected[step - 1] for step in said}, peer.report()


def rounds_of(peer: Process) -> list[str]:
    return [line for line in peer.stdout if line.startswith(("round ", "dense "))]


@pytest.mark.long
@pytest.mark.timeout(240)  # 240 rounds, which are replayed
def test_two_die_one_joins_one_is_stopped_and_a_replay_of_the_receipts_has_the_same_anchors(swarm: Swarm) -> None:
    places = ("device=1",), (), (), ("device=2",)
    peers = [swarm.start(SCRIPT, "sparse16", str(EPOCHS), *place, min_peers=4) for place in places]
    for peer in peers:
        peer.expect("round 5 ")
    peers[1].kill()  # somewhere in a round
    peers[0].expect_line(r"round \d+ \w+ 3")
    peers[0].tell("wait")
    held = peers[0].expect("waits").split()[1]
    peers[2].expect(f"exchanges {held}")
    peers[2].kill()  # in an exchange, which needs the waiting peer
    peers[0].tell("go on")
    peers[0].expect_line(r"round \d+ \w+ 2")
    joiner = swarm.start(SCRIPT, "sparse16", str(EPOCHS))
    joiner.expect_line(r"round \d+ \w+ 3")
    peers[3].send_signal(signal.SIGSTOP)
    two = peers[0].expect_line(r"round \d+ \w+ 2", after=joiner.expect_line(r"round \d+ \w+ 3"))
    peers[3].send_signal(signal.SIGCONT)
    peers[0].expect_line(r"round \d+ \w+ 3", after=two)
    alive = [peers[0], peers[3], joiner]
    for peer in alive:
        peer.tell("quick")
    assert [peer.end() for peer in alive] == [0, 0, 0], "\n".join(peer.report() for peer in alive)
    receipts = check_receipts(swarm, [*peers, joiner], EPOCHS)
    check_anchors([*peers, joiner], receipts, "sparse16", EPOCHS)


@pytest.mark.long
def test_rounds_by_time_count_each_sample_once_and_a_replay_has_the_same_anchors(swarm: Swarm) -> None:
    words = "sign", "30", "round_s=0.06"
    peers = [swarm.start(SCRIPT, *words, *slow, min_peers=3) for slow in ((), ("slow=0.01",), ("slow=0.05",))]
    for peer in peers:
        peer.expect_line(r"round \d+ \w+ 3", after=peer.expect_line(r"round \d+ \w+ 3"))
    peers[1].kill()  # somewhere in a round
    peers[0].expect_line(r"round \d+ \w+ 2")
    joiner = swarm.start(SCRIPT, *words)
    joiner.expect_line(r"round \d+ \w+ 3", after=joiner.expect_line(r"round \d+ \w+ 3"))
    alive = [peers[0], peers[2], joiner]
    for peer in alive:
        peer.tell("quick")
    assert [peer.end() for peer in alive] == [0, 0, 0], "\n".join(peer.report() for peer in alive)
    receipts = check_receipts(swarm, [*peers, joiner], 30)
    check_anchors([*peers, joiner], receipts, "sign", 30, is_timed=True)


def test_dense_steps_are_those_of_data_parallel_bit_for_bit(swarm: Swarm) -> None:
    said = []
    for words in (("int4", "2", "quick=1", "dense=15"), ("parallel", "1", "quick=1")):
        peers = [swarm.start(SCRIPT, *words, min_peers=3) for _ in range(3)]
        assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
        assert rounds_of(peers[0]) == rounds_of(peers[1]) == rounds_of(peers[2])
        said.append([line for line in rounds_of(peers[0]) if line.startswith("dense")])
    assert len(said[0]) == 15 and said[0] == said[1][:15]


def joined(swarm: Swarm, member: Process, *words: str) -> Process:
    """Start another peer, while `member`, the only one, waits for it."""
    member.tell("wait")
    member.expect("waits")
    joiner = swarm.start(SCRIPT, *words)
    joiner.expect("here")
    member.tell("on")
    return joiner


@pytest.mark.long
def test_peers_die_and_join_before_and_after_the_dense_steps_are_over_and_a_replay_has_the_same_bits(
    swarm: Swarm,
) -> None:
    words = "sign", "40", "dense=160"
    peers = [swarm.start(SCRIPT, *words, *place, min_peers=2) for place in (("device=1",), ())]
    peers[0].expect("dense 10 ")
    peers[1].kill()
    peers[0].expect_line(r"dense \d+ \w+ 1")
    peers.append(joined(swarm, peers[0], *words))
    peers[2].expect_line(r"dense \d+ \w+ 2")
    for peer in (peers[0], peers[2]):
        peer.expect_line(r"round \d+ \w+ 2")
    peers[0].kill()
    peers[2].expect_line(r"round \d+ \w+ 1")
    peers.append(joined(swarm, peers[2], *words, "device=2"))
    peers[3].expect_line(r"round \d+ \w+ 2")
    for peer in peers[2:]:
        peer.tell("quick")
    assert [peer.end() for peer in peers[2:]] == [0, 0], "\n".join(peer.report() for peer in peers)
    receipts = check_receipts(swarm, peers, 40)
    check_anchors(peers, receipts, "sign", 40, dense_steps=160)


@pytest.mark.long
def test_who_is_stopped_in_a_dense_step_and_comes_back_when_they_are_over_has_what_all_have(swarm: Swarm) -> None:
    words = "sign", "24", "dense=60"
    peers = [swarm.start(SCRIPT, *words, min_peers=3) for _ in range(3)]
    peers[2].expect("dense 10 ")
    peers[2].send_signal(signal.SIGSTOP)
    two = peers[0].expect_line(r"round \d+ \w+ 2")
    peers[2].send_signal(signal.SIGCONT)
    peers[0].expect_line(r"round \d+ \w+ 3", after=two)
    for peer in peers:
        peer.tell("quick")
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)
    check_receipts(swarm, peers, 24)
    said = [dict(line.split()[1:3] for line in rounds_of(peer)) for peer in peers]
    assert said[0] == said[1] and len(said[2]) < len(said[0])
    assert said[2].items() <= said[0].items()


@pytest.mark.parametrize("codec", some_of(["float32", "int4", "sign", "sparse64"], 1, 3))
def test_every_codec_trains_as_a_replay_does(swarm: Swarm, codec: str) -> None:
    places = (), ("device=1",)
    peers = [swarm.start(SCRIPT, codec, "3", "quick=1", *place, min_peers=2) for place in places]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    check_anchors(peers, check_receipts(swarm, peers, 3), codec, 3)
    for peer in peers:
        lost = [each.value for each in swarm.records(peer, Kind.RESIDUAL_LOST)]
        assert len(lost) == (codec in ("sign", "sparse64")) and all(0 < each < 100 for each in lost)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="it has no other instruction set")
@pytest.mark.long
def test_processors_that_round_otherwise_have_the_same_anchors(swarm: Swarm) -> None:
    others = ((), ("cpu=default",))
    peers = [swarm.start(SCRIPT, "float32", "2", "quick=1", "dense=8", *cpu, min_peers=2) for cpu in others]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    dense, rounds = zip(*((rounds_of(peer)[:8], rounds_of(peer)[8:]) for peer in peers), strict=True)
    assert dense[0] != dense[1] and rounds[0] == rounds[1] and len(rounds[0]) == 7
    peers = [swarm.start(SCRIPT, "float32", "6", "quick=1", *cpu, min_peers=2) for cpu in others]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    assert rounds_of(peers[0]) == rounds_of(peers[1]) and len(rounds_of(peers[0])) == 24
    expected = replay(check_receipts(swarm, peers, 6), "float32", 6)  # with this machine's rounding for both
    assert expected != [line.split()[2] for line in rounds_of(peers[0])]


def test_what_nobody_can_decode_counts_for_nothing_and_its_samples_come_back(swarm: Swarm) -> None:
    words = "sparse16", "3", "quick=1"
    peers = [swarm.start(SCRIPT, *words, *extra, min_peers=3) for extra in ((), (), ("spoils=1",))]
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
    receipts = check_receipts(swarm, peers, 3)
    refused = [each.peer_id for each in receipts[4].contributions if not each.num_samples]
    assert refused == [name(peers[2])]
    for peer in peers:
        (line,) = [line for line in peer.stderr if "is ignored" in line]
        assert name(peers[2]) in line and "sparse16" in line
    check_anchors(peers, receipts, "sparse16", 3)


def test_a_round_that_is_not_finite_adds_nothing_if_that_is_wished(swarm: Swarm) -> None:
    peers = [swarm.start(SCRIPT, "int4", "3", "quick=1", nan, min_peers=2) for nan in ("nan=0", "nan=12")]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    receipts = [read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl") for peer in peers]
    assert receipts[0] == receipts[1]
    assert [receipt.step for receipt in receipts[0] if receipt.weight < receipt.num_samples] == [3]
    assert len({peer.stdout[-1] for peer in peers}) == 1
    assert any(
        "became NaN or infinity on this peer in this round, so this peer adds nothing" in line
        for line in peers[1].stderr
    )


@pytest.mark.parametrize(
    ("one", "other", "said"),
    some_of(
        [
            (("int4",), ("sign",), ("deltas of rounds, int4", "deltas of rounds, sign")),
            (("int4", "outer_lr=1"), ("int4",), ("outer_lr 1", "outer_lr 0.7")),
            (("int4", "inner_steps=4"), ("int4",), ("inner_steps=4", "inner_steps=5")),
            (("int4", "dense=2"), ("int4", "dense=3"), ("after 2 dense steps", "after 3 dense steps")),
            (("int4", "round_s=0.1"), ("int4", "round_s=0.2"), ("round_s=0.1", "round_s=0.2")),
        ],
        0,
        3,
        4,
    ),
)
def test_who_exchanges_in_another_way_is_told_both(
    swarm: Swarm, one: tuple[str, ...], other: tuple[str, ...], said: tuple[str, ...]
) -> None:
    member = swarm.start(SCRIPT, one[0], "600", *one[1:])
    member.expect_line(r"round \d+ \w+ 1")
    joiner = swarm.start(SCRIPT, other[0], "600", *other[1:])
    assert joiner.end() == 1, joiner.report()
    assert all(word in "\n".join(joiner.stderr) for word in said), joiner.report()
    member.expect_line(r"round \d+ \w+ 1", after=rounds_of(member)[-1])
    member.send_signal(signal.SIGTERM)
    assert member.end() == 128 + signal.SIGTERM


ORDINARY = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(480, 16)
targets = (inputs[:, :4].sum(1) > 0).long()
train, valid = (torch.utils.data.TensorDataset(inputs[part], targets[part]) for part in (slice(448), slice(448, None)))
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer, codec="sign", checkpoint=p2p.Checkpoint(sys.argv[1], every=2))
    loader = peer.loader(train, global_batch=32, inner_steps=4, epochs=int(sys.argv[2]))
    validation = peer.loader(valid, global_batch=32)
    for epoch in loader.epochs():
        for place, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            if place % 4 == 3:
                continue  # the last batch of a round
            optimizer.step()
            if peer.done == 5 and place % 4 == 1:
                state = wrapped.state_dict()
                assert any((state[name] != each).any() for name, each in model.state_dict().items())
                with wrapped.anchor():
                    assert all((state[name] == each).all() for name, each in model.state_dict().items())
                break
        model.eval()
        right = total = 0
        for x, y in validation.evaluate():
            right, total = right + (wrapped(x).argmax(1) == y).sum().item(), total + len(y)
        model.train()
        print("accuracy", peer.done, *peer.combine(right / total, samples=total))
"""


def test_ordinary_scripts_leave_loops_and_batches_validate_and_go_on_from_checkpoints(
    swarm: Swarm, tmp_path: Path
) -> None:
    accuracies = []
    for epochs in (3, 4):
        peers = [swarm.start(ORDINARY, str(tmp_path / "kept"), str(epochs), min_peers=2) for _ in range(2)]
        assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
        said = [[line for line in peer.stdout if line.startswith("accuracy")] for peer in peers]
        assert said[0] == said[1]
        warned = [line for peer in peers for line in peer.stderr if "a checkpoint has no residuals" in line]
        assert len(warned) == (0 if epochs == 3 else 2)
        accuracies += [float(line.split()[2]) for line in said[0]]
        receipts = [read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl") for peer in peers]
        assert receipts[0] == receipts[1]
        counted = [part for receipt in receipts[0] for each in receipt.contributions for part in each.samples]
        assert union(counted) == (((0, 3 * 448),) if epochs == 3 else ((3 * 448, 448),))
        assert sum(number for _, number in counted) == (3 * 448 if epochs == 3 else 448)
    assert accuracies[-1] > 0.8


LEFT_OUT = """
import sys
import torch
import p2p

torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer)
    length = dict(inner_steps=4) if sys.argv[1] == "steps" else dict(round_s=60)
    loader = peer.loader(data, global_batch=8, epochs=2, **length)
    for epoch in loader.epochs():
        places = []
        for place, (x,) in enumerate(loader):
            places.append(place)
            if place % 4 == 3:
                continue  # the last batch of a round, and of the epoch
            optimizer.zero_grad()
            wrapped(x).mean().backward()
            optimizer.step()
        print("epoch", epoch, len(places), peer.done, peer.samples)
"""


@pytest.mark.parametrize(("length", "num_rounds"), [("steps", 2), ("time", 1)])
def test_an_epoch_ends_where_the_update_on_its_last_batch_is_left_out(
    swarm: Swarm, length: str, num_rounds: int
) -> None:
    peer = swarm.start(LEFT_OUT, length)
    assert peer.end() == 0, peer.report()
    assert peer.stdout[1:] == [f"epoch {each} 8 {(each + 1) * num_rounds} {64 * (each + 1)}" for each in (0, 1)]


OWN_LOADER = """
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(500, 8)  # two batches more than eight rounds
model = torch.nn.Linear(8, 2, dtype=torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=6)
    wrapped.num_samples(10 + peer.rank)
    for x in inputs.bfloat16().split(10):
        loss = (wrapped(x) - x[:, :2]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if wrapped.has_committed:
            print("round", peer.done, model.weight.sum().item())
    kept = model.weight.sum().item()
assert model.weight.sum().item() != kept
print("left", model.weight.sum().item())
"""


def test_a_loader_of_ones_own_has_rounds_of_so_many_steps_and_half_types_too(swarm: Swarm) -> None:
    peers = [swarm.start(OWN_LOADER, min_peers=2) for _ in range(2)]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    assert rounds_of(peers[0]) == rounds_of(peers[1]) and len(rounds_of(peers[0])) == 8
    for peer in peers:
        assert peer.stdout[-1].split()[-1] == rounds_of(peer)[-1].split()[-1]
        assert any("this peer left 2 inner steps after the last round" in line for line in peer.stderr)
    (_, *receipts) = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    assert [[each.weight for each in receipt.contributions] for receipt in receipts] == [[60, 66]] * 8


MISTAKES = """
import sys
import torch
import p2p

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
with p2p.join() as peer:
    print("here", peer.peer_id)
    if sys.argv[1] == "parallel":
        p2p.DataParallel(peer, model, optimizer)
        peer.loader(data, global_batch=8, inner_steps=2)
    wrapped = p2p.DiLoCo(peer, model, optimizer, **eval(sys.argv[2]))
    loader = peer.loader(data, global_batch=8, **eval(sys.argv[3]))
    for place, (x,) in enumerate(loader):
        wrapped(x).mean().backward()
        optimizer.step()
        if sys.argv[1] == "evaluate" and place == 1:
            list(loader.evaluate())
        if sys.argv[1] == "nan":
            with torch.no_grad():
                model.bias.fill_(float("inf"))
"""


@pytest.mark.parametrize(
    ("case", "wrap", "load", "said"),
    [
        ("", "dict(codec='int5')", "dict()", "codec must be one of float32, int4, sign, sparse16, sparse64, is 'int5'"),
        ("", "dict(inner_steps=0)", "dict()", "inner_steps must be at least 1, is 0"),
        ("", "dict()", "dict(inner_steps=0)", "inner_steps must be at least 1, is 0"),
        ("", "dict()", "dict()", "this model is trained in rounds, so `peer.loader` needs their length: pass inner"),
        (
            "",
            "dict()",
            "dict(inner_steps=3, round_s=2)",
            "inner_steps is 3 and round_s is 2, but a round ends after a",
        ),
        ("", "dict(inner_steps=3, round_s=2.5)", "dict()", "inner_steps is 3 and round_s is 2.5, but a round ends"),
        ("", "dict(dense_steps=-1)", "dict()", "dense_steps must be at least 0, is -1"),
        ("", "dict()", "dict(round_s=0)", "round_s must be above 0 and finite, is 0"),
        ("", "dict(nonfinite='allow')", "dict()", "nonfinite must be raise or skip, is 'allow'"),
        ("parallel", "dict()", "dict()", "inner_steps needs a model that is trained in rounds: wrap it in p2p.DiLoCo"),
        ("evaluate", "dict()", "dict(inner_steps=4)", "evaluate was called in the middle of a round"),
        ("nan", "dict()", "dict(inner_steps=4)", "bias became NaN or infinity on this peer in this round; nothing"),
    ],
)
def test_a_mistake_is_one_clear_line(swarm: Swarm, case: str, wrap: str, load: str, said: str) -> None:
    peer = swarm.start(MISTAKES, case, wrap, load)
    assert peer.end() == 1, peer.report()
    assert said in peer.stderr[-1], peer.report()

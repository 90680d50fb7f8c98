"""Ordinary scripts with a Dataset, workers and epochs: their samples, and peers that differ."""

import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from p2p.data.ranges import each as positions
from p2p.data.ranges import union
from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import Receipt, read_receipts
from tests.cases import some_of
from tests.live.swarm import Process, Swarm, name

pytestmark = pytest.mark.torch

NUM_SAMPLES, GLOBAL_BATCH = 90, 8

TRAIN = """
import sys
import torch
import p2p
from torch import nn
from torch.utils.data import Dataset

class Lines(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        if i == number("poison", -1):
            raise OSError(f"line {i} is truncated")
        return {"x": torch.full((3,), float(i)), "index": i}

given = dict(word.split("=") for word in sys.argv[1:])
def number(key, default):
    return int(given.get(key, default))

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer)
    loader = peer.loader(Lines(number("size", 90)), global_batch=number("batch", 8), epochs=number("epochs", 3),
                         seed=number("seed", 0), num_workers=number("workers", 1))
    valid = peer.loader(Lines(30), global_batch=12)
    for epoch in loader.epochs() if "joins" in given else range(number("epochs", 3)):
        if "joins" not in given:
            assert loader.epoch == epoch
        steps, began = 0, peer.world_size
        for batch in loader:
            assert (batch["x"][:, 0].long() == batch["index"]).all()
            for _ in range(number("updates", 1)):
                optimizer.zero_grad()
                parallel(batch["x"]).mean().backward()
                optimizer.step()
                steps += 1
                print("step", peer.done, peer.world_size)
                if peer.done == number("wait", -1):
                    sys.stdin.readline()
        print("epoch", epoch, steps)
        found, number_of = 0.0, 0
        for batch in valid.evaluate():
            found, number_of = found + batch["index"].sum().item(), number_of + len(batch["index"])
        means, total = peer.combine({"mean": found / number_of, "half": 0.5}, samples=number_of)
        assert (list(means.items()), total) == ([("mean", 14.5), ("half", 0.5)], 30), "in the order of the script"
        if epoch > 0 and began == number("until", -1):  # the same on all, as they committed it
            break
    else:
        assert list(loader) == [] or "joins" in given
    print("end")
"""


ONE_AFTER_THE_OTHER = """
import os, signal, sys
import torch
import p2p
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.999)
dataset = TensorDataset(torch.randn(24, 3))
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_view_change(lambda view: print("view of", len(view.members)))
    scaler = torch.amp.GradScaler("cpu")
    parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule, scaler])
    for i in range(100_000):
        loader, began = peer.loader(dataset, global_batch=6, seed=i), peer.world_size
        for number, (x,) in enumerate(loader):
            loss = parallel(x).square().mean()
            if (i, number) == (3, 2) and "stops" in sys.argv:
                os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            assert all(each.grad.norm().isfinite() for each in model.parameters()), "also in a pass that is taken back"
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            print("step", peer.done, peer.world_size)
        if i == 20 and "waits" in sys.argv:
            print("waits")
            sys.stdin.readline()
        if i > 20 and began == 3:
            break
    print("end", i, schedule.last_epoch, [each.tolist() for each in model.parameters()])
"""


def check_equal(swarm: Swarm, peers: Sequence[Process]) -> list[Receipt]:
    """Check that peers have equal receipts; returns those of all steps, in order."""
    known: dict[int, Receipt] = {}
    for peer in peers:
        for receipt in read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl"):
            assert known.setdefault(receipt.step, receipt) == receipt
    receipts = [known[step] for step in sorted(known)]
    assert [receipt.step for receipt in receipts] == list(range(len(receipts)))
    return receipts


def check(swarm: Swarm, peers: Sequence[Process]) -> list[Receipt]:
    """As `check_equal`; also checks that each sample counts once in each epoch."""
    receipts = check_equal(swarm, peers)
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH, epochs=len(receipts)))
    counted = [union(part for each in receipt.contributions for part in each.samples) for receipt in receipts[1:]]
    num_epochs = max(first for ranges in counted for first, _ in ranges) // NUM_SAMPLES + 1
    used = Counter((ranges[0][0] // NUM_SAMPLES, i) for ranges in counted for i in order.indices(ranges) if ranges)
    assert used == dict.fromkeys(((epoch, i) for epoch in range(num_epochs) for i in range(NUM_SAMPLES)), 1)
    assert {receipt.loader for receipt in receipts if receipt.num_samples} == {0}
    return receipts


def test_the_ordinary_loop_over_epochs_trains_all_of_them(swarm: Swarm) -> None:
    peers = swarm.start_all(2, TRAIN)
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    for peer in peers:
        assert [line for line in peer.stdout if line.startswith("epoch")] == [f"epoch {epoch} 12" for epoch in range(3)]
        assert "epochs of this loader are over" in "\n".join(peer.stderr)
        assert "step 36 2" in peer.stdout, "evaluations are no steps of training"
    assert len(check(swarm, peers)) == 1 + 3 * (12 + 2)


@pytest.mark.parametrize(("updates", "workers"), some_of([(1, 1), (3, 0)], 0))
def test_each_sample_counts_once_an_epoch_through_a_kill_and_a_join(swarm: Swarm, updates: int, workers: int) -> None:
    words = "epochs=100000", "until=3", f"updates={updates}", f"workers={workers}"
    first = swarm.start(TRAIN, "wait=20", *words, min_peers=3)
    peers = [first, *(swarm.start(TRAIN, *more, *words, min_peers=3) for more in ((), ("wait=5",)))]
    peers[2].expect_line(r"step 5 3")
    peers[2].kill()
    first.expect_line(r"step \d+ 2")
    joiner = swarm.start(TRAIN, "joins=1", *words)
    joiner.expect("here")
    first.expect_line(r"step 20 \d")
    first.tell("go on")
    assert [peer.end() for peer in (*peers[:2], joiner)] == [0, 0, 0], joiner.report()
    receipts = check(swarm, [*peers, joiner])
    assert {len(receipt.contributions) for receipt in receipts} == {2, 3}
    assert name(joiner) in {each.peer_id for receipt in receipts for each in receipt.contributions if each.num_samples}
    assert sum(receipt.weight > 0 for receipt in receipts) == updates * sum(receipt.loader == 0 for receipt in receipts)


@pytest.mark.long
def test_a_peer_that_was_stopped_in_a_loader_that_is_used_up_goes_on_in_that_of_the_others(swarm: Swarm) -> None:
    first = swarm.start(ONE_AFTER_THE_OTHER, "waits", min_peers=3)
    peers = [first, *(swarm.start(ONE_AFTER_THE_OTHER, *more, min_peers=3) for more in ((), ("stops",)))]
    for peer in peers[:2]:
        peer.expect("view of 2")
    first.expect("waits")
    peers[2].send_signal(signal.SIGCONT)
    first.tell("go on")
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[2].report()
    (end,) = {peer.expect("end") for peer in peers}
    receipts = [receipt for receipt in check_equal(swarm, peers) if receipt.num_samples]
    last, num_updates = map(int, end.split()[1:3])
    assert len(receipts) == num_updates, "the schedule, too, is that of the members"
    used = Counter((each.loader, place) for each in receipts for place in placed(each))
    assert used == dict.fromkeys(((loader, i) for loader in range(last + 1) for i in range(24)), 1)
    assert all("epochs of this loader are over" not in line for line in peers[2].stderr)


def placed(receipt: Receipt) -> list[int]:
    """Positions of a receipt's samples in their loader's stream."""
    return [start + i for each in receipt.contributions for start, number in each.samples for i in range(number)]


def test_who_has_another_number_of_updates_per_batch_is_told_both(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, f"updates={number}", "workers=0", min_peers=2) for number in (2, 3)]
    for peer in peers:
        assert peer.end() == 1
        error = "\n".join(peer.stderr)
        assert "update 3 of the batch before 8" in error and ", from 8 on" in error, error


def test_founders_whose_data_differ_are_told_both_values_before_anything_is_summed(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, word, "workers=0", min_peers=2) for word in ("batch=8", "batch=4")]
    for peer in peers:
        assert peer.end() == 1
        error = "\n".join(peer.stderr)
        assert "a training step on 90 samples" in error and "global_batch=8" in error and "global_batch=4" in error
    assert not any("step" in line for peer in peers for line in peer.stdout)


def test_a_joiner_whose_data_differ_is_refused_alone_with_both_values(swarm: Swarm) -> None:
    member = swarm.start(TRAIN, "epochs=100000", "workers=0")
    member.expect("step 5")
    joiner = swarm.start(TRAIN, "epochs=100000", "size=60", "joins=1", "workers=0")
    assert joiner.end() == 1
    error = "\n".join(joiner.stderr)
    assert "shoal: loader 0 of this script is not the swarm's: 60 samples" in error and "90 samples" in error
    member.expect_line(r"step \d+ 1", after=member.stdout[-1])
    member.send_signal(signal.SIGTERM)
    assert member.end() == 128 + signal.SIGTERM


def test_a_sample_that_nobody_can_read_is_named_and_left_out_and_nobody_dies_of_it(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, "poison=57", "epochs=1", min_peers=3) for _ in range(3)]
    assert [peer.end() for peer in peers] == [0, 0, 0], peers[0].report()
    receipts = read_receipts(swarm.receipts / f"{name(peers[0])}.receipts.jsonl")
    order = Order(Sampler(NUM_SAMPLES, GLOBAL_BATCH))
    each = [(contribution, receipt) for receipt in receipts for contribution in receipt.contributions]
    used = [i for contribution, _ in each for i in order.indices(contribution.samples)]
    assert sorted(used) == [i for i in range(NUM_SAMPLES) if i != 57]
    failed = [
        (contribution.peer_id, order.indices(contribution.failed)) for contribution, _ in each if contribution.failed
    ]
    assert [index for _, index in failed] == [[57], [57]] and failed[0][0] != failed[1][0]
    for peer in peers:
        errors = "\n".join(peer.stderr)
        assert "sample 57 is left out of epoch 0: no peer could load it" in errors
        assert ("line 57 is truncated" in errors) == (name(peer) in {who for who, _ in failed})


BETWEEN = """
import os, signal, sys
from threading import Event
import numpy as np
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
dies, given = sys.argv[1] == "dies", {"per-peer": {"batch_per_peer": 2}, "timed": {"global_batch": 6, "round_s": 0.01}}
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapper = p2p.DiLoCo if sys.argv[2] == "timed" else p2p.DataParallel
    parallel = wrapper(peer, model, optimizer)
    dataset = torch.utils.data.TensorDataset(torch.arange(600.0)[:, None])
    loader, is_first = peer.loader(dataset, epochs=30, **given[sys.argv[2]]), True
    for _ in loader.epochs():
        began, is_first = 0 if is_first else peer.world_size, False
        for (x,) in loader:
            if parallel.has_committed if wrapper is p2p.DiLoCo else peer.done:
                if peer.done == 5:
                    print("five")
                    if dies:
                        os.kill(os.getpid(), signal.SIGKILL)
                    sys.stdin.readline()
                peer.all_reduce(np.ones(1))
            Event().wait(0.004)
            optimizer.zero_grad()
            parallel(x).mean().backward()
            optimizer.step()
        if began == 3:
            break
    print("end", peer.samples)
"""
"""An operation of the script's own between a batch and its step, in which members die and join."""


@pytest.mark.light
@pytest.mark.parametrize("how", some_of(["per-peer", "timed"], 1))
def test_each_sample_counts_once_where_peers_die_and_join_between_a_batch_and_its_step(swarm: Swarm, how: str) -> None:
    peers = [swarm.start(BETWEEN, what, how, min_peers=3) for what in ("stays", "dies", "stays")]
    for peer in peers:
        peer.expect("five")
    peers.pop(1).end()
    joiner = swarm.start(BETWEEN, "stays", how)
    joiner.expect("here")
    for peer in (*peers, joiner):  # a joiner that has the state after the fifth step early is at that place, too
        peer.tell("go on")
    for peer in (*peers, joiner):
        assert peer.end() == 0, peer.report()
        assert int(peer.stdout[-1].removeprefix("end ")) % 600 == 0, peer.report()
    receipts = check_equal(swarm, [*peers, joiner])
    used = Counter(i for receipt in receipts for part in receipt.contributions for i in positions(part.samples))
    assert used == dict.fromkeys(range(len(used)), 1) and len(used) % 600 == 0
    assert any(each.peer_id == name(joiner) for receipt in receipts for each in receipt.contributions)

"""Joiners that train a model: they observe while the others continue, and return after a removal."""

import re
import signal
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from p2p.step.receipts import Receipt, read_receipts
from p2p.telemetry.records import Kind
from tests.live.swarm import Process, Swarm, name

pytestmark = pytest.mark.torch

WIDTH = 32


def make(num_bytes: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """A small model with a large frozen table."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model.register_buffer("table", torch.arange(num_bytes // 4, dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.9)


TRAIN = """
import logging, os, select, signal, sys
import numpy as np
import torch
import xxhash
import p2p
from torch.nn import functional
from tests.live.test_observers import WIDTH, make

device = None
if "device" in sys.argv:
    from tests.p2p.staging.standin import StandIn as Device
if "gpu" in sys.argv:
    from tests.p2p.staging.gpu import Gpu as Device

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

def tensors_of_the_state():
    return [*model.state_dict().values(), *(t for s in optimizer.state.values() for t in s.values())]

def say(*words):
    "In one go, since the log goes the same way."
    sys.stdout.write(" ".join(map(str, words)) + "\\n")

def summary():
    "Of everything that the next step depends on."
    digest = xxhash.xxh3_128(repr(schedule.state_dict()).encode())
    for tensor in tensors_of_the_state():
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()

torch.set_num_threads(1)
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
model, optimizer, schedule = make(int(sys.argv[1]))
if {"device", "gpu"} & {*sys.argv}:
    device = Device(len(sys.argv))
    device.watched = tensors_of_the_state
    model.to(device.where)
if "held" in sys.argv:
    class StepLR(type(schedule)):
        def load_state_dict(self, state):
            if "held" in sys.argv:
                sys.argv.remove("held")  # who falls behind afterwards loads another state
                say("holds")
                sys.stdin.readline()
            super().load_state_dict(state)
    schedule.__class__ = StepLR
if "joins" in sys.argv:
    with torch.no_grad():
        model.table.zero_()
data = torch.randn(600, WIDTH, generator=torch.Generator().manual_seed(1))
with p2p.join(rejoin="stays" not in sys.argv) as peer:
    say("here", peer.peer_id)
    peer.on_view_change(lambda view: say("view of", len(view.members)))
    if device is not None:
        peer._session.device_of = device.device_of
    parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule], bucket_bytes=3000, state_digest="all")
    say("from", peer.last_step, peer.rank, peer.world_size)
    wish, word = np.zeros(1, np.int64), ""
    every = 7 if "often" in sys.argv else 100
    loader = peer.loader(data, global_batch=12, epochs=10**6, seed=3)
    for x in (x for _ in loader.epochs() for x in loader):
        x = x if device is None else x.to(device.where)
        loss = functional.mse_loss(parallel(x), x)
        optimizer.zero_grad()
        loss.backward()
        if peer.last_step % every == every - 1:
            if peer.last_step == 13 and "often" in sys.argv:
                say("waits")
                sys.stdin.readline()
            wish[0] = word == "stop"
            peer.all_reduce(wish)
        optimizer.step()
        schedule.step()
        say("step", peer.last_step, peer.rank, peer.world_size)
        if peer.last_step == 10 and "waits" in sys.argv:
            say("waits")
            sys.stdin.readline()
        if peer.last_step == 10 and "stops" in sys.argv:
            os.kill(os.getpid(), signal.SIGSTOP)
        if peer.last_step == 15 and "damaged" in sys.argv:
            with torch.no_grad():
                model[0].weight[0, 0] += 1
        if wish[0]:
            break
        word = word or command()
    assert device is None or device.num_copies > 0
    say("end", summary())
"""
"""Adam and a schedule; now and then an operation, before `optimizer.step`, asks whether to stop.

An observer that misses the result of such an operation cannot continue, so `waits` pauses all peers near the beginning.
"""

LARGE = 16 << 20


def start_all(
    swarm: Swarm, count: int, num_bytes: int, *arguments: str, min_peers: int = 0, where: str = "host"
) -> list[Process]:
    """Start peers: the first founds the swarm, and gets `arguments`; step 0 waits for all, or for `min_peers`."""
    first = swarm.start(TRAIN, str(num_bytes), where, *arguments, min_peers=min_peers or count)
    first.expect("here")
    others = [swarm.start(TRAIN, str(num_bytes), where, min_peers=min_peers or count) for _ in range(count - 1)]
    return [first, *others]


def join(swarm: Swarm, first: Process, num_bytes: int, where: str = "host") -> Process:
    """Start a joiner while `first` waits at step 10."""
    first.expect("waits")
    joiner = swarm.start(TRAIN, str(num_bytes), where, "joins")
    joiner.expect("here")
    first.tell("go on")
    return joiner


def stop(peers: Sequence[Process]) -> None:
    """End the run; check that all end after the same step, with equal bits of model, optimizer and schedule."""
    peers[0].tell("stop")
    assert [peer.end() for peer in peers] == [0] * len(peers), "\n".join(peer.report() for peer in peers)
    assert len({peer.expect("end ") for peer in peers}) == 1


def seen_by(peer: Process, size: int) -> None:
    """Block until `peer` has committed a step in a view of `size` members, itself one of them."""
    peer.expect_line(rf"step \d+ (?!{size} )\d+ {size}")


def check_receipts(swarm: Swarm, peers: Sequence[Process]) -> list[Receipt]:
    """Check that peers have equal receipts, which count each sample once; returns those of the first peer."""
    known: dict[int, Receipt] = {}
    for peer in peers:
        receipts = read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl")
        assert all(name(peer) in {entry.peer_id for entry in receipt.contributions} for receipt in receipts)
        for receipt in receipts:
            assert known.setdefault(receipt.step, receipt) == receipt
    steps = sorted(known)
    assert steps == list(range(len(steps)))
    parts = [part for s in steps for e in known[s].contributions for part in e.samples]
    counted = sorted(p for first, number in parts for p in range(first, first + number))
    assert len(set(counted)) == len(counted) and counted[-1] - len(counted) < 12 * 4, "but for what the last step lost"
    return [known[step] for step in steps]


def test_a_large_state_is_handed_over_while_the_others_train(swarm: Swarm) -> None:
    peers = start_all(swarm, 2, LARGE)
    peers[0].expect_step(20)
    joiner = swarm.start(TRAIN, str(LARGE), "joins", "held")
    joiner.expect("holds")
    last = int(next(line for line in reversed(peers[0].stdout) if line.startswith("step ")).split()[1])
    peers[0].expect_step(last + 20)
    joiner.tell("go on")
    seen_by(joiner, 3)
    stop([*peers, joiner])
    check_receipts(swarm, [*peers, joiner])
    began, loaded = (swarm.records(joiner, kind)[0] for kind in (Kind.STATE, Kind.LOADED))
    for peer in peers:
        times = [record.time_ns for record in swarm.records(peer, Kind.COMMITTED)]
        assert sum(began.time_ns <= time_ns <= loaded.time_ns for time_ns in times) >= 19
    words = joiner.expect("from").split()
    assert words[2] == words[3] == "2", "an observer's rank is that of the next joiner"


def test_the_donor_dies_while_it_sends_the_state(swarm: Swarm) -> None:
    peers = start_all(swarm, 3, LARGE, "waits")
    joiner = join(swarm, peers[0], LARGE)
    donor = joiner.expect("the state after step").split()[-1]
    victim = next(peer for peer in peers if name(peer) == donor)
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    peers.remove(victim)
    seen_by(joiner, 3)
    stop([*peers, joiner])
    check_receipts(swarm, [*peers, joiner, victim])


def test_the_joiner_dies_while_it_is_sent_the_state(swarm: Swarm) -> None:
    peers = start_all(swarm, 2, LARGE, "waits")
    joiner = join(swarm, peers[0], LARGE)
    joiner.expect("the state after step")
    joiner.kill()
    assert joiner.end() == -signal.SIGKILL
    last = int(next(line for line in reversed(peers[0].stdout) if line.startswith("step ")).split()[1])
    peers[0].expect_step(last + 20)
    stop(peers)
    check_receipts(swarm, peers)


@pytest.mark.long
def test_the_feeder_dies_while_the_joiner_follows(swarm: Swarm) -> None:
    peers = start_all(swarm, 3, 1 << 20, "waits")
    joiner = join(swarm, peers[0], 1 << 20)
    joiner.expect("from")
    feeder = joiner.expect("the state after step").split()[-1]
    victim = next(peer for peer in peers if name(peer) == feeder)
    victim.kill()
    assert victim.end() == -signal.SIGKILL
    peers.remove(victim)
    seen_by(joiner, 3)
    stop([*peers, joiner])
    check_receipts(swarm, [*peers, joiner, victim])


def test_a_joiner_that_comes_during_an_operation_before_the_optimizer_step_waits_and_takes_part(swarm: Swarm) -> None:
    peers = [swarm.start(TRAIN, "1000", "often", min_peers=2) for _ in range(2)]
    for peer in peers:
        peer.expect("waits")
    peers[1].tell("go on")  # it then waits in an operation
    joiner = swarm.start(TRAIN, "1000", "joins", "often")
    joiner.expect("here")
    peers[0].tell("go on")
    seen_by(joiner, 3)
    stop([*peers, joiner])
    check_receipts(swarm, [*peers, joiner])


def test_a_stopped_peer_comes_back_by_itself(swarm: Swarm) -> None:
    stopped, *peers = everybody = start_all(swarm, 3, 1000, "stops")
    for peer in peers:
        peer.expect("view of 2")
    stopped.send_signal(signal.SIGCONT)
    back = stopped.expect_line(r"the others have continued without this peer: view \d+ .*; this peer, .*, comes back")
    for peer in peers:
        peer.expect_line("view of 3", after="view of 2")
    stopped.expect_line(r"step \d+ 2 3", after=back)
    stop([*peers, stopped])
    check_receipts(swarm, everybody)


def test_a_peer_whose_parameters_change_in_its_memory_is_named_and_comes_back_with_those_of_the_others(
    swarm: Swarm,
) -> None:
    peers = start_all(swarm, 2, 1000, min_peers=3)
    damaged = swarm.start(TRAIN, "1000", "damaged", min_peers=3)
    back = damaged.expect_line(
        rf"the parameters of step 16 at {name(damaged)} differ from those of \w+, \w+, which continue without it; "
        rf"this peer, {name(damaged)}, comes back"
    )
    for peer in peers:
        peer.expect(f"{name(damaged)} differs in step 16 from the members that stay, which redo it without that member")
    damaged.expect_line(r"step \d+ 2 3", after=back)
    stop([*peers, damaged])
    receipts = check_receipts(swarm, [*peers, damaged])
    before, after = ({(e.peer_id, e.incarnation) for e in receipt.contributions} for receipt in receipts[15:17])
    assert {peer_id for peer_id, _ in before - after} == {name(damaged)}, "the step is done over without it"


@pytest.mark.long
def test_a_stopped_peer_that_must_not_come_back_ends(swarm: Swarm) -> None:
    stopped, *peers = start_all(swarm, 3, 1000, "stops", "stays")
    for peer in peers:
        peer.expect("view of 2")
    stopped.send_signal(signal.SIGCONT)
    assert stopped.end() == 3, stopped.report()
    assert re.search(r"have continued without this peer.*start this peer again", stopped.stderr[-1]), stopped.report()
    stop(peers)

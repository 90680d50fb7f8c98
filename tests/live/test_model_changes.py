"""Planned changes of a model: peers that join, return, or resume from a checkpoint make them, too."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.live.swarm import Process, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import sys
import torch
import p2p
from torch import nn
from tests.live.test_refresh import GLOBAL_BATCH, bits, dataset, make

torch.set_num_threads(1)
words, (model, optimizer) = dict(word.partition("=")[::2] for word in sys.argv[1:]), make()
model[0].requires_grad_(False)

def unfreeze():
    print("unfrozen", peer.done)
    if "nothing" not in words:
        model[0].requires_grad_(True)
    if "calls" in words:
        peer.barrier() if "own" not in words else parallel(torch.randn(4, 4))

def grown():
    print("grown", peer.done)
    model.append(nn.Linear(3, 3))  # of the same numbers everywhere
    optimizer.add_param_group({"params": model[3].parameters(), "lr": 0.02})

schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if "anneals" in words else None
steps = [int(step) for step in words.get("changes", "16,22").split(",")]
checkpoint = p2p.Checkpoint(words["folder"], every=5) if "folder" in words else None
with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(
        peer, model, optimizer, bucket_bytes=100, state_digest="all", checkpoint=checkpoint,
        extra=[schedule] * bool(schedule), changes=dict(zip(steps, (unfreeze, grown))),
    )
    print("wrapped", peer.done)
    torch.manual_seed(1000 * peer.done + peer.rank)
    if "bare" in words:
        parallel(torch.randn(4, 4))  # once, to look at it
    if "own" in words:
        batches = iter(lambda: torch.randn(4, 4), None)
    else:
        loader = peer.loader(dataset(), global_batch=GLOBAL_BATCH, epochs=10**6)
        batches = (x for _ in loader.epochs() for (x,) in loader)
    began = None
    for batch in batches:
        if peer.done == int(words.get("until", -1)):
            break
        if "until" not in words and peer.done % 10 == 0:
            if peer.done > 30 and began == (peer.done - 10, 3):
                break  # three have been here for ten steps, and know it
            began = peer.done, peer.world_size
        optimizer.zero_grad()
        if peer.done == int(words.get("refreshes", -1)):
            parallel.refresh()
        if peer.done == int(words.get("freezes", -1)):
            model[2].bias.requires_grad_(False)  # as its script may at any time, all alike
        output = model(batch) if "bare" in words else parallel(batch)
        if words.get("waits") == str(peer.done):
            print("waits")
            sys.stdin.readline()
            words["waits"] = ""
        (output - 1).square().mean().backward()
        optimizer.step()
        if schedule:
            schedule.step()
        print("step", peer.done, peer.world_size)
    print("end", peer.done, len(model), bits(model).tobytes().hex())
"""

OWN = pytest.mark.parametrize("own", [pytest.param("", id="loader"), pytest.param("own", marks=pytest.mark.long)])


def ended_alike(peers: list[Process]) -> None:
    assert [peer.end() for peer in peers] == [0] * len(peers), "\n".join(peer.report() for peer in peers)
    assert len({peer.stdout[-1] for peer in peers}) == 1


def joined(swarm: Swarm, *words: str, at: int) -> list[Process]:
    """Two peers, and one that joins while they wait after step `at`."""
    peers = [swarm.start(TRAIN, *words, f"waits={at}", min_peers=2) for _ in range(2)]
    for peer in peers:
        peer.expect("waits")
    peers.append(swarm.start(TRAIN, *words))
    peers[2].expect("here")
    for peer in peers[:2]:
        peer.tell("go on")
    ended_alike(peers)
    return peers


@OWN
def test_who_joins_behind_a_change_makes_it_as_it_takes_over_the_state(swarm: Swarm, own: str) -> None:
    peers = joined(swarm, own, at=25)
    assert [line for line in peers[2].stdout if line.startswith(("unfrozen", "grown"))] == ["unfrozen -1", "grown -1"]
    assert [line for line in peers[0].stdout if line.startswith(("unfrozen", "grown"))] == ["unfrozen 16", "grown 22"]


@pytest.mark.long
@OWN
def test_who_has_joined_before_a_change_makes_it_with_the_others(swarm: Swarm, own: str) -> None:
    peers = joined(swarm, own, at=12)
    assert all("grown 22" in peer.stdout for peer in peers[:2])


@OWN
def test_who_was_stopped_over_a_change_makes_it_as_it_comes_back(swarm: Swarm, own: str) -> None:
    stopped, *others = peers = [swarm.start(TRAIN, own, min_peers=3) for _ in range(3)]
    stopped.expect_step(5)
    stopped.send_signal(signal.SIGSTOP)
    for peer in others:
        peer.expect_step(30)
    stopped.send_signal(signal.SIGCONT)
    ended_alike(peers)
    (unfrozen,), (grown,) = ([s for s in stopped.stdout if s.startswith(word)] for word in ("unfrozen", "grown"))
    assert int(unfrozen.split()[1]) < 16 and int(grown.split()[1]) < 22, "before the state that it was given"


def test_a_run_goes_on_from_a_checkpoint_behind_a_change_and_makes_those_that_come_later(
    swarm: Swarm, tmp_path: Path
) -> None:
    options = f"folder={tmp_path / 'checkpoints'}", "changes=8,22"
    ended_alike([swarm.start(TRAIN, *options, "until=12", min_peers=2) for _ in range(2)])
    other = swarm.start(TRAIN, options[0], "changes=9,22", "until=30")
    assert other.end() == 1, other.report()
    refusal = "this state is of a model that was changed after steps [8], but this peer changed its model after steps"
    assert any(f"{refusal} none, out of planned steps [9, 22]" in line for line in other.stderr), other.report()
    peers = [swarm.start(TRAIN, *options, "until=30", min_peers=2) for _ in range(2)]
    ended_alike(peers)
    for peer in peers:
        assert peer.expect("wrapped") == "wrapped 12"
        assert "unfrozen 0" in peer.stdout and "grown 22" in peer.stdout
    alone = swarm.start(TRAIN, options[1], "until=30")
    assert alone.end() == 0, alone.report()
    found, wanted = (np.frombuffer(bytes.fromhex(each.stdout[-1].split()[3]), np.float32) for each in (peers[0], alone))
    assert np.allclose(found, wanted, rtol=0, atol=1e-5), np.abs(found - wanted).max()


@pytest.mark.long
def test_what_a_script_has_frozen_in_passing_is_as_it_was_for_who_joins_or_goes_on_behind_a_change(
    swarm: Swarm, tmp_path: Path
) -> None:
    joined(swarm, "freezes=9", "anneals", at=25)
    options = f"folder={tmp_path / 'checkpoints'}", "freezes=9", "anneals"
    for until in ("20", "30"):
        peers = [swarm.start(TRAIN, *options, f"until={until}", min_peers=2) for _ in range(2)]
        ended_alike(peers)
        assert not [line for peer in peers for line in peer.stderr if "in this script" in line], peers[0].report()
    alone = swarm.start(TRAIN, *options[1:], "until=30")
    assert alone.end() == 0, alone.report()
    found, wanted = (np.frombuffer(bytes.fromhex(each.stdout[-1].split()[3]), np.float32) for each in (peers[0], alone))
    assert np.allclose(found, wanted, rtol=0, atol=1e-5), np.abs(found - wanted).max()


def test_a_change_that_changes_nothing_is_named(swarm: Swarm) -> None:
    peer = swarm.start(TRAIN, "nothing", "changes=2", "until=4")
    assert peer.end() == 0, peer.report()
    said = "the planned change of the model after step 2 (`changes=`) changed nothing: not its parameters, what needs"
    assert sum(said in line for line in peer.stderr) == 1, peer.report()


ADVERSARIES = """
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
g, d = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1)
of_g, of_d = (torch.optim.Adam(model.parameters(), lr=0.01) for model in (g, d))
g[0].requires_grad_(False)

def unfreeze():
    print("unfrozen", peer.done)
    g[0].requires_grad_(True)

with p2p.join() as peer:
    model = p2p.DataParallel(peer, {"G": g, "D": d}, {"G": of_g, "D": of_d}, changes={6: unfreeze})
    for (real,) in peer.loader(torch.utils.data.TensorDataset(torch.randn(80, 4)), global_batch=8):
        fake = model["G"](torch.randn(len(real), 3))
        of_d.zero_grad()
        (model["D"](real).mean() - model["D"](fake.detach()).mean()).backward()
        of_d.step()
        of_g.zero_grad()
        model["D"](fake).mean().backward()  # leaves a gradient in D
        of_g.step()
    print("end", g[0].weight.requires_grad)
"""


def test_gradients_that_are_left_in_another_model_do_not_put_a_change_off(swarm: Swarm) -> None:
    peer = swarm.start(ADVERSARIES)
    assert peer.end() == 0, peer.report()
    assert "unfrozen 6" in peer.stdout and peer.stdout[-1] == "end True", peer.report()


ACTOR_CRITIC = """
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
actor, critic = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)), torch.nn.Linear(3, 1)
of_actor, of_critic = (torch.optim.Adam(model.parameters(), lr=0.01) for model in (actor, critic))
actor[0].requires_grad_(False)

def unfreeze():
    print("unfrozen", peer.done, actor[1].weight.grad is None)
    actor[0].requires_grad_(True)

with p2p.join() as peer:
    both, optimizers = {"actor": actor, "critic": critic}, {"actor": of_actor, "critic": of_critic}
    model = p2p.DataParallel(peer, both, optimizers, changes={3: unfreeze})
    for _ in range(4):
        x = torch.randn(4, 3)
        model["actor"](x).square().mean().backward()
        model["critic"](x).mean().backward()
        for optimizer in (of_actor, of_critic):
            optimizer.step()
            optimizer.zero_grad()
    print("end", actor[0].weight.requires_grad)
"""


def test_a_change_comes_behind_the_updates_of_its_step_and_not_between_the_passes_of_a_loop(swarm: Swarm) -> None:
    peer = swarm.start(ACTOR_CRITIC)
    assert peer.end() == 0, peer.report()
    assert "unfrozen 4 True" in peer.stdout and peer.stdout[-1] == "end True", peer.report()


BY_HAND = """
import os, sys
import torch
import p2p
from tests.live.test_refresh import dataset, grow, make

torch.set_num_threads(1)
path, until = sys.argv[1:]
model, optimizer = make()
with p2p.join() as peer:
    if os.path.exists(path):
        saved = torch.load(path)
        grow(model, optimizer)  # to have a place for what is loaded
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        peer.load_state_dict(saved["peer"])
    parallel = p2p.DataParallel(peer, model, optimizer, changes={3: lambda: grow(model, optimizer)})
    for (x,) in peer.loader(dataset(), global_batch=6):
        if peer.done == int(until):
            break
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "peer": peer.state_dict()}, path)
    print("end", peer.done, len(model))
"""


def test_who_loads_a_state_by_hand_has_made_the_changes_that_are_in_it(swarm: Swarm, tmp_path: Path) -> None:
    for until in ("5", "8"):
        peer = swarm.start(BY_HAND, str(tmp_path / "saved"), until)
        assert peer.end() == 0, peer.report()
        assert peer.stdout[-1] == f"end {until} 4", peer.report()


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["calls", "changes=2"], "the planned change of the model after step 2 (`changes=`) called its peer"),
        (["own", "calls", "changes=2"], "the planned change of the model after step 2 (`changes=`) called its peer"),
        (["refreshes=2"], "`refresh` was called for a model with `changes=`: a joiner would start with the model as"),
        (
            ["own", "bare", "changes=2"],
            "a change of the model is due after step 2 (`changes=`), but changes are made where",
        ),
        (["changes=0"], "the keys of `changes` must be training steps, counted from 1, got 0"),
    ],
)
def test_what_cannot_be_a_change_is_refused(swarm: Swarm, words: list[str], refusal: str) -> None:
    peer = swarm.start(TRAIN, *words)
    assert peer.end() == 1, peer.report()
    assert any(refusal in line for line in peer.stderr), peer.report()


def test_who_plans_other_changes_is_no_member(swarm: Swarm) -> None:
    peer = swarm.start(TRAIN, "until=30", "waits=3")
    peer.expect("waits")
    other = swarm.start(TRAIN, "until=30", "changes=17,22")
    assert other.end() == 1, other.report()
    both = "a model that is changed after step 17, 22 here, a model that is changed after step 16, 22 in the swarm"
    assert any(both in line for line in other.stderr), other.report()
    peer.tell("go on")
    assert peer.end() == 0, peer.report()

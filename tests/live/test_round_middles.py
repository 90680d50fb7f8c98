"""Scripts that evaluate, catch an error, or are interrupted in the middle of a round. Optimizers that keep copies."""

from pathlib import Path

import pytest

from tests.live.swarm import Process, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]


def check_ends(*peers: Process, code: int = 0) -> None:
    assert [peer.end() for peer in peers] == [code] * len(peers), "\n".join(peer.report() for peer in peers)


MASTERS = """
import torch
import p2p

class WithMasters(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                master = self.state[each].setdefault("master", each.detach().float().clone())
                master.sub_(each.grad.float(), alpha=group["lr"])
                each.copy_(master)

torch.set_num_threads(1)
model = torch.nn.Linear(3, 1).bfloat16()
optimizer = WithMasters(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=2)
    for batch in torch.randn(4, 8, 3).bfloat16():
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        optimizer.step()
"""


def test_an_optimizer_that_keeps_copies_of_parameters_is_refused_before_it_loses_an_exchange(swarm: Swarm) -> None:
    peer = swarm.start(MASTERS)
    check_ends(peer, code=1)
    assert "WithMasters keeps a copy of its parameters ('master' in its state)" in peer.stderr[-1], peer.report()


AMID = """
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
data = torch.randn(48, 4)
body, head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), torch.nn.Linear(4, 1)
model = torch.nn.Sequential(body, head)
optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters(), lr=0.01)]
statistics = body[1].running_mean

def show(what):
    peer.barrier()
    rows = peer.all_gather(torch.cat([statistics, head.weight.detach().flatten()]))
    print(what, peer.done, torch.equal(rows[0], rows[1]), bool(rows.isfinite().all()))

def train(batch):
    loss = wrapped(batch).pow(2).mean()
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()

with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizers[0], extra=optimizers[1:], dense_steps=3, nonfinite="skip")
    loader = peer.loader(data, global_batch=8, epochs=4, inner_steps=3)
    validation = peer.loader(data, global_batch=16, seed=1)
    for epoch in loader.epochs():
        model.train()
        for number, batch in enumerate(loader):
            train(batch * float("nan") if (epoch, number) == (2, 1) else batch)
            if (epoch, number) == (0, 2):
                for _ in validation.evaluate():  # behind the last dense step
                    pass
                show("dense")
            if number == {1: 4, 3: 3}.get(epoch):
                break
        if epoch == 1:
            before, local = peer.done, head.weight.clone()
            with wrapped.anchor():
                for _ in validation.evaluate():
                    pass
                show("anchor")
            print("amid", peer.done == before, torch.equal(local, head.weight))
            model.eval()
            for _ in validation.evaluate():
                pass
            show("ended in an evaluation")
        elif epoch == 2:
            show("behind NaN")
        elif epoch == 3:
            break
    amid = wrapped._rounds.is_amid
print("left", amid, statistics.tolist(), head.weight.tolist())
"""
"""Two optimizers, and BatchNorm: evaluations at several places, and the effects of a dropped round."""


def test_rounds_that_are_looked_at_or_left_in_their_middle_leave_all_peers_alike(swarm: Swarm) -> None:
    peers = [swarm.start(AMID, min_peers=2) for _ in range(2)]
    check_ends(*peers)
    for peer in peers:
        told = [line.split()[-2:] for line in peer.stdout[1:-1]]
        assert told == [["True", "True"]] * 8, peer.report()
        assert peer.stdout[-1].startswith("left True"), peer.report()
    assert len({peer.stdout[-1] for peer in peers}) == 1, "also buffers are those of the last round"


CAUGHT = """
import torch
import p2p

torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=2)
    for number in range(8):
        batch = torch.ones(4, 2) * (float("nan") if number == 3 else 1.0)
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        try:
            optimizer.step()
        except p2p.NonFiniteGradient:
            print("caught", number)
    print("end", peer.done, peer.samples, bool(model.weight.isfinite().all()))
"""


def test_who_catches_what_is_not_finite_counts_in_the_round_that_it_begins_anew(swarm: Swarm) -> None:
    peer = swarm.start(CAUGHT)
    check_ends(peer)
    assert peer.stdout == ["caught 3", "end 3 6 True"], peer.report()


INTERRUPTED = """
import signal
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer, other = torch.optim.SGD([model.weight], lr=0.1), torch.optim.Adam([model.bias])
data = torch.utils.data.TensorDataset(torch.randn(48, 3))
folder, how, kind, name, file = sys.argv[1:]

def interrupt(frame, event, argument):
    if event == "call" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file):
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

def stop(*_):
    if how == "updated" and number == 2:
        signal.raise_signal(signal.SIGINT)

optimizer.register_step_post_hook(stop)  # runs before that of the wrapper
if how == "own handler":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
with p2p.join() as peer:
    options, length = {"extra": [other], "checkpoint": p2p.Checkpoint(folder, every=100)}, {"inner_steps": 2}
    if kind == "parallel":
        wrapped, length = p2p.DataParallel(peer, model, optimizer, **options), {}
    else:
        wrapped = p2p.DiLoCo(peer, model, optimizer, dense_steps=4 if kind == "dense" else 0, **options)
    print("begins", peer.done, *model.weight.flatten().tolist())
    try:
        for number, (batch,) in enumerate(peer.loader(data, global_batch=8, **length)):
            if how == "again":
                break
            model.zero_grad()
            loss = wrapped(batch).pow(2).mean()
            if number == 3 and how in ("", "own handler"):
                sys.setprofile(interrupt)
            loss.backward()
            optimizer.step()
            other.step()
            if number == 3:
                break
    except (KeyboardInterrupt, SystemExit):
        print("interrupted")
print("left", peer.done, *model.weight.flatten().tolist())
"""
"""A signal arrives in the fourth update, or as its step is committed; the script then ends well."""


def run_interrupted(swarm: Swarm, folder: Path, how: str, *place: str) -> tuple[Process, list[str]]:
    """Returns the peer, and what the next one begins with: step and parameters."""
    peer = swarm.start(INTERRUPTED, str(folder), how, *place)
    check_ends(peer)
    assert ("interrupted" in peer.stdout) == (how != "never"), peer.report()
    again = swarm.start(INTERRUPTED, str(folder), "again", *place)
    check_ends(again)
    return peer, again.stdout[0].split()[1:]


APPLIED = "rounds", "_step", "outer.py"


def test_a_signal_that_arrives_as_a_round_is_applied_waits_until_it_is(swarm: Swarm, tmp_path: Path) -> None:
    peer, begins = run_interrupted(swarm, tmp_path / "interrupted", "", *APPLIED)
    whole, right = run_interrupted(swarm, tmp_path / "whole", "never", *APPLIED)
    assert begins == right == peer.stdout[-1].split()[1:] == whole.stdout[-1].split()[1:]
    assert begins[0] == "2" and not peer.complaints(), peer.report()


def test_who_raises_as_a_round_is_applied_is_told_that_it_has_a_part(swarm: Swarm, tmp_path: Path) -> None:
    peer, begins = run_interrupted(swarm, tmp_path, "own handler", *APPLIED)
    assert "interrupted while it applied round 2, so its parameters are of no round" in peer.stderr[-1], peer.report()
    assert begins[0] == "0", "nothing was saved"


@pytest.mark.parametrize(
    "place",
    [
        ("dense", "reset_anchor", "outer.py"),
        ("parallel", "set_grads", "reducer.py"),
        ("parallel", "_single_tensor_adam", "adam.py"),
    ],
)
def test_no_checkpoint_has_a_step_whose_update_was_interrupted(
    swarm: Swarm, tmp_path: Path, place: tuple[str, str, str]
) -> None:
    _, begins = run_interrupted(swarm, tmp_path, "", *place)
    assert begins[0] == "0", "nothing was saved"


def test_who_is_interrupted_in_the_first_update_of_a_round_has_the_anchor(swarm: Swarm, tmp_path: Path) -> None:
    peer, begins = run_interrupted(swarm, tmp_path, "updated", *APPLIED)
    assert begins[0] == "1" and begins == peer.stdout[-1].split()[1:], peer.report()


LOOKED_AT = """
import sys
import torch
import p2p

class Centred(torch.nn.Module):
    _version = 2

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return (x - self.mean) * self.scale

    def _load_from_state_dict(self, state, prefix, metadata, *others):
        if metadata.get("version", 1) < 2:
            state[prefix + "scale"] = state[prefix + "scale"].exp()
        super()._load_from_state_dict(state, prefix, metadata, *others)

torch.set_num_threads(1)
model = torch.nn.Sequential(Centred())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=3, nonfinite="skip")
    for number in range(11):
        batch = torch.ones(8, 3) * (float("nan") if number == 4 else 1.0)
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        optimizer.step()
        if number == 7:
            local = model[0].mean.clone()
            with wrapped.anchor():
                print("buffer of the start", bool(model[0].mean.isfinite().all()), bool((model[0].mean < local).all()))
                wrapped(batch)
            print("local buffer", torch.equal(model[0].mean, local))
            saved, other = wrapped.state_dict(), torch.nn.Sequential(Centred())
            other.load_state_dict(saved)
            print("loaded", torch.equal(other[0].scale, saved["0.scale"]))
    print("rounds", peer.done, peer.samples)
    with wrapped.anchor():
        anchor = model[0].scale.clone()
        peer.leave()
    print("left", torch.equal(model[0].scale, anchor))
"""
"""Version of a layer; a buffer that no `state_dict` has; a peer that leaves as it looks at the anchor."""


def test_what_is_shown_saved_and_left_in_the_middle_of_a_round_is_of_its_start(swarm: Swarm) -> None:
    peer = swarm.start(LOOKED_AT)
    check_ends(peer)
    assert peer.stdout == [
        "buffer of the start True True",
        "local buffer True",
        "loaded True",
        "rounds 3 6",
        "left True",
    ], peer.report()

"""Habits around models trained in rounds: several optimizers, layers that thaw, the end of a run."""

from pathlib import Path

import pytest

from tests.cases import some_of
from tests.live.swarm import Process, Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]


def lines(peer: Process, word: str) -> list[str]:
    return [line for line in peer.stdout if line.startswith(word)]


def check_ends(*peers: Process, code: int = 0) -> None:
    assert [peer.end() for peer in peers] == [code] * len(peers), "\n".join(peer.report() for peer in peers)


ADVERSARIES = """
import sys
import torch
import p2p
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
by, data, dense_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
real = torch.randn(240, 2) * 0.5 + 2
models = nn.ModuleDict({
    "G": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
    "D": nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
})
optimizers = {name: torch.optim.Adam(each.parameters(), lr=2e-3) for name, each in models.items()}
(other,) = {"G", "D"} - {by}

def loss(guess, wish):
    return nn.functional.binary_cross_entropy_with_logits(guess, torch.full_like(guess, wish))

def update(name, loss):
    optimizers[name].zero_grad()
    loss.backward()
    optimizers[name].step()

with p2p.join() as peer:
    print("here", peer.peer_id)
    length = {"inner_steps": 3}
    own = length if data == "own" else {}
    model = p2p.DiLoCo(
        peer, models, optimizers[by], extra=[optimizers[other]], codec="float32", dense_steps=dense_steps, **own
    )
    dataset = torch.utils.data.TensorDataset(real)
    batches = torch.utils.data.DataLoader(dataset, 8) if own else peer.loader(dataset, global_batch=16, **length)
    for number, (batch,) in enumerate(batches):
        torch.manual_seed(1000 * peer.rank + number)
        fake = models["G"](torch.randn(len(batch), 4))  # its graph is needed after the update of D
        update("D", loss(models["D"](batch), 1.0) + loss(models["D"](fake.detach()), 0.0))
        update("G", loss(models["D"](fake), 1.0))
        if model.has_committed:
            saved = model.state_dict()
            assert all((saved[name] == each).all() for name, each in models.state_dict().items())
            print("round", peer.done, *(each.double().sum().item() for each in models.state_dict().values()))
    print("end", peer.done)
"""


@pytest.mark.parametrize(("data", "dense_steps"), some_of([("loader", 0), ("loader", 4), ("own", 0)], 1, 2))
def test_a_round_ends_behind_the_last_update_of_a_batch_whichever_optimizer_is_named_first(
    swarm: Swarm, data: str, dense_steps: int
) -> None:
    found = []
    for by in ("G", "D"):
        peers = [swarm.start(ADVERSARIES, by, data, str(dense_steps), min_peers=2) for _ in range(2)]
        check_ends(*peers)
        assert lines(peers[0], "round") == lines(peers[1], "round")
        found.append([*lines(peers[0], "round"), peers[0].stdout[-1]])
    assert found[0] == found[1]
    assert found[0][-1] == f"end {10 if data == 'own' else 5 if not dense_steps else 4 + 5}"
    assert len(found[0]) == (11 if data == "own" else 6 if not dense_steps else 2 + 5 + 1)


BY_ONESELF = """
import torch
import p2p

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    print("here", peer.peer_id)
    p2p.DiLoCo(peer, model, optimizer, inner_steps=2, dense_steps=4)
    model(torch.ones(2, 4)).mean().backward()
"""


def test_a_dense_step_that_nobody_could_join_is_refused(swarm: Swarm) -> None:
    peer = swarm.start(BY_ONESELF)
    check_ends(peer, code=1)
    assert "a dense step must begin with a forward pass of the wrapper, `model(batch)`" in peer.stderr[-1]


THAW = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
inputs, first = torch.randn(64, 4), model[0].weight.clone()
with p2p.join() as peer:
    print("here", peer.peer_id)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if sys.argv[1] == "before":
        model[0].requires_grad_(False)
    wrapped = p2p.DiLoCo(peer, model, optimizer, codec="float32", inner_steps=2, dense_steps=int(sys.argv[2]))
    model[0].requires_grad_(False)
    while peer.done < 4:
        if peer.done == 2:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        (wrapped(inputs[peer.rank :: 2]).mean() - 1).pow(2).backward()
        optimizer.step()
        if wrapped.has_committed:
            print("round", peer.done, (model[0].weight == first).all().item(), model[0].weight.sum().item())
"""


def test_what_thaws_is_exchanged_if_it_was_there_and_is_refused_else(swarm: Swarm) -> None:
    peers = [swarm.start(THAW, "after", "0", min_peers=2) for _ in range(2)]
    check_ends(*peers)
    assert lines(peers[0], "round") == lines(peers[1], "round")
    assert [line.split()[2] for line in lines(peers[0], "round")] == ["True", "True", "False", "False"]
    for dense_steps in ("0", "9"):
        peers = [swarm.start(THAW, "before", dense_steps, min_peers=2) for _ in range(2)]
        check_ends(*peers, code=1)
        for peer in peers:
            assert (
                "parameter 0.weight was unfrozen after the model was wrapped, so rounds would not exchange"
                in (peer.stderr[-1])
            )
            assert "refresh" not in peer.stderr[-1]


LAST = """
import signal
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 4))

def show(word):
    print(word, peer.done, schedule.last_epoch, *(each.double().sum().item() for each in model.state_dict().values()))

with p2p.join() as peer:
    print("here", peer.peer_id)
    kept = p2p.Checkpoint(sys.argv[1], every=100)
    wrapped = p2p.DiLoCo(peer, model, optimizer, extra=[schedule], checkpoint=kept, dense_steps=int(sys.argv[2]))
    show("begin")
    for number, (batch,) in enumerate(peer.loader(dataset, global_batch=8, inner_steps=3, epochs=int(sys.argv[3]))):
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
        if wrapped.has_committed:
            show("round")
        if number == int(sys.argv[4]):
            sys.exit()
    show("end")
"""


@pytest.mark.parametrize("dense_steps", some_of([0, 2, 8], 1))
def test_the_last_checkpoint_is_of_one_moment(swarm: Swarm, tmp_path: Path, dense_steps: int) -> None:
    """Buffers and schedules are of the anchor's round; also if a script ends in the middle of a round."""
    for stop, whole in ((-1, True), (3, False)):
        words = str(tmp_path / f"kept{stop}"), str(dense_steps)
        first = swarm.start(LAST, *words, "1", str(stop))
        check_ends(first)
        second = swarm.start(LAST, *words, "2", "0")
        check_ends(second)
        done, last_epoch, *values = lines(first, "end" if whole else "round")[-1].split()[1:]
        begun = lines(second, "begin")[0].split()[1:]
        assert begun[:2] == [done, last_epoch] and begun[-3:] == values[-3:]
        if int(done) > dense_steps:  # the last dense update belongs to the round that follows
            assert begun[2:] == values


RATES = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
dataset = torch.utils.data.TensorDataset(torch.randn(96, 4))
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer)
    for number, (batch,) in enumerate(peer.loader(dataset, global_batch=8, **eval(sys.argv[1]))):
        if peer.done == 2:
            optimizer.param_groups[0][sys.argv[2]] = eval(sys.argv[3])[peer.rank]
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("length", "key", "values", "said"),
    [
        ("dict(inner_steps=2)", "lr", "0.01, 0.02", "lr of group 0 of AdamW is 0.01 at peer {} and 0.02 at peer {} at"),
        (
            "dict(inner_steps=2)",
            "betas",
            "(0.9, 0.99), (0.8, 0.9)",
            "betas of group 0 of AdamW, number 0, is 0.9 at peer {} and 0.8 at peer {} at",
        ),
        ("dict(inner_steps=2)", "lr", "0.02, 0.02", ""),
        ("dict(round_s=1e-6)", "lr", "0.01, 0.02", ""),
    ],
)
def test_rates_are_compared_where_peers_make_as_many_steps(
    swarm: Swarm, length: str, key: str, values: str, said: str
) -> None:
    peers = swarm.start_all(2, RATES, length, key, values)
    check_ends(*peers)
    for peer in peers:
        found = [line for line in peer.stderr if "at the end of round 3, so their inner steps differ" in line]
        assert len(found) == bool(said) == bool([line for line in peer.stderr if "reported once" in line])
        assert not said or found[0].startswith(said.format(*map(name, peers)))


OF_STEPS = """
import copy
import sys
import torch
import p2p
from torch.nn.functional import mse_loss

torch.set_num_threads(1)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
with p2p.join() as peer:
    print("here", peer.peer_id)
    if sys.argv[1] == "parallel":
        model = p2p.DataParallel(peer, module, optimizer)
    else:
        how = {"codec": "float32", "outer_lr": 1.0, "momentum": 0.0, "inner_steps": 3, "dense_steps": 6}
        model = p2p.DiLoCo(peer, module, optimizer, **how)
    torch.manual_seed(peer.rank)
    alone = None  # trains beside, as this peer does in a round
    for number in range(12):
        inputs, targets = torch.randn(2, 8, 4), torch.randn(2, 8, 1)
        model.num_samples(3 + peer.rank)
        optimizer.zero_grad()
        if number == 6:
            alone = copy.deepcopy(module)
        kept = [[each.clone() for each in module.parameters()]]
        if number % 3 == 0:
            with model.no_sync():
                (mse_loss(model(inputs[0]), targets[0]) / 2).backward()
            (mse_loss(model(inputs[1]), targets[1]) / 2).backward()
        elif number % 3 == 1 and peer.rank:
            model(inputs[0])
            model.skip_step()
        elif number % 3 == 1:
            mse_loss(model(inputs[0]), targets[0]).backward()
        else:
            loss = mse_loss(model(inputs[0]), targets[0])
            found = model.reduce_gradients(torch.autograd.grad(loss, module.parameters()))
            assert all(each is parameter.grad for each, parameter in zip(found, module.parameters()))
        if number >= 6 and not (number % 3 == 1 and peer.rank):
            both = slice(None) if number % 3 == 0 else slice(1)
            losses = [mse_loss(alone(x), y) for x, y in zip(inputs[both], targets[both])]
            found = torch.autograd.grad(sum(losses) / len(losses), alone.parameters())
            with torch.no_grad():
                for parameter, gradient in zip(alone.parameters(), found):
                    parameter -= 0.1 * gradient
        optimizer.step()
        if model.has_committed:
            print("step", number, *(each.double().sum().item() for each in module.parameters()))
        if number >= 6 and model.has_committed and sys.argv[1] != "parallel":
            for parameter, mine in zip(module.parameters(), alone.parameters()):
                mean = mine.detach() * (3 + peer.rank) / 7
                peer.all_reduce(mean)
                assert torch.allclose(mean, parameter, atol=1e-6)
            alone = copy.deepcopy(module)
"""


def test_what_is_written_for_every_step_is_right_in_dense_steps_and_in_rounds(swarm: Swarm) -> None:
    said = []
    for kind in ("rounds", "parallel"):
        peers = swarm.start_all(2, OF_STEPS, kind)
        check_ends(*peers)
        assert lines(peers[0], "step") == lines(peers[1], "step")
        said.append(lines(peers[0], "step"))
    assert said[0][:6] == said[1][:6]
    assert [line.split()[1] for line in said[0][6:]] == ["8", "11"]


def test_a_run_goes_on_from_a_checkpoint_with_fewer_dense_steps_or_more(swarm: Swarm, tmp_path: Path) -> None:
    said = []
    for dense_steps, epochs in (("9", "1"), ("4", "2"), ("30", "3")):
        peer = swarm.start(LAST, str(tmp_path / "kept"), dense_steps, epochs, "-1")
        check_ends(peer)
        said.append([line.split(maxsplit=1) for line in peer.stdout[1:]])
    assert said[0][-1][1] == said[1][0][1]  # the whole state
    assert [value.split()[0] for word, value in said[1]] == ["8", "9", "10", "11", "11"]
    assert said[1][-1][1] == said[2][0][1]
    assert [value.split()[0] for word, value in said[2]] == ["11", *map(str, range(12, 20)), "19"]


VALIDATED = """
import sys
from threading import Event
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(240, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer)
    loader = peer.loader(dataset, global_batch=8, epochs=4, round_s=60.0 if "amid" in sys.argv else 0.02)
    validation = peer.loader(dataset, global_batch=60)
    for number, (batch,) in enumerate(batch for _ in loader.epochs() for batch in loader):
        if wrapped.has_committed:
            values = [wrapped(each).mean().item() * len(each) for (each,) in validation.evaluate()]
            print("valid", peer.done, *peer.combine(sum(values) / 240, samples=1), model.weight.sum().item())
        Event().wait(float(sys.argv[1]))
        optimizer.zero_grad()
        wrapped(batch).mean().backward()
        if number % 7 != 3:
            optimizer.step()
        if "amid" in sys.argv:
            peer.barrier()
"""


@pytest.mark.long
def test_all_validate_between_the_same_rounds_by_time_at_the_top_of_the_loop(swarm: Swarm) -> None:
    peers = [swarm.start(VALIDATED, pause, min_peers=3) for pause in ("0", "0.003", "0.03")]
    check_ends(*peers)
    said = [lines(peer, "valid") for peer in peers]
    assert said[0] == said[1] == said[2]
    rounds = [int(line.split()[1]) for line in said[0]]
    assert rounds == list(range(1, len(rounds) + 1)) and len(rounds) > 4


def test_an_operation_in_the_middle_of_a_round_by_time_is_refused(swarm: Swarm) -> None:
    peer = swarm.start(VALIDATED, "0", "amid")
    check_ends(peer, code=1)
    assert "an operation was called in the middle of a round that ends by time" in peer.stderr[-1]


AVERAGED = """
import sys
import torch
import p2p

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    print("here", peer.peer_id)
    extra = [average] if sys.argv[1] == "given" else []
    wrapped = p2p.DiLoCo(peer, model, optimizer, inner_steps=1, extra=extra)
    for batch in torch.randn(5, 8, 4):
        optimizer.zero_grad()
        wrapped(batch).pow(2).mean().backward()
        optimizer.step()
        average.update_parameters(model)
"""


def test_an_average_of_weights_that_no_joiner_is_given_is_named(swarm: Swarm) -> None:
    for way, number in (("given", 0), ("kept", 1)):
        peer = swarm.start(AVERAGED, way)
        check_ends(peer)
        assert (
            len([line for line in peer.stderr if line.startswith("AveragedModel has a copy of the model's")]) == number
        )


KILLED = """
import sys
from threading import Event
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(600, 4)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    print("here", peer.peer_id)
    wrapped = p2p.DiLoCo(peer, model, optimizer, codec="sparse16", checkpoint=p2p.Checkpoint(sys.argv[1], every=2))
    loader = peer.loader(dataset, global_batch=24, epochs=4, round_s=0.04)
    print("begin", peer.done, peer.samples)
    for x, y in (batch for _ in loader.epochs() for batch in loader):
        if wrapped.has_committed:
            with torch.no_grad():
                model.eval()
                found = [(wrapped(each) - wish).pow(2).sum().item() for each, wish in loader.evaluate()]
                model.train()
            print("round", peer.done, peer.samples, *peer.combine(sum(found) / 600, samples=1), flush=True)
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + peer.samples / 1000)
        Event().wait(float(sys.argv[2]))
        optimizer.zero_grad()
        (wrapped(x) - y).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print("end", peer.samples, *(each.double().sum().item() for each in wrapped.state_dict().values()))
"""


@pytest.mark.long
def test_a_run_in_rounds_by_time_that_is_killed_as_a_whole_goes_on(swarm: Swarm, tmp_path: Path) -> None:
    peers = [swarm.start(KILLED, str(tmp_path / "kept"), pause, min_peers=3) for pause in ("0.003", "0.003", "0.02")]
    peers[0].expect("round 4 ")
    peers[1].kill()
    peers.append(swarm.start(KILLED, str(tmp_path / "kept"), "0.003"))
    peers[3].expect("round ")
    for peer in peers:
        peer.kill()
    assert all(peer.end() for peer in peers)
    rounds: dict[str, str] = {}
    for peer in peers:
        for number, rest in (line.split(maxsplit=1)[1].split(maxsplit=1) for line in lines(peer, "round ")[:-1]):
            assert rounds.setdefault(number, rest) == rest
    again = [swarm.start(KILLED, str(tmp_path / "kept"), pause, min_peers=2) for pause in ("0.003", "0.01")]
    check_ends(*again)
    assert lines(again[0], "begin") == lines(again[1], "begin") and lines(again[0], "end") == lines(again[1], "end")
    assert lines(again[0], "round") == lines(again[1], "round")
    (begin,) = lines(again[0], "begin")
    _, done, samples = begin.split()
    assert int(done) >= 2 and rounds.get(done, samples).split()[0] == samples  # possibly no peer has printed it
    assert again[0].expect("end").split()[1] == "2400"


BETWEEN = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
case, wrapper = sys.argv[1:]
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if case == "load" else 0.1)
inputs = torch.randn(64, 4)
with p2p.join() as peer:
    print("here", peer.peer_id)
    if wrapper == "rounds":
        wrapped = p2p.DiLoCo(peer, model, optimizer, codec="float32", inner_steps=2)
    else:
        wrapped = p2p.DataParallel(peer, model, optimizer)
    best = {name: torch.full_like(each, 0.25) for name, each in wrapped.state_dict().items()}
    if case == "new":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(1, requires_grad=case == "beside")
    beside = torch.optim.SGD([scale], lr=0.1)
    while peer.done < 6:
        if peer.done == 2 and wrapped.has_committed:
            if case == "load" or (case == "load on one" and peer.rank == 1):
                wrapped.load_state_dict(best)
            if case == "freeze on one" and peer.rank == 1:
                model[0].requires_grad_(False)
            if case == "evaluate on one" and peer.rank == 1:
                model.eval()
        optimizer.zero_grad()
        beside.zero_grad()
        (wrapped(inputs[peer.rank :: 2]).mean() - scale).pow(2).sum().backward()
        if not (case == "leave out on one" and peer.done == 3 and peer.rank == 1):
            optimizer.step()
        beside.step()
    print("end", {each.unique().tolist()[0] for each in model.parameters()})
"""


def test_weights_that_all_load_between_two_rounds_are_what_they_go_on_with(swarm: Swarm) -> None:
    peers = swarm.start_all(2, BETWEEN, "load", "rounds")
    check_ends(*peers)
    for peer in peers:
        assert lines(peer, "end") == ["end {0.25}"]


@pytest.mark.parametrize(
    ("case", "wrapper", "said"),
    [
        ("load on one", "rounds", "parameters of step 3 differ: "),
        ("leave out on one", "steps", "parameters of step 4 differ: "),
        ("freeze on one", "rounds", "while 2 parameters, the first 0.weight, are frozen (digest "),
        ("freeze on one", "steps", "while 2 parameters, the first 0.weight, are frozen (digest "),
        ("evaluate on one", "rounds", "while 2 layers, the first 0, are in evaluation mode (digest "),
        ("evaluate on one", "steps", "while 2 layers, the first 0, are in evaluation mode (digest "),
        ("new", "rounds", "SGD updates this model but was not passed to p2p.DiLoCo, so no round"),
    ],
)
def test_what_one_peer_alone_does_to_its_model_and_an_optimizer_that_nobody_knows_are_refused(
    swarm: Swarm, case: str, wrapper: str, said: str
) -> None:
    peers = swarm.start_all(2, BETWEEN, case, wrapper)
    check_ends(*peers, code=1)
    for peer in peers:
        assert said in peer.stderr[-1], peer.report()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("new", "SGD updates this model but is not in extra="),
        ("beside", "SGD updates parameters that are in no wrapped model, with gradients from backward passes of this"),
    ],
)
def test_an_optimizer_that_data_parallel_was_not_given_is_named_once(swarm: Swarm, case: str, said: str) -> None:
    peers = swarm.start_all(2, BETWEEN, case, "steps")
    check_ends(*peers)
    for peer in peers:
        assert len([line for line in peer.stderr if "SGD updates" in line]) == 1
        assert [line for line in peer.stderr if said in line], peer.report()

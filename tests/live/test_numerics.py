"""Real peers whose processors round differently: `ATEN_CPU_CAPABILITY=default` beside this machine's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from p2p.step.receipts import read_receipts
from tests.live.swarm import Process, Swarm, name

pytestmark = [
    pytest.mark.torch,
    pytest.mark.light,
    pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="it has no other instruction set"),
]

MOST_ROUNDINGS = 200

TRAINING = """
import hashlib, os, select, sys
import numpy as np
import torch
import p2p

def told():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

os.environ |= dict(word.split("=") for word in sys.argv[2:])  # torch looks at it once, at its first operation
torch.set_num_threads(1)
with p2p.join(mixed=sys.argv[1]) as peer:
    print("here", peer.peer_id)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 64), np.float32))
    dataset = torch.utils.data.TensorDataset(inputs, inputs[:, :16].contiguous())
    replica = p2p.DataParallel(peer, model, optimizer, state_digest="all")
    loader = peer.loader(dataset, global_batch=40, epochs=1_000_000)
    word, is_over, size, num_sizes = "", False, 0, 0
    for _ in loader.epochs():
        for x, y in loader:
            loss = (replica(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            flat = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
            print("bits", peer.done, hashlib.sha1(flat.tobytes()).hexdigest())
            word = word or told()
            if peer.world_size != size:
                size, num_sizes = peer.world_size, num_sizes + 1
                print("size", size, "number", num_sizes)
            if word == "odd":
                word = ""
                print("odd", peer.done)
                optimizer.param_groups[0]["lr"] *= 2  # a schedule that the others have forgotten
            if peer.done % 10 == 0:
                wish = torch.tensor([float(word == "stop")])
                peer.all_reduce(wish)
                if is_over := bool(wish):
                    break
        if is_over:
            break
    np.save(f"{peer.peer_id}.npy", flat)
    print("end", peer.done)
"""


def other_kind(swarm: Swarm, *arguments: str, min_peers: int = 1) -> Process:
    return swarm.start(TRAINING, *arguments, "ATEN_CPU_CAPABILITY=default", min_peers=min_peers)


def bits(process: Process) -> dict[str, str]:
    """The digest of all parameters, by step."""
    lines = [line.split() for line in process.stdout if line.startswith("bits ")]
    return {step: digest for _, step, digest in lines}


def ends_well(*processes: Process) -> None:
    processes[0].tell("stop")
    for each in processes:
        assert each.end() == 0, each.report()


def roundings_apart(folder: Path, one: Process, other: Process) -> float:
    """The greatest difference of parameters, in roundings of the greatest parameter."""
    ours, theirs = (np.load(folder / f"{name(each)}.npy") for each in (one, other))
    apart = np.abs(ours.astype(np.float64) - theirs)
    return float(apart.max() / np.spacing(np.abs(ours).max()))


@pytest.mark.long
def test_two_kinds_train_together_and_one_of_them_comes_and_dies_out(swarm: Swarm, tmp_path: Path) -> None:
    ours = swarm.start_all(2, TRAINING, "resync")
    ours[0].expect("size 2")
    theirs = [other_kind(swarm, "resync")]  # during the run
    theirs[0].expect("here")
    ours[0].expect("size 3")
    theirs.append(other_kind(swarm, "resync"))  # receives the state from the first of its kind
    theirs[1].expect("here")
    four = ours[0].expect("size 4")
    ours[0].expect_line(r"bits \d*00 .*", after=ours[0].expect_line(r"bits \d*50 .*", after=four))
    for each in theirs:
        each.kill()
    ours[0].expect_line("size 2 .*", after=four)
    ends_well(*ours)
    (first, second), (third, fourth) = ([bits(each) for each in kind] for kind in (ours, theirs))
    for one, other in ((first, second), (third, fourth)):
        both = one.keys() & other.keys()
        assert len(both) >= 50 and all(one[step] == other[step] for step in both)
    assert any(first[step] != third[step] for step in first.keys() & third.keys())  # they are two kinds
    receipts = [read_receipts(swarm.receipts / f"{name(each)}.receipts.jsonl") for each in ours]
    assert receipts[0] == receipts[1]
    trained = [each for each in receipts[0] if each.num_samples]
    assert trained[0].state_digest and trained[-1].state_digest  # of one kind, and of one again
    assert sum(not each.state_digest for each in trained) >= 50


@pytest.mark.long
def test_a_founder_of_each_kind_end_near_each_other(swarm: Swarm, tmp_path: Path) -> None:
    one = swarm.start(TRAINING, "resync", min_peers=2)
    one.expect("here")
    other = other_kind(swarm, "resync", min_peers=2)
    one.expect_line(r"bits 300 .*")
    ends_well(one, other)
    assert bits(one).keys() == bits(other).keys() and bits(one) != bits(other)
    assert roundings_apart(tmp_path, one, other) <= MOST_ROUNDINGS
    assert len({*swarm.receipt_files().values()}) == 1


def test_who_differs_in_its_class_is_outvoted_there_and_comes_back(swarm: Swarm) -> None:
    ours = [swarm.start(TRAINING, "resync", min_peers=4)]
    ours[0].expect("here")
    ours += [swarm.start(TRAINING, "resync", min_peers=4) for _ in range(2)]
    alone = other_kind(swarm, "resync", min_peers=4)
    for each in (*ours, alone):
        each.expect("size 4")
    odd = ours[-1]
    odd.tell("odd")
    odd.expect_line(".*continue without it; this peer, .*, comes back", is_error=True)
    ours[0].expect_line("size 4 .*", after=ours[0].expect("size 3"))
    ends_well(*ours, alone)
    assert not any(each.complaints() for each in (*ours[:2], alone)), alone.report()


@pytest.mark.parametrize("is_founder", [True, False])
def test_who_is_alone_in_its_class_is_found_by_how_far_it_is(swarm: Swarm, is_founder: bool) -> None:
    num_founders = 1 + is_founder
    one = swarm.start(TRAINING, "resync", min_peers=num_founders)
    one.expect("here")
    if not is_founder:
        one.expect("size 1")
    other = other_kind(swarm, "resync", min_peers=num_founders)
    one.expect("size 2")
    other.expect("size 2")
    other.tell("odd")
    if is_founder:
        for each in (one, other):
            assert each.end() == 1, each.report()
            assert any(line.startswith("shoal: parameters of step ") for line in each.stderr), each.report()
        return
    other.expect_line(".*continue without it; this peer, .*, comes back", is_error=True)
    one.expect("size 2 number 4")
    ends_well(one, other)
    assert not one.complaints(), one.report()


def test_who_wants_one_kind_refuses_the_other_and_names_both(swarm: Swarm) -> None:
    one = swarm.start(TRAINING, "refuse")
    one.expect("size 1")
    other = other_kind(swarm, "refuse")
    assert other.end() == 1, other.report()
    (line,) = [line for line in other.stderr if line.startswith("shoal: it does not train as they do: ")]
    assert "one numerics class, cpu" in line and "DEFAULT" in line.split(" here, ")[0], line
    assert torch.backends.cpu.get_cpu_capability() in line.split(" here, ")[1], line
    ends_well(one)

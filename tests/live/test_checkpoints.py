"""Runs that are stopped, and resume from their checkpoints."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from p2p.checkpoint.manifest import read_manifest
from p2p.checkpoint.tree import from_json
from p2p.data.track import unpack_samples
from tests.live.resumes import PACE_S, POLL_S, TRAIN, Killed, Start, check, files, never, newest_step
from tests.live.swarm import Process, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def start(swarm: Swarm, folder: Path, number: int, *words: str, name: str) -> list[Process]:
    script = swarm.start(TRAIN, f"folder={folder}", *words, min_peers=number, name=name)
    return [
        script,
        *(swarm.start(TRAIN, f"folder={folder}", *words, min_peers=number, name=name) for _ in range(number - 1)),
    ]


def ended(peers: list[Process], code: int = 0) -> None:
    assert [peer.end() for peer in peers] == [code] * len(peers), peers[0].report()


def test_a_run_that_was_killed_goes_on_with_another_number_of_peers_and_counts_each_sample_once(
    swarm: Swarm, folder: Path
) -> None:
    swarm.leaves_files = True
    first = Start(swarm, start(swarm, folder, 3, "wait=17", name="one"))
    first.peers[1].expect_step(17)
    assert first.kill() == 17
    whole = newest_step(folder)
    second = Start(swarm, start(swarm, folder, 2, "seed=1", name="two"))
    assert second.first == whole and whole in range(10, 18)
    assert second.peers[0].expect("begins") == f"begins {whole} {whole // 12}"
    ended(list(second.peers))
    check([first, second], epochs=3, width=16)
    assert len(files(folder)) == 3
    last = read_manifest(folder / "00000036")
    assert (last.ancestry.start, last.ancestry.parent_step, last.epochs) == (2, int(files(folder)[1]), (3,))
    assert unpack_samples(from_json(last.tree["samples"], {})).run.hex() == last.ancestry.run != last.lineage
    one = swarm.receipts / f"{second.peers[0].expect('here').split()[1]}.receipts.jsonl"
    assert json.loads(one.read_text().splitlines()[-1])["step"] == last.last_step


@pytest.mark.long
@pytest.mark.timeout(180)
def test_whenever_a_run_is_killed_it_goes_on_from_a_whole_checkpoint(swarm: Swarm, folder: Path) -> None:
    swarm.leaves_files = True
    killed = Killed(swarm, folder, seed=3, every=10, width=256)
    killed.run(3)


def test_sigterm_to_all_leaves_a_checkpoint_of_the_last_step(swarm: Swarm, folder: Path) -> None:
    peers = start(swarm, folder, 2, "epochs=100000", "every=1000000", name="one")
    begun = Start(swarm, peers)
    peers[0].expect_step(5)
    for peer in peers:
        peer.send_signal(signal.SIGTERM)
    ended(peers, 128 + signal.SIGTERM)
    last = max(begun.receipts())
    assert files(folder)[-1] == f"{last:08d}"
    again = Start(swarm, start(swarm, folder, 1, "epochs=100000", name="two"))
    assert again.first == last
    again.peers[0].send_signal(signal.SIGTERM)
    ended(list(again.peers), 128 + signal.SIGTERM)


@pytest.mark.long
def test_who_comes_after_the_one_that_died_writes_what_was_due(swarm: Swarm, folder: Path) -> None:
    swarm.leaves_files = True
    words = "epochs=80", "every=500"
    peers = start(swarm, folder, 1, "pace=510", *words, name="one")
    peers[0].expect_step(510)
    while files(folder) != ["00000500"]:
        never.wait(POLL_S)
    shutil.rmtree(folder / "00000500")  # as if it were still being written, or on another host
    peers += start(swarm, folder, 1, *words, name="one")
    step = 510
    while not any(re.fullmatch(r"step \d+ \S+ [1-9]\d*", line) for line in peers[1].stdout):  # it has no seat
        peers[0].tell("go on")
        step += 1
        peers[0].expect_step(step)
        never.wait(PACE_S)
    peers[0].kill()
    peers[0].end()
    ended(peers[1:])
    written = [read_manifest(folder / each) for each in files(folder)]
    assert [each.step for each in written][1:] == [960] and 510 < written[0].step < 960
    assert {each.ancestry.start for each in written} == {1} and len({each.ancestry.run for each in written}) == 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(swarm: Swarm, folder: Path) -> None:
    ended(start(swarm, folder, 1, "epochs=1", name="one"))
    *_, before, last = files(folder)
    tensors = folder / last / "state.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    again = Start(swarm, start(swarm, folder, 2, "epochs=1", name="two"))
    assert again.first == int(before)
    ended(list(again.peers))
    said = [line for peer in again.peers for line in peer.stderr]
    (line,) = [line for line in said if "damaged" in line]
    assert f"{last}: tensor " in line and line.endswith("this checkpoint is skipped")


def test_a_checkpoint_of_another_model_is_refused_by_its_first_tensor_on_every_peer(swarm: Swarm, folder: Path) -> None:
    ended(start(swarm, folder, 1, "epochs=1", name="one"))
    before = files(folder)
    peers = start(swarm, folder, 2, "width=17", name="two")
    ended(peers, 1)
    for peer in peers:
        error = peer.stderr[-1]
        assert error.startswith("shoal: no checkpoint can be resumed: checkpoint "), peer.report()
        assert "tensor 0 is 0.weight float32[17, 6] here, 0.weight float32[16, 6] there" in error
    assert files(folder) == before


def test_a_run_goes_on_from_the_checkpoint_that_is_named_and_is_not_led_back(swarm: Swarm, folder: Path) -> None:
    ended(start(swarm, folder, 1, "epochs=1", name="one"))
    words = "epochs=1", "keep=0"
    named = Start(swarm, start(swarm, folder, 2, f"resume={folder}/00000005", "wait=7", *words, name="two"))
    assert named.first == 5
    for peer in named.peers:
        peer.expect_step(7)
        peer.send_signal(signal.SIGTERM)
    for peer in named.peers:
        peer.tell("go on")
    ended(list(named.peers), 128 + signal.SIGTERM)
    stopped = newest_step(folder)
    assert stopped < 12 and "00000012" in files(folder)
    last = Start(swarm, start(swarm, folder, 1, *words, name="three"))
    assert last.first == stopped, "the abandoned branch has more steps"
    ended(list(last.peers))
    assert "00000012~1" in files(folder) and newest_step(folder) == 12


def test_a_founder_whose_folder_is_empty_is_given_what_the_other_one_has(swarm: Swarm, folder: Path) -> None:
    ended(start(swarm, folder, 1, "epochs=1", name="one"))
    empty = folder.with_name("empty")
    peers = [
        swarm.start(TRAIN, f"folder={empty}", "epochs=2", "seed=1", min_peers=2, name="two"),
        swarm.start(TRAIN, f"folder={folder}", "epochs=2", "seed=2", min_peers=2, name="two"),
    ]
    assert Start(swarm, peers).first == 12
    ended(peers)
    assert "00000024" in files(empty) + files(folder)


def test_others_read_the_tensors_and_find_them_by_name(swarm: Swarm, folder: Path) -> None:
    ended(start(swarm, folder, 1, "epochs=1", name="one"))
    tensors = load_file(folder / "00000012" / "state.safetensors")
    assert tensors["model.0.weight"].shape == (16, 6) and tensors["model.0.weight"].dtype == torch.float32
    assert tensors["optimizer.state.0.step"].item() == 12


def test_a_folder_that_cannot_be_written_is_one_line_before_anything_is_trained(swarm: Swarm, folder: Path) -> None:
    folder.write_text("a file")
    (peer,) = start(swarm, folder, 1, name="one")
    assert peer.end() == 1
    (line,) = [line for line in peer.stderr if line.startswith("shoal: ")]
    assert line.startswith(f"shoal: cannot write checkpoints to {folder}: ")
    assert not any(line.startswith("begins") for line in peer.stdout)


BY_HAND = """
import sys
import torch
import p2p
from torch import nn

torch.set_num_threads(1)
path, seed, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(seed)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
with p2p.join() as peer:
    if path != "-":
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        peer.load_state_dict(saved["peer"])
    parallel = p2p.DataParallel(peer, model, optimizer)
    loader = peer.loader(torch.arange(90.0), global_batch=8, epochs=3)
    print("begins", peer.done, loader.epoch)
    for batch in (batch for epoch in loader.epochs() for batch in loader):
        optimizer.zero_grad()
        parallel(batch[:, None].expand(-1, 3) / 90).square().mean().backward()
        optimizer.step()
        if peer.done == limit:
            break
    try:
        peer.load_state_dict({})
    except p2p.ShoalError as error:
        print(error)
    everything = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "peer": peer.state_dict()}
    torch.save(everything, f"saved{peer.rank}")
    print("end", peer.done, model.weight.sum().item())
"""


def test_a_script_that_saves_by_itself_goes_on_with_its_steps_and_its_samples(swarm: Swarm, tmp_path: Path) -> None:
    ends = []
    for limit, seed, saved in ((17, 0, "-"), (36, 1, "saved0"), (36, 0, "-")):
        peers = [
            swarm.start(BY_HAND, saved, str(seed), str(limit), min_peers=2, name=f"to{seed}{limit}") for _ in range(2)
        ]
        ended(peers)
        assert {peer.expect("begins") for peer in peers} == {"begins 17 1" if saved != "-" else "begins 0 0"}
        assert peers[0].expect("peer.load_state_dict was called when this peer had a seat")
        ends.append(peers[0].expect("end").split()[1:])
    assert ends[1][0] == ends[2][0] == "36"
    assert float(ends[1][1]) == pytest.approx(float(ends[2][1]), rel=1e-5), "as without a stop"


def is_whole(folder: Path) -> bool:
    """Whether a complete checkpoint exists, or soon will."""
    for _ in range(int(1 / POLL_S)):
        if files(folder) and not any(each.startswith(".") for each in files(folder)):
            return True
        never.wait(POLL_S)
    return False


def test_a_folder_that_is_gone_is_said_and_the_run_ends_with_it_if_the_last_one_is_lost(
    swarm: Swarm, folder: Path
) -> None:
    peers = start(swarm, folder, 2, "pace=7", "epochs=1", name="one")
    for step in range(7, 10):  # a writer whose memory is still in use writes at the end of a later step
        for peer in peers:
            peer.expect_step(step)
        if is_whole(folder):
            break
        for peer in peers:
            peer.tell("go on")
    shutil.rmtree(folder)
    folder.write_text("a file")
    for peer in peers:
        for _ in range(7, 13):
            peer.tell("go on")
    assert sorted(peer.end() for peer in peers) == [0, 1], peers[0].report()
    assert all("end 12" in peer.stdout for peer in peers), "training went on"
    said = [line for peer in peers for line in peer.stderr]
    assert said[0].startswith("cannot write the checkpoint of step 1")
    assert said[0].endswith("; training continues, and the next one will be tried")
    assert said[-1].startswith("shoal: cannot write the checkpoint of step 12 to ")


def test_a_peer_that_ends_by_an_error_writes_no_checkpoint_of_what_it_interrupted(swarm: Swarm, folder: Path) -> None:
    (peer,) = start(swarm, folder, 1, "every=1000", "fails=7", name="one")
    assert peer.end() == 1 and peer.stderr[-1] == "RuntimeError: at step 7"
    assert files(folder) == []


PHASES = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
folder, trains, epochs, wrapper, order, *options = sys.argv[1:]
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model[0].requires_grad_(trains == "all")
groups = [{"params": list(model[int(place)].parameters())} for place in order]
optimizer = torch.optim.AdamW(groups, lr=0.01 if trains == "head" else 0.02)
first = model[0].weight.clone()
with p2p.join() as peer:
    print("here", peer.peer_id)
    kept = p2p.Checkpoint(folder, every=2)
    parallel = getattr(p2p, wrapper)(peer, model, optimizer, checkpoint=kept, **dict(map(eval, options)))
    dataset = torch.utils.data.TensorDataset(torch.randn(32, 4))
    length = {"inner_steps": 2} if wrapper == "DiLoCo" else {}
    for (x,) in peer.loader(dataset, global_batch=8, epochs=int(epochs), **length):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    print("ends", (model[0].weight == first).all().item(), model[0].weight.requires_grad)
"""


def phase(swarm: Swarm, number: int, name: str, *words: str) -> list[Process]:
    return [swarm.start(PHASES, *words, min_peers=number, name=name) for _ in range(number)]


def test_a_layer_that_the_next_script_trains_is_trained_and_its_moments_are_its_own(swarm: Swarm, folder: Path) -> None:
    (one,) = phase(swarm, 1, "one", str(folder), "head", "1", "DataParallel", "012")
    ended([one])
    assert one.stdout[-1] == "ends True False"
    swapped = phase(swarm, 2, "swapped", str(folder), "all", "2", "DataParallel", "102")
    ended(swapped, 1)
    for peer in swapped:
        assert (
            "group 0 of AdamW has other parameters, or another order of them: 2 parameters, the first 1."
            in peer.stderr[-1]
        )
    peers = phase(swarm, 2, "two", str(folder), "all", "2", "DataParallel", "012")
    ended(peers)
    for peer in peers:
        assert peer.stdout[-1] == "ends False True"
        said = "\n".join(peer.stderr)
        assert "2 parameters, the first 0.weight, are trained in this script, but were frozen in the one that" in said
        assert (
            "lr of group 0 of AdamW was 0.01 in the script that wrote the checkpoint, but is 0.02 in this one" in said
        )


def test_rounds_that_would_exchange_other_parameters_than_those_of_the_checkpoint_are_refused(
    swarm: Swarm, folder: Path
) -> None:
    ended(phase(swarm, 1, "one", str(folder), "head", "1", "DiLoCo", "012"))
    (peer,) = phase(swarm, 1, "two", str(folder), "all", "2", "DiLoCo", "012")
    ended([peer], 1)
    assert "2 parameters, the first 0.weight, are trained in this script, but were frozen in the one" in peer.stderr[-1]


def test_a_checkpoint_of_rounds_with_another_outer_step_is_refused(swarm: Swarm, folder: Path) -> None:
    ended(phase(swarm, 1, "one", str(folder), "all", "1", "DiLoCo", "012"))
    (peer,) = phase(swarm, 1, "two", str(folder), "all", "2", "DiLoCo", "012", "('momentum', 0.0)")
    ended([peer], 1)
    assert re.search(r"momentum is float32 .* but missing here\): `momentum` must be 0 here", peer.stderr[-1])


LOOKS = """
import os, signal, sys
from pathlib import Path
import torch
import p2p
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
folder, wrap, forgets = Path(sys.argv[1]), p2p.DataParallel if sys.argv[2] == "dense" else p2p.DiLoCo, sys.argv[3:]
is_first, given = not folder.exists(), {} if wrap is p2p.DataParallel else {"inner_steps": 1}
model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
x = torch.ones(16, 1)
with p2p.join() as peer:
    wrapped = wrap(peer, model, optimizer, extra=[schedule], checkpoint=p2p.Checkpoint(folder, every=4, keep=None))
    loader = peer.loader(torch.utils.data.TensorDataset(x), global_batch=4, epochs=3, **given)
    for _ in loader.epochs():
        for (batch,) in loader:
            optimizer.zero_grad()
            wrapped(batch).square().mean().backward()
            optimizer.step()
            if is_first and peer.done == 6:
                peer._session.membership.keeper._writer.wait()  # it has been begun, at the edge behind step 4
                os.kill(os.getpid(), signal.SIGKILL)
        if "eval" in forgets:
            model.eval()
        with torch.set_grad_enabled("grad" in forgets):
            wrapped(x)
        model.train()
        schedule.step()
    print("end", schedule.last_epoch, optimizer.param_groups[0]["lr"])
"""


@pytest.mark.parametrize("forgets", [("grad",), ("grad", "eval")], ids=["train", "eval"])
@pytest.mark.parametrize("wrap", ["dense", "rounds"])
def test_a_state_is_none_of_the_next_step_before_its_batch_is_asked_for(
    swarm: Swarm, folder: Path, wrap: str, forgets: tuple[str, ...]
) -> None:
    """An evaluation without `no_grad` is a forward pass, and the state after it belongs to the last step."""
    swarm.leaves_files = True
    assert swarm.start(LOOKS, str(folder), wrap, *forgets, name="one").end() == -signal.SIGKILL
    again = swarm.start(LOOKS, str(folder), wrap, *forgets, name="two")
    assert again.end() == 0, again.report()
    assert again.stdout[-1] == "end 3 0.0125"


STANDS = """
import os, signal, sys
from threading import Event
import torch
import p2p

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DataParallel(peer, model, optimizer, checkpoint=p2p.Checkpoint(sys.argv[1], every=4))
    for (x,) in peer.loader(torch.utils.data.TensorDataset(torch.ones(24, 1)), global_batch=4):
        wrapped(x).sum().backward()
        optimizer.step()
    os.kill(os.getpid(), signal.SIGTERM)
    Event().wait(60)  # its evaluation
"""


@pytest.mark.long
def test_who_is_asked_to_leave_and_comes_to_no_edge_says_which_steps_are_lost(swarm: Swarm, folder: Path) -> None:
    peer = swarm.start(STANDS, str(folder))
    assert peer.end() == 128 + signal.SIGTERM
    (said,) = [line for line in peer.stderr if "SIGTERM" in line]
    assert "so no checkpoint has the state after step 6; the last one is that of step 4: pass a smaller every=" in said
    assert files(folder)[-1] == "00000004"


SLOW = """
import os, signal, sys
from threading import Event
import torch
import p2p
from p2p.checkpoint import checkpointer

checkpointer.EDGE_S, sync = 1.0, os.fsync
os.fsync = lambda fd: (Event().wait(0.5), sync(fd))  # a slow disk
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DataParallel(peer, model, optimizer, checkpoint=p2p.Checkpoint(sys.argv[1], every=4))
    for (x,) in peer.loader(torch.utils.data.TensorDataset(torch.ones(400, 1)), global_batch=4):
        wrapped(x).sum().backward()
        optimizer.step()
        if peer.done == 6:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.long
def test_who_is_asked_to_leave_while_a_checkpoint_is_written_writes_the_last_one_behind_it(
    swarm: Swarm, folder: Path
) -> None:
    peer = swarm.start(SLOW, str(folder))
    assert peer.end() == 128 + signal.SIGTERM, peer.report()
    assert not [line for line in peer.stderr if "SIGTERM" in line], peer.report()
    assert files(folder) == ["00000004", "00000006"]


LOADS = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
with p2p.join() as peer:
    print("here", peer.peer_id, flush=True)
    if "loads" in sys.argv:
        peer.load_state_dict({"done": 7})
    parallel = p2p.DataParallel(peer, model, optimizer)
    parallel(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print("step", peer.done)
"""


def test_who_has_loaded_a_state_that_the_founder_has_not_is_told_that_it_is_lost(swarm: Swarm) -> None:
    founder = swarm.start(LOADS, min_peers=2)
    founder.expect("here")
    other = swarm.start(LOADS, "loads", min_peers=2)
    ended([founder, other])
    said = "the script of this peer had loaded a state, of step 7, but the swarm was founded without it, at step 0"
    assert said in "\n".join(other.stderr) and founder.stderr == []


NOT_PLAIN = """
import sys
import numpy as np
import torch
import p2p

class Best:
    value = None
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

torch.set_num_threads(1)
best = Best()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    keep = p2p.Checkpoint(sys.argv[1], every=4)
    wrapped = p2p.DataParallel(peer, model, optimizer, extra=[best], checkpoint=keep)
    for (x,) in peer.loader(torch.utils.data.TensorDataset(torch.ones(48, 1)), global_batch=4):
        wrapped(x).sum().backward()
        optimizer.step()
        peer._session.membership.keeper._writer.wait()
        best.value = np.ones(2) if 5 <= peer.done < 10 else 0.5
"""


def test_a_value_in_extra_that_cannot_be_written_any_more_is_one_line_and_training_goes_on(
    swarm: Swarm, folder: Path
) -> None:
    peers = [swarm.start(NOT_PLAIN, str(folder), min_peers=2) for _ in range(2)]
    ended(peers)
    (said,) = [line for peer in peers for line in peer.stderr if "ndarray" in line]
    last = "and the last one is that of step 4: the state_dict of Best: value: ndarray is not allowed"
    assert f"cannot write the checkpoint of step 8 to {folder}, {last}" in said
    assert files(folder) == ["00000004", "00000012"]


SHARP = """
import sys
import torch
import p2p

torch.set_num_threads(1)
model = torch.nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with p2p.join() as peer:
    wrapped = p2p.DataParallel(peer, model, optimizer, checkpoint=p2p.Checkpoint(sys.argv[1], every=3, keep=None))
    for number in range(8):
        x = torch.full((4, 1), 1.0 + number)
        wrapped(x).square().mean().backward()
        with torch.no_grad():
            model.weight += 0.5
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        with torch.no_grad():
            model.weight -= 0.5
        optimizer.step()
        optimizer.zero_grad()
        print("whole", peer.done, model.weight.item())
        peer._session.membership.keeper._writer.wait()
"""


def test_no_checkpoint_is_written_between_the_two_steps_of_one_update(swarm: Swarm, folder: Path) -> None:
    """After the first of them SAM has moved the parameters away from where the update begins."""
    peer = swarm.start(SHARP, str(folder))
    assert peer.end() == 0, peer.report()
    whole = {int(step): float(weight) for _, step, weight in map(str.split, peer.stdout[-8:])}
    assert [*map(int, files(folder))] == [4, 6, 10, 12, 16]
    for name in files(folder):
        assert load_file(folder / name / "state.safetensors")["model.weight"].item() == whole[int(name)]

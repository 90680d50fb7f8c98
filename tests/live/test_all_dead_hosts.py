"""All members die on several hosts, and observers there continue with the newest state, if configured to."""

import sys
from pathlib import Path

import pytest

from p2p.netlab.lab import NetworkLab
from p2p.netlab.places import PORT, address
from p2p.step.receipts import read_continued, read_receipts
from tests.live.labs import NewLab, program
from tests.live.swarm import Process

pytestmark = [pytest.mark.light, pytest.mark.timeout(600)]

HANG_S = 120.0
"""Timeout; each command imports torch itself."""

TRAIN = """
import os, select, signal, sys, threading
import torch
import p2p

folder, host = sys.argv[1], int(os.environ["LAB_HOST"])
observes = host == 2 or os.environ["SHOAL_LOCAL_INDEX"] == "1"

def is_there(name):
    return os.path.exists(os.path.join(folder, name))

def wait(name):
    while not is_there(name):
        select.select([], [], [], 0.01)

def die():
    wait("die in a step")
    os.kill(os.getpid(), signal.SIGKILL)

if observes:
    wait(f"join-{host}")
else:
    threading.Thread(target=die, daemon=True).start()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
with p2p.join() as peer:
    print("here", peer.peer_id)
    parallel = p2p.DataParallel(peer, model, optimizer)
    is_held = observes
    for x in peer.loader(torch.randn(100_000, 4), global_batch=4):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        if is_held:
            print("holds", peer.done)
            wait("go")
            is_held = False
        print("step", peer.done, peer.world_size)
        if not observes and is_there("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if observes and peer.rank < peer.world_size == 3 and peer.done % 20 == 0:
            break  # all members alike
"""
"""A peer that waits in its loop is no member, since it lags, and keeps its state."""


class Pond:
    """Three hosts: a member on each of the first two, and on each of the three an observer, at different steps."""

    def __init__(self, lab: NetworkLab, folder: Path, on_all_dead: str) -> None:
        self.folder, self.receipts = folder, folder / "receipts"
        script = folder / "train.py"
        script.write_text(TRAIN)
        shoal = [sys.executable, "-m", "p2p.cli", "run", "--receipts", str(self.receipts), "--min-peers", "2"]
        shoal += ["--on-all-dead", on_all_dead, "--seeds", f"{address(0)}:{PORT}"]
        self.runs = [
            program(lab, host, *shoal, "-n", number, str(script), str(folder), hang_s=HANG_S)
            for host, number in enumerate(("2", "2", "1"))
        ]
        self.expect_step(self.runs[0], 20)
        self.held = [self._observe(host) for host in (0, 2, 1)]

    def _observe(self, host: int) -> int:
        """Start an observer on a host; returns the step of the state that it holds."""
        (self.folder / f"join-{host}").touch()
        observer = "1" if host < 2 else "0"
        held = int(self.runs[host].expect(f"[{observer}] holds").split()[2])
        self.expect_step(self.runs[0], held + 40)
        return held

    def expect_step(self, run: Process, step: int) -> None:
        run.expect_line(rf"\[\d\] step ({step}|{step + 1}) \d")

    def kill_all_members(self, where: str = "") -> None:
        """Kill all members after a step, or `in a step`, which the observers cannot complete."""
        (self.folder / f"die {where}".strip()).touch()
        for run in self.runs[:2]:
            run.expect_line(r"shoal: peer 0 .*killed by SIGKILL.*", is_error=True)

    def go_on(self) -> None:
        (self.folder / "go").touch()


@pytest.mark.long
def test_who_holds_the_newest_state_goes_on_and_the_others_join_from_all_hosts(new_lab: NewLab, tmp_path: Path) -> None:
    pond = Pond(new_lab(3, "delay=1ms"), tmp_path, "restart")
    pond.kill_all_members()
    pond.go_on()
    assert [run.end() for run in pond.runs] == [1, 1, 0], pond.runs[2].report()
    receipts = {path: read_receipts(path) for path in pond.receipts.glob("*.receipts.jsonl")}
    ((heir, continued),) = [(path, each) for path in receipts for each in read_continued(path).values()]
    (old,) = {each[0].lineage for path, each in receipts.items() if each and path != heir and each[0].step == 0}
    (new,) = {each.lineage for part in receipts.values() for each in part} - {old}
    assert continued.lineage == old
    assert continued.step >= max(pond.held), "a newer state may have come since"
    assert continued.step <= continued.last_step
    ends = [each[-1] for each in receipts.values() if each and each[-1].lineage == new]
    assert len(ends) == 3 and len({each.step for each in ends}) == 1
    assert {len(each.contributions) for each in ends} == {3}, "all three take part"
    assert [each.step for each in receipts[heir]] == list(range(len(receipts[heir])))


@pytest.mark.long
def test_whose_hosts_were_apart_as_the_members_died_are_told_later(new_lab: NewLab, tmp_path: Path) -> None:
    lab = new_lab(3, "delay=1ms")
    pond = Pond(lab, tmp_path, "restart")
    lab.set("*", "*", "cut")
    pond.kill_all_members("in a step")
    for run in pond.runs[:2]:
        run.expect_line(r"shoal: could not tell tcp://.* of a death here: .*", is_error=True)
    lab.set("all", "heal")
    pond.go_on()
    assert [run.end() for run in pond.runs] == [1, 1, 0], pond.runs[2].report()
    receipts = [read_receipts(path) for path in pond.receipts.glob("*.receipts.jsonl")]
    assert len({each.lineage for part in receipts for each in part}) == 2
    ends = [each[-1] for each in receipts if each and len(each[-1].contributions) == 3]
    assert len(ends) == 3 and len({(each.lineage, each.step) for each in ends}) == 1, "all three take part"


@pytest.mark.long
def test_by_default_all_end_at_once(new_lab: NewLab, tmp_path: Path) -> None:
    pond = Pond(new_lab(3, "delay=1ms"), tmp_path, "stop")
    pond.kill_all_members()
    pond.go_on()
    assert [run.end() for run in pond.runs] == [1, 1, 1], pond.runs[2].report()
    for run in pond.runs:
        assert any("all members of swarm 'train" in line and "are gone" in line for line in run.stderr), run.report()

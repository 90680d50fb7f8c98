"""The first seed is killed, and its launcher starts a replacement: alone, that founds no swarm (G15)."""

import sys
from pathlib import Path

import pytest

from p2p.netlab.lab import NetworkLab
from p2p.netlab.places import PORT, address
from p2p.step.receipts import read_receipts
from tests.live.labs import NewLab, program
from tests.live.swarm import Process

pytestmark = [pytest.mark.light, pytest.mark.long]

TRAIN = """
import os, select, signal, sys, threading
import numpy as np
import p2p

def die():
    while not os.path.exists(sys.argv[2]):
        select.select([], [], [], 0.01)
    os.kill(os.getpid(), signal.SIGKILL)

is_first = "SHOAL_SINCE_NS" not in os.environ
if is_first and os.environ["LAB_HOST"] in sys.argv[3:]:
    threading.Thread(target=die, daemon=True).start()
with p2p.join() as peer:
    peer.wait_view()
    is_over = False
    while not is_over:
        wish = np.array([os.path.exists(sys.argv[1]), 1], np.int64)
        peer.all_reduce(wish)
        is_over = wish[0] > 0
        print("first" if is_first else "again", wish[1])
        select.select([], [], [], 0.005)  # its computation
"""
"""A sum per step, until the file named by the first argument exists; the second file kills peers of some hosts."""


class Run:
    """A peer on each host, which `shoal run` replaces; host 0 is the only seed."""

    def __init__(self, lab: NetworkLab, folder: Path, num_hosts: int, dying: str) -> None:
        self.script, self.stop, self.dead, self.receipts = (folder / n for n in ("train.py", "stop", "die", "receipts"))
        self.script.write_text(TRAIN)
        shoal = [sys.executable, "-m", "p2p.cli", "run", "--restarts", "3", "--join-timeout", "8", "--min-peers", "1"]
        shoal += ["--receipts", str(self.receipts), "--seeds", f"{address(0)}:{PORT}"]
        shoal += ["-n", "1", str(self.script), str(self.stop), str(self.dead), *dying]
        self.hosts: list[Process] = [program(lab, host, *shoal) for host in range(num_hosts)]
        for host in self.hosts:
            host.expect(f"[0] first {num_hosts}")

    def end(self) -> list[str]:
        """Check that all hosts complete; returns the lineages that have trained."""
        self.stop.touch()
        for host in self.hosts:
            assert host.end() == 0, host.report()
        found = [read_receipts(path) for path in self.receipts.glob("*.receipts.jsonl")]
        return list({receipt.lineage: None for receipts in found for receipt in receipts})


def test_cut_off_it_founds_nothing_beside_the_others_says_why_and_takes_part_once_it_is_healed(
    new_lab: NewLab, tmp_path: Path
) -> None:
    lab = new_lab(3, "delay=1ms")
    run = Run(lab, tmp_path, 3, dying="0")
    lab.set(0, "*", "cut")
    run.dead.touch()
    for host in run.hosts[1:]:
        host.expect("[0] first 2")
    run.hosts[0].expect_line(
        r".*no seat after 8 s: this peer takes the place of a member of a run with others at tcp://\S+, tcp://\S+, and "
        r"no peer there answers: .*",
        is_error=True,
    )
    lab.set("all", "heal")
    run.hosts[0].expect("[0] again 3")
    assert len(run.end()) == 1


def test_where_all_peers_of_all_hosts_are_killed_it_founds(new_lab: NewLab, tmp_path: Path) -> None:
    run = Run(new_lab(2, "delay=1ms"), tmp_path, 2, dying="01")
    run.dead.touch()
    for host in run.hosts:
        host.expect("[0] again 2")
    assert len(run.end()) == 2

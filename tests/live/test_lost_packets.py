"""A path between hosts that silently loses large packets: small ones pass, so that all answer (G16)."""

import sys
from pathlib import Path

import pytest

from p2p.netlab.lab import NetworkLab
from p2p.step.receipts import read_receipts
from tests.live.labs import NewLab, program

pytestmark = [pytest.mark.light, pytest.mark.long, pytest.mark.timeout(600)]

HANG_S = 120.0
"""Timeout; each command imports torch itself."""

TRAIN = """
import os, select, sys
import numpy as np
import torch
import p2p

torch.set_num_threads(1)
model = torch.nn.Linear(200, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with p2p.join() as peer:
    parallel = p2p.DataParallel(peer, model, optimizer)
    is_over = False
    while not is_over:
        wish = np.array([os.path.exists(sys.argv[1])], np.int64)
        peer.all_reduce(wish)
        is_over = wish[0] > 0
        parallel(torch.ones(1, 200)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("peers", peer.world_size, flush=True)
        select.select([], [], [], 0.005)  # its computation
"""


class Swarm:
    """Three hosts, each with a peer."""

    def __init__(self, lab: NetworkLab, folder: Path) -> None:
        self.stop, self.receipts, script = folder / "stop", folder / "receipts", folder / "train.py"
        script.write_text(TRAIN)
        shoal = [sys.executable, "-m", "p2p.cli", "run", "--receipts", str(self.receipts), "--min-peers", "3"]
        shoal += ["-n", "1", str(script), str(self.stop)]
        self.hosts = [program(lab, host, *shoal, hang_s=HANG_S) for host in range(3)]
        for host in self.hosts:
            host.expect("[0] peers 3")

    def end_well(self) -> None:
        self.stop.touch()
        for host in self.hosts:
            assert host.end() == 0, host.report()
        assert "shoal: peer 0 is back at step" in "\n".join(self.hosts[2].stderr)
        found = [read_receipts(path) for path in self.receipts.glob("*.receipts.jsonl")]
        assert len({receipt.lineage for receipts in found for receipt in receipts}) == 1


def test_who_is_behind_it_goes_and_comes_back_once_it_is_healed(new_lab: NewLab, tmp_path: Path) -> None:
    lab = new_lab(3, "delay=1ms")
    swarm = Swarm(lab, tmp_path)
    lab.set(2, "*", "mtu=1000")
    for host in swarm.hosts[:2]:
        host.expect("[0] peers 2")
    said = [line for host in swarm.hosts for line in host.stderr]
    assert any("answers, but new data connections to it break" in line for line in said)
    lab.set(2, "*", "mtu=none")
    swarm.hosts[0].expect_line(r"\[0\] peers 3", after="[0] peers 2")
    swarm.end_well()


def test_who_gets_what_it_is_sent_and_loses_what_it_sends_stays_out_for_longer_each_time(
    new_lab: NewLab, tmp_path: Path
) -> None:
    """Without a seat it only has to receive, so it is back immediately, and all stall until it is out again."""
    lab = new_lab(3, "delay=1ms")
    swarm = Swarm(lab, tmp_path)
    lab.set(2, "*", "mtu=1000", one_way=True)
    out = r".* this peer, [0-9a-f]{16}, removed \d times in 10 minutes, comes back in 20\.0 s"
    swarm.hosts[2].expect_line(out, is_error=True)
    lab.set("*", "*", "mtu=none")
    swarm.hosts[2].expect_line(r"shoal: peer 0 is back at step .*", after=swarm.hosts[2].stderr[-1], is_error=True)
    swarm.end_well()

"""A path between hosts that loses large packets without a word: small ones pass, so that all answer (G16)."""

import sys
from pathlib import Path

import pytest

from p2p.step.receipts import read_receipts
from tests.live.labs import NewLab, program

pytestmark = [pytest.mark.light, pytest.mark.long]

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


def test_who_is_behind_it_goes_and_comes_back_once_it_is_healed(new_lab: NewLab, tmp_path: Path) -> None:
    lab, script, stop = new_lab(3, "delay=1ms"), tmp_path / "train.py", tmp_path / "stop"
    script.write_text(TRAIN)
    shoal = [sys.executable, "-m", "p2p.cli", "run", "--receipts", str(tmp_path / "receipts"), "--min-peers", "3"]
    hosts = [program(lab, host, *shoal, "-n", "1", str(script), str(stop)) for host in range(3)]
    for host in hosts:
        host.expect("[0] peers 3")
    lab.set(2, "*", "mtu=1000")
    for host in hosts[:2]:
        host.expect("[0] peers 2")
    assert any("answers, but new connections for data to it break" in line for host in hosts for line in host.stderr)
    lab.set(2, "*", "mtu=none")
    hosts[0].expect_line(r"\[0\] peers 3", after="[0] peers 2")
    stop.touch()
    for host in hosts:
        assert host.end() == 0, host.report()
    assert "shoal: peer 0 is back at step" in "\n".join(hosts[2].stderr)
    found = [read_receipts(path) for path in (tmp_path / "receipts").glob("*.receipts.jsonl")]
    assert len({receipt.lineage for receipts in found for receipt in receipts}) == 1

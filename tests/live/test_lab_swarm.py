"""Swarms with peers on hosts of a network lab, started by the commands of a user."""

import ast
import sys
from itertools import groupby
from pathlib import Path

import pytest

from p2p.step.receipts import read_receipts
from tests.live.labs import NewLab, program
from tests.live.swarm import Process

TRAIN = """
import os, sys, time
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    is_over = False
    while not is_over:
        wish = np.array([os.path.exists(sys.argv[1]), 1], np.int64)
        try:
            peer.all_reduce(wish)
        except p2p.RemovedFromView:
            print("removed", peer.last_step)
            peer.wait_view()
            print("back", peer.last_step)
            continue
        is_over = wish[0] > 0
        assert wish[1] == peer.world_size
        print("members", peer.world_size)
        print("step", peer.last_step)
        time.sleep(0.005)  # its computation
"""
"""A checked sum per step, until the file named by the argument exists."""


def peer_id(run: Process) -> str:
    """The peer_id of a launcher's only peer."""
    return run.expect("[0] here").split()[2]


@pytest.mark.light
def test_hosts_find_each_other_and_one_that_is_cut_off_comes_back(new_lab: NewLab, tmp_path: Path) -> None:
    script, stop, receipts = (tmp_path / word for word in ("train.py", "stop", "receipts"))
    script.write_text(TRAIN)
    lab = new_lab(3, "rate=200mbit,delay=2ms,jitter=1ms")
    shoal = [sys.executable, "-m", "p2p.cli", "run", "-n", "1", "--min-peers", "3", "--receipts", str(receipts)]
    runs = [program(lab, host, *shoal, str(script), str(stop)) for host in range(3)]
    for run in runs:
        run.expect_line(r"\[0\] members 3")
    lab.set(2, "*", "cut")
    for run in runs[:2]:
        run.expect_line(r"\[0\] members 2")
    lab.set("all", "heal")
    runs[2].expect("[0] removed")
    runs[2].expect("[0] back")
    for run in runs[:2]:
        run.expect_line(r"\[0\] members 3", after="[0] members 2")
    stop.touch()
    for run in runs:
        assert run.end() == 0, run.report()
    first, second, its_own = (read_receipts(receipts / f"{peer_id(run)}.receipts.jsonl") for run in runs)
    assert [receipt.step for receipt in first] == list(range(len(first))), "no step is lost"
    assert first == second
    assert [size for size, _ in groupby(len(receipt.contributions) for receipt in first)] == [3, 2, 3]
    counted = [receipt for receipt in first if peer_id(runs[2]) in {each.peer_id for each in receipt.contributions}]
    unheard = [receipt for receipt in counted if receipt not in its_own]
    assert len(unheard) <= 1, "it was cut off between finishing a step and hearing that all had"
    assert its_own == [receipt for receipt in counted if receipt not in unheard] and its_own[-1] == first[-1]


SUM = """
import os, signal, sys
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    is_over, said = False, ""
    while not is_over:
        flag, large = np.zeros(1, np.int64), np.full(25_000, peer.last_step, np.float32)
        flag[0] = os.path.exists(sys.argv[1])
        with peer.step(samples=1):
            peer.all_reduce(flag)
            peer.all_reduce(large)
        is_over = flag[0] > 0
        assert (large == peer.world_size * (peer.last_step - 1)).all()
        if said != (said := f"{peer.world_size} by {peer.receipt.algorithms[1]}"):
            print(said)
            print("because", peer.explain(large.nbytes))
        if os.path.exists(f"{sys.argv[2]}-{peer.peer_id}"):
            os.kill(os.getpid(), signal.SIGKILL)
"""
"""Checked training steps of 100 KB, until the first file exists; the second file with its name ends a peer."""


def explained(run: Process, number: int) -> list[str]:
    """The first `number` explanations, in order."""
    run.expect_line(r"\[0\] because .*", after=run.expect_line(r"\[0\] 4 by (?!one-shot)\S+"))
    return [line for line in run.stdout if line.startswith("[0] because")][:number]


@pytest.mark.long
@pytest.mark.light
def test_hosts_measure_their_links_and_all_take_the_quicker_way_from_the_same_step_on(
    new_lab: NewLab, tmp_path: Path
) -> None:
    """By size the choice is `one-shot`, which is slower over such links; a death brings it back for a while.

    Which other algorithm is chosen depends on the measurements, and so on other load of this machine.
    """
    script, stop, die, receipts = (tmp_path / word for word in ("train.py", "stop", "die", "receipts"))
    script.write_text(SUM)
    lab = new_lab(4, "rate=40mbit,delay=2ms")
    shoal = [sys.executable, "-m", "p2p.cli", "run", "-n", "1", "--min-peers", "4", "--receipts", str(receipts)]
    runs = [program(lab, host, *shoal, str(script), str(stop), str(die)) for host in range(4)]
    for run in runs:
        run.expect_line(r"\[0\] 4 by (?!one-shot)\S+")
        first, then = (ast.literal_eval(line.partition("because ")[2]) for line in explained(run, 2))
        assert first["why"].startswith("by size: ") and first["expected_s"] == {}
        cheapest = min(then["expected_s"], key=then["expected_s"].get)
        assert then["algorithm"].partition(":")[0] == cheapest != "one-shot"
        assert "as all members have measured them" in then["why"]
    die.with_name(f"die-{peer_id(runs[3])}").touch()
    left = runs[:3]
    for run in left:
        run.expect_line(r"\[0\] 3 by (?!one-shot)\S+")
    stop.touch()
    assert [run.end() for run in runs] == [0, 0, 0, 1], left[0].report()
    first, second, third = (read_receipts(receipts / f"{peer_id(run)}.receipts.jsonl") for run in left)
    assert first == second == third
    assert [receipt.step for receipt in first] == list(range(len(first))), "no step is lost"
    ways = [(len(receipt.contributions), receipt.algorithms[1]) for receipt in first[1:]]
    assert [number for number, _ in groupby(number for number, _ in ways)] == [4, 3]
    for number in (4, 3):
        before, *then = [way for way, _ in groupby(way for size, way in ways if size == number)]
        assert before == "one-shot" and then and "one-shot" not in then

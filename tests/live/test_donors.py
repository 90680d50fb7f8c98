"""Members on separate hosts give a state together: one of them dies, or is damaged; two peers join at once."""

import signal
import sys
from pathlib import Path

import pytest

from p2p.step.receipts import read_receipts
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import read_trace, trace_path
from tests.live.labs import NewLab, program
from tests.live.swarm import Process

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NUM_MEMBERS = 3
HANG_S = 120.0
"""Timeout; each of five commands imports torch itself."""
NUM_ELEMENTS = 3_000_000

TRAIN = """
import logging, os, select, sys
import torch
import xxhash
import p2p
from torch import nn

torch.set_num_threads(1)
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
stop, num_elements, host = sys.argv[1], int(sys.argv[2]), int(os.environ["LAB_HOST"])
role = "joins" if host > 2 else "damaged" if host == int(sys.argv[3]) else "trains"

def say(*words):
    "In one go, since the log goes the same way."
    sys.stdout.write(" ".join(map(str, words)) + "\\n")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.arange(num_elements, dtype=torch.float32), requires_grad=False)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) + self.table[:8]

torch.manual_seed(1)
model = Model()
if role == "joins":
    with torch.no_grad():
        model.table.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
is_damaged, said = False, 0
with p2p.join() as peer:
    say("here", peer.peer_id)
    while role == "joins" and not os.path.exists(stop + ".go"):
        select.select([], [], [], 0.01)
    parallel = p2p.DataParallel(peer, model, optimizer)
    loader = peer.loader(torch.ones(10**6, 8), global_batch=12)
    for x in (x for _ in loader.epochs() for x in loader):
        parallel(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        say("step", peer.last_step)
        if peer.world_size != said:
            said = peer.world_size
            say("members", said)
        if role == "damaged" and not is_damaged:
            is_damaged = True
            with torch.no_grad():
                model.table += 1
        if os.path.exists(stop):
            break
    say("end", xxhash.xxh3_64_hexdigest(model.table.detach().numpy().tobytes()))
"""
"""A frozen table, which is therefore not compared, and a model that is trained."""


class Pond:
    """Three members in training, each on a host of its own."""

    def __init__(self, new_lab: NewLab, folder: Path, num_joiners: int, damaged: int = -1) -> None:
        self.lab = new_lab(NUM_MEMBERS + num_joiners, "rate=30mbit,delay=2ms")
        self.script, self.stop, self.receipts = (folder / word for word in ("train.py", "stop", "receipts"))
        self.script.write_text(TRAIN)
        self.members = [self.start(host, damaged) for host in range(NUM_MEMBERS)]
        self.joiners = [self.start(NUM_MEMBERS + number, damaged) for number in range(num_joiners)]
        for run in (*self.members, *self.joiners):
            self.said(run, "here")
        self.ids = [self.said(member, "here").split()[1] for member in self.members]
        for member in self.members:
            self.said(member, r"step [1-9]\d")

    def start(self, host: int, damaged: int) -> Process:
        shoal = (sys.executable, "-m", "p2p.cli", "run", "-n", "1", "--min-peers", str(NUM_MEMBERS))
        own = (str(self.script), str(self.stop), str(NUM_ELEMENTS), str(damaged))
        return program(self.lab, host, *shoal, "--receipts", str(self.receipts), *own, hang_s=HANG_S)

    def join(self) -> list[Process]:
        """Let all joiners ask for a seat."""
        self.stop.with_name("stop.go").touch()
        return self.joiners

    def said(self, run: Process, pattern: str) -> str:
        """Wait for a line of the only peer of a launcher."""
        return run.expect_line(rf"\[0\] {pattern}.*").removeprefix("[0] ")

    def end(self, *runs: Process) -> list[str]:
        """Check that all runs end with 0 and have the same receipts; returns digests of their tables."""
        self.stop.touch()
        assert [run.end() for run in runs] == [0] * len(runs), "\n".join(run.report() for run in runs)
        known: dict[int, object] = {}
        for run in runs:
            peer_id = self.said(run, "here").split()[1]
            for receipt in read_receipts(self.receipts / f"{peer_id}.receipts.jsonl"):
                assert known.setdefault(receipt.step, receipt) == receipt
        assert sorted(known) == list(range(len(known)))
        return [self.said(run, "end [0-9a-f]{2}").split()[1] for run in runs]

    def first_state(self, run: Process) -> int:
        """Step of the first state that was completely received."""
        peer_id = self.said(run, "here").split()[1]
        _, records = read_trace(trace_path(self.receipts, peer_id))
        return next(record.step for record in records if record.kind == Kind.WHOLE)

    def crash(self, host: int, run: Process) -> None:
        """Kill a host's peer and launcher."""
        self.lab.crash(host)
        assert run.end() == -signal.SIGKILL


def test_a_donor_that_is_killed_while_it_sends_is_made_up_for_by_the_first(new_lab: NewLab, tmp_path: Path) -> None:
    pond = Pond(new_lab, tmp_path, 1)
    (joiner,) = pond.join()
    words = pond.said(joiner, "3 donors give the state after step").split()
    first, step = words[-1], int(words[7].rstrip(","))
    victim = next(host for host, peer_id in enumerate(pond.ids) if peer_id != first)
    pond.crash(victim, pond.members[victim])
    pond.said(joiner, rf"\d+ chunks of the state after step \d+ are asked of {first}")
    pond.said(joiner, "members 3")
    left = [member for host, member in enumerate(pond.members) if host != victim]
    assert len(set(pond.end(*left, joiner))) == 1
    assert pond.first_state(joiner) == step, "nothing was asked for again but what the dead one had"


def test_a_damaged_replica_among_the_donors_is_named(new_lab: NewLab, tmp_path: Path) -> None:
    """Frozen parameters are not compared, so the run continues; the joiner gets the state of the member it asked."""
    pond = Pond(new_lab, tmp_path, 1, damaged=1)
    (joiner,) = pond.join()
    first = pond.said(joiner, "3 donors give the state after step").split()[-1]
    named = pond.said(joiner, "chunk .* is not the same at ")
    assert (
        "of tensors.table is" in named
        and pond.ids[1] in named
        and named.endswith(f"it is taken from {first}, which was asked for the state")
    )
    pond.said(joiner, "members 4")
    *tables, its_own = pond.end(*pond.members, joiner)
    assert its_own == tables[pond.ids.index(first)]
    assert tables[0] == tables[2] != tables[1]


def test_two_join_at_once_and_one_of_them_is_killed(new_lab: NewLab, tmp_path: Path) -> None:
    pond = Pond(new_lab, tmp_path, 2)
    joiners = pond.join()
    for joiner in joiners:
        pond.said(joiner, r"\d donors give the state after step")
    pond.crash(NUM_MEMBERS, joiners[0])
    pond.said(joiners[1], "members 4")
    assert len(set(pond.end(*pond.members, joiners[1]))) == 1

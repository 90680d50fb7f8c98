import os
import shutil
from pathlib import Path

import pytest

from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.report import evaluate, failures
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans
from p2p.experiment.run.testbed import LabTestbed
from p2p.telemetry.trace import read_trace, write_trace
from tests.live.labs import NewLab
from tests.p2p.telemetry.pages import pack_record

pytestmark = pytest.mark.light

HOUR_NS = 3600 * 10**9

SCRIPT = """
import numpy as np
import p2p

with p2p.join() as peer:
    peer.wait_view()
    while True:
        peer.all_reduce(np.ones(4, np.float32))
"""

FILE = """
[run]
script = "script.py"
peers = 3
until_step = 30
limit_s = 40

[network]
hosts = 3
net = "delay=1ms"

[[event]]
at_step = 10
do = "link"
who = "host 0"
to = "host 1"
net = "delay=10ms"
for_s = 0.2

[[event]]
at_step = 20
do = "cut"
who = "host 2"
for_s = 0.3

[[event]]
after = "previous resumed"
do = "kill"
who = "rank 0"

[[event]]
after = "previous resumed"
do = "join"

[expect]
steps_lost = 0
"""


def by_themselves(folder: Path, copy: Path, ahead_ns: int) -> None:
    """Check that files of hosts without a director bound the offsets of clocks; also if one clock is `ahead_ns`."""
    shutil.copytree(folder / "receipts", copy)
    (copy / "traces").mkdir()
    hosts: dict[str, int] = {}
    for path in sorted((folder / "traces").iterdir()):
        who, records = read_trace(path)
        assert who is not None
        later_ns = hosts.setdefault(who.host, ahead_ns if len(hosts) == 1 else 0)
        moved = [each._replace(time_ns=each.time_ns + later_ns) for each in records]
        write_trace(copy / "traces" / path.name, who, [pack_record(each) for each in moved])
    run = read_run(copy)
    assert run.clocks is not None
    for host, bounds in run.clocks.bounds.items():
        for each in bounds:
            assert each.low_ns <= hosts[host] - hosts[run.clocks.reference] <= each.high_ns
    print(f"{len(run.receipts())} steps: within {run.clocks.plus_minus_ms} ms")
    kill = next(cost for cost in evaluate(run).costs if cost.event.do == "gone")
    assert kill.times_ms["resumed"] >= kill.times_ms["agreed"] - 2 * run.clocks.plus_minus_ms


@pytest.mark.usefixtures("namespaces")
@pytest.mark.long
def test_links_are_changed_and_cut_and_peers_of_hosts_die_and_come(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    experiment = Experiment.read(path)
    assert ExperimentRunner(os.environ, print).run(experiment, plans(experiment, 0, 1), tmp_path / "out")
    evaluated = evaluate(read_run(tmp_path / "out" / "run-1"))
    assert failures([evaluated], experiment.expect) == []
    link, cut, kill, join = evaluated.costs
    assert {"step_after", "step_before"} == link.times_ms.keys()
    assert link.event.until_ns >= link.event.time_ns + 200_000_000
    assert cut.event.peers == [2]
    assert "no peer removed it" in cut.why["detected"]
    assert sum(kill.phases_ms.values()) == pytest.approx(kill.times_ms["resumed"], abs=5)
    assert sum(join.phases_ms.values()) == pytest.approx(join.times_ms["resumed"], abs=5)
    by_themselves(tmp_path / "out" / "run-1", tmp_path / "one", 0)
    by_themselves(tmp_path / "out" / "run-1", tmp_path / "shifted", HOUR_NS)
    again = Experiment.read(tmp_path / "out" / "run-1" / "schedule.toml")
    assert again.network == experiment.network


def test_links_that_are_changed_for_a_while_are_then_what_they_were_and_others_stay_as_they_are(
    new_lab: NewLab, tmp_path: Path
) -> None:
    lab = new_lab(3, "rate=10mbit,delay=2ms")
    lab.set(0, 1, "loss=1%")
    settings = ("rate", "delay", "loss", "cut", "up", "down")

    def shown() -> list[dict[str, str]]:
        found = lab.show()
        return [{key: each.get(key, "") for key in settings} for each in (*found["hosts"], *found["pairs"])]

    before = shown()
    venue = LabTestbed(lab, tmp_path)
    of_a_host = venue.change(0, None, "rate=1mbit,delay=9ms", for_a_while=True)
    of_a_pair = venue.change(1, 2, "cut,rate=2mbit", for_a_while=True)
    during = shown()
    assert during[0]["up"] == "1mbit" and sum(each["delay"] == "9ms" for each in during) == 4
    assert sum(each["cut"] == "cut" and each["rate"] == "2mbit" for each in during) == 2
    of_a_host()
    of_a_pair()
    assert shown() == before


def test_of_changes_that_overlap_the_newest_counts_until_it_ends_and_then_what_was_before(
    new_lab: NewLab, tmp_path: Path
) -> None:
    lab = new_lab(3, "delay=10ms")
    venue = LabTestbed(lab, tmp_path)

    def shown() -> tuple[str, bool]:
        """The delay from host 1 to host 2, and whether that link is cut."""
        pair = lab.counters()[1, 2]
        return pair["delay"], "cut" in pair

    first = venue.change(1, 2, "delay=80ms,loss=1%", for_a_while=True)
    second = venue.change(1, None, "delay=200ms", for_a_while=True)
    cut = venue.change(2, None, "cut", for_a_while=True)
    again = venue.change(1, 2, "cut", for_a_while=True)
    first()
    cut()
    assert shown() == ("200ms", True) and "loss" not in lab.counters()[1, 2]
    assert "cut" not in lab.counters()[0, 2]
    second()
    again()
    assert shown() == ("10ms", False)
    brief = venue.change(1, 2, "delay=80ms,cut", for_a_while=True)
    venue.change(2, 1, "delay=30ms")
    venue.change(1, None, "heal")
    brief()
    assert shown() == ("30ms", False)

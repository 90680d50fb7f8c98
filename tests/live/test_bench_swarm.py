"""Real peers that wait in a swarm for benchmark plans, and peers that bring plans."""

import json
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from p2p.benchmark.command import app
from p2p.benchmark.measuring.swarm import MOST_BYTES, check
from p2p.benchmark.plan import Plan
from p2p.errors import LaunchError
from tests.live.labs import NewLab, program
from tests.live.swarm import Process, Swarm

pytestmark = pytest.mark.light

SERVES = """
from p2p.benchmark.measuring.swarm import serve

serve("pond", {})
"""

BRINGS = """
import sys
from pathlib import Path
from p2p.benchmark.director import Outputs, run_in_swarm
from p2p.benchmark.plan import Plan
from p2p.errors import ShoalError

try:
    code = run_in_swarm(Plan.from_json(sys.argv[1]), {}, Outputs(json=Path(sys.argv[2])))
except ShoalError as error:
    sys.exit(f"shoal: {error}")
sys.exit(code)
"""

PLAN = Plan(
    operation="gather",
    root=1,
    num_peers=3,
    algorithms=("direct", "auto"),
    baseline=None,
    sizes_bytes=(4080, 65520),
    num_iters=4,
    num_warmup=1,
    swarm="pond",
)


def told(peer: Process, pattern: str) -> str:
    return peer.expect_line(f"shoal: {pattern}", is_error=True)


@pytest.fixture
def servers(swarm: Swarm) -> list[Process]:
    return [swarm.start(SERVES) for _ in range(2)]


def test_those_who_wait_measure_one_plan_after_the_other_and_survive_who_does_not(
    swarm: Swarm, servers: list[Process], tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    brings = swarm.start(BRINGS, PLAN.to_json(), str(path))
    assert brings.end() == 0, brings.report()
    report = json.loads(path.read_text())
    config = report["config"]
    assert (config["num_peers"], config["sizes_bytes"], config["swarm"]) == (3, [4080, 65520], "pond")
    assert [(row["wrong"], row["iters"], row["ran"]) for row in report["results"]] == [(0, 4, "direct")] * 4
    for peer in servers:
        told(peer, "has measured it")

    for_long = PLAN.to_json().replace('"num_iters": 4', '"num_iters": 4000')
    brings = swarm.start(BRINGS, for_long, str(path))
    for peer in servers:
        peer.expect_line("shoal: measures gather .* with 3 peers", after="shoal: has measured it", is_error=True)
    lost, left = servers
    lost.kill()
    assert lost.end() == -signal.SIGKILL
    assert brings.end() == 1
    assert brings.stderr[-1].startswith("shoal: peer ") and "is gone: 2 peers are left of 3" in brings.stderr[-1]
    told(left, "the run has ended: peer .* is gone: 2 peers are left of 3, so nothing can be measured")

    for_two = PLAN.to_json().replace('"num_peers": 3', '"num_peers": 2')
    brings = swarm.start(BRINGS, for_two, str(path))
    assert brings.end() == 0, brings.report()
    assert json.loads(path.read_text())["config"]["num_peers"] == 2
    left.send_signal(signal.SIGTERM)
    assert left.end() == 128 + signal.SIGTERM


@pytest.mark.long
def test_peers_of_several_hosts_learn_their_links_before_the_rounds(new_lab: NewLab, tmp_path: Path) -> None:
    lab, path = new_lab(3, "rate=200mbit,delay=2ms"), tmp_path / "out.json"
    bench = [sys.executable, "-m", "p2p.cli", "bench"]
    serving = [program(lab, host, *bench, "--serve", "--swarm", "pond") for host in range(2)]
    sizes = ("-b", "4K", "-e", "64K", "-f", "16", "--iters", "3", "--warmup", "1")
    wanted = ("--swarm", "pond", "-n", "3", "--algos", "ring,direct,auto", *sizes, "--explain", "--json", str(path))
    brings = program(lab, 2, *bench, "all-reduce", *wanted)
    assert brings.end() == 0, brings.report()
    rows = json.loads(path.read_text())["results"]
    assert [row["wrong"] for row in rows] == [0] * 6
    assert all(row["predicted_us"] == row["predicted_by_rows_us"] > 4000 for row in rows), "two delays at least"
    assert all(row["predicted_to_measured"] for row in rows)
    said = [line for line in brings.stdout if "auto takes" in line]
    assert len(said) == 2 and all("the cheapest, over links as all members have measured them" in each for each in said)
    for peer in serving:
        told(peer, "has measured it")
        peer.send_signal(signal.SIGTERM)
        assert peer.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('"swarm": ""', "--swarm needs the name of the swarm that peers wait in, got ''"),
        ('"net": "delay=1ms"', "--swarm is for peers that wait: leave --net and --baseline out"),
        ('"baseline": "gloo"', "--swarm is for peers that wait"),
        ('"algorithms": ["auto@tcp"]', "so auto@tcp cannot be measured: leave out @"),
        (f'"sizes_bytes": [4096, {2 * MOST_BYTES}]', "--swarm takes up to 256M, got 512M"),
        ('"num_iters": 10000', "--swarm takes up to 10000 rounds and 3600 s, got 20002 and 0"),
        ('"duration_s": 4000.0', "and 3600 s, got 10 and 4000"),
        ('"slowed": {"ring": 1000000000.0}', "--swarm slows no peer"),
        ('"num_warmup": 101', "at most 100 rounds of --warmup"),
        (f'"sizes_bytes": {list(range(4, 16004, 4))}', "--swarm takes plans of less than 16384 bytes"),
    ],
)
def test_what_is_too_much_to_ask_is_refused(change: str, said: str) -> None:
    fields = json.loads(PLAN.to_json()) | json.loads(f"{{{change}}}")
    fields |= {"operation": "all-reduce", "root": 0}
    if len(fields["sizes_bytes"]) > 100:
        fields["num_iters"] = 1
    with pytest.raises(LaunchError, match=said):
        check(Plan.from_json(json.dumps(fields)))


@pytest.mark.parametrize("before", [("--swarm", "pond"), ("--serve",), ("--bind", "127.0.0.1:1")], ids=" ".join)
def test_what_stands_before_an_operation_is_refused_and_nothing_is_measured_elsewhere(before: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, [*before, "broadcast", "-n", "1", "-e", "4K", "--iters", "1"])
    assert isinstance(ended.exception, LaunchError) and "shoal bench broadcast --swarm NAME" in str(ended.exception)

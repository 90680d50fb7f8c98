"""`shoal bench all-reduce --device cuda` with real processes, whose GPU is the stand-in of tests/p2p/staging."""

import json
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from p2p.benchmark.plan import Plan
from p2p.benchmark.stages import STAGES
from p2p.forking.zygote import Zygote
from p2p.launch.devices import host_gpus
from tests.live.swarm import Process, Swarm
from tests.live.test_benchmark import fork, start

pytestmark = [pytest.mark.light, pytest.mark.torch]

WORKER = "tests.p2p.staging.bench_worker"
PLAN = Plan(
    num_peers=3,
    algorithms=("auto", "ring", "auto@early", "direct@adds", "direct@sockets"),
    baseline="gloo",
    sizes_bytes=(4096, 65536),
    num_iters=3,
    num_warmup=1,
    device="cuda",
)
SMALL = replace(PLAN, num_peers=2, algorithms=("auto",), baseline=None, sizes_bytes=(4096,))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Replaces /tmp, to check what is left in it."""
    with TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


def measure(
    plan: Plan, scratch: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str = ""
) -> tuple[str, dict[str, Any]]:
    """Run a benchmark; returns its output and its JSON."""
    monkeypatch.setenv("STAND_IN", how)
    files = [str(folder / f"out.{suffix}") for suffix in ("json", "csv", "svg")]
    process = start(scratch, WORKER, plan.to_json(), *files)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    assert not any(scratch.glob("shoal-*"))
    report: dict[str, Any] = json.loads(Path(files[0]).read_text())
    return stdout, report


def check(row: dict[str, Any], num_peers: int, rounds: int) -> None:
    """Check that a row is correct, and that its stages, if any, add up to the rounds."""
    assert (row["wrong"], row["hash_equal"], row["iters"]) == (0, True, rounds), row
    if row["algorithm"] == "gloo":
        assert row["stages_us"] is None
        return
    stages = row["stages_us"]
    assert list(stages) == list(row["stages_p50_us"]) == list(STAGES)
    for rank, number in ((rank, number) for rank in range(num_peers) for number in range(rounds)):
        times = [stages[name][rank][number] for name in STAGES]
        assert min(times) >= 0 and abs(sum(times) - row["times_us"][rank][number]) < 1


@pytest.mark.long
def test_results_on_a_device_are_right_and_each_round_has_its_stages(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout, report = measure(PLAN, scratch, tmp_path, monkeypatch)
    assert [row["algorithm"] for row in report["results"]] == [*PLAN.contenders] * 2
    assert [row["ran"] for row in report["results"][:6]] == ["one-shot", "ring", "one-shot", "direct", "direct", "gloo"]
    for row in report["results"]:
        check(row, num_peers=3, rounds=3)
    assert (report["config"]["device"], report["machine"]["devices"]) == ("cuda", ["cpu"])
    assert not any("made no sum" in each for each in report["warnings"]), report["warnings"]
    assert report["warnings"][-1].startswith("3 peers share one GPU") and report["warnings"][-1] in stdout
    assert re.search(rf"slowest stage(:| of auto:) ({'|'.join(STAGES)}) at", stdout)
    assert "4K: auto takes one-shot" in stdout
    (header, *rows) = (tmp_path / "out.csv").read_text().splitlines()
    assert all(f"{stage}_p50_us" in header for stage in STAGES) and len(rows) == 12
    assert (tmp_path / "out.svg").read_text().count('class="part"') == 5 * 2 * len(STAGES)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64"])
def test_every_type_is_right_on_a_device(
    dtype: str, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, algorithms=("tree", "one-shot"), dtype=dtype, num_peers=4, num_iters=None, duration_s=0.5)
    _, report = measure(plan, scratch, tmp_path, monkeypatch)
    for row in report["results"]:
        check(row, num_peers=4, rounds=row["iters"])
        assert row["iters"] >= 5


@pytest.mark.long
def test_an_array_in_parts_has_stages_that_add_up_though_parts_go_side_by_side(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, report = measure(replace(SMALL, sizes_bytes=(72 << 20,)), scratch, tmp_path, monkeypatch)
    check(report["results"][0], num_peers=2, rounds=3)


@pytest.mark.long
def test_the_device_adds_up_where_it_is_asked_to(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(SMALL, algorithms=("direct", "direct@adds"), sizes_bytes=(65536,), num_iters=60)
    _, report = measure(plan, scratch, tmp_path, monkeypatch)
    for row in report["results"]:
        check(row, num_peers=2, rounds=60)
    assert not any("made no sum" in each for each in report["warnings"]), report["warnings"]


@pytest.mark.long
def test_memory_that_cannot_be_registered_is_said_and_the_results_are_right(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout, report = measure(SMALL, scratch, tmp_path, monkeypatch, "refuses")
    check(report["results"][0], num_peers=2, rounds=3)
    said = "memory of peers could not be registered with their device (the stand-in refuses each 1th)"
    assert said in report["warnings"][-1] and said in stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("none", "--device cuda needs a GPU: the stand-in is told to be none; leave --device out"),
        ("full", "cpu has no room for an array of 4K: 4096 bytes were asked for, and 1024 are free; take a smaller -e"),
    ],
)
def test_a_peer_that_has_no_device_or_no_room_there_ends_the_run_with_one_line(
    how: str, said: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    process = start(scratch, WORKER, SMALL.to_json())
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr.count("\n")) == (2, "", 1), stderr
    assert stderr.startswith("shoal: the run ended before there were results") and said in stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_a_peer_that_is_killed_while_it_measures_on_a_device_ends_the_run_with_one_line(scratch: Path) -> None:
    process = start(scratch, WORKER, replace(SMALL, num_iters=1_000_000).to_json())
    victim = None
    while victim is None:
        assert process.poll() is None
        workers = psutil.Process(process.pid).children(recursive=True)
        if len(workers) >= 2 and any(scratch.glob("shoal-*/bench-*/*.json")):
            victim = workers[-1]
        threading.Event().wait(0.02)
    victim.kill()
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr.count("\n")) == (2, "", 1), stderr
    assert stderr.startswith("shoal: the run ended before there were results")
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("option", [("--device", "cuda"), ("--device", "gpu"), ("--device", "cuda:0")], ids="=".join)
def test_without_such_a_device_one_line_says_so_and_nothing_starts(
    option: tuple[str, ...], zygote: Zygote, scratch: Path
) -> None:
    if host_gpus() and option[1] == "cuda":
        pytest.skip("there is a GPU")
    process = fork(zygote, scratch, "bench", "all-reduce", *option)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr.count("\n")) == (2, "", 1), stderr
    assert stderr.startswith("shoal: --device ")
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_peers_on_hosts_of_a_lab_have_a_device_too(
    scratch: Path, tmp_path: Path, namespaces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(SMALL, algorithms=("ring", "auto"), net="rate=200mbit,delay=2ms")
    _, report = measure(plan, scratch, tmp_path, monkeypatch)
    for row in report["results"]:
        check(row, num_peers=2, rounds=3)
        assert row["stages_p50_us"]["exchange"] > 4000, "two hops at least"


# In a swarm

SERVES = """
import sys
from p2p.benchmark.measuring.swarm import serve
from tests.p2p.staging.bench_worker import find

serve("pond", {}, find)
"""

BRINGS = """
import sys
from pathlib import Path
from p2p.benchmark.director import Outputs, run_in_swarm
from p2p.benchmark.plan import Plan
from p2p.errors import ShoalError
from tests.p2p.staging.bench_worker import find

try:
    code = run_in_swarm(Plan.from_json(sys.argv[1]), {}, Outputs(json=Path(sys.argv[2])), find)
except ShoalError as error:
    sys.exit(f"shoal: {error}")
sys.exit(code)
"""


def told(peer: Process, pattern: str) -> str:
    return peer.expect_line(f"shoal: {pattern}", is_error=True)


def test_peers_of_a_swarm_measure_on_devices_and_say_who_has_none(swarm: Swarm, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    plan = replace(SMALL, swarm="pond", algorithms=("auto", "direct@early"))
    swarm.environ["STAND_IN"] = "refuses"
    has_one = swarm.start(SERVES)
    del swarm.environ["STAND_IN"]
    brings = swarm.start(BRINGS, plan.to_json(), str(path))
    assert brings.end() == 0, brings.report()
    report = json.loads(path.read_text())
    for row in report["results"]:
        check(row, num_peers=2, rounds=3)
    refused = "memory of peers could not be registered with their device (the stand-in refuses each 1th)"
    assert any(refused in each for each in report["warnings"]), report["warnings"]
    told(has_one, "has measured it")

    swarm.environ["STAND_IN"] = "none"
    has_none = swarm.start(SERVES)
    del swarm.environ["STAND_IN"]
    told(has_none, "waits in swarm .*")
    brings = swarm.start(BRINGS, replace(plan, num_peers=3).to_json(), str(path))
    assert brings.end() == 1
    assert re.match(r"shoal: peer \S+ has no GPU for --device cuda: end its `shoal bench", brings.stderr[-1])
    told(has_none, "the run has ended: this peer cannot measure it: --device cuda needs a GPU: the stand-in .*")
    told(has_one, r"the run has ended: peer \S+ has no GPU for --device cuda: .*")

    brings = swarm.start(BRINGS, replace(plan, num_peers=3, device="cpu").to_json(), str(path))
    assert brings.end() == 0, brings.report()
    rows = json.loads(path.read_text())["results"]
    assert [(row["world_size"], row["wrong"], row["stages_us"]) for row in rows] == [(3, 0, None)] * 2
    for peer in (has_one, has_none):
        peer.send_signal(signal.SIGTERM)
        assert peer.end() == 128 + signal.SIGTERM

"""The benchmarks with real processes: they end with 0, say what they promise, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.light

RESULT_FIELDS = {
    "algorithm",
    "ran",
    "world_size",
    "size_bytes",
    "iters",
    "time_min_us",
    "time_p50_us",
    "time_p90_us",
    "time_p99_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "cpu_time_p50_us",
    "wrong",
    "times_us",
    "cpu_times_us",
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Stands in for /tmp, to see what is left in it; pytest's own can be too long for a socket."""
    with TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


def start(scratch: Path, *command: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMP_"))}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def all_reduce(scratch: Path, path: Path, *options: str) -> dict[str, Any]:
    """The JSON that `shoal bench all-reduce` writes."""
    process = start(scratch, "p2p.cli", "bench", "all-reduce", "--json", str(path), *options)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "busbw GB/s" in stdout
    assert not any(scratch.glob("shoal-*"))
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_all_algorithms_are_right_and_their_times_are_written(scratch: Path, tmp_path: Path) -> None:
    options = ("-n", "2", "--algos", "ring,tree,one-shot,direct", "-b", "4K", "-e", "64K", "-f", "4", "--iters", "3")
    report = all_reduce(scratch, tmp_path / "out.json", *options)
    assert report["version"] == 2
    assert report.keys() == {"version", "commit", "machine", "config", "results"}
    assert report["config"]["sizes_bytes"] == [4096, 16384, 65536]
    rows = report["results"]
    expected = [(s, a) for s in (4096, 16384, 65536) for a in ("ring", "tree", "one-shot", "direct")]
    assert [(row["size_bytes"], row["algorithm"]) for row in rows] == expected
    assert all(row.keys() == RESULT_FIELDS and row["algorithm"] == row["ran"] for row in rows)
    assert all(row["world_size"] == 2 and row["iters"] == 3 and row["wrong"] == 0 for row in rows)
    assert all([len(times) for times in row["times_us"]] == [3, 3] for row in rows)
    assert all(0 < row["time_min_us"] <= row["time_p50_us"] <= row["time_p99_us"] for row in rows)


def test_every_way_that_the_bytes_may_take_is_right(scratch: Path, tmp_path: Path) -> None:
    names = "auto", "auto@arena", "auto@early", "ring@early", "auto@sockets", "auto@tcp", "auto@curve"
    options = ("-n", "2", "--algos", ",".join(names), "-b", "4K", "-e", "1M", "-f", "256", "--iters", "3")
    rows = all_reduce(scratch, tmp_path / "out.json", *options)["results"]
    assert [(row["algorithm"], row["ran"], row["wrong"]) for row in rows] == [
        (name, "ring" if name == "ring@early" else ran, 0) for ran in ("one-shot", "direct") for name in names
    ]


def test_gloo_takes_part_as_the_baseline(scratch: Path, tmp_path: Path) -> None:
    options = ("-n", "2", "--algos", "auto", "--baseline", "gloo", "-b", "4K", "-e", "4K", "--iters", "2")
    rows = all_reduce(scratch, tmp_path / "out.json", *options)["results"]
    assert [(row["algorithm"], row["ran"], row["wrong"]) for row in rows] == [
        ("auto", "one-shot", 0),
        ("gloo", "gloo", 0),
    ]


@pytest.mark.parametrize("option", [("-n", "0"), ("--algos", "star"), ("-b", "8K", "-e", "4K"), ("-f", "1")])
def test_bad_input_is_one_line_and_nothing_starts(scratch: Path, option: tuple[str, ...]) -> None:
    process = start(scratch, "p2p.cli", "bench", "all-reduce", *option)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr.count("\n")) == (2, "", 1)
    assert stderr.startswith("shoal: ")
    assert list(scratch.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(scratch: Path) -> None:
    process = start(scratch, "p2p.cli", "bench", "all-reduce", "-n", "2", "--iters", "1000000", "-b", "4M")
    while not any(scratch.glob("shoal-*/bench-*/*.json")):
        assert process.poll() is None
        threading.Event().wait(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 128 + signal.SIGINT, stderr
    assert list(scratch.iterdir()) == []


def test_one_process_learns_what_four_peers_did_although_two_were_killed(scratch: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    process = start(scratch, "bench.replay", "--steps", "10", "--kill", "2", "--json", str(path))
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    report = json.loads(path.read_text())
    assert report["largest_relative_difference"] <= 1e-3
    assert {num_peers for _, num_peers, _, _ in report["steps"]} == {2, 3, 4}
    assert not any(scratch.glob("shoal-*"))  # torch makes a folder of its own


def test_what_kills_cost_is_measured_and_no_step_is_lost(scratch: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    process = start(scratch, "bench.elastic", "--peers", "3", "--kills", "1", "--resident", "1M", "--json", str(path))
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    report = json.loads(path.read_text())
    assert [kill["peers"] for kill in report["kills"]] == [3]
    assert all(kill["digests_equal"] and kill["steps_lost"] == 0 for kill in report["kills"])
    assert all(0 < kill["detect_ms"] <= kill["agree_ms"] for kill in report["kills"])
    assert report["summary"]["resume_ms"].keys() == {"p50", "p99"}
    assert not any(scratch.glob("shoal-*"))


def test_calls_are_counted_where_they_are_made(scratch: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    process = start(scratch, "bench.calls", "--rounds", "2", "--deaths", "1", "--json", str(path))
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    rows = {row["what"]: row for row in json.loads(path.read_text())["rows"]}
    assert all(row["functions"] <= row["least"] <= row["p50"] <= row["most"] for row in rows.values())
    assert rows["all_reduce"]["folders"]["p2p/memory"] > 0
    assert rows["death"]["folders"]["gossip"] > 0
    assert not any(scratch.glob("shoal-*"))

"""The number of threads that this process may start: with made-up control groups, and with real limits."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2p.host.memory_left import CGROUPS
from p2p.host.threads import OF_A_PEER, why_no_thread, why_too_few_threads

ROOT = Path(__file__).parents[3]


def write(folder: Path, most: int | str, now: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{now}\n")


def test_of_the_groups_around_a_process_the_narrowest_counts(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", "max", 5)
    write(tmp_path / "a", 100, 90)
    write(tmp_path, 1000, 980)
    write(tmp_path / "a" / "other", 1, 1)
    groups = "12:cpu:/old\n0::/a/b\n"
    assert why_too_few_threads(10, groups, tmp_path) == ""
    assert why_too_few_threads(12, groups, tmp_path) == (
        f"at most 100 threads can run here; 90 run, and 12 more must start: raise {tmp_path}/a/pids.max to 102 "
        "(TasksMax= of the service, --pids-limit of the container)"
    )


def test_of_version_1_the_group_of_its_controller_counts_and_in_a_container_where_it_is_mounted(tmp_path: Path) -> None:
    write(tmp_path / "pids", 10, 12)  # a limit that was lowered
    assert "at most 10 threads can run here; 10 run," in why_too_few_threads(1, "3:cpu,pids:/docker/01\n", tmp_path)
    assert why_too_few_threads(1, "3:cpu:/docker/01\n", tmp_path) == ""


def ask(source: str) -> subprocess.Popen[str]:
    """Start `source`, in which `why` is defined; it runs once its stdin is closed."""
    head = "import os, resource, sys, threading\nfrom p2p.host.threads import why_too_few_threads as why\n"
    pipe = subprocess.PIPE
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", f"{head}sys.stdin.read()\n{source}"],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environ,
    )


STARTS = """
left = next(number for number in range(100) if why(number + 1))
print(why(100), flush=True)
over, number = threading.Event(), 0
try:
    while number < 100:
        threading.Thread(target=over.wait, daemon=True).start()
        number += 1
except RuntimeError:
    pass
over.set()
assert number == left, (number, left)
"""
"""Checks that the reported number of threads can be started, and no more."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A new group with a limit of four threads, inside of this process's group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            around = CGROUPS / "pids" / path.lstrip("/")
            break
    else:
        around = CGROUPS / path.lstrip("/")
    made = around / f"test-threads-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (made / "pids.max").write_text("4")
        except OSError as error:
            pytest.skip(f"no cgroup with a limit of threads can be made here: {error}")
        yield made
    finally:
        made.rmdir()


def test_in_a_group_as_many_can_be_started_as_its_limit_leaves(group: Path) -> None:
    with ask(STARTS) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout.startswith("at most 4 threads can run here; 1 run, and 100 more must start: raise "), stdout


LIMITED = "os.geteuid() or os.setresuid(54321, 54321, 54321)\nresource.setrlimit(resource.RLIMIT_NPROC, (4, 4))\n"


def test_a_user_can_have_as_many_as_its_limit_leaves_in_all_of_its_processes() -> None:
    with ask(LIMITED + STARTS) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout.startswith("at most 4 threads can run here; ") and "(`ulimit -u 10" in stdout, stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="there is no process of root")
def test_the_limit_of_users_does_not_hold_for_root() -> None:
    source = "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\nthreading.Thread(target=int).start()\nprint(why(50))"
    with ask(source) as process:
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (0, "\n"), stderr


def test_a_thread_that_was_refused_for_another_reason_says_where_to_look() -> None:
    assert why_too_few_threads(OF_A_PEER) == ""
    assert why_no_thread().startswith("no thread can be started: look at `ulimit -u`")

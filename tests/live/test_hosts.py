"""`shoal run` on two hosts, whose kernels cannot prove deaths on the other: the launchers have to report them."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from p2p.errors import RemovedFromView
from tests.cases import some_of
from tests.live.conftest import NewHost
from tests.live.swarm import STREAM, Process, Swarm

STEPS = STREAM.replace(
    STREAM[STREAM.index("def command") : STREAM.index("with p2p")],
    """
import os
def command():
    return "stop" if os.path.exists(sys.argv[1]) else ""

""",
)
"""The same stream; it stops when the file named by the argument exists."""


@pytest.fixture
def hosts(new_host: NewHost, key: Path, wires: list[str]) -> list[Swarm]:
    """Two hosts, each with its own network, pid namespace and registry folder."""
    found = [new_host(), new_host()]
    for index, (namespace, host) in enumerate(zip(wires, found, strict=True), 1):
        host.prefix = ("ip", "netns", "exec", namespace, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        host.environ = {
            "SHOAL_SEEDS": "10.77.0.1:7700",
            "SHOAL_BIND": f"10.77.0.{index}:7700",
            "SHOAL_KEY": str(key),
        }
        host.leaves_files = True
    return found


@pytest.fixture
def homes(hosts: list[Swarm], wires: list[str]) -> list[Swarm]:
    """The same hosts in one pid namespace: they share memory, and meet only over the cable."""
    for namespace, host in zip(wires, hosts, strict=True):
        host.prefix = ("ip", "netns", "exec", namespace)
    return hosts


def launch(hosts: Sequence[Swarm], num_peers: int, stop: Path) -> list[Process]:
    """Launch `num_peers` on each host; rank 0 is on the first."""
    options = ["--min-peers", str(num_peers * len(hosts))]
    runs = [host.launch(num_peers, STEPS, str(stop), options=options) for host in hosts]
    for run in runs:
        for index in range(num_peers):
            run.expect_line(rf"\[{index}\] step 20 .*")
    return runs


def launcher_of(run: Process) -> psutil.Process:
    """The launcher's process in this pid namespace, a child of `unshare`."""
    (launcher,) = psutil.Process(run.pid).children()
    return launcher


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("dying", "num_peers"), some_of([(0, 1), (0, 2), (1, 1), (1, 2)], 1))
def test_a_host_goes_on_when_all_peers_of_the_other_are_killed(
    hosts: list[Swarm], tmp_path: Path, num_peers: int, dying: int
) -> None:
    """The survivors are half of the members, in one case without rank 0: they need proof with records to continue."""
    stop = tmp_path / "stop"
    runs = launch(hosts, num_peers, stop)
    kill(launcher_of(runs[dying]).children())
    survivor = runs[1 - dying]
    for index in range(num_peers):
        survivor.expect_line(rf"\[{index}\] step \d+ \d {num_peers}", after=f"[{index}] view of {num_peers}")
    assert runs[dying].end() == 1, runs[dying].report()
    stop.touch()
    assert survivor.end() == 0, survivor.report()
    # A launcher names its own peers by number: they are reported as out, too, if one ends a little before the other.
    expected = (
        r"\[.*|peer \d \(pid \d+\) was killed by .*|peer \d failed first, in step .*|first step .*| .*|"
        r"peer (\d|[0-9a-f]{8}) is out at step .*; \d members? \(.*\); resumed after [\d.]+ ms, no step lost.*"
    )
    lines = [line.removeprefix("shoal: ") for run in runs for line in run.stderr]
    assert [line for line in lines if not re.fullmatch(expected, line)] == []


@pytest.mark.long
def test_one_after_the_other_down_to_the_last(hosts: list[Swarm], tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    runs = launch(hosts, 2, stop)
    victims = launcher_of(runs[0]).children()
    kill(victims[:1])
    runs[1].expect("[0] view of 3")
    kill(victims[1:])
    runs[1].expect("[0] view of 2")
    kill(launcher_of(runs[1]).children()[:1])
    runs[1].expect_line(r"\[1\] step \d+ 0 1")
    stop.touch()
    assert [run.end() for run in runs] == [1, 1], runs[1].report()


@pytest.mark.light
def test_when_the_launcher_dies_too_nothing_is_proven(hosts: list[Swarm], tmp_path: Path) -> None:
    runs = launch(hosts, 1, tmp_path / "stop")
    kill([launcher_of(runs[0])])
    runs[0].end()
    runs[1].expect_line(r"\[0\] 1 of 2 members of view \d can be heard, not [0-9a-f]{16}", is_error=True)
    runs[1].kill()
    runs[1].end()
    assert "[0] view of 1" not in runs[1].stdout


@pytest.mark.long
@pytest.mark.light
def test_two_homes_of_one_machine_part_when_only_the_network_between_them_is_cut(
    homes: list[Swarm], wires: list[str], tmp_path: Path
) -> None:
    """Shared memory and the kernel's proofs still connect them, but neither carries votes."""
    stop = tmp_path / "stop"
    runs = launch(homes, 1, stop)
    subprocess.run(["ip", "-n", wires[1], "link", "set", "dev", cable(wires[1]), "down"], check=True)
    runs[0].expect_line(r"\[0\] step \d+ 0 1")
    subprocess.run(["ip", "-n", wires[1], "link", "set", "dev", cable(wires[1]), "up"], check=True)
    assert runs[1].end() == RemovedFromView.exit_code, runs[1].report()
    stop.touch()
    assert runs[0].end() == 0, runs[0].report()


def cable(namespace: str) -> str:
    """The only network device of a namespace besides its loopback."""
    lines = subprocess.run(["ip", "-n", namespace, "-o", "link"], check=True, capture_output=True, text=True).stdout
    (name,) = re.findall(r"\d+: (sh\d+[ab])[@:]", lines)
    return str(name)

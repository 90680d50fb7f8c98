"""Fixtures: launches with a private registry folder, separate hosts, and connected network namespaces."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest

from p2p.forking.zygote import Zygote
from p2p.host.keys import write_key
from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab
from tests.live.labs import NewLab, why_there_is_no_lab
from tests.live.launches import EXECUTED, ForkedLaunch, Launch, Shoal
from tests.live.swarm import ROOT, Swarm

NewHost = Callable[[], Swarm]


@pytest.fixture
def new_host(tmp_path: Path, zygote: Zygote) -> Iterator[NewHost]:
    """Creates hosts that share only the network, and keep their scripts and receipts apart."""
    hosts: list[Swarm] = []
    with ExitStack() as stack:

        def make() -> Swarm:
            home = stack.enter_context(TemporaryDirectory(prefix="shoal-", dir="/tmp"))
            folder = tmp_path / str(len(hosts))
            folder.mkdir()
            hosts.append(Swarm(Path(home), folder, zygote))
            stack.callback(hosts[-1].close)
            return hosts[-1]

        yield make


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "swarm.key"
    write_key(path)
    return path


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal-") as folder:  # tmp_path can be too long for a socket
        yield Path(folder)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return write


@pytest.fixture
def shoal(home: Path, tmp_path: Path, zygote: Zygote) -> Iterator[Shoal]:
    """Starts `shoal run ARGUMENTS`, as a fork or as a separate `program`; ends it with the test."""
    started: list[Launch] = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMP_"))}

    def start(
        *arguments: str,
        program: Sequence[str] | None = None,
        executable: str = sys.executable,
        environ: Mapping[str, str] = MappingProxyType({}),
        pass_fds: Sequence[int] = (),
    ) -> Launch:
        whole = {**clean, "SHOAL_HOME": str(home), "PYTHONPATH": str(ROOT), **environ}
        if program is None and not pass_fds:
            process: Launch = ForkedLaunch(zygote, ["run", *arguments], whole, tmp_path)
        else:
            process = subprocess.Popen(
                [executable, *(EXECUTED if program is None else program), *arguments],
                cwd=tmp_path,
                env=whole,
                pass_fds=pass_fds,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def namespaces() -> None:
    if why := why_there_is_no_lab():
        pytest.skip(why)


@pytest.fixture
def new_lab(namespaces: None) -> Iterator[NewLab]:
    """Creates labs of equal hosts, which end with the test."""
    with ExitStack() as stack:
        yield lambda hosts, net="": stack.enter_context(NetworkLab(LabConfig.uniform(hosts, net)))


def has_namespaces() -> bool:
    if os.geteuid() != 0:
        return False
    probe = f"shoal-probe-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
    if made:
        subprocess.run(["ip", "netns", "del", probe], check=True)
    return made


@pytest.fixture
def wires() -> Iterator[list[str]]:
    """Two network namespaces connected by a virtual cable: 10.77.0.1 and 10.77.0.2."""
    if not has_namespaces():
        pytest.skip("network namespaces need root and iproute2")
    names = [f"shoal-{os.getpid()}-{index}" for index in (1, 2)]
    ends = [f"sh{os.getpid() % 100_000}{side}" for side in "ab"]
    try:
        for each in names:
            ip("netns", "add", each)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for index, (each, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("-n", each, "addr", "add", f"10.77.0.{index}/24", "dev", end)
            ip("-n", each, "link", "set", end, "up")
            ip("-n", each, "link", "set", "lo", "up")
        yield names
    finally:
        for each in names:
            subprocess.run(["ip", "netns", "del", each], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)

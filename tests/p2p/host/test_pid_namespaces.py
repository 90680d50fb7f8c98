"""Two peers that share a registry's folder, but do not see each other's processes, as in containers."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from p2p.errors import RegistryError
from p2p.host.entry import Role
from p2p.host.folders import is_byte_locked, place_of
from tests.p2p.host.entries import registry

Stranger = Callable[[str], tuple[subprocess.Popen[str], str]]

A, B, C = "a" * 16, "b" * 16, "c" * 16

ENTER_AND_STAY = """
import sys
from pathlib import Path
from p2p.host.registry import Registry

registry = Registry(Path(sys.argv[1]), "pond")
own = registry.enter(sys.argv[2], 1, remote=(sys.argv[3], sys.argv[3])).own
registry.mark_member()
Path(own.control_address.removeprefix("ipc://")).touch()
print(own.pid, own.host, flush=True)
input()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stranger(home: Path) -> Iterator[Stranger]:
    """Starts a member A with an address for other hosts, in a pid namespace of its own; returns process and host."""
    with ExitStack() as stack:

        def start(remote: str) -> tuple[subprocess.Popen[str], str]:
            namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*namespace, sys.executable, "-c", ENTER_AND_STAY, home, A, remote],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None and process.stderr is not None
            pid, _, host = process.stdout.readline().strip().partition(" ")
            if not pid and "unshare" in (why := process.stderr.read()):
                pytest.skip(f"no pid namespaces here: {why}")
            assert pid == "1"
            return process, host

        yield start


def test_who_shares_the_folder_but_not_the_pid_namespace_is_another_host(home: Path, stranger: Stranger) -> None:
    process, host = stranger("tcp://10.0.0.1:7700")
    one = registry(home)
    assert host != one.host
    theirs = {path.name for path in one.folder.iterdir()}
    census = one.enter(B, 2, remote=("tcp://10.0.0.1:7702", "tcp://10.0.0.1:7703"))
    assert (census.own.role, census.others) == (Role.FOUNDER, ())  # on its host; seeds decide whether it joins another
    assert one.read(apart_from=B) == ((), ())
    one.leave()
    assert {path.name for path in one.folder.iterdir()} == theirs
    process.kill()
    while is_byte_locked(one.lock, place_of(A)):  # it dies with its parent, a little later
        pass
    registry(home).enter(C, 3)
    assert {path.stem for path in one.folder.glob("*.json")} == {C}


@pytest.mark.parametrize(("here", "there"), [("", "tcp://10.0.0.1:7700"), ("tcp://10.0.0.1:7702", ""), ("", "")])
def test_who_could_not_meet_another_pid_namespace_that_shares_the_folder_is_refused(
    here: str, there: str, home: Path, stranger: Stranger
) -> None:
    _, host = stranger(there)
    one = registry(home)
    what = f"process 1 of swarm 'pond' shares .*theirs {host}, here {one.host}.*--bind and --seeds"
    with pytest.raises(RegistryError, match=what):
        one.enter(B, 2, remote=(here, here))
    assert {path.stem for path in one.folder.glob("*.json")} == {A}


ASK = "import p2p.host.processes as processes; print(processes.read_host())"


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("true", "this process is number 1, but [0-9]+ in /proc, which is that of another PID namespace"),
        ("mount -t tmpfs none /proc", "/proc/sys/kernel/random/boot_id cannot be read .* mount all of /proc"),
    ],
    ids=["another", "none"],
)
def test_who_has_no_proc_of_its_own_is_told_so(mount: str, why: str) -> None:
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    asked = subprocess.run(
        [*namespaces, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if asked.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no namespaces here: {asked.stderr}")
    assert re.search(f"RegistryError: {why}", asked.stderr)

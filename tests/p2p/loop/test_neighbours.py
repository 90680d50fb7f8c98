"""Links to peers that cannot be opened at first, and processes that cannot be watched."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gossip import Claim, Contact, Core, CoreConfig, Member, State
from gossip.view import NOWHERE
from p2p.host.acceptor_page import record_path
from p2p.host.processes import read_host
from p2p.host.registry import Registry
from p2p.loop.neighbours import RETRY_S, Neighbours, claim_of
from p2p.net.transport import Transport
from tests.p2p.host.few_files import few_files


def claim_at(folder: Path, incarnation: int) -> Claim:
    """A claim of a peer on this host that does not exist."""
    data = f"ipc://{folder}/data-{incarnation}"
    return Claim(
        Member("b" * 16, incarnation), State.ALIVE, Contact(f"ipc://{folder}/control", data, 1, 1, read_host())
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal") as name:
        yield Path(name)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Opens so many files that the next descriptor is too large for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"at most {hard} files can be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with ExitStack() as stack:
        while (number := os.dup(0)) < 1024:
            stack.callback(os.close, number)
        os.close(number)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def transport(folder: Path) -> Iterator[Transport]:
    transport = Transport(f"ipc://{folder}/c", f"ipc://{folder}/d")
    yield transport
    transport.close()


@pytest.fixture
def core() -> Core:
    me = Claim(Member("a" * 16, 1), State.ALIVE, NOWHERE)
    return Core(me, rng=random.Random(1), config=CoreConfig(), now=0.0)


@pytest.fixture
def neighbours(folder: Path, transport: Transport) -> Iterator[Neighbours]:
    neighbours = Neighbours(transport, Registry(folder / "home", "swarm"))
    yield neighbours
    neighbours.close()


def test_a_link_that_libzmq_has_no_file_for_is_made_when_there_is_one(
    folder: Path, transport: Transport, neighbours: Neighbours, core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    claim = claim_at(folder, 1)
    with few_files(0):
        neighbours.link(claim)
        neighbours.check_links(0.0, core)
        assert list(transport.unopened_links()) == []
    neighbours.check_links(RETRY_S, core)
    assert list(transport.unopened_links()) == [claim.member.peer_id]
    first, last = caplog.messages[0], caplog.messages[-1]
    assert "cannot be reached: too many files are open" in first
    assert last == f"peer {claim.member} can be reached now"


def claim_named(folder: Path, name: str) -> Claim:
    """A claim of another peer on this host that does not exist."""
    addresses = f"ipc://{folder}/control-{name}", f"ipc://{folder}/data-{name}"
    return Claim(Member(name * 16, 1), State.ALIVE, Contact(*addresses, 1, 1, read_host()))


def test_where_files_run_out_a_peer_that_comes_has_those_of_one_that_is_lost(
    folder: Path, transport: Transport, neighbours: Neighbours, core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, new, late = (claim_named(folder, name) for name in "bcde")
    for claim in (one, other):
        core.meet(0.0, claim)
        neighbours.link(claim)
    core.meet(0.0, replace(one, state=State.LOST, accuser="a" * 16))
    core.meet(0.0, new)
    with few_files(0):
        neighbours.link(new)
        assert sorted(transport.unopened_links()) == ["b" * 16, "c" * 16]
        neighbours.check_links(0.0, core)
        assert list(transport.unopened_links()) == ["c" * 16]  # only the peer that is lost
    neighbours.check_links(RETRY_S, core)
    assert list(transport.unopened_links()) == ["c" * 16, "d" * 16, "b" * 16]  # waiting peers come first
    assert caplog.messages[2].startswith(f"the link to peer {one.member}, which is lost, is closed: too many files")
    core.meet(0.0, replace(one, refutation=1))
    with few_files(0):
        neighbours.link(late)
        neighbours.check_links(2 * RETRY_S, core)
    assert sorted(transport.unopened_links()) == ["b" * 16, "c" * 16, "d" * 16]  # no peer is lost, so it waits


def test_a_later_incarnation_is_linked_to_when_the_one_before_is_gone(
    folder: Path, transport: Transport, neighbours: Neighbours, core: Core
) -> None:
    one, other = claim_at(folder, 1), claim_at(folder, 2)
    neighbours.link(one)
    neighbours.link(other)
    neighbours.unlink(one.member)
    assert transport.unopened_links() == {}
    neighbours.check_links(0.0, core)
    assert list(transport.unopened_links()) == ["b" * 16]
    neighbours.unlink(other.member)
    assert transport.unopened_links() == {}


def test_who_is_gone_before_it_could_be_linked_to_is_not_tried_again(
    folder: Path, transport: Transport, neighbours: Neighbours, core: Core
) -> None:
    one, other = claim_at(folder, 1), claim_at(folder, 2)
    neighbours.link(one)
    neighbours.link(other)
    neighbours.unlink(other.member)
    neighbours.unlink(one.member)
    neighbours.check_links(0.0, core)
    assert transport.unopened_links() == {}


def test_who_parts_is_sent_no_data_any_more_and_a_later_incarnation_at_its_address_is(
    transport: Transport, neighbours: Neighbours, folder: Path
) -> None:
    one, other = claim_at(folder, 1), claim_at(folder, 2)
    neighbours.link(one)
    neighbours.part([other.member])
    assert transport.send_data("b" * 16, b"header", b"payload")
    neighbours.part([one.member])
    assert not transport.send_data("b" * 16, b"header", b"payload")
    neighbours.unlink(one.member)
    neighbours.link(other)
    assert transport.send_data("b" * 16, b"header", b"payload")


def test_a_record_that_is_there_later_is_opened_by_a_process_with_a_thousand_files(
    folder: Path, neighbours: Neighbours, many_files: None
) -> None:
    registry = Registry(folder / "home", "swarm")
    registry.enter("b" * 16, 1)
    own = registry.read(apart_from="")[0][0]
    neighbours.link(claim_of(own))
    member = Member(own.peer_id, own.incarnation)
    record_path(registry.folder, member).touch(mode=0o600)
    neighbours.open_records([member])
    assert neighbours.is_watched(member)
    registry.leave()


HIDDEN = """
import sys
from pathlib import Path
from gossip import Claim, Contact, Member, State
from p2p.host.registry import Registry
from p2p.loop.neighbours import Neighbours
from p2p.net.transport import Transport

home, pid = Path(sys.argv[1]), int(sys.argv[2])
registry, transport = Registry(home, "swarm"), Transport(f"ipc://{home}/c", f"ipc://{home}/d")
contact = Contact("ipc:///c", "ipc:///d", pid, 1, registry.host, "tcp://127.0.0.1:9", "tcp://127.0.0.1:10")
why = Neighbours(transport, registry).link(Claim(Member("b" * 16, 1), State.ALIVE, contact))
print(Path(f"/proc/{pid}").exists(), repr(why))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process takes root")
def test_a_process_that_proc_hides_is_not_taken_for_dead(folder: Path) -> None:
    run = (
        "mount -t proc -o hidepid=2 proc /proc && { setpriv --reuid 65534 --clear-groups sleep 600 & } &&"
        ' exec setpriv --regid 65533 --clear-groups --bounding-set=-all --inh-caps=-all "$@" $!'
    )
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    asked = subprocess.run(
        [*namespaces, "sh", "-c", run, "sh", sys.executable, "-c", HIDDEN, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if asked.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no namespaces here: {asked.stderr}")
    assert asked.stdout == "False ''\n", asked.stderr

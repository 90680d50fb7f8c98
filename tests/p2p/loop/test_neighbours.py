"""Links to peers that cannot be made at first."""

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gossip import Claim, Contact, Core, CoreConfig, Member, State
from gossip.view import NOWHERE
from p2p.host.processes import read_host
from p2p.host.registry import Registry
from p2p.loop.neighbours import RETRY_S, Neighbours
from p2p.net.transport import Transport
from tests.p2p.host.few_files import few_files


def claim_at(folder: Path, incarnation: int) -> Claim:
    """A peer of this host; nobody is there."""
    data = f"ipc://{folder}/data-{incarnation}"
    return Claim(
        Member("b" * 16, incarnation), State.ALIVE, Contact(f"ipc://{folder}/control", data, 1, 1, read_host())
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal") as name:
        yield Path(name)


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

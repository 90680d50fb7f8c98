"""A registry folder that is removed while a peer runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from p2p.host.entry import Role
from p2p.host.registry import Registry
from p2p.loop.own_entry import LOOK_S, OwnEntry
from p2p.net.transport import Transport

ONE, OTHER = "a" * 16, "b" * 16
WAIT_S = 20.0


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal-") as folder:  # tmp_path can be too long for a socket
        yield Path(folder) / "home"


@pytest.fixture
def registry(home: Path) -> Iterator[Registry]:
    registry = Registry(home, "pond")
    registry.enter(ONE, 1)
    yield registry
    registry.leave()


@pytest.fixture
def transport(registry: Registry) -> Iterator[Transport]:
    ((own, *_), _) = registry.read(apart_from="")
    transport = Transport(own.control_address, own.data_address)
    yield transport
    transport.close()


def test_who_comes_when_it_was_removed_finds_the_peer_and_reaches_it(
    home: Path, registry: Registry, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    registry.mark_member()
    own = OwnEntry(registry, transport)
    shutil.rmtree(home)
    own.look(0.0)
    own.look(LOOK_S)
    (said,) = caplog.messages
    assert said.startswith(f"the registry folder {home}/pond was removed while this peer runs, and is there again")
    later = Registry(home, "pond")
    census = later.enter(OTHER, 2)
    assert census.own.role is Role.JOINER
    (found,) = census.others
    assert (found.peer_id, found.role) == (ONE, Role.MEMBER)
    joiner = Transport(census.own.control_address, census.own.data_address)
    joiner.connect(ONE, found.control_address, found.data_address)
    joiner.send_control(ONE, b"early")
    assert transport.poll(WAIT_S).control and list(transport.receive_control()) == [b"early"]
    joiner.close()
    later.leave()


def test_where_it_cannot_be_made_again_this_is_said_once_and_tried_on(
    home: Path, registry: Registry, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    own = OwnEntry(registry, transport)
    shutil.rmtree(home)
    home.touch()  # a file in place of the folder
    for number in range(3):
        own.look(number * LOOK_S)
    (said,) = caplog.messages
    assert "and cannot be made again (cannot make the registry folder" in said
    home.unlink()
    own.look(3 * LOOK_S)
    assert registry.is_whole() and "is there again" in caplog.messages[1]


def test_who_has_left_has_no_entry_and_writes_none(
    home: Path, registry: Registry, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    registry.leave()
    shutil.rmtree(home)
    OwnEntry(registry, transport).look(0.0)
    assert not home.exists() and not caplog.messages

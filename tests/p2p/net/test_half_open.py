"""Half-open connections, without any data: the oldest of too many are shut down, and no others."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from p2p.net.half_open import CURVE_BYTES, MOST, MOST_HEARD_BYTES, PLAIN_BYTES, HalfOpen, _origin


class Door:
    """Connections, with both ends."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def connect(self, origin: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
        """Open a connection from `origin`; returns this side's end and the stranger's."""
        opened = socket.create_connection(self._server.getsockname(), source_address=(origin, 0))
        theirs = self._stack.enter_context(opened)
        ours, _ = self._server.accept()
        return self._stack.enter_context(ours), theirs


@pytest.fixture
def door() -> Iterator[Door]:
    with ExitStack() as stack:
        yield Door(stack)


def accept(
    half_open: HalfOpen, door: Door, number: int, origin: str = "127.0.0.1"
) -> list[tuple[socket.socket, socket.socket]]:
    pairs = [door.connect(origin) for _ in range(number)]
    for ours, _ in pairs:
        half_open.accepted(ours.fileno())
    return pairs


def test_what_has_come_is_counted_as_long_as_there_is_a_connection(door: Door) -> None:
    half_open = HalfOpen()
    (first, one), (_, other) = accept(half_open, door, 2)
    for theirs, number in ((one, 1000), (other, 234)):
        theirs.sendall(bytes(number))
    first.recv(1)  # the kernel has counted the data by then
    while half_open.num_received() < 1234:
        pass
    assert half_open.num_received() == 1234
    half_open.closed(first.fileno())
    assert half_open.num_received() == 234


def is_shut(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    try:
        return theirs.recv(1) == b""
    except BlockingIOError:
        return False


def test_of_too_many_the_oldest_are_shut_down(door: Door) -> None:
    half_open = HalfOpen()
    pairs = accept(half_open, door, MOST)
    assert half_open.cut() == []
    pairs += accept(half_open, door, 3)
    assert half_open.cut() == [ours.fileno() for ours, _ in pairs[:3]]
    assert [is_shut(theirs) for _, theirs in pairs] == [True] * 3 + [False] * MOST
    half_open.closed(pairs[3][0].fileno())
    accept(half_open, door, 1)
    assert half_open.cut() == []


def test_who_says_more_than_a_handshake_does_is_shut_down_unless_it_was_let_in(door: Door) -> None:
    half_open = HalfOpen()
    (loud, stranger), (_, quiet), (let_in, member) = accept(half_open, door, 3)
    let_in.sendall(bytes(CURVE_BYTES + 1))
    for theirs, number in ((stranger, MOST_HEARD_BYTES + 1), (quiet, MOST_HEARD_BYTES), (member, 1 << 16)):
        theirs.sendall(bytes(number))
    while half_open.num_received() < 2 * MOST_HEARD_BYTES + 1 + (1 << 16):
        pass
    assert half_open.silence() == [loud.fileno()]
    assert half_open.silence() == []
    assert len(member.recv(4096)) == CURVE_BYTES + 1 and not is_shut(member) and not is_shut(quiet)


def test_who_is_far_away_is_not_cut_since_another_opens_many(door: Door) -> None:
    half_open = HalfOpen()
    ((_, far),) = accept(half_open, door, 1, "127.0.0.2")
    pairs = accept(half_open, door, MOST + 2)
    assert half_open.cut() == [ours.fileno() for ours, _ in pairs[:3]]
    assert not is_shut(far)


def test_who_was_let_in_makes_no_crowd(door: Door) -> None:
    half_open = HalfOpen()
    for ours, _ in accept(half_open, door, MOST // 2 + 8):
        ours.sendall(bytes(CURVE_BYTES + 1))
    ((_, member),) = accept(half_open, door, 1)
    strangers = accept(half_open, door, MOST // 2, "127.0.0.2")
    assert half_open.cut() == []
    strangers += accept(half_open, door, MOST // 2 + 1, "127.0.0.2")
    assert half_open.cut() == [ours.fileno() for ours, _ in strangers[:2]]
    assert not is_shut(member)


def test_who_has_one_address_of_a_network_has_all_of_them() -> None:
    def origin(address: str) -> object:
        return _origin((("::1", 1, 0, 0), (address, 2, 0, 0)))

    assert origin("2001:db8::1") == origin("2001:db8::ffff:2") != origin("2001:db8:0:1::1")
    assert origin("::ffff:192.0.2.1") != origin("::ffff:192.0.2.2")


@pytest.mark.parametrize("most_bytes", [CURVE_BYTES, PLAIN_BYTES])
def test_who_was_answered_to_more_than_its_hello_is_not_cut(door: Door, most_bytes: int) -> None:
    half_open = HalfOpen(most_bytes)
    (welcome, _), (let_in, member) = accept(half_open, door, 2)
    welcome.sendall(bytes(most_bytes))
    let_in.sendall(bytes(most_bytes + 1))
    accept(half_open, door, MOST)
    assert half_open.cut() == [welcome.fileno()]
    assert member.recv(4096) == bytes(most_bytes + 1) and not is_shut(member)


def test_a_descriptor_that_is_another_connection_by_now_survives(door: Door) -> None:
    half_open = HalfOpen()
    ((ours, _),) = accept(half_open, door, 1)
    other, theirs = door.connect()
    os.dup2(other.fileno(), ours.fileno())
    accept(half_open, door, MOST)
    assert half_open.cut() == [] and not is_shut(theirs)


def test_a_descriptor_that_is_no_connection_by_now_is_left_alone(door: Door) -> None:
    half_open = HalfOpen()
    one, other, third = (ours for ours, _ in accept(half_open, door, 3))
    with open(os.devnull, "rb") as file:
        os.dup2(file.fileno(), one.fileno())
    pair = socket.socketpair()
    os.dup2(pair[0].fileno(), other.fileno())
    third.close()
    accept(half_open, door, MOST)
    assert half_open.cut() == []
    assert not is_shut(pair[1])
    for each in pair:
        each.close()


def test_a_descriptor_that_was_closed_before_anybody_looked_is_not_counted() -> None:
    half_open = HalfOpen()
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        number = each.fileno()
        each.close()
        half_open.accepted(number)
    assert half_open.cut() == []

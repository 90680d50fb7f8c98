"""The kernel's counters of a connection, read through a descriptor that may have been reused."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from p2p.net.flows import Connection


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(server.getsockname()))
        yield one, stack.enter_context(server.accept()[0])


def test_a_round_trip_is_known_and_what_has_arrived_is_counted(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    connection, sent = Connection(one.fileno()), 300_000
    one.sendall(bytes(1000))
    while sent > 0:
        sent -= one.send(bytes(min(sent, 10_000)))
        other.recv(20_000)
    other.sendall(b"so much")
    while one.recv(7, socket.MSG_PEEK) != b"so much":
        pass
    flow = connection.flow()
    assert flow is not None and flow.rtt_us > 0 and flow.bytes_per_s > 0
    assert flow.received == 7 and 0 < flow.acked <= 301_001


def test_a_descriptor_that_is_another_one_by_now_says_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    connection = Connection(one.fileno())
    os.dup2(other.fileno(), one.fileno())
    assert connection.flow() is None
    one.close()
    assert connection.flow() is None


def test_congestion_control_is_that_which_was_asked_for_if_the_kernel_has_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, other = ends
    connection = Connection(one.fileno())

    def of(end: socket.socket) -> bytes:
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    default = of(one)
    connection.prefer("reno")  # every kernel has it
    assert (of(one), of(other)) == (b"reno", default)
    connection.prefer("none such")
    assert of(one) == b"reno"
    os.dup2(other.fileno(), one.fileno())
    connection.prefer("reno")
    assert of(other) == default


def test_a_congestion_control_that_is_in_use_begins_anew_and_no_other_takes_its_place(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, other = ends
    connection = Connection(one.fileno())
    connection.prefer("reno")
    connection.renew("bbr")
    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
    connection.prefer("bbr")
    if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") != b"bbr":
        pytest.skip("this kernel has no BBR, or does not let this process use it")
    one.sendall(bytes(300_000))
    for _ in range(2):
        other.recv(150_000, socket.MSG_WAITALL)
    one.sendall(b"more")  # the first send is acknowledged by now
    other.recv(4, socket.MSG_WAITALL)
    assert bandwidth(one) > 0
    connection.renew("bbr")
    assert bandwidth(one) == 0


def bandwidth(end: socket.socket) -> int:
    """BBR's bandwidth estimate: the first words of its struct, by TCP_CC_INFO."""
    low, high = struct.unpack("II", end.getsockopt(socket.IPPROTO_TCP, 26, 64)[:8])
    return int(low) | int(high) << 32


def test_what_is_no_connection_says_nothing() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert Connection(reading).flow() is None
    os.close(reading)
    assert Connection(reading).flow() is None

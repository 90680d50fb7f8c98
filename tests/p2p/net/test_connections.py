"""Connections of libzmq in the kernel: congestion control, and counters."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
import zmq

from p2p.net.flows import copy_of, ends_of
from p2p.net.headers import HEADER_BYTES
from p2p.net.links import Link, Verdict
from p2p.net.tcp import Network
from p2p.net.transport import Transport
from tests.p2p.net.test_listener import gather, two_free_ports
from tests.p2p.net.transport_harness import TransportHarness, open_pond, poll_until

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def pond() -> Iterator[TransportHarness]:
    with open_pond() as private:
        yield private


@pytest.mark.parametrize(("network", "wanted"), [(Network.LAN, ""), (Network.WAN, "bbr")])
def test_far_hosts_data_go_by_a_congestion_control_that_keeps_what_it_knows(
    pond: TransportHarness, network: Network, wanted: str
) -> None:
    b = pond.open(B, network=network)
    gate = pond.gates[B]
    assert gate.congestion_control == wanted
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    another = "cubic" if default == "reno" else "reno"
    control, data = pond.addresses(B)
    with zmq.Context() as context:
        link = Link(context, B, control, data, gate.credentials.introduce, congestion_control=another)
        poll_until(lambda: not link.unopened() and congestion_controls(data) == {another}, b)
        assert congestion_controls(control) == {default}
        link.close(linger_ms=0)


def test_what_has_arrived_over_one_connection_is_nothing_of_what_was_sent_over_the_one_before(
    pond: TransportHarness,
) -> None:
    b = pond.open(B)
    with zmq.Context() as context:
        link = Link(context, B, *pond.addresses(B), pond.gates[B].credentials.introduce)
        poll_until(lambda: not link.unopened(), b)
        before = link.acked()
        assert before is not None
        for connection in connections_to(pond.addresses(B)[1]):
            connection.shutdown(socket.SHUT_RDWR)
        poll_until(lambda: not link.unopened() and (link.acked() or 0) > before + (1 << 40), b)
        link.close(linger_ms=0)


@pytest.mark.parametrize(
    ("network", "wanted"), [(Network.LAN, (4000, 1, 1, 1, 3)), (Network.WAN, (16_000, 1, 7, 3, 3))]
)
def test_the_kernel_closes_data_connections_that_nobody_acknowledges_anything_on(
    pond: TransportHarness, network: Network, wanted: tuple[int, ...]
) -> None:
    """The kernel closes them a little before a step is redone for lost frames, after 5 s or 20 s."""
    a, b = pond.open(A, network=network), pond.open(B, network=network)
    a.connect(B, *pond.addresses(B))
    poll_until(lambda: not a.unopened_links(), a, b)
    poll_until(lambda: silences(connections_to(pond.addresses(B)[1])) == {wanted}, a, b)
    for address in pond.addresses(B):
        assert silences(connections_from(address)) == {wanted}


def test_data_go_over_another_connection_when_they_are_told_to_and_control_stays(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    b.connect(A, *pond.addresses(A))
    b.send_data(A, bytes(HEADER_BYTES), b"before")
    assert received(a, b) == b"before"
    (before,) = (ends_of(each) for each in connections_to(pond.addresses(A)[1]))
    b.reopen_data([A])
    b.send_data(A, bytes(HEADER_BYTES), b"after")
    assert received(a, b) == b"after"

    def is_gone() -> bool:
        b.send_data(A, bytes(HEADER_BYTES), b"and on")  # libzmq closes a connection as its socket is used
        return before not in [ends_of(each) for each in connections_to(pond.addresses(A)[1])]

    poll_until(is_gone, a, b)
    assert (b.broken_links(), b.unopened_links()) == ([], {}) and b.flows().keys() == {A}
    assert b.num_broken(A) == 0, "it was closed by this side"


def test_peers_of_this_host_have_no_connection_that_could_be_forgotten(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    a.connect(B, *(f"ipc://{path}" for path in b._paths))
    assert a.num_broken(B) is a.num_broken(C) is None


def received(target: Transport, *others: Transport) -> bytes:
    """The next payload."""
    came: list[bytes] = []

    def has_come() -> bool:
        came.extend(bytes(payload) for _, payload in target.receive_data())
        return bool(came)

    poll_until(has_come, target, *others)
    (payload,) = came
    return payload


def silences(found: Iterator[socket.socket]) -> set[tuple[int, ...]]:
    """TCP user timeout in ms; keepalive: whether it is on, idle time and interval in seconds, number of probes."""
    tcp = socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    options = [(socket.IPPROTO_TCP, each) for each in tcp]
    options.insert(1, (socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    return {tuple(each.getsockopt(*option) for option in options) for each in found}


def congestion_controls(address: str) -> set[str]:
    """Congestion controls of this process's connections to `address`; a just reopened one has the default."""
    options = socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16
    return {each.getsockopt(*options).rstrip(b"\0").decode() for each in connections_to(address)}


def connections_to(address: str) -> Iterator[socket.socket]:
    """Duplicates of this process's connections to `address`."""
    return connections(address, here=0)


def connections_from(address: str) -> Iterator[socket.socket]:
    """Duplicates of the connections that this process has accepted at `address`."""
    return connections(address, here=1)


def connections(address: str, *, here: int) -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        if (copy := copy_of(int(name))) is not None:
            with closing(copy):
                ends = ends_of(copy) if copy.family in (socket.AF_INET, socket.AF_INET6) else None
                if ends is not None and address.endswith(f":{ends[1 - here][1]}"):
                    yield copy


NULL = b"\xff" + bytes(8) + b"\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize("said", [b"HTTP/1.1 502 Bad Gateway\r\n\r\n", NULL], ids=["HTTP", "no key"])
def test_a_link_is_tried_again_where_another_process_has_answered(pond: TransportHarness, said: bytes) -> None:
    b, port = pond.open(B), two_free_ports()
    with ExitStack() as stack:

        def answers(server: socket.socket) -> bool:
            b.retry_links()
            try:
                caller, _ = server.accept()
            except BlockingIOError:
                return False
            stack.enter_context(caller).sendall(said)
            return True

        servers = [stack.enter_context(socket.create_server(("127.0.0.1", port + index))) for index in range(2)]
        b.connect(A, *(f"tcp://127.0.0.1:{port + index}" for index in range(2)))
        for server in servers:
            server.setblocking(False)
            for _ in range(2):
                poll_until(partial(answers, server), b)
    a = pond.open(A, port=port)

    def is_open() -> bool:
        b.retry_links()
        return not b.unopened_links()

    poll_until(is_open, a, b)
    b.send_control(A, b"hello")
    b.send_data(A, b"h" * HEADER_BYTES, b"x")
    assert gather(a, 1, b) == [b"hello"] and b.lost_links() == []
    poll_until(lambda: len(list(a.receive_data())) == 1, a, b)


def test_a_seed_is_called_again_where_something_that_is_no_peer_has_answered(pond: TransportHarness) -> None:
    b, port = pond.open(B), two_free_ports()
    address = f"tcp://127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)) as server:
        b.seed_calls.call(address, [])
        caller, _ = server.accept()
        caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        poll_until(lambda: b.seed_calls.call(address, []) is Verdict.OTHER_KEY, b)
        caller.close()
    a = pond.open(A, port=port)
    poll_until(lambda: b.seed_calls.call(address, [b"hello"]) is Verdict.ANSWERS, a, b)
    assert gather(a, 1, b)[0] == b"hello"

"""Many connections at one port, and replayed messages."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
import zmq

from p2p.net.half_open import CURVE_BYTES, GREETING_BYTES, MOST, PLAIN_BYTES
from p2p.net.tcp import Network
from p2p.net.transport import Transport

from .test_listener import A, B, gather, refused, throw
from .transport_harness import HANG_S, SECRET, TransportHarness, open_pond, poll_until


@pytest.fixture
def pond() -> Iterator[TransportHarness]:
    with open_pond() as opened:
        yield opened


def test_of_connections_that_say_nothing_the_oldest_are_cut_and_members_stay(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    b.connect(A, *pond.addresses(A))
    b.send_control(A, b"before")
    assert gather(a, 1, b) == [b"before"]
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", pond.port(A)))) for _ in range(MOST + 40)]
        poll_until(lambda: refused(a) >= 40, a, b)
        assert all(is_cut(each) for each in idle[:40])
        b.send_control(A, b"after")
        assert gather(a, 1, b) == [b"after"] and b.lost_links() == []
        assert all(is_cut(each) for each in idle[40:]), "what is left has said nothing for a second"
    most = MOST + 40 + 2  # plus both links of b; other load may delay a handshake for a second
    assert 40 <= refused(a) <= most and a.dropped.keys() == {"refused"}, "not counted while a link comes again"


def test_a_stranger_that_begins_a_long_frame_in_place_of_a_handshake_is_cut_before_that_fills_the_memory(
    pond: TransportHarness, caplog: pytest.LogCaptureFixture
) -> None:
    a = pond.open(A, network=Network.WAN)  # a handshake may take five seconds
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with socket.create_connection(("127.0.0.1", pond.port(A)), timeout=HANG_S) as stranger:
        stranger.sendall(greeting + b"\6" + (1 << 20).to_bytes(8, "big") + bytes(1 << 16))

        def is_refused() -> bool:
            a.refuse_strangers()
            return a.dropped["refused"] == 1

        poll_until(is_refused, a)
    assert "it says more than a handshake does" in caplog.text


def is_cut(connection: socket.socket) -> bool:
    connection.settimeout(HANG_S)
    while received := connection.recv(4096):
        assert len(received) <= GREETING_BYTES
    return True


def overheard(pond: TransportHarness, a: Transport, b: Transport) -> bytes:
    """All bytes that B has sent to A, up to a frame."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between, ThreadPoolExecutor(2) as threads:
        relayed = threads.submit(relay, between, pond.port(A), heard, threads)
        b.connect(A, f"tcp://127.0.0.1:{between.getsockname()[1]}", pond.addresses(A)[1])
        b.send_control(A, b"transfer a fish")
        assert gather(a, 1, b) == [b"transfer a fish"]
        b.disconnect(A)
        relayed.result(timeout=HANG_S)
    return b"".join(heard)


def test_what_a_member_has_said_is_refused_when_it_is_said_again(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    said = overheard(pond, a, b)
    assert len(said) > 500
    for number in (1, 2):
        throw(pond.port(A), said)
        poll_until(lambda number=number: refused(a) == number, a)  # type: ignore[misc]
    assert list(a.receive_control()) == [] and a.dropped == {"refused": 2}


@pytest.mark.parametrize("secret", [SECRET, None], ids=["key", "insecure"])
def test_what_a_member_has_said_first_counts_for_nothing_when_it_is_said_again_by_many(
    pond: TransportHarness, secret: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pond.open(A, secret, network=Network.WAN), pond.open(B, secret, network=Network.WAN)
    said = overheard(pond, a, b)
    hello = said[: GREETING_BYTES + 2 + said[GREETING_BYTES + 1]]  # a short command: flags, length
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", pond.port(A)), timeout=HANG_S))
            for _ in range(MOST)
        ]
        for each in connections:
            each.sendall(hello)
        answered = CURVE_BYTES if secret else PLAIN_BYTES
        poll_until(lambda: all(len(peek(each)) == answered for each in connections), a)
        stack.enter_context(socket.create_connection(("127.0.0.1", pond.port(A))))
        poll_until(lambda: refused(a) > 0, a)
        assert "more than 64 connections say nothing" in caplog.text, "before the handshake of any is too late"


def peek(connection: socket.socket) -> bytes:
    """The received bytes, without consuming them."""
    return connection.recv(4096, socket.MSG_PEEK)


def relay(between: socket.socket, port: int, heard: list[bytes], threads: ThreadPoolExecutor) -> None:
    """Relay one connection to `port`, until its opener closes it; `heard`: the bytes that the opener has sent."""
    caller, _ = between.accept()
    with caller, socket.create_connection(("127.0.0.1", port)) as called:
        answers = threads.submit(carry, called, caller, [])
        carry(caller, called, heard)
        called.shutdown(socket.SHUT_RDWR)
        answers.result(timeout=HANG_S)


def carry(source: socket.socket, target: socket.socket, heard: list[bytes]) -> None:
    with suppress(OSError):
        while content := source.recv(4096):
            heard.append(content)
            target.sendall(content)


@pytest.mark.long
def test_a_thousand_connections_that_nobody_looks_at_stop_no_other_link() -> None:
    """libzmq reports each connection to its monitors, and blocks if one of them is full."""
    with open_pond() as pond, ExitStack() as stack:
        pond.open(A)
        context = pond.gates[A].context
        one, other = (stack.enter_context(context.socket(zmq.PAIR)) for _ in range(2))
        address = f"ipc://{pond._folder}/pair"
        one.bind(address)
        other.connect(address)
        for _ in range(1000):
            socket.create_connection(("127.0.0.1", pond.port(A)), timeout=HANG_S).close()
        other.send(b"still here")
        assert one.poll(int(1000 * HANG_S)) and one.recv() == b"still here"

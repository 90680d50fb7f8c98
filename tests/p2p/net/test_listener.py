"""TCP on the loopback interface: members communicate, and strangers of every kind are refused and counted."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from p2p.errors import NetworkError, SecurityError
from p2p.host.keys import derive
from p2p.net.addresses import ANY, Endpoint
from p2p.net.headers import HEADER_BYTES
from p2p.net.links import MAX_DATA_BYTES, Link, Verdict
from p2p.net.listener import Credentials, TcpListeners
from p2p.net.tcp import Network, TcpConfig
from p2p.net.transport import JOINED_BYTES, ZERO_COPY_BYTES, Polled, Transport
from p2p.net.wire import MAX_CONTROL_BYTES
from tests.p2p.net.transport_harness import HANG_S, SECRET, TransportHarness, open_pond, poll_until

OTHER_SECRET = bytes(32)
A, B, C = "a" * 16, "b" * 16, "c" * 16
MODES = pytest.mark.parametrize("secret", [SECRET, None], ids=["key", "insecure"])
Prepare = Callable[["zmq.Socket[bytes]"], None]


@pytest.fixture
def pond() -> Iterator[TransportHarness]:
    with open_pond() as private:
        yield private


def gather(target: Transport, number: int, *others: Transport) -> list[bytes]:
    """Receive `number` control frames."""
    frames: list[bytes] = []

    def enough() -> bool:
        frames.extend(target.receive_control())
        return len(frames) >= number

    poll_until(enough, target, *others)
    return frames


def two_free_ports() -> int:
    """The first of two unused ports outside of the ephemeral range: a call to a port in it may connect to itself."""
    for port in range(20_000 + os.getpid() % 5000 * 2, 32_000, 2):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port
    raise AssertionError("no two free ports")


def refused(transport: Transport) -> int:
    transport.poll(0.0)
    return transport.dropped["refused"]


# Members


@MODES
@pytest.mark.parametrize("host", ["127.0.0.1", ANY, "localhost", "0.0.0.0"])
def test_members_talk_over_tcp(pond: TransportHarness, secret: bytes | None, host: str) -> None:
    a, b = pond.open(A, secret, host=host), pond.open(B, secret)
    a.connect(B, *pond.addresses(B))
    b.connect(A, *pond.addresses(A))
    large = bytes(range(256)) * (MAX_DATA_BYTES // 256)
    header = b"h" * HEADER_BYTES
    for payload in (b"", b"small", large):
        a.send_data(B, header, payload)
    a.send_control(B, b"to b")
    b.send_control(A, b"to a")
    assert gather(b, 1, a) == [b"to b"]
    assert gather(a, 1, b) == [b"to a"]
    data: list[tuple[bytes, bytes]] = []

    def all_there() -> bool:
        data.extend((bytes(header), bytes(payload)) for header, payload in b.receive_data())
        return len(data) == 3

    poll_until(all_there, a, b)
    assert data == [(header, b""), (header, b"small"), (header, large)]
    assert (a.live_links(), a.lost_links()) == ([B], [])
    assert refused(a) == refused(b) == 0


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_members_talk_over_ipv6(pond: TransportHarness) -> None:
    a, b = pond.open(A, host="::1"), pond.open(B, host="::")
    assert pond.addresses(A)[0].startswith("tcp://[::1]:")
    b.connect(A, *pond.addresses(A))
    b.send_control(A, b"hello")
    assert gather(a, 1, b) == [b"hello"]


def test_one_link_may_use_tcp_and_another_a_path(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    with TemporaryDirectory(prefix="shoal") as folder:
        paths = f"ipc://{folder}/c", f"ipc://{folder}/d"
        near = Transport(*paths)
        a.connect(B, *pond.addresses(B))
        a.connect(C, *paths)
        a.send_control(B, b"far")
        a.send_control(C, b"near")
        assert gather(b, 1, a) == [b"far"]
        assert gather(near, 1, a) == [b"near"]
        near.close()


def test_each_link_keeps_its_order_where_several_threads_encrypt(pond: TransportHarness) -> None:
    """FINISHED relies on the order: it follows the segments."""
    sizes = (0, JOINED_BYTES, JOINED_BYTES + 1, ZERO_COPY_BYTES - 1, ZERO_COPY_BYTES, 1 << 20)
    names = [letter * 16 for letter in "abcd"]
    peers = {name: pond.open(name, io_threads=4) for name in names}
    assert {transport._context.get(zmq.IO_THREADS) for transport in peers.values()} == {4}
    for name, transport in peers.items():
        for other in names:
            if other != name:
                transport.connect(other, *pond.addresses(other))
    sent = {name: [(name + str(number)).encode().ljust(HEADER_BYTES) for number in range(60)] for name in names}
    for number in range(60):
        for name, transport in peers.items():
            for other in names:
                if other != name:
                    transport.send_data(other, sent[name][number], bytes(sizes[(number * 7 + ord(name[0])) % 6]))
    came: dict[tuple[str, str], list[bytes]] = {(one, other): [] for one in names for other in names if one != other}

    def all_there() -> bool:
        for name, transport in peers.items():
            for header, _ in transport.receive_data():
                came[bytes(header[:16]).decode(), name].append(bytes(header))
        return all(len(headers) == 60 for headers in came.values())

    poll_until(all_there, *peers.values())
    assert all(headers == sent[source] for (source, _), headers in came.items())


def test_a_peer_without_a_gate_cannot_use_tcp(pond: TransportHarness) -> None:
    pond.open(A)
    with TemporaryDirectory(prefix="shoal") as folder:
        near = Transport(f"ipc://{folder}/c", f"ipc://{folder}/d")
        with pytest.raises(ValueError, match="neither --bind nor --seeds"):
            near.connect(A, *pond.addresses(A))
        near.close()


TO_BE_KILLED = """
import math, sys
from p2p.net.addresses import Endpoint
from p2p.net.listener import TcpListeners
from p2p.net.tcp import TcpConfig
from p2p.net.transport import Transport

folder, port, secret = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]) or None
config = TcpConfig(swarm="pond", bind=Endpoint("127.0.0.1", port), secret=secret)
listeners = TcpListeners(config, "b" * 16)
transport = Transport(f"ipc://{folder}/control", f"ipc://{folder}/data", listeners)
print(listeners.control_address, listeners.data_address, flush=True)
while True:
    transport.poll(math.inf)
    for frame in transport.receive_control():
        print(frame.decode(), flush=True)
"""


@MODES
def test_an_address_that_changed_hands_is_a_refused_link(pond: TransportHarness, secret: bytes | None) -> None:
    """A peer that closes in order may refuse callers meanwhile, which is final; a killed peer refuses none."""
    port = two_free_ports()
    a = pond.open(A, secret)
    with TemporaryDirectory(prefix="shoal") as folder:
        command = [sys.executable, "-c", TO_BE_KILLED, folder, str(port), (secret or b"").hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None
            try:
                control, data = killed.stdout.readline().split()
                a.connect(B, control, data)
                a.send_control(B, b"hello")
                poll_until(lambda: a.live_links() == [B], a)
                assert killed.stdout.readline() == "hello\n"
            finally:
                killed.kill()
    poll_until(lambda: a.lost_links() == [B], a)
    c = pond.open(C, secret, port=port)
    poll_until(lambda: refused(c) > 0, a, c)
    poll_until(lambda: a.lost_links() == [B] and a.live_links() == [], a, c)
    poll_until(lambda: not (a.send_data(B, b"h" * HEADER_BYTES, b"") or a.send_control(B, b"for B alone")), a, c)
    for payload in (bytes(JOINED_BYTES + 1), bytes(ZERO_COPY_BYTES)):
        assert not a.send_data(B, b"h" * HEADER_BYTES, payload)
    a.connect(C, *pond.addresses(C))
    a.send_control(C, b"for C")
    assert gather(c, 1, a) == [b"for C"]


def test_who_is_refused_while_a_peer_tests_its_own_door_is_counted(pond: TransportHarness) -> None:
    """libzmq does not retry after such a refusal, so it would never be noticed."""
    port = two_free_ports()
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        for _ in range(20):
            late = stack.enter_context(context.socket(zmq.DEALER))
            other_peer(late)
            late.linger, late.reconnect_ivl = 0, 1
            late.connect(f"tcp://127.0.0.1:{port + 1}")  # the data port, which is tested last
        c = pond.open(A, port=port)
        poll_until(lambda: refused(c) == 20, c)


# Calls


@MODES
def test_who_is_known_by_address_only_can_be_called(pond: TransportHarness, secret: bytes | None) -> None:
    a, b = pond.open(A, secret), pond.open(B, secret)
    address, _ = pond.addresses(B)
    poll_until(lambda: a.seed_calls.call(address, [b"it is A"]) is Verdict.ANSWERS, a, b)
    assert gather(b, 1, a)[0] == b"it is A"
    a.seed_calls.hang_up(address)
    a.seed_calls.hang_up(address)


@pytest.mark.parametrize(
    ("secret", "swarm", "verdict"),
    [
        (SECRET, "lake", Verdict.OTHER_SWARM),
        (OTHER_SECRET, "pond", Verdict.OTHER_KEY),
        (OTHER_SECRET, "lake", Verdict.OTHER_KEY),
        (None, "pond", Verdict.OTHER_KEY),
    ],
)
def test_a_caller_hears_why_it_is_not_let_in(
    pond: TransportHarness, secret: bytes | None, swarm: str, verdict: Verdict
) -> None:
    b = pond.open(B)
    stranger = pond.open(A, secret, swarm=swarm)
    address, _ = pond.addresses(B)
    poll_until(lambda: stranger.seed_calls.call(address, [b"hello"]) is verdict, stranger, b)
    poll_until(lambda: refused(b) > 0, stranger, b)
    assert list(b.receive_control()) == []


def test_without_a_key_other_swarms_are_told_so(pond: TransportHarness) -> None:
    b, stranger = pond.open(B, None), pond.open(A, None, swarm="lake")
    address, _ = pond.addresses(B)
    poll_until(lambda: stranger.seed_calls.call(address, [b"hello"]) is Verdict.OTHER_SWARM, stranger, b)
    assert list(b.receive_control()) == []


@MODES
def test_who_expects_another_network_is_told_so(pond: TransportHarness, secret: bytes | None) -> None:
    b, stranger = pond.open(B, secret), pond.open(A, secret, network=Network.WAN)
    address, _ = pond.addresses(B)
    poll_until(lambda: stranger.seed_calls.call(address, [b"hello"]) is Verdict.OTHER_SWARM, stranger, b)
    assert list(b.receive_control()) == []


@MODES
def test_members_of_a_wide_network_talk(pond: TransportHarness, secret: bytes | None) -> None:
    a, b = pond.open(A, secret, network=Network.WAN), pond.open(B, secret, network=Network.WAN)
    a.connect(B, *pond.addresses(B))
    a.send_control(B, b"hello")
    assert gather(b, 1, a) == [b"hello"]


def test_only_links_to_other_hosts_have_the_heartbeat_of_the_network(pond: TransportHarness, tmp_path: Path) -> None:
    pond.open(B)
    with zmq.Context() as context:
        for addresses, expected in (
            (pond.addresses(B), (1000, 4000)),
            ((f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/d"), (250, 1000)),
        ):
            link = Link(context, B, *addresses, pond.gates[B].credentials.introduce, heartbeat_ms=1000)
            assert (link.control.heartbeat_ivl, link.control.heartbeat_timeout) == expected
            link.close(linger_ms=0)


def test_a_silent_address_stays_silent(pond: TransportHarness) -> None:
    a = pond.open(A)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        assert a.seed_calls.call(address, [b"hello"]) is None
        assert {a.seed_calls.call(address, [b"hello"]) for _ in range(1000)} <= {None, Verdict.SILENT}
    poll_until(lambda: a.seed_calls.call(address, [b"hello"]) is Verdict.SILENT, a)


# Strangers


def no_key(socket: "zmq.Socket[bytes]") -> None:
    """The default, NULL."""


def key_of_its_own(socket: "zmq.Socket[bytes]") -> None:
    Credentials("pond", A, SECRET).introduce(socket, A)
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()


def other_secret(socket: "zmq.Socket[bytes]") -> None:
    Credentials("pond", A, OTHER_SECRET).introduce(socket, A)


def other_swarm(socket: "zmq.Socket[bytes]") -> None:
    Credentials("lake", A, SECRET).introduce(socket, A)


def other_peer(socket: "zmq.Socket[bytes]") -> None:
    Credentials("pond", A, SECRET).introduce(socket, B)


def password(socket: "zmq.Socket[bytes]") -> None:
    Credentials("pond", A, None).introduce(socket, A)


def the_server_itself(socket: "zmq.Socket[bytes]") -> None:
    """Use the server's key pair as the client's: no holder of the key does that."""
    Credentials("pond", A, SECRET).introduce(socket, A)
    socket.curve_secretkey = z85.encode(derive(SECRET, "server"))
    socket.curve_publickey = zmq.curve_public(z85.encode(derive(SECRET, "server")))


STRANGERS = [no_key, key_of_its_own, other_secret, other_swarm, other_peer, password, the_server_itself]


@pytest.mark.parametrize("prepare", STRANGERS)
@pytest.mark.parametrize("where", [0, 1], ids=["control", "data"])
def test_a_stranger_is_refused_and_counted_and_named_once(
    pond: TransportHarness, prepare: Prepare, where: int, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pond.open(A), pond.open(B)
    with zmq.Context() as context:
        for number in (1, 2):
            with context.socket(zmq.DEALER) as stranger:
                prepare(stranger)
                stranger.linger, stranger.reconnect_ivl = 0, -1
                stranger.connect(pond.addresses(A)[where])
                with suppress(zmq.Again):  # it was refused before
                    stranger.send_multipart([b"let", b"me in"], zmq.DONTWAIT)
                poll_until(lambda number=number: refused(a) == number, a)  # type: ignore[misc]
    assert list(a.receive_control()) == [] and list(a.receive_data()) == []
    assert a.dropped == {"refused": 2}
    assert len([record for record in caplog.records if "refused a connection" in record.message]) == 1
    b.connect(A, *pond.addresses(A))
    b.send_control(A, b"still here")
    assert gather(a, 1, b) == [b"still here"]


def test_a_member_may_not_be_late_but_a_stranger_with_its_routing_id_takes_nothing_over(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    credentials = Credentials("pond", C, SECRET)
    with zmq.Context() as context, context.socket(zmq.DEALER) as first, context.socket(zmq.DEALER) as second:
        for holder in (first, second):
            holder.routing_id, holder.linger = b"same", 0
            credentials.introduce(holder, A)
            holder.connect(pond.addresses(A)[0])
            holder.send(b"holder")
        b.connect(A, *pond.addresses(A))
        b.send_control(A, b"peer")
        assert b"peer" in gather(a, 2, b)


GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\3\1" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
CURVE_GREETING = GREETING.replace(b"NULL\0", b"CURVE")
READY = b"\4\x19\5READY\x0bSocket-Type\0\0\0\6DEALER"
HELLO = b"\4\xc8\5HELLO\1\0" + bytes(72) + secrets.token_bytes(120)
garbage = (
    st.binary(max_size=300)
    | st.sampled_from([GREETING, CURVE_GREETING]).flatmap(lambda g: st.integers(0, len(g)).map(lambda n: g[:n]))
    | st.binary(max_size=100).map(lambda tail: GREETING + READY + tail)
    | st.binary(max_size=100).map(lambda tail: CURVE_GREETING + tail)
    | st.binary(max_size=50).map(lambda tail: CURVE_GREETING + HELLO + tail)
    | st.integers(0, 2**63 - 1).map(lambda size: GREETING + b"\2" + size.to_bytes(8, "big") + b"x")
)


def throw(port: int, content: bytes) -> None:
    with (
        suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as raw,
        suppress(OSError),
    ):
        raw.sendall(content)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):  # until the connection is closed
            pass


def test_whatever_bytes_come_the_port_stays_open_for_members() -> None:
    with open_pond() as pond:
        a, b = pond.open(A), pond.open(B)
        port = pond.port(A)
        b.connect(A, *pond.addresses(A))
        b.send_control(A, b"0")
        assert gather(a, 1, b) == [b"0"]

        @settings(max_examples=150, deadline=None, database=None)
        @given(garbage)
        def check(content: bytes) -> None:
            before = refused(a)
            throw(port, content)
            poll_until(lambda: refused(a) > before, a)
            b.send_control(A, content)
            assert gather(a, 1, b) == [content]

        check()
        assert set(a.dropped) == {"refused"}


# Opening


def test_a_port_in_use_is_named() -> None:
    port = two_free_ports()
    for taken in (port, port + 1):  # control, and data
        said = rf"cannot listen on 127.0.0.1:{taken}: Address already in use; .*port 0"
        with socket.create_server(("127.0.0.1", taken)), pytest.raises(NetworkError, match=said):
            TcpListeners(TcpConfig(swarm="pond", bind=Endpoint("127.0.0.1", port), secret=SECRET), B)


def test_an_address_of_another_machine_is_named() -> None:
    for host in ("192.0.2.77", "nobody.invalid"):
        with pytest.raises(NetworkError, match=rf"cannot listen on {host}:0: .*; give --bind an address of this"):
            TcpListeners(TcpConfig(swarm="pond", bind=Endpoint(host, 0), secret=SECRET), A)


def test_at_an_interface_a_peer_listens_and_is_reached_by_the_address_of_that() -> None:
    listeners = TcpListeners(TcpConfig(swarm="pond", bind=Endpoint("lo", 0), secret=SECRET), A)
    assert listeners.control_address.startswith("tcp://127.0.0.1:")
    assert listeners.data_address.startswith("tcp://127.0.0.1:")
    listeners.close()


def test_what_is_advertised_is_told_with_the_port_that_is_bound_or_the_given_one() -> None:
    for port, others in ((0, None), (8800, 8801)):
        config = TcpConfig(swarm="x", bind=Endpoint(ANY, 0), advertise=Endpoint("node1", port), secret=SECRET)
        listeners = TcpListeners(config, A)
        told = [Endpoint.parse(a.removeprefix("tcp://")) for a in (listeners.control_address, listeners.data_address)]
        assert [endpoint.host for endpoint in told] == ["node1", "node1"]
        if others is None:
            assert 0 not in {endpoint.port for endpoint in told}
        else:
            assert [endpoint.port for endpoint in told] == [port, others]
        listeners.close()
        listeners.close()


class _Careless(Credentials):
    """Credentials without a domain: libzmq then asks no authenticator, and admits all that know the server's key."""

    def admit(self, socket: "zmq.Socket[bytes]") -> None:
        socket.curve_server = True
        socket.curve_secretkey = z85.encode(derive(SECRET, "server"))
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


class _Lenient(Credentials):
    def accepts(self, domain: bytes, mechanism: bytes, credentials: object) -> bool:
        return True


class _Strict(Credentials):
    def accepts(self, domain: bytes, mechanism: bytes, credentials: object) -> bool:
        return False


class _Open(Credentials):
    def admit(self, socket: "zmq.Socket[bytes]") -> None:
        """Sets up no authentication."""


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        (_Careless, "a stranger with a key was let in"),
        (_Lenient, "a stranger with a key was let in"),
        (_Strict, "a member was refused"),
        (_Open, "one without a key was let in"),
    ],
)
def test_a_gate_that_does_not_tell_members_from_strangers_does_not_open(
    monkeypatch: pytest.MonkeyPatch, credentials: type[Credentials], said: str
) -> None:
    monkeypatch.setattr("p2p.net.listener.Credentials", credentials)
    with pytest.raises(SecurityError, match=rf"the test of tcp://127.0.0.1:\d+ failed: .*{said}.*does not run"):
        TcpListeners(TcpConfig(swarm="pond", bind=Endpoint("127.0.0.1", 0), secret=SECRET), A)


# Holders of the key that break the protocol


def test_oversized_and_many_frame_messages_of_a_holder_are_dropped_and_counted(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    control, data = pond.addresses(A)
    b.connect(A, control, data)
    with zmq.Context() as context, context.socket(zmq.DEALER) as holder, context.socket(zmq.DEALER) as bulky:
        for socket_ in (holder, bulky):
            socket_.linger = 0
            Credentials("pond", C, SECRET).introduce(socket_, A)
        holder.connect(control)
        holder.send_multipart([b"many"] * 20_000)
        holder.send_multipart([b"two", b"parts"])
        holder.send(b"fine")
        assert gather(a, 1) == [b"fine"]
        assert a.dropped["invalid"] == 2
        monitor = bulky.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        bulky.connect(control)
        bulky.send(bytes(MAX_CONTROL_BYTES + 1000))
        poll_until(lambda: monitor.poll(0) != 0, a)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        bulky.disable_monitor()
        monitor.close()
    b.send_control(A, b"after")
    assert gather(a, 1, b) == [b"after"]


def test_a_port_that_is_shut_is_named_also_if_the_other_is_open(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    control, _ = pond.addresses(B)
    shut = f"tcp://127.0.0.1:{two_free_ports()}"
    a.connect(B, control, shut)
    poll_until(lambda: a.unopened_links() == {B: f"no connection to {shut} can be opened"}, a, b)


def test_a_link_that_is_back_had_broken_and_that_is_said_once(pond: TransportHarness) -> None:
    port = two_free_ports()
    a, b = pond.open(A), pond.open(B, port=port)
    a.connect(B, *pond.addresses(B))
    assert a.broken_links() == [B], "it is not open yet"
    poll_until(lambda: a.live_links() == [B], a, b)
    a.broken_links()
    assert a.broken_links() == []
    b.close()
    poll_until(lambda: a.unopened_links() != {}, a)
    c = pond.open(B, port=port)
    poll_until(lambda: a.live_links() == [B], a, c)
    assert a.broken_links() == [B]
    assert a.broken_links() == []


def test_a_door_that_nobody_watches_keeps_everybody_out_and_lets_members_in_later(pond: TransportHarness) -> None:
    a, b = pond.open(A), pond.open(B)
    b.connect(A, *pond.addresses(A))
    b.send_control(A, b"patient")
    assert b.poll(0.2) == Polled(False, False, ())
    assert b.live_links() == []
    assert gather(a, 1, b) == [b"patient"]
    assert b.live_links() == [B.replace("b", "a")]

"""Listening TCP sockets, and the authentication of incoming connections (CurveZMQ, RFC 26; ZAP, RFC 27).

With a swarm key each connection is encrypted (CURVE). All holders of the key have the same server key pair; a client's
key pair is derived from the swarm's name and the target peer. So a process without the key, or with another one, is
refused before it can send a message, and one that means another swarm, or a peer that was at this port before, is told
so. Without a key (`--insecure`) swarm and peer are named in plain text (PLAIN): this keeps out strangers that connect
by mistake, but no attacker.

libzmq lets every client in unless a handler answers at `inproc://zeromq.zap.01` and the domain is set and enforced. The
handler is one of our sockets, polled by the thread that drives the loop; `TcpListeners` tests itself with unauthorized
clients before it opens.
"""

import errno
import hmac
import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..errors import NetworkError, SecurityError
from ..host.keys import derive
from .addresses import ANY, Endpoint, advertised, is_interface, resolve, to_listen_at
from .half_open import CURVE_BYTES, PLAIN_BYTES, HalfOpen
from .half_open import MOST as MOST_HALF_OPEN
from .links import HEARTBEAT_MS, MAX_DATA_BYTES, limit_silence, open_socket
from .tcp import Network, TcpConfig
from .wire import MAX_CONTROL_BYTES

logger = logging.getLogger("p2p")

_ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
_NOBODY: Final = "-"  # PLAIN has no empty password
_SEAL_BYTES: Final = 64  # what CURVE adds to a frame, and more: the limit is for the sealed frame
_TEST_ROUNDS: Final = 2000
_TEST_ROUND_MS: Final = 10
"""Twenty seconds; a test takes some milliseconds, unless the machine is busy."""
_FAILURES: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it means another peer or another swarm",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it has no key, or another one",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it broke the handshake off",
}
_TOO_MANY: Final = (
    f"more than {MOST_HALF_OPEN} connections say nothing, and the oldest one of the address that opens most is cut"
)
_LOUD: Final = "it says more than a handshake does, before it was let in"
_NO_ZMTP: Final = "it does not speak ZMTP 3, or says nothing"
_ANY_FAILURE: Final = sum(_FAILURES)
_MONITORED: Final = _ANY_FAILURE | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_HANDSHAKE_MS: Final = {Network.LAN: 1000, Network.WAN: 5000}
_HEARTBEAT_MS: Final = {Network.LAN: HEARTBEAT_MS, Network.WAN: 1000}
_CONGESTION_CONTROL: Final = {Network.LAN: "", Network.WAN: "bbr"}
"""Other algorithms shrink the window of a link that was idle for a round trip or two, as links are between rounds."""
_LOOPBACK: Final = {ANY: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class Credentials:
    """A peer's proof that it belongs to the swarm, and its check of the proofs of others."""

    def __init__(
        self, swarm: str, peer_id: str, secret: bytes | None, ipv4_names: frozenset[str] = frozenset()
    ) -> None:
        """`ipv4_names`: as of `TcpConfig`."""
        self._swarm = swarm
        self._secret = secret
        self._ipv4_names = ipv4_names
        self._own_names = ("", peer_id)  # a caller of a seed does not know its peer_id yet
        self._callers = () if secret is None else tuple(self._public(name) for name in self._own_names)
        self._server = None if secret is None else zmq.curve_public(z85.encode(derive(secret, "server")))

    @property
    def is_secret(self) -> bool:
        """Whether connections are encrypted."""
        return self._secret is not None

    def _key_for(self, target: str) -> bytes:
        assert self._secret is not None
        return z85.encode(derive(self._secret, "client", self._swarm, target))

    def _public(self, target: str) -> bytes:
        return z85.decode(zmq.curve_public(self._key_for(target)))

    def admit(self, socket: "zmq.Socket[bytes]") -> None:
        """Have `socket` let in only what `accepts` accepts."""
        if self._secret is None:
            socket.plain_server = True
        else:
            socket.curve_server = True
            socket.curve_secretkey = z85.encode(derive(self._secret, "server"))
        socket.zap_domain = self._swarm.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def introduce(self, socket: "zmq.Socket[bytes]", target: str, address: str = "") -> None:
        """Give `socket` the credentials for the peer `target` at this address; "": any peer, or any address."""
        if self._secret is None:
            socket.plain_username, socket.plain_password = self._swarm.encode(), (target or _NOBODY).encode()
        else:
            assert self._server is not None
            socket.curve_serverkey = self._server
            socket.curve_secretkey = self._key_for(target)
            socket.curve_publickey = z85.encode(self._public(target))
        socket.ipv6 = address.removeprefix("tcp://").rpartition(":")[0] not in self._ipv4_names

    def accepts(self, domain: bytes, mechanism: bytes, presented: Sequence[bytes]) -> bool:
        """Whether a client with the `presented` credentials is let in."""
        if domain != self._swarm.encode():
            return False
        if self._secret is None:
            names = [(name or _NOBODY).encode() for name in self._own_names]
            return (
                mechanism == b"PLAIN"
                and len(presented) == 2
                and presented[1] in names
                and (presented[0] == self._swarm.encode())
            )
        if mechanism != b"CURVE" or len(presented) != 1:
            return False
        return any(hmac.compare_digest(presented[0], key) for key in self._callers)


_MOST_EVENTS: Final = 1000


class _Listener:
    """One ROUTER, with its refused connections."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        credentials: Credentials,
        max_frame_bytes: int,
        high_water_mark: int,
        network: Network,
    ) -> None:
        limit_bytes = max_frame_bytes + _SEAL_BYTES
        self.router = open_socket(context, zmq.ROUTER, limit_bytes, high_water_mark, is_tcp=True)
        self.router.handshake_ivl = _HANDSHAKE_MS[network]
        limit_silence(self.router, _HEARTBEAT_MS[network])  # clients may have vanished, and descriptors are scarce
        credentials.admit(self.router)
        address = f"inproc://monitor-{id(self)}"
        self.router.monitor(address, _MONITORED)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.rcvhwm = 0  # full, it would block libzmq's I/O thread, and with it all links
        self.monitor.connect(address)
        self.half_open = HalfOpen(CURVE_BYTES if credentials.is_secret else PLAIN_BYTES)
        self._num_let_in = 0
        self._before: dict[int, int] = {}
        self._cut: dict[int, str] = {}
        self._failures: deque[str] = deque(maxlen=MOST_HALF_OPEN)

    def bind(self, where: Endpoint) -> Endpoint:
        """Listen at `where`; returns it with the actual port, and the address of an interface in place of its name.

        Raises:
            NetworkError: `where` cannot be bound.
        """
        hosts = [where.host] if where.is_wildcard else to_listen_at(where.host, resolve(where.host))
        port = where.port
        for host in hosts:
            numeric = Endpoint(host, port)
            self.router.ipv6 = numeric.is_ipv6 or numeric.host == ANY
            try:
                self.router.bind(numeric.address)
            except zmq.ZMQError as error:
                what = "another peer? give another port, or port 0 for any that is free"
                if error.errno != errno.EADDRINUSE:
                    what = "give --bind an address of this machine"
                raise NetworkError(f"cannot listen on {where}: {os.strerror(error.errno or 0)}; {what}") from None
            port = self.port
        named = is_interface(where.host) and not resolve(where.host)
        return Endpoint.parse(self._endpoint) if named else Endpoint(where.host, port)

    @property
    def port(self) -> int:
        return int(self._endpoint.rpartition(":")[2])

    @property
    def _endpoint(self) -> str:
        """What was bound last, as libzmq says it."""
        endpoint = self.router.last_endpoint
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\0").decode().removeprefix("tcp://")

    def sent_away(self, *, silences: bool = False) -> list[str]:
        """The reason for each connection refused since the last call.

        A failure is followed by the DISCONNECTED of its connection; with several I/O threads, events of other
        connections may come in between, and are then given its reason. A client that does not speak ZMTP 3 is cut off
        without an event; it is recognized by no connection having been let in since it was accepted. If too many are
        half open, some are cut; if it `silences`, also any that says too much.
        """
        reasons = []
        for _ in range(_MOST_EVENTS):  # the rest next time
            if not self.monitor.poll(0):
                break
            message = recv_monitor_message(self.monitor)
            event, value = message["event"], message["value"]
            if event == zmq.EVENT_ACCEPTED:
                self._before[value] = self._num_let_in
                self.half_open.accepted(value)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._num_let_in += 1
            elif event == zmq.EVENT_DISCONNECTED:
                if reason := self._why_gone(value):
                    reasons.append(reason)
            else:
                self._failures.append(_FAILURES[zmq.Event(event)])
        self._cut |= dict.fromkeys(self.half_open.cut(), _TOO_MANY)
        if silences:
            self._cut |= dict.fromkeys(self.half_open.silence(), _LOUD)
        return reasons

    def _why_gone(self, fd: int) -> str:
        """The reason why this connection was refused; empty: it was not."""
        failure = self._failures.popleft() if self._failures else ""
        is_unheard = self._before.pop(fd, -1) == self._num_let_in
        self.half_open.closed(fd)
        if fd in self._cut:
            return self._cut.pop(fd)
        return failure or (_NO_ZMTP if is_unheard else "")

    def close(self) -> None:
        self.router.monitor(None, 0)
        self.monitor.close(linger=0)
        self.router.close(linger=0)


class TcpListeners:
    """The listening TCP sockets of one peer.

    Attributes:
        context: of all sockets of this peer: the handler serves only sockets of its own context. `close` ends it.
        credentials: for sockets that this peer connects.
        heartbeat_ms: interval of libzmq's heartbeats on a connection.
        congestion_control: for data, where the kernel has and permits it; "": the kernel's default.
        zap_socket: readable when a client waits for authentication; see `answer`.
        control, data: ROUTERs.
        accepted: the connections to `data`.
        monitors: readable after a connection was accepted, closed or failed; see `count_refused`.
        control_address, data_address: as advertised to others.
    """

    def __init__(self, config: TcpConfig, peer_id: str) -> None:
        """Bind, and test that strangers are refused.

        Raises:
            NetworkError: an address cannot be bound.
            SecurityError: the test let a stranger in, or refused a member.
        """
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(config.io_threads)
        self.credentials = Credentials(config.realm, peer_id, config.secret, config.ipv4_names)
        self.heartbeat_ms = _HEARTBEAT_MS[config.network]
        self.congestion_control = _CONGESTION_CONTROL[config.network]
        self._has_warned = False
        self._num_refused_early = 0
        self._closing = ExitStack()
        self._closing.callback(self.context.destroy, linger=0)  # after a failure half-way, sockets are open
        try:
            if config.secret is not None and not zmq.has("curve"):
                raise SecurityError(f"libzmq {zmq.zmq_version()} has no CURVE: install pyzmq from its wheel")
            self.zap_socket = self.context.socket(zmq.REP)
            self._closing.callback(self.zap_socket.close, linger=0)
            self.zap_socket.bind(_ZAP_ADDRESS)
            control = self._listen(MAX_CONTROL_BYTES, high_water_mark=1000, network=config.network)
            data = self._listen(MAX_DATA_BYTES, high_water_mark=0, network=config.network)
            self._listeners = control, data
            self.control, self.data, self.accepted = control.router, data.router, data.half_open
            self.monitors = control.monitor, data.monitor
            bound = control.bind(config.bind)
            next_port = Endpoint(config.bind.host, config.bind.port and config.bind.port + 1)
            self._advertise(config, bound, data.bind(next_port).port)
            if config.secret is not None:
                for listener in self._listeners:
                    self._self_test(listener, bound.host, peer_id)
        except BaseException:
            self.close()
            raise
        logger.info("listening on %s; others are told %s and %s", bound, self.control_address, self.data_address)

    def _listen(self, max_frame_bytes: int, high_water_mark: int, network: Network) -> _Listener:
        listener = _Listener(self.context, self.credentials, max_frame_bytes, high_water_mark, network)
        self._closing.callback(listener.close)
        return listener

    def _advertise(self, config: TcpConfig, control: Endpoint, data_port: int) -> None:
        told = config.advertise or advertised(control, config.seeds)
        is_mapped = config.advertise is not None and told.port > 0
        self.control_address = Endpoint(told.host, told.port if is_mapped else control.port).address
        self.data_address = Endpoint(told.host, told.port + 1 if is_mapped else data_port).address

    def answer(self) -> None:
        """Answer the pending authentication requests. Never blocks."""
        while self.zap_socket.poll(0):
            # version, request id, domain, address, routing id, mechanism, credentials
            version, request_id, domain, _, _, mechanism, *credentials = self.zap_socket.recv_multipart()
            is_known = self.credentials.accepts(domain, mechanism, credentials)
            status = (b"200", b"") if is_known else (b"400", b"not for you")
            self.zap_socket.send_multipart([version, request_id, *status, b"", b""])

    def count_refused(self, *, silences: bool = False) -> int:
        """Number of connections refused since the last call, including those during the test; logs the first one.

        `silences`: cut strangers that say too much, too, at some microseconds for each connection. To be done some
        twenty times a second: what they say until then takes memory.
        """
        reasons = [reason for each in self._listeners for reason in each.sent_away(silences=silences)]
        if reasons and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "refused a connection to %s: %s; further ones are only counted", self.control_address, reasons[0]
            )
        num_refused, self._num_refused_early = len(reasons) + self._num_refused_early, 0
        return num_refused

    def close(self) -> None:
        """Close all sockets and the context, whose other sockets must be closed by now. Idempotent."""
        self._closing.close()

    # The test.

    def _self_test(self, listener: _Listener, host: str, peer_id: str) -> None:
        """Connect as a member, as a stranger with a key of its own, and as one without any.

        Raises:
            SecurityError: not exactly the member was let in, or the outcome was not known within twenty seconds.
        """
        address = Endpoint(_LOOPBACK.get(host, host), listener.port).address
        with ExitStack() as stack:
            trials = [_Trial(self.context, who) for who in ("a member", "a stranger with a key", "one without a key")]
            for trial in trials:
                stack.callback(trial.close)
            self.credentials.introduce(trials[0].dealer, peer_id)
            self.credentials.introduce(trials[1].dealer, peer_id)
            trials[1].dealer.curve_publickey, trials[1].dealer.curve_secretkey = zmq.curve_keypair()
            for trial in trials:
                trial.dealer.connect(address)
            poller = zmq.Poller()
            for source in (self.zap_socket, *(trial.monitor for trial in trials)):
                poller.register(source, zmq.POLLIN)
            num_refused = 0
            for _ in range(_TEST_ROUNDS):
                poller.poll(_TEST_ROUND_MS)
                self.answer()
                num_refused += len(listener.sent_away())
                found = tuple(trial.look() for trial in trials)
                if found == _SAFE and num_refused >= _NUM_STRANGERS:
                    self._num_refused_early += num_refused - _NUM_STRANGERS  # calls to the peer that was here before
                    return
                if found != _SAFE and None not in found:
                    break
        said = ", ".join(f"{trial.who} {_OUTCOMES[trial.is_in]}" for trial in trials)
        raise SecurityError(
            f"the test of {address} failed: {said}; this peer does not run. Is the loopback interface up? "
            f"libzmq is {zmq.zmq_version()}, and 4.3.5 with CURVE is needed"
        )


_SAFE: Final = True, False, False
_NUM_STRANGERS: Final = _SAFE.count(False)
_OUTCOMES: Final = {True: "was let in", False: "was refused", None: "got no answer"}


class _Trial:
    """A test connection to the own listener."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", who: str) -> None:
        self.who = who
        self.dealer = open_socket(context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=1, is_tcp=True)
        self.dealer.ipv6 = True
        self.dealer.reconnect_ivl = -1  # one attempt suffices, and later ones would be counted as strangers
        self.monitor = self.dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _ANY_FAILURE)
        self.is_in: bool | None = None

    def look(self) -> bool | None:
        """Whether it was let in; None: not known yet. Stays true once true."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            self.is_in = event == zmq.EVENT_HANDSHAKE_SUCCEEDED or bool(self.is_in)
        return self.is_in

    def close(self) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(linger=0)
        self.dealer.close(linger=0)

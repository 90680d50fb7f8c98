"""Outgoing sockets of one peer: two DEALERs to each other peer, and the events of their ZeroMQ monitors."""

import math
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from enum import Enum, auto
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..host.files import is_near_fd_limit
from .flows import Connection, Flow
from .wire import MAX_CONTROL_BYTES

MAX_DATA_BYTES: Final = 8 << 20
HEARTBEAT_MS: Final = 250
"""libzmq's own thread answers, without the interpreter, but not in a stopped process. After four unanswered ones a link
breaks."""

_MOST_UNHEARD_BEATS: Final = 16
"""4 s, 16 s on a WAN: longer than a member that is silent, or stopped with its receive window closed, keeps its seat (3
and 12 s; a link stalls for 4 s there), but shorter than a step waits for lost frames (5 and 20 s), so that it is redone
on a new connection."""

_IPC_BUFFER_BYTES: Final = 2 << 20  # capped by the system; 16 MB take 0.9 of the time. Never for TCP.
_HANDSHAKE_MS: Final = 5000
_CONNECT_MS: Final = 2500
"""Timeout of an attempt to connect, after which the next one begins: the kernel would retry after 1, 3, 7 and 15 s, so
a link could stay closed that long after a network partition healed."""
_CALL_CONNECT_MS: Final = 1500
"""The same where no peer may be listening yet: a retry, by the kernel or as a new attempt, about every second."""
_RECONNECT_MS: Final = 10
_RECONNECT_MAX_MS: Final = 500
_CALL_RECONNECT_MS: Final = 250  # a peer with another key hangs up at once, every time


class Introduce(Protocol):
    """Gives a socket the credentials for TCP: membership of the swarm, and the name of the target peer."""

    def __call__(self, socket: "zmq.Socket[bytes]", target: str, address: str) -> None: ...


class _Connection(Enum):
    """State of a link according to its monitor."""

    OPENING = auto()
    SHAKING = auto()  # open, and the handshake goes on
    OPEN = auto()
    BROKEN = auto()
    """Was open; libzmq will retry."""
    REFUSED = auto()
    """Was open, and the last attempt to reopen it failed."""
    TAKEN = auto()
    """Another process has answered; libzmq will not retry."""
    GARBLED = auto()  # the same, but it does not speak ZMTP 3
    RETRYING = auto()  # `Link.retry` has


# libzmq 4.3.5 on ipc, seen from a DEALER whose peer is killed with SIGKILL: DISCONNECTED and CONNECT_RETRIED at once,
# then, after the reconnect interval and again after each further one, CLOSED (the attempt was refused) and
# CONNECT_RETRIED. The same when the peer closes its socket, and over TCP. An attempt before the peer has bound gives
# CLOSED too, without DISCONNECTED. A live peer whose backlog is full also refuses: this is evidence, not proof.
#
# Over TCP another process may answer in place of the peer, and libzmq does not retry: HANDSHAKE_FAILED_AUTH if it is
# another peer (listener.py), HANDSHAKE_FAILED_PROTOCOL if it has no key where we have one, DISCONNECTED alone if it
# does not speak ZMTP 3. So we retry: it may have been a proxy, or an old name. A process that has another key, or exits
# during the handshake, hangs up: HANDSHAKE_FAILED_NO_DETAIL and DISCONNECTED, and libzmq retries.
_STRANGE: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_OURS: Final = _Connection.TAKEN, _Connection.GARBLED, _Connection.RETRYING  # libzmq does not retry these
_TRANSITIONS: Final[dict[tuple[_Connection, int], _Connection]] = {
    (_Connection.BROKEN, zmq.EVENT_CLOSED): _Connection.REFUSED,
    (_Connection.OPEN, zmq.EVENT_DISCONNECTED): _Connection.BROKEN,
    **{(connection, zmq.EVENT_CONNECTED): _Connection.SHAKING for connection in _Connection if connection not in _OURS},
    **{(connection, event): _Connection.TAKEN for connection in _Connection for event in _STRANGE},
    (_Connection.SHAKING, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): _Connection.BROKEN,
    (_Connection.GARBLED, zmq.EVENT_CONNECT_RETRIED): _Connection.BROKEN,  # it was a peer, and libzmq does retry
    **{(each, zmq.EVENT_HANDSHAKE_SUCCEEDED): _Connection.OPEN for each in (_Connection.SHAKING, _Connection.RETRYING)},
    **{(each, zmq.EVENT_DISCONNECTED): _Connection.GARBLED for each in (_Connection.SHAKING, _Connection.RETRYING)},
}

_READABLE: Final = int(zmq.POLLIN)
_ENDS: Final = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)
_GOES_ON: Final = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECT_RETRIED
_MONITORED: Final = _GOES_ON | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | sum((*_STRANGE, *_ENDS))


class _Monitor:
    """Monitor events of the connection of one DEALER."""

    def __init__(self, socket: "zmq.Socket[bytes]", congestion_control: str) -> None:
        self.connection = _Connection.OPENING
        self._congestion_control = congestion_control
        self.answers = False
        self.has_broken = False
        self.num_broken = 0
        self.over: Connection | None = None
        self.num_opened = 0
        self._watched = socket
        self._events = socket.get_monitor_socket(_MONITORED)

    def look(self) -> None:
        while int(self._events.getsockopt(zmq.EVENTS)) & _READABLE:  # takes half the time of a poll
            message = recv_monitor_message(self._events)
            event = message["event"]
            if event == zmq.EVENT_CONNECTED:
                self.over = Connection(message["value"])
                self.num_opened += 1
                if self._congestion_control:
                    self.over.prefer(self._congestion_control)
            self.connection = _TRANSITIONS.get((self.connection, event), self.connection)
            self.answers = event == zmq.EVENT_HANDSHAKE_SUCCEEDED or (self.answers and event not in _ENDS)
            self.has_broken = self.has_broken or event in _ENDS
            self.num_broken += event == zmq.EVENT_DISCONNECTED

    def renew(self) -> None:
        """As `Connection.renew`."""
        if self.over is not None and self._congestion_control:
            self.over.renew(self._congestion_control)

    def close(self) -> None:
        self._watched.disable_monitor()
        self._events.close(linger=0)


class Link:
    """Our two DEALERs to one peer, and their monitors; that for data only over TCP, where data has its own port.

    Attributes:
        is_remote: data are sent over TCP.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        peer_id: str,
        control_address: str,
        data_address: str,
        introduce: Introduce | None,
        heartbeat_ms: int = HEARTBEAT_MS,
        congestion_control: str = "",
    ) -> None:
        """`introduce`: None without TCP. `heartbeat_ms`, `congestion_control`: for TCP; "": the kernel's default.

        Raises:
            ValueError: a TCP address, and no `introduce`.
            zmq.ZMQError: libzmq cannot, for now or for ever; no socket is left open.
        """
        is_tcp = [address.startswith("tcp://") for address in (control_address, data_address)]
        if any(is_tcp) and introduce is None:
            raise ValueError("it is on another host, and this peer has neither --bind nor --seeds")
        self._monitors: dict[str, _Monitor] = {}
        self._data_address, self.is_remote = data_address, is_tcp[1]
        with ExitStack() as on_failure:
            self.control = open_socket(context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=1000, is_tcp=is_tcp[0])
            on_failure.callback(self.control.close, 0)
            self.data = open_socket(context, zmq.DEALER, MAX_DATA_BYTES, high_water_mark=0, is_tcp=is_tcp[1])
            on_failure.callback(self.data.close, 0)
            if introduce is not None:
                for socket, address in ((self.control, control_address), (self.data, data_address)):
                    if address.startswith("tcp://"):
                        introduce(socket, peer_id, address)
            if is_tcp[1]:
                limit_silence(self.data, heartbeat_ms)
            beat_ms = heartbeat_ms if is_tcp[0] else HEARTBEAT_MS
            self.control.heartbeat_ivl, self.control.heartbeat_timeout = beat_ms, 4 * beat_ms
            watched = [(control_address, self.control), (data_address, self.data)]
            for address, socket in watched if is_tcp[1] else watched[:1]:
                self._monitors[address] = _Monitor(socket, congestion_control if address == data_address else "")
                on_failure.callback(self._monitors[address].close)
            self._control_monitor = self._monitors[control_address]
            self.control.connect(control_address)
            self.data.connect(data_address)
            on_failure.pop_all()

    def is_lost(self) -> bool:
        self._control_monitor.look()
        return self._control_monitor.connection in (_Connection.REFUSED, _Connection.TAKEN)

    def is_live(self) -> bool:
        self._control_monitor.look()
        return self._control_monitor.answers

    def has_broken(self) -> bool:
        """Whether the link was down at some time since the last call."""
        has_broken = not self.is_live() or self._control_monitor.has_broken
        self._control_monitor.has_broken = False
        return has_broken

    def unopened(self) -> str:
        """An address without an open connection, not yet or not any more; empty: all are open."""
        for address, monitor in self._monitors.items():
            monitor.look()
            if monitor.connection not in (_Connection.SHAKING, _Connection.OPEN):
                return address
        return ""

    def flow(self) -> Flow | None:
        """The kernel's counters of the data sent on this link over TCP; None: no such connection."""
        monitor = self._monitors.get(self._data_address)
        return None if monitor is None or monitor.over is None else monitor.over.flow()

    def renew(self) -> None:
        """Restart the congestion control of the data sent on this link, if one was configured."""
        if self._data_address in self._monitors:
            self._monitors[self._data_address].renew()

    def acked(self) -> int | None:
        """Bytes acknowledged by the peer, from a much higher base for each new connection; None: as of `flow`."""
        flow = self.flow()
        return None if flow is None else (self._monitors[self._data_address].num_opened << 48) + flow.acked

    def num_broken(self) -> int:
        """Number of data connections over TCP that broke so far, without those closed by this side."""
        if (monitor := self._monitors.get(self._data_address)) is None:  # closed, since its peer has lost its seat
            return 0
        monitor.look()
        return monitor.num_broken

    def reopen_data(self) -> None:
        """Send data over a new connection from now on; data not sent or not received yet are lost."""
        _reconnect(self.data, self._data_address)

    def retry(self) -> None:
        """Try again where another process has answered."""
        for address, monitor in self._monitors.items():
            monitor.look()
            if monitor.connection in (_Connection.TAKEN, _Connection.GARBLED):
                monitor.connection = _Connection.RETRYING
                _reconnect(self.control if monitor is self._control_monitor else self.data, address)

    def close(self, linger_ms: int) -> None:
        self.close_data(linger_ms)
        for monitor in self._monitors.values():
            monitor.close()
        self.control.close(linger_ms)

    def close_data(self, linger_ms: int) -> None:
        """Data not sent within `linger_ms` are dropped. Idempotent."""
        if (monitor := self._monitors.pop(self._data_address, None)) is not None:
            monitor.close()
        if not linger_ms:  # the sender learns of it at once; a close passes through another thread, perhaps late
            with suppress(zmq.ZMQError):
                self.data.disconnect(self._data_address)
        self.data.close(linger_ms)


def _reconnect(socket: "zmq.Socket[bytes]", address: str) -> None:
    for again in (socket.disconnect, socket.connect):
        with suppress(zmq.ZMQError):  # libzmq has no connection, since another process answered there
            again(address)


class Verdict(Enum):
    """Outcome of a call to an address, in words that follow the address in a message."""

    SILENT = "is silent: is a peer running there, is the address right and the port open?"
    UNKNOWN = "has a name that did not resolve when this peer began: is it spelled right? This peer keeps looking it up"
    ANSWERS = "was reached, but says nothing yet: is it of another version? Its log says so"
    OTHER_KEY = "hangs up: it has another key, or one side runs without a key (--insecure), or it is no peer"
    OTHER_SWARM = "belongs to another swarm, or to another --network: give all peers the same --swarm and --network"


_VERDICTS: Final = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Verdict.ANSWERS,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Verdict.OTHER_SWARM,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Verdict.OTHER_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Verdict.OTHER_KEY,
    zmq.EVENT_DISCONNECTED: Verdict.OTHER_KEY,  # in the middle of a handshake
    zmq.EVENT_CLOSED: Verdict.SILENT,
}


class SeedCall:
    """Our DEALER to a control address whose peer is not known."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, introduce: Introduce) -> None:
        """Begin to connect.

        Raises:
            zmq.ZMQError: libzmq cannot, for now or for ever; no socket is left open.
        """
        self.is_over = False
        """Whether libzmq will not retry."""
        self._verdict: Verdict | None = None
        self._is_shaking = False
        with ExitStack() as on_failure:
            self._dealer = open_socket(context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=10, is_tcp=True)
            on_failure.callback(self._dealer.close, 0)
            self._dealer.immediate = True  # frames are not queued without a connection: they are repeated anyway
            self._dealer.reconnect_ivl, self._dealer.reconnect_ivl_max = _CALL_RECONNECT_MS, 0
            self._dealer.connect_timeout = _CALL_CONNECT_MS
            introduce(self._dealer, "", address)
            self._monitor = self._dealer.get_monitor_socket(_MONITORED)
            on_failure.callback(self._monitor.close, 0)
            on_failure.callback(self._dealer.disable_monitor)
            self._dealer.connect(address)
            on_failure.pop_all()

    def look(self) -> Verdict | None:
        """The outcome so far; None: none yet."""
        while self._monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self._monitor)["event"])
            was_shaking, self._is_shaking = self._is_shaking, event == zmq.EVENT_CONNECTED
            if event != zmq.EVENT_DISCONNECTED or was_shaking:
                self._verdict = _VERDICTS.get(event, self._verdict)
                self.is_over = event in (*_STRANGE, zmq.EVENT_DISCONNECTED)
        return self._verdict

    def send(self, frame: bytes) -> None:
        """Send to the process at this address; dropped without a connection."""
        with suppress(zmq.Again):
            self._dealer.send(frame, zmq.DONTWAIT)

    def wait(self, timeout_s: float) -> bytes | None:
        """Wait for an event. Returns the answer, which only processes that are no peers get; None: none yet."""
        poller = zmq.Poller()
        poller.register(self._dealer, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        is_answered = self._dealer in dict(poller.poll(math.ceil(timeout_s * 1000)))
        return self._dealer.recv(zmq.DONTWAIT) if is_answered else None

    def close(self) -> None:
        self._dealer.disable_monitor()
        self._monitor.close(linger=0)
        self._dealer.close(linger=0)


class SeedCalls:
    """Seed calls of one peer, by address."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", introduce: Introduce | None) -> None:
        """Without calls. `introduce`: of the peer's listeners; None: no calls are possible."""
        self._context, self._introduce = context, introduce
        self._calls: dict[str, SeedCall] = {}

    def call(self, address: str, frames: Iterable[bytes]) -> Verdict | None:
        """Send `frames` to the process at a TCP address, if one is connected.

        Returns:
            The outcome of this call so far; None: none yet, or too few descriptors are left for it now.
        """
        assert self._introduce is not None, "only who has listeners may use TCP"
        if address not in self._calls:
            if is_near_fd_limit():
                return None
            self._calls[address] = SeedCall(self._context, address, self._introduce)
        call = self._calls[address]
        verdict = call.look()
        for frame in frames:
            call.send(frame)
        if call.is_over:
            self.hang_up(address)  # the next call starts afresh
        return verdict

    def hang_up(self, address: str) -> None:
        """End the call to this address, if there is one."""
        if (call := self._calls.pop(address, None)) is not None:
            call.close()

    def close(self) -> None:
        """End all calls."""
        for address in list(self._calls):
            self.hang_up(address)


def limit_silence(socket: "zmq.Socket[bytes]", heartbeat_ms: int) -> None:
    """Have the kernel close each TCP connection whose other end has acknowledged nothing for 16 heartbeats.

    That means no acknowledgement of data, or on an idle connection of three empty packets (keepalive), which also
    refresh the entry of a NAT. A receive window that stays closed for so long counts, too.
    """
    unheard_ms = _MOST_UNHEARD_BEATS * heartbeat_ms
    probe_s = max(1, unheard_ms // 5000)
    socket.tcp_maxrt = unheard_ms
    socket.tcp_keepalive, socket.tcp_keepalive_cnt = 1, 3
    socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = max(1, unheard_ms // 1000 - 3 * probe_s), probe_s


def open_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int, high_water_mark: int, *, is_tcp: bool
) -> "zmq.Socket[bytes]":
    """A socket, not bound or connected yet.

    A mark of 0 is no limit. Data sockets have none: the bytes in flight are bounded by those of one step, and a dropped
    message would stall all members. Routing ids are left to libzmq, which draws them: with ids of our own a connection
    that returns before the ROUTER missed it would be ignored (libzmq#4503), or, with ROUTER_HANDOVER, could take over
    another's.
    """
    socket = context.socket(kind)
    socket.linger, socket.immediate = 0, False
    socket.maxmsgsize = max_frame_bytes  # of each part; this is why parts are counted
    socket.sndhwm = socket.rcvhwm = high_water_mark
    if not is_tcp:
        socket.sndbuf = socket.rcvbuf = _IPC_BUFFER_BYTES
    socket.connect_timeout, socket.handshake_ivl = _CONNECT_MS, _HANDSHAKE_MS
    socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MAX_MS
    if kind == zmq.DEALER:
        socket.rcvhwm = 1  # nothing is received on it
    return socket

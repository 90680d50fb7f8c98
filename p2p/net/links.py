"""What one peer sends on: two DEALERs to each other peer, and what ZeroMQ's monitor says of them."""

import math
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from enum import Enum, auto
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..host.files import is_nearly_full
from .flows import Connection, Flow
from .wire import MAX_CONTROL_BYTES

MAX_DATA_BYTES: Final = 8 << 20
HEARTBEAT_MS: Final = 250
"""libzmq's own thread answers: without the interpreter, not in a stopped process. After four in vain a link breaks."""

_MOST_UNHEARD_BEATS: Final = 16
"""4 s, 16 s on a WAN: longer than who is silent, or stopped, whose window is shut, keeps its seat (3 and 12 s; a link
stalls for 4 s there), shorter than a step waits for lost frames (5 and 20 s), so that it is done over on a new one."""

_IPC_BUFFER_BYTES: Final = 2 << 20  # as far as the system allows; 16 MB in 0.9 of the time. Never for TCP.
_HANDSHAKE_MS: Final = 5000
_CONNECT_MS: Final = 2500
"""An attempt to open a connection ends after that, and another one begins: the kernel would ask again after 1, 3, 7
and 15 s, so that a link could stay shut for so long after a cut was healed."""
_CALL_CONNECT_MS: Final = 1500
"""The same where nobody may be yet: the kernel asks, or another attempt begins, every second."""
_RECONNECT_MS: Final = 10
_RECONNECT_MAX_MS: Final = 500
_CALL_RECONNECT_MS: Final = 250  # whoever has another key hangs up at once, again and again


class Introduce(Protocol):
    """Lets a socket prove at TCP addresses that it belongs to the swarm, and whom it wants to talk to."""

    def __call__(self, socket: "zmq.Socket[bytes]", target: str, address: str) -> None: ...


class _Connection(Enum):
    """What the monitor said of a link so far."""

    OPENING = auto()
    OPEN = auto()
    BROKEN = auto()
    """Was open; libzmq will try again."""
    REFUSED = auto()
    """Was open, and the last attempt to open it again failed."""


# libzmq 4.3.5 on ipc, seen from a DEALER whose peer is killed with SIGKILL: DISCONNECTED and CONNECT_RETRIED at
# once, then, after the reconnect interval and again after each further one, CLOSED (the attempt was refused) and
# CONNECT_RETRIED. The same when the peer closes its socket, and over TCP. An attempt before the peer has bound gives
# CLOSED too, without DISCONNECTED. A living peer whose backlog is full also refuses: this is evidence, no proof.
#
# Over TCP another process may sit at the peer's port by now: it is connected to, and fails the handshake, after which
# libzmq does not try again: HANDSHAKE_FAILED_AUTH if it is another peer (listener.py), HANDSHAKE_FAILED_PROTOCOL if it
# speaks something else, or has no key where we have one. Who has another key, or ends during the handshake, hangs up:
# HANDSHAKE_FAILED_NO_DETAIL and DISCONNECTED, and libzmq tries again.
_TRANSITIONS: Final[dict[tuple[_Connection, int], _Connection]] = {
    (_Connection.BROKEN, zmq.EVENT_CLOSED): _Connection.REFUSED,
    (_Connection.OPEN, zmq.EVENT_DISCONNECTED): _Connection.BROKEN,
    **{(connection, zmq.EVENT_CONNECTED): _Connection.OPEN for connection in _Connection},
    **{(connection, zmq.EVENT_HANDSHAKE_FAILED_AUTH): _Connection.REFUSED for connection in _Connection},
    **{(connection, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): _Connection.REFUSED for connection in _Connection},
}

_READABLE: Final = int(zmq.POLLIN)
_ENDS: Final = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)
_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_MONITORED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class _Monitor:
    """What libzmq says of the connection of one DEALER."""

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
        while self._is_readable():
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

    def _is_readable(self) -> bool:
        events = self._events.getsockopt(zmq.EVENTS)  # half the time of a poll
        assert isinstance(events, int)
        return bool(events & _READABLE)

    def close(self) -> None:
        self._watched.disable_monitor()
        self._events.close(linger=0)


class Link:
    """Our two DEALERs to one peer, and what their monitors say; data has one over TCP only, where its port counts.

    Attributes:
        is_remote: data go over TCP.
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
        """`introduce`: of who may connect to TCP addresses; the others: there; "": the kernel's default.

        Raises:
            ValueError: a TCP address, and no `introduce`.
            zmq.ZMQError: libzmq cannot, for now or for ever; nothing is left open.
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
        return self._control_monitor.connection is _Connection.REFUSED

    def is_live(self) -> bool:
        self._control_monitor.look()
        return self._control_monitor.answers

    def has_broken(self) -> bool:
        """Whether it did not answer at some time since this was asked last."""
        is_live, monitor = self.is_live(), self._control_monitor
        has_broken, monitor.has_broken = monitor.has_broken or not is_live, False
        return has_broken

    def unopened(self) -> str:
        """The address to which there is no connection, not yet or not any more; empty: there are both."""
        for address, monitor in self._monitors.items():
            monitor.look()
            if monitor.connection is not _Connection.OPEN:
                return address
        return ""

    def flow(self) -> Flow | None:
        """What the kernel counts of the data that we send there over TCP; None: there is no such connection."""
        over = self._monitors[self._data_address].over if self._data_address in self._monitors else None
        return None if over is None else over.flow()

    def renew(self) -> None:
        """Have the congestion control of the data that we send there begin anew, where it was asked for."""
        if self._data_address in self._monitors:
            self._monitors[self._data_address].renew()

    def acked(self) -> int | None:
        """Bytes of `flow` that have arrived, counted from afar for each further connection; None: as there."""
        flow = self.flow()
        return None if flow is None else (self._monitors[self._data_address].num_opened << 48) + flow.acked

    def num_broken(self) -> int:
        """Connections for data over TCP that have broken so far, and were not closed by this side."""
        monitor = self._monitors.get(self._data_address)
        if monitor is None:  # closed, since its peer has no seat any more
            return 0
        monitor.look()
        return monitor.num_broken

    def reopen_data(self) -> None:
        """Send data over another connection from now on; what was not sent, or not taken yet, is lost."""
        with suppress(zmq.ZMQError):  # libzmq has none, since somebody else answered there
            self.data.disconnect(self._data_address)
            self.data.connect(self._data_address)

    def close(self, linger_ms: int) -> None:
        self.close_data(linger_ms)
        for monitor in self._monitors.values():
            monitor.close()
        self.control.close(linger_ms)

    def close_data(self, linger_ms: int) -> None:
        """What is not sent within `linger_ms` is forgotten. It may be called again."""
        if (monitor := self._monitors.pop(self._data_address, None)) is not None:
            monitor.close()
        if not linger_ms:  # told to who sends, at once; a close goes through another thread, which may be late
            with suppress(zmq.ZMQError):
                self.data.disconnect(self._data_address)
        self.data.close(linger_ms)


class Verdict(Enum):
    """What came of calling an address, in words that go on after the address."""

    SILENT = "is silent: is a peer running there, is the address right and the port open?"
    UNKNOWN = "has a name that nobody knew when this peer began: is it spelled right? It is looked up again and again"
    ANSWERS = "was reached, but says nothing yet: is it of another version? Its log says so"
    OTHER_KEY = "hangs up: it has another key, or one side runs without a key (--insecure), or it is no peer"
    OTHER_SWARM = "belongs to another swarm, or to another --network: give all peers the same --swarm and --network"


_VERDICTS: Final = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Verdict.ANSWERS,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Verdict.OTHER_SWARM,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Verdict.OTHER_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Verdict.OTHER_KEY,
    zmq.EVENT_CLOSED: Verdict.SILENT,
}


class SeedCall:
    """Our DEALER to a control address of which we do not know whose it is."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, introduce: Introduce) -> None:
        """Begin to connect.

        Raises:
            zmq.ZMQError: libzmq cannot, for now or for ever; nothing is left open.
        """
        self.is_over = False
        """libzmq does not try again."""
        self._verdict: Verdict | None = None
        with ExitStack() as on_failure:
            self._dealer = open_socket(context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=10, is_tcp=True)
            on_failure.callback(self._dealer.close, 0)
            self._dealer.immediate = True  # nothing is queued for who is not there: it is said again anyway
            self._dealer.reconnect_ivl, self._dealer.reconnect_ivl_max = _CALL_RECONNECT_MS, 0
            self._dealer.connect_timeout = _CALL_CONNECT_MS
            introduce(self._dealer, "", address)
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILURES | zmq.EVENT_CLOSED
            self._monitor = self._dealer.get_monitor_socket(events)
            on_failure.callback(self._monitor.close, 0)
            on_failure.callback(self._dealer.disable_monitor)
            self._dealer.connect(address)
            on_failure.pop_all()

    def look(self) -> Verdict | None:
        """What came of it; None: nothing yet."""
        while self._monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self._monitor)["event"])
            self._verdict = _VERDICTS[event]
            self.is_over = event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        return self._verdict

    def send(self, frame: bytes) -> None:
        """To who is there; nothing happens if nobody is."""
        with suppress(zmq.Again):
            self._dealer.send(frame, zmq.DONTWAIT)

    def wait(self, timeout_s: float) -> bytes | None:
        """Wait until something comes of it: what the other end answers, to who is no peer; None: nothing yet."""
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
    """Those of one peer, by address."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", introduce: Introduce | None) -> None:
        """Nobody is called. `introduce`: of the peer's listeners; without them nobody can be."""
        self._context, self._introduce = context, introduce
        self._calls: dict[str, SeedCall] = {}

    def call(self, address: str, frames: Iterable[bytes]) -> Verdict | None:
        """Say `frames` to whoever is at a TCP address, if somebody is.

        Returns:
            What came of this call so far; None: nothing, or there is no file left for it now.
        """
        assert self._introduce is not None, "only who has listeners may use TCP"
        if address not in self._calls:
            if is_nearly_full():
                return None
            self._calls[address] = SeedCall(self._context, address, self._introduce)
        call = self._calls[address]
        verdict = call.look()
        for frame in frames:
            call.send(frame)
        if call.is_over:
            self.hang_up(address)  # the next call begins anew
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

    Of what was sent, or, where nothing is, of three empty packets (keepalive), which also keep a NAT from forgetting
    it. A window that is shut for so long counts, too.
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

    A mark of 0 is no limit. That is for data: what is under way is bounded by the bytes of one step, and a message
    that is dropped would stall all members. Routing ids are left to libzmq, which draws them: with ids of our own a
    connection that returns before the ROUTER missed it would be ignored (libzmq#4503), or, with ROUTER_HANDOVER,
    could take over another's.
    """
    socket = context.socket(kind)
    socket.linger = 0
    socket.immediate = False
    socket.maxmsgsize = max_frame_bytes  # of each part, that is why parts are counted
    socket.sndhwm = socket.rcvhwm = high_water_mark
    if not is_tcp:
        socket.sndbuf = socket.rcvbuf = _IPC_BUFFER_BYTES
    socket.connect_timeout = _CONNECT_MS
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _RECONNECT_MAX_MS
    if kind == zmq.DEALER:
        socket.rcvhwm = 1  # nobody answers us
    return socket

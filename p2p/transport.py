"""All ZeroMQ sockets of one peer: who is connected to whom, and frames in and out. Knows nothing of their meaning.

A peer binds two ROUTERs, control and data, which only receive; it sends to another peer on two DEALERs of its own.
So whoever connects to us learns nothing and cannot be answered by mistake. Who sent a frame is said inside the
frame: routing ids are ZeroMQ's business and are thrown away.

Belongs to one thread; only `wake` may be called by others. Leaves out: TCP, CURVE.
"""

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import numpy.typing as npt
import zmq
from zmq.utils.monitor import recv_monitor_message

from .wire import HEADER_BYTES

logger = logging.getLogger(__name__)

Payload = bytes | bytearray | memoryview | npt.NDArray[Any]

MAX_CONTROL_BYTES: Final = 4 << 20
MAX_DATA_BYTES: Final = 8 << 20
ZERO_COPY_BYTES: Final = 128 << 10
"""Payloads from here on are lent to libzmq, smaller ones copied. Measured over ipc, zero-copy has 0.65 times the
throughput of a copy at 64 KiB, as much at 128 KiB, 1.3 times at 512 KiB and 1.5 times at 1 MiB."""

JOINED_BYTES: Final = 32 << 10
"""Up to here a payload follows its header in the same part: copying costs less than a second part."""

_MAX_DRAIN: Final = 256
_MAX_PATH_BYTES: Final = 107
_IPC_BUFFER_BYTES: Final = 2 << 20  # as far as the system allows; 16 MB in 0.9 of the time. Never for TCP.
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # as enums they cost a microsecond a frame
_HANDSHAKE_MS: Final = 5000
_RECONNECT_MS: Final = 10
_RECONNECT_MAX_MS: Final = 500
_LAST_WORDS_MS: Final = 100
_HEARTBEAT_MS: Final = 250  # libzmq's own thread answers: without the interpreter, not in a stopped process
_HEARTBEAT_TIMEOUT_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Ready:
    """What can be done without waiting."""

    control: bool
    data: bool
    fds: tuple[int, ...]


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
# CONNECT_RETRIED. The same when the peer closes its socket. An attempt before the peer has bound gives CLOSED too,
# without DISCONNECTED. A living peer whose backlog is full also refuses: this is evidence, no proof.
_TRANSITIONS: Final[dict[tuple[_Connection, int], _Connection]] = {
    (_Connection.BROKEN, zmq.EVENT_CLOSED): _Connection.REFUSED,
    (_Connection.OPEN, zmq.EVENT_DISCONNECTED): _Connection.BROKEN,
    **{(connection, zmq.EVENT_CONNECTED): _Connection.OPEN for connection in _Connection},
}


_ENDS: Final = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)
_MONITORED: Final = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class _Link:
    """Our two DEALERs to one peer, and what the control link's monitor says."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", control_address: str, data_address: str) -> None:
        self.control = _open(context, zmq.DEALER, MAX_CONTROL_BYTES, high_water_mark=1000)
        self.data = _open(context, zmq.DEALER, MAX_DATA_BYTES, high_water_mark=0)
        self.control.heartbeat_ivl, self.control.heartbeat_timeout = _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS
        self._monitor = self.control.get_monitor_socket(_MONITORED)
        self._connection = _Connection.OPENING
        self._answers = False
        self.control.connect(control_address)
        self.data.connect(data_address)

    def is_lost(self) -> bool:
        self._look()
        return self._connection is _Connection.REFUSED

    def is_live(self) -> bool:
        self._look()
        return self._answers

    def _look(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._connection = _TRANSITIONS.get((self._connection, event), self._connection)
            self._answers = event == zmq.EVENT_HANDSHAKE_SUCCEEDED or (self._answers and event not in _ENDS)

    def close(self, linger_ms: int) -> None:
        self.control.disable_monitor()
        self._monitor.close(linger=0)
        self.control.close(linger_ms)
        self.data.close(linger_ms)


class Transport:
    """The sockets of one peer.

    Attributes:
        dropped: number of frames dropped, by reason: "no link", "queue full" (not sent), "invalid" (received).
    """

    def __init__(self, control_address: str, data_address: str) -> None:
        """Bind both ROUTERs, to `ipc://` and an absolute path. A file that is already there is replaced.

        Raises:
            ValueError: no such address, or its path is too long for a socket.
            OSError: it cannot be bound.
        """
        _check_address(control_address)
        _check_address(data_address)
        self.dropped: Counter[str] = Counter()
        self._links: dict[str, _Link] = {}
        self._wake_lock = threading.RLock()  # a signal handler may call `wake` in the middle of `wake`
        self._context = zmq.Context()
        self._control = _open(self._context, zmq.ROUTER, MAX_CONTROL_BYTES, high_water_mark=1000)
        self._data = _open(self._context, zmq.ROUTER, MAX_DATA_BYTES, high_water_mark=0)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        for source in (self._control, self._data, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)
        self._paths: list[str] = []
        self._bind(self._control, control_address)
        self._bind(self._data, data_address)

    def _bind(self, socket: "zmq.Socket[bytes]", address: str) -> None:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot bind {address}: {error}") from None
        self._paths.append(address.removeprefix("ipc://"))

    # Links.

    def connect(self, peer_id: str, control_address: str, data_address: str) -> None:
        """Open a link; frames queue until the peer is there. Addresses may come from a peer.

        Raises:
            ValueError: no usable addresses, or there is a link to this peer already.
        """
        _check_address(control_address)
        _check_address(data_address)
        if peer_id in self._links:
            raise ValueError(f"there is a link to {peer_id}; disconnect it first")
        self._links[peer_id] = _Link(self._context, control_address, data_address)

    def disconnect(self, peer_id: str) -> None:
        """Close the link, if there is one; what was not sent yet is forgotten."""
        link = self._links.pop(peer_id, None)
        if link is not None:
            link.close(linger_ms=0)

    def lost_links(self) -> list[str]:
        """Peers whose control link broke and could not be opened again, as of now. Ask a few times a second."""
        return [peer_id for peer_id, link in self._links.items() if link.is_lost()]

    def live_links(self) -> list[str]:
        """Peers whose process answers on the control link, busy as its interpreter may be."""
        return [peer_id for peer_id, link in self._links.items() if link.is_live()]

    # Frames.

    def send_control(self, peer_id: str, frame: bytes) -> bool:
        """Queue one frame; False if it was dropped. Never blocks."""
        if len(frame) > MAX_CONTROL_BYTES:
            raise ValueError(f"a control frame has at most {MAX_CONTROL_BYTES} bytes, got {len(frame)}")
        link = self._links.get(peer_id)
        if link is None:
            return self._drop("no link")
        try:
            link.control.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return self._drop("queue full")
        return True

    def send_data(self, peer_id: str, header: bytes, payload: Payload) -> bool:
        """Queue header and payload as one message; False if it was dropped. Never blocks.

        A payload of `ZERO_COPY_BYTES` or more is read later, by another thread: it must not be written before the
        peer is known to have it, or the link was closed.
        """
        view = memoryview(payload)  # type: ignore[arg-type]  # numpy's types offer no buffer before 3.12
        if view.nbytes > MAX_DATA_BYTES or not view.c_contiguous:  # found later, it would leave half a message behind
            raise ValueError(f"a payload is contiguous and has at most {MAX_DATA_BYTES} bytes, got {view.nbytes}")
        link = self._links.get(peer_id)
        if link is None:
            return self._drop("no link")
        # No high-water mark, so no call can find the queue full.
        if view.nbytes <= JOINED_BYTES and len(header) == HEADER_BYTES:
            link.data.send(b"".join((header, view)), zmq.DONTWAIT)
            return True
        link.data.send(header, zmq.DONTWAIT | zmq.SNDMORE)
        link.data.send(view, zmq.DONTWAIT, copy=view.nbytes < ZERO_COPY_BYTES)
        return True

    def _drop(self, reason: str) -> bool:
        self.dropped[reason] += 1
        return False

    def receive_control(self) -> Iterator[bytes]:
        """Frames that are there, up to a bound; ask `poll` for more."""
        for _, frame in self._receive(self._control, num_parts=(2,)):
            yield frame.bytes

    def receive_data(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Headers and payloads that are there, up to a bound. A payload is libzmq's own memory, and not aligned."""
        for parts in self._receive(self._data, num_parts=(2, 3)):
            if len(parts) == 3:
                yield parts[1].buffer, parts[2].buffer
            elif len(joined := parts[1].buffer) >= HEADER_BYTES:
                yield joined[:HEADER_BYTES], joined[HEADER_BYTES:]
            else:
                self.count_invalid(f"a message of {len(joined)} bytes")

    def _receive(self, socket: "zmq.Socket[bytes]", num_parts: tuple[int, ...]) -> Iterator[list[zmq.Frame]]:
        for _ in range(_MAX_DRAIN):
            if not int(socket.get(_EVENTS)) & _POLLIN:  # costs a tenth of the exception that `recv` would raise
                return
            parts = [socket.recv(zmq.DONTWAIT, copy=False)]
            while parts[-1].more:
                parts.append(socket.recv(copy=False))  # libzmq delivers whole messages: this does not wait
            if len(parts) in num_parts:
                yield parts
            else:
                self.count_invalid(f"a message of {len(parts) - 1} parts")

    def count_invalid(self, reason: str) -> None:
        """Count a frame that nobody can use; log the first."""
        if not self.dropped["invalid"]:
            logger.warning("dropped a frame: %s; further ones are only counted", reason)
        self.dropped["invalid"] += 1

    # Waiting.

    def watch(self, fd: int) -> None:
        """Let `poll` report when `fd` (a pidfd, say) is readable. It stays the caller's."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        self._poller.unregister(fd)

    def poll(self, timeout_s: float) -> Ready:
        """Wait until something is ready, `wake` was called or the time is over (`math.inf`: never)."""
        # epoll over libzmq's edge-triggered descriptors was at most 10 % faster in a round trip: not worth its traps.
        timeout_ms = -1 if timeout_s == math.inf else math.ceil(max(timeout_s, 0.0) * 1000)
        ready = dict(self._poller.poll(timeout_ms))
        if ready.pop(self._wake_fd, 0):
            os.eventfd_read(self._wake_fd)
        is_control = bool(ready.pop(self._control, 0))
        is_data = bool(ready.pop(self._data, 0))
        return Ready(is_control, is_data, tuple(ready))

    def wake(self) -> None:
        """Make the current or the next `poll` return. Any thread may call this, even after `close`."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close everything and remove our socket files. Last words get a tenth of a second. Idempotent."""
        with self._wake_lock:  # or `wake` might write to whatever gets the number next
            if self._wake_fd < 0:
                return
            os.close(self._wake_fd)
            self._wake_fd = -1
        for path in self._paths:  # libzmq leaves them behind
            with suppress(FileNotFoundError):
                os.unlink(path)
        for link in self._links.values():
            link.close(_LAST_WORDS_MS)
        self._links.clear()
        self._control.close(linger=0)
        self._data.close(linger=0)
        self._context.term()


def _open(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int, high_water_mark: int
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
    socket.sndbuf = socket.rcvbuf = _IPC_BUFFER_BYTES
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _RECONNECT_MAX_MS
    if kind == zmq.DEALER:
        socket.rcvhwm = 1  # nobody answers us
    return socket


def _check_address(address: str) -> None:
    path = address.removeprefix("ipc://")
    if path == address or not path.startswith("/"):
        raise ValueError(f"an address is ipc:// and an absolute path, got {address[:200]!r}")
    num_bytes = len(os.fsencode(path))
    if num_bytes > _MAX_PATH_BYTES:
        raise ValueError(f"a socket's path has at most {_MAX_PATH_BYTES} bytes, {path[:200]!r} has {num_bytes}")

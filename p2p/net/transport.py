"""All ZeroMQ sockets of one peer: its connections, and frames in and out, without their meaning.

A peer binds two ROUTERs, control and data, which only receive; it sends to another peer on two DEALERs of its own. So a
peer that connects to us cannot be answered by mistake; only a status query is answered on its own connection. Each
frame names its sender; ZeroMQ's routing ids are discarded.

Two more ROUTERs, on TCP, serve peers on other hosts (listener.py).

Belongs to one thread; other threads may only call `wake`.
"""

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import zmq

from collectives import Buffer

from ..errors import RemoteProtocolError
from ..host.files import is_near_fd_limit
from ..version import OtherVersion
from .addresses import check_address
from .flows import Flow
from .headers import HEADER_BYTES
from .links import HEARTBEAT_MS, MAX_DATA_BYTES, Link, SeedCalls, open_socket
from .listener import TcpListeners
from .pacing import Pacer
from .wire import MAX_CONTROL_BYTES

logger = logging.getLogger(__name__)

ZERO_COPY_BYTES: Final = 128 << 10
"""Payloads from here on are lent to libzmq, smaller ones copied. Measured over ipc, zero-copy has 0.65 times the
throughput of a copy at 64 KiB, as much at 128 KiB, 1.3 times at 512 KiB and 1.5 times at 1 MiB."""

JOINED_BYTES: Final = 32 << 10
"""Payloads up to this size share a message part with their header: copying costs less than a second part."""

_MAX_DRAIN: Final = 256
_MOST_VERSIONS: Final = 8  # named in the log: a holder of the key may make up any number
_MAX_PARTS: Final = 3  # of one message, after the routing id; more are counted and dropped one by one
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # as enums, as of `Socket.get`, they take 1.5 us
_DONTWAIT, _AND_MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
_LAST_WORDS_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Polled:
    """Sources that are ready."""

    control: bool
    data: bool
    fds: tuple[int, ...]


class Transport:
    """The sockets of one peer.

    Attributes:
        dropped: number of frames dropped, by reason: "no link", "queue full" (not sent), "invalid", "other version"
            (received); and of connections: "refused".
        pacer: for data to other hosts.
        seed_calls: calls to addresses whose peers are not known.
    """

    def __init__(
        self,
        control_address: str,
        data_address: str,
        listeners: TcpListeners | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Bind both ROUTERs, to `ipc://` and an absolute path. An existing file is replaced.

        `listeners`: for peers on other hosts; closed together with the transport. `clock`: for the pacer, in seconds.

        Raises:
            ValueError: a malformed address, or a path too long for a socket.
            OSError: an address cannot be bound.
        """
        for address in (control_address, data_address):
            check_address(address)
            if not address.startswith("ipc://"):
                raise ValueError(f"these sockets are bound to ipc:// and an absolute path, got {address!r}")
        self.dropped: Counter[str] = Counter()
        self._versions: set[int] = set()
        self._listeners = listeners
        self._introduce = None if listeners is None else listeners.credentials.introduce
        self._timing = (
            (HEARTBEAT_MS, "") if listeners is None else (listeners.heartbeat_ms, listeners.congestion_control)
        )
        self._links: dict[str, Link] = {}
        self._wake_lock = threading.RLock()  # a signal handler may call `wake` in the middle of `wake`
        self._context = zmq.Context() if listeners is None else listeners.context
        self.seed_calls = SeedCalls(self._context, self._introduce)
        self.pacer = Pacer(self._queue_data, clock, ZERO_COPY_BYTES, self._acked)
        self._control = open_socket(self._context, zmq.ROUTER, MAX_CONTROL_BYTES, high_water_mark=1000, is_tcp=False)
        self._data = open_socket(self._context, zmq.ROUTER, MAX_DATA_BYTES, high_water_mark=0, is_tcp=False)
        self._controls = [self._control] if listeners is None else [self._control, listeners.control]
        self._datas = [self._data] if listeners is None else [self._data, listeners.data]
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        of_listeners = [] if listeners is None else [listeners.zap_socket, *listeners.monitors]
        for source in (*self._controls, *self._datas, self._wake_fd, *of_listeners):
            self._poller.register(source, zmq.POLLIN)
        self._data_poller = zmq.Poller()
        for source in (*self._datas, self._wake_fd):
            self._data_poller.register(source, zmq.POLLIN)
        self._paths: list[str] = []
        self._asker: tuple[zmq.Socket[bytes], bytes] | None = None
        self._bind(self._control, control_address)
        self._bind(self._data, data_address)

    def _bind(self, socket: "zmq.Socket[bytes]", address: str) -> None:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot bind {address}: {error}") from None
        self._paths.append(address.removeprefix("ipc://"))

    def bind_again(self) -> None:
        """Create the files of both sockets again after their removal, or raise OSError. Connections stay open."""
        for socket, path in zip((self._control, self._data), self._paths, strict=True):
            try:
                socket.bind(f"ipc://{path}")
            except zmq.ZMQError as error:
                raise OSError(error.errno, f"cannot bind {path}: {error}") from None

    # Links.

    def connect(self, peer_id: str, control_address: str, data_address: str) -> None:
        """Open a link; frames queue until the peer is connected. Addresses may come from a peer.

        Raises:
            ValueError: no usable addresses, TCP without listeners, a link to this peer exists, too many files are open.
        """
        check_address(control_address)
        check_address(data_address)
        if peer_id in self._links:
            raise ValueError(f"there is a link to {peer_id}; disconnect it first")
        if is_near_fd_limit():  # libzmq ends a process that has no descriptor left to accept a connection
            raise ValueError("too many files are open")
        try:
            self._links[peer_id] = Link(
                self._context, peer_id, control_address, data_address, self._introduce, *self._timing
            )
        except zmq.ZMQError as error:  # no such name, or too many sockets
            raise ValueError(f"libzmq refuses to connect to {control_address}, {data_address}: {error}") from None

    def disconnect(self, peer_id: str) -> None:
        """Close the link, if there is one; frames not sent yet are dropped."""
        link = self._links.pop(peer_id, None)
        if link is not None:
            self.pacer.forget(peer_id)
            link.close(linger_ms=0)

    def stop_data(self, peer_ids: Collection[str] | None = None) -> None:
        """Stop sending data to these peers (None: to all): payloads lent and not sent yet are dropped."""
        for link in [link for name, link in self._links.items() if peer_ids is None or name in peer_ids]:
            link.close_data(linger_ms=0)

    def lost_links(self) -> list[str]:
        """Peers whose control link is broken and could not be reopened. Call this a few times a second."""
        return [peer_id for peer_id, link in self._links.items() if link.is_lost()]

    def live_links(self) -> list[str]:
        """Peers whose process answers on the control link, even if its interpreter is busy."""
        return [peer_id for peer_id, link in self._links.items() if link.is_live()]

    def broken_links(self) -> list[str]:
        """Peers whose process did not answer on the control link at some time since the last call."""
        return [peer_id for peer_id, link in self._links.items() if link.has_broken()]

    def unopened_links(self) -> dict[str, str]:
        """Peers without an open connection, not yet or not any more, with the reason."""
        found = {peer_id: link.unopened() for peer_id, link in self._links.items()}
        return {name: f"no connection to {address} can be opened" for name, address in found.items() if address}

    def retry_links(self) -> None:
        """Try again where another process has answered in place of a peer. Call this about twice a second."""
        for link in self._links.values():
            link.retry()

    def flows(self) -> dict[str, Flow]:
        """The kernel's counters of the data sent over TCP, by peer."""
        found = {peer_id: link.flow() for peer_id, link in self._links.items()}
        return {peer_id: flow for peer_id, flow in found.items() if flow is not None}

    def renew_flows(self) -> None:
        """As `Connection.renew`, for the data that this peer sends, where a congestion control was configured."""
        for link in self._links.values():
            link.renew()

    def num_broken(self, peer_id: str) -> int | None:
        """As `Link.num_broken`, for a peer on another host; None: it is on this host, or has no link."""
        link = self._links.get(peer_id)
        return link.num_broken() if link is not None and link.is_remote else None

    def reopen_data(self, peer_ids: Iterable[str]) -> None:
        """Send data to these peers over new connections from now on. Data not received yet are lost."""
        for peer_id in peer_ids:
            self.pacer.forget(peer_id)
            self._links[peer_id].reopen_data()

    def _acked(self, peer_id: str) -> int | None:
        return self._links[peer_id].acked() if peer_id in self._links else None

    def num_received(self) -> int:
        """Bytes of data received over TCP, on the open connections."""
        return 0 if self._listeners is None else self._listeners.accepted.num_received()

    def refuse_strangers(self, *, silences: bool = True) -> None:
        """As `TcpListeners.count_refused`."""
        if self._listeners is not None and (number := self._listeners.count_refused(silences=silences)):
            self.dropped["refused"] += number

    # Frames.

    def send_control(self, peer_id: str, frame: bytes) -> bool:
        """Queue one frame; False if dropped. Never blocks."""
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

    def send_data(self, peer_id: str, header: bytes, payload: Buffer) -> bool:
        """Queue header and payload as one message; False if dropped. Never blocks.

        A payload of `ZERO_COPY_BYTES` or more is read later, by another thread: it must not be written before the peer
        is known to have it, or the link is closed.
        """
        view = memoryview(payload)  # type: ignore[arg-type]  # numpy's types offer no buffer before 3.12
        if view.nbytes > MAX_DATA_BYTES or not view.c_contiguous:  # found later, half a message would already be sent
            raise ValueError(f"a payload is contiguous and has at most {MAX_DATA_BYTES} bytes, got {view.nbytes}")
        link = self._links.get(peer_id)
        if link is None:
            return self._drop("no link")
        if link.is_remote and self.pacer.is_on:
            return self.pacer.send(peer_id, header, view)
        return self._queue_data(peer_id, header, view)

    def _queue_data(self, peer_id: str, header: bytes, view: memoryview) -> bool:
        link = self._links[peer_id]
        if link.data.closed:
            return self._drop("no link")
        # Without a high-water mark the queue is never full; but libzmq has none any more where another process
        # answered.
        try:
            if view.nbytes <= JOINED_BYTES and len(header) == HEADER_BYTES:
                link.data.send(b"".join((header, view)), _DONTWAIT)
                return True
            link.data.send(header, _AND_MORE)
        except zmq.Again:
            return self._drop("no link")
        try:
            link.data.send(view, _DONTWAIT, copy=view.nbytes < ZERO_COPY_BYTES)
        except RuntimeError:  # pyzmq cannot start the thread that would release the payload later
            link.data.send(view, _DONTWAIT)
        return True

    def _drop(self, reason: str) -> bool:
        self.dropped[reason] += 1
        return False

    def receive_control(self) -> Iterator[bytes]:
        """Pending frames, up to a limit; `poll` reports more."""
        for socket in self._controls:
            for route, (frame, *_) in self._receive(socket, num_parts=(1,)):
                self._asker = socket, route
                yield frame.bytes
        self._asker = None

    def answer(self, frame: bytes) -> None:
        """Answer the sender of the last frame from `receive_control`. Dropped if that has disconnected."""
        if self._asker is not None:
            socket, route = self._asker
            with suppress(zmq.ZMQError):
                socket.send_multipart([route, frame], zmq.DONTWAIT)

    def has_data(self) -> bool:
        """Whether `receive_data` would yield frames."""
        return bool(int(self._data.getsockopt(_EVENTS)) & _POLLIN) or self._has_remote_data()

    def wait_for_data(self, timeout_s: float) -> bool:
        """Wait for data, `wake` or the timeout; True if there are data. Other events are left to `poll`."""
        ready = dict(self._data_poller.poll(math.ceil(timeout_s * 1000)))
        return len(ready) > (self._wake_fd in ready)

    def _has_remote_data(self) -> bool:
        return self._listeners is not None and bool(int(self._listeners.data.getsockopt(_EVENTS)) & _POLLIN)

    def receive_data(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Pending headers and payloads, up to a limit. A payload is libzmq's own memory, and not aligned."""
        for socket in self._datas:
            for _, parts in self._receive(socket, num_parts=(1, 2)):
                if len(parts) == 2:
                    yield parts[0].buffer, parts[1].buffer
                else:
                    joined = parts[0].buffer
                    yield joined[:HEADER_BYTES], joined[HEADER_BYTES:]

    def _receive(
        self, socket: "zmq.Socket[bytes]", num_parts: tuple[int, ...]
    ) -> Iterator[tuple[bytes, list[zmq.Frame]]]:
        """Routing ids, each with the parts after it."""
        for _ in range(_MAX_DRAIN):
            if not int(socket.getsockopt(_EVENTS)) & _POLLIN:  # costs a tenth of the exception that `recv` would raise
                return
            route = socket.recv(_DONTWAIT)
            parts = [socket.recv(copy=False)]  # libzmq delivers whole messages: this does not wait
            num_more = 0
            while parts[-1].more:
                if len(parts) == _MAX_PARTS:
                    parts.pop()
                    num_more += 1
                parts.append(socket.recv(copy=False))
            if len(parts) in num_parts and not num_more:
                yield route, parts
            else:
                self.count_invalid(RemoteProtocolError(f"a message of {len(parts) + num_more} parts"))

    def count_invalid(self, error: RemoteProtocolError) -> None:
        """Count an unusable frame; log the first, and the first of each other version."""
        if isinstance(error, OtherVersion):
            self.dropped["other version"] += 1
            if error.version not in self._versions and len(self._versions) < _MOST_VERSIONS:
                self._versions.add(error.version)
                logger.warning("refused a frame: %s; further ones are only counted", error)
            return
        if not self.dropped["invalid"]:
            logger.warning("dropped a frame: %s; further ones are only counted", error)
        self.dropped["invalid"] += 1

    # Waiting.

    def watch(self, fd: int) -> None:
        """Let `poll` report when `fd` (a pidfd, say) is readable. The caller keeps owning it."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        self._poller.unregister(fd)

    def poll(self, timeout_s: float) -> Polled:
        """Wait for a ready source, `wake` or the timeout (`math.inf`: none)."""
        # epoll over libzmq's edge-triggered descriptors was at most 10 % faster in a round trip: not worth its traps.
        timeout_ms = -1 if timeout_s == math.inf else math.ceil(max(timeout_s, 0.0) * 1000)
        ready = dict(self._poller.poll(timeout_ms))
        if ready.pop(self._wake_fd, 0):
            os.eventfd_read(self._wake_fd)
        is_control = bool(ready.pop(self._control, 0))
        is_data = bool(ready.pop(self._data, 0))
        if (listeners := self._listeners) is not None:
            is_control = bool(ready.pop(listeners.control, 0)) or is_control
            is_data = bool(ready.pop(listeners.data, 0)) or is_data
            if ready.pop(listeners.zap_socket, 0):
                listeners.answer()
            if any([ready.pop(monitor, 0) for monitor in listeners.monitors]):
                self.refuse_strangers(silences=False)
        return Polled(is_control, is_data, tuple(ready))

    def wake(self) -> None:
        """Make the current or the next `poll` return. Any thread may call this, even after `close`."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close all sockets and remove our socket files. Queued frames get a tenth of a second. Idempotent."""
        with self._wake_lock:  # or `wake` might write to the next file with that number
            if self._wake_fd < 0:
                return
            os.close(self._wake_fd)
            self._wake_fd = -1
        for path in self._paths:  # libzmq does not remove them
            with suppress(FileNotFoundError):
                os.unlink(path)
        self.pacer.flush()
        for link in self._links.values():
            link.close(_LAST_WORDS_MS)
        self._links.clear()
        self.seed_calls.close()
        self._control.close(linger=0)
        self._data.close(linger=0)
        if self._listeners is not None:
            self._listeners.close()
        self._context.term()

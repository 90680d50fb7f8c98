"""Half-open connections: accepted, but without proof yet that the other side holds the swarm key.

libzmq reports which descriptor it has accepted, but not whose handshake succeeded. The number of bytes that this side
has sent tells that: every connection receives a greeting, and WELCOME for a HELLO (which may be a replay of a
member's); only an answer to that WELCOME receives READY. A descriptor that libzmq reported may belong to another
connection by now, so it is examined and shut down through a duplicate, which pins the connection.
"""

import ipaddress
import socket
import struct
from collections import Counter
from contextlib import closing, suppress
from typing import Final

from .flows import Connection, Ends, copy_of, ends_of

MOST: Final = 64
"""Per listening socket; beyond it, the oldest ones of the origin with the most are shut down."""

GREETING_BYTES: Final = 64
CURVE_BYTES: Final = GREETING_BYTES + 170
PLAIN_BYTES: Final = GREETING_BYTES + 10
"""Greeting and WELCOME (ZMTP 3.1, RFC 37; CurveZMQ, RFC 26); READY follows."""

MOST_HEARD_BYTES: Final = 4096
"""What a handshake says is less. Beyond it, a stranger would fill the memory: libzmq takes in one frame of any kind, of
the size that is allowed after the handshake."""

_SENT: Final = struct.Struct("<QQ")
_SENT_OFFSET: Final = 200  # of tcpi_bytes_sent and tcpi_bytes_retrans in struct tcp_info
_NETWORK_BITS: Final = 64  # of an IPv6 address; one host controls all addresses below them
_INFO_BYTES: Final = 256


class HalfOpen:
    """Accepted descriptors, oldest first; those that were let in are dropped when there are too many."""

    def __init__(self, most_bytes: int = CURVE_BYTES) -> None:
        """`most_bytes`: the most that is sent on a connection that is not let in."""
        self._most_bytes = most_bytes
        self._num_new = 0
        self._ends: dict[int, Ends] = {}
        self._origins: dict[int, object] = {}
        self._connections: dict[int, Connection] = {}

    def accepted(self, fd: int) -> None:
        """Record that libzmq has accepted a connection with this descriptor."""
        connection = self._connections[fd] = Connection(fd)
        self._ends.pop(fd, None)
        if connection.ends is not None:
            self._ends[fd], self._origins[fd] = connection.ends, _origin(connection.ends)
            self._num_new += 1

    def closed(self, fd: int) -> None:
        """Drop the record of a closed connection."""
        self._ends.pop(fd, None)
        self._origins.pop(fd, None)
        self._connections.pop(fd, None)

    def num_received(self) -> int:
        """Bytes received over all connections, including those that were let in."""
        return sum(flow.received for each in self._connections.values() if (flow := each.flow()) is not None)

    def silence(self) -> list[int]:
        """Shut down those that have said more than a handshake does; libzmq then closes them."""
        loud = []
        for fd in list(self._ends):
            flow = self._connections[fd].flow()
            if flow is None or flow.received <= MOST_HEARD_BYTES:
                continue
            if self._is_half_open(fd, self._ends.pop(fd), shuts_down=True):
                loud.append(fd)  # else it was let in, and is not looked at again
        return loud

    def cut(self) -> list[int]:
        """If there are too many, shut down the oldest ones of the most frequent origin; libzmq then closes them.

        A distant peer, whose handshake takes longer than many others', is not cut for that.
        """
        cut = []
        if len(self._ends) > MOST and self._num_new > MOST // 2:  # not each time: each check takes some microseconds
            self._num_new = 0
            self._ends = {fd: ends for fd, ends in self._ends.items() if self._is_half_open(fd, ends)}
        while len(self._ends) > MOST:
            ((crowded, _),) = Counter(self._origins[fd] for fd in self._ends).most_common(1)
            fd = next(fd for fd in self._ends if self._origins[fd] == crowded)
            if self._is_half_open(fd, self._ends.pop(fd), shuts_down=True):
                cut.append(fd)
        return cut

    def _is_half_open(self, fd: int, ends: Ends, *, shuts_down: bool = False) -> bool:
        """Whether `fd` is still the connection with these ends, and was not let in."""
        copy = copy_of(fd)
        if copy is None:
            return False
        with closing(copy):
            if ends_of(copy) != ends or _num_sent(copy) > self._most_bytes:
                return False
            if shuts_down:
                with suppress(OSError):  # the other side has closed it already
                    copy.shutdown(socket.SHUT_RDWR)
            return True


def _origin(ends: Ends) -> object:
    """The origin of a connection: an IPv4 address, or an IPv6 network."""
    host = ends[1][0] if isinstance(ends[1], tuple) else ""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return address.ipv4_mapped or int(address) >> _NETWORK_BITS


def _num_sent(copy: socket.socket) -> int:
    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _SENT_OFFSET + _SENT.size:
        return 0
    num_bytes, num_again = _SENT.unpack_from(info, _SENT_OFFSET)
    return int(num_bytes - num_again)

"""Connections that strangers have opened, and of which nothing has come that only a holder of the key can say.

libzmq tells which descriptor it has accepted, not whose handshake has succeeded. What tells that is how much this side
has sent: whoever connects is sent a greeting, and more only once its first command was right. A descriptor that libzmq
named may be another one by now, so it is looked at, and shut down, through a copy, which pins what it is a copy of.
"""

import socket
import struct
from contextlib import closing, suppress
from typing import Final

from .flows import Connection, Ends, copy_of, ends_of

MOST: Final = 64
"""At one listening socket; of more the oldest are shut down."""

GREETING_BYTES: Final = 64
_SENT: Final = struct.Struct("<Q")
_SENT_OFFSET: Final = 200  # of tcpi_bytes_sent in struct tcp_info
_INFO_BYTES: Final = 256


class HalfOpen:
    """Descriptors that were accepted, oldest first; those that were let in are forgotten when there are too many."""

    def __init__(self) -> None:
        self._ends: dict[int, Ends] = {}
        self._connections: dict[int, Connection] = {}

    def accepted(self, fd: int) -> None:
        """Libzmq has accepted a connection, as this descriptor."""
        connection = self._connections[fd] = Connection(fd)
        self._ends.pop(fd, None)
        if connection.ends is not None:
            self._ends[fd] = connection.ends

    def closed(self, fd: int) -> None:
        """The connection is no more."""
        self._ends.pop(fd, None)
        self._connections.pop(fd, None)

    def num_received(self) -> int:
        """Bytes that have come over all connections, those that were let in, too."""
        return sum(flow.received for each in self._connections.values() if (flow := each.flow()) is not None)

    def cut(self) -> list[int]:
        """Shut the oldest down, if there are too many. libzmq finds their ends, and closes them."""
        cut = []
        while len(self._ends) > MOST:
            fd = next(iter(self._ends))
            if _shut_down(fd, self._ends.pop(fd)):
                cut.append(fd)
        return cut


def _shut_down(fd: int, ends: Ends) -> bool:
    """Whether `fd` was still the connection with these ends, with nobody at the other one who was let in."""
    copy = copy_of(fd)
    if copy is None:
        return False
    with closing(copy):
        if ends_of(copy) != ends or _num_sent(copy) > GREETING_BYTES:
            return False
        with suppress(OSError):  # the other side was faster
            copy.shutdown(socket.SHUT_RDWR)
        return True


def _num_sent(copy: socket.socket) -> int:
    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_SENT.unpack_from(info, _SENT_OFFSET)[0]) if len(info) >= _SENT_OFFSET + _SENT.size else 0

"""Connections that strangers have opened, and of which nothing has come that only a holder of the key can say.

libzmq tells which descriptor it has accepted, not whose handshake has succeeded. What tells that is how much this side
has sent: whoever connects is sent a greeting, and more only once its first command was right. A descriptor that libzmq
named may be another one by now, so it is looked at, and shut down, through a copy, which pins what it is a copy of.
"""

import os
import socket
import struct
from contextlib import closing, suppress
from typing import Any, Final

MOST: Final = 64
"""At one listening socket; of more the oldest are shut down."""

GREETING_BYTES: Final = 64
_SENT: Final = struct.Struct("<Q")
_SENT_OFFSET: Final = 200  # of tcpi_bytes_sent in struct tcp_info
_INFO_BYTES: Final = 256

_Ends = tuple[Any, Any]


class HalfOpen:
    """Descriptors that were accepted, oldest first; those that were let in are forgotten when there are too many."""

    def __init__(self) -> None:
        self._ends: dict[int, _Ends] = {}

    def accepted(self, fd: int) -> None:
        """Libzmq has accepted a connection, as this descriptor."""
        self._ends.pop(fd, None)
        copy = _copy(fd)
        if copy is not None:
            with closing(copy):
                if (ends := _ends(copy)) is not None:
                    self._ends[fd] = ends

    def closed(self, fd: int) -> None:
        """The connection is no more."""
        self._ends.pop(fd, None)

    def cut(self) -> list[int]:
        """Shut the oldest down, if there are too many. libzmq finds their ends, and closes them."""
        cut = []
        while len(self._ends) > MOST:
            fd = next(iter(self._ends))
            if _shut_down(fd, self._ends.pop(fd)):
                cut.append(fd)
        return cut


def _copy(fd: int) -> socket.socket | None:
    """None: it is closed by now, or is no socket, or there is no room for a copy."""
    try:
        number = os.dup(fd)
    except OSError:
        return None
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        return None


def _ends(copy: socket.socket) -> _Ends | None:
    try:
        return copy.getsockname(), copy.getpeername()
    except OSError:  # the other side has hung up
        return None


def _shut_down(fd: int, ends: _Ends) -> bool:
    """Whether `fd` was still the connection with these ends, with nobody at the other one who was let in."""
    copy = _copy(fd)
    if copy is None:
        return False
    with closing(copy):
        if _ends(copy) != ends or _num_sent(copy) > GREETING_BYTES:
            return False
        with suppress(OSError):  # the other side was faster
            copy.shutdown(socket.SHUT_RDWR)
        return True


def _num_sent(copy: socket.socket) -> int:
    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_SENT.unpack_from(info, _SENT_OFFSET)[0]) if len(info) >= _SENT_OFFSET + _SENT.size else 0

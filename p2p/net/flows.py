"""What the kernel counts of a TCP connection (TCP_INFO): round trips and rates of what is sent anyway."""

import os
import socket
import struct
from contextlib import closing
from typing import Any, Final, NamedTuple

Ends = tuple[Any, Any]
"""Addresses of a connection: here, and there."""

_MIN_RTT: Final = struct.Struct("<I")
_MIN_RTT_OFFSET: Final = 148  # of tcpi_min_rtt in struct tcp_info, in microseconds
_RECEIVED: Final = struct.Struct("<QQ")
_RECEIVED_OFFSET: Final = 120  # of tcpi_bytes_acked and tcpi_bytes_received
_RATE: Final = struct.Struct("<Q")
_RATE_OFFSET: Final = (
    160  # of tcpi_delivery_rate: the last one that the sender did not limit, or the highest that it did
)
_INFO_BYTES: Final = 256
_NO_RTT: Final = 2**32 - 1


def copy_of(fd: int) -> socket.socket | None:
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


def ends_of(copy: socket.socket) -> Ends | None:
    try:
        return copy.getsockname(), copy.getpeername()
    except OSError:  # the other side has hung up
        return None


class Flow(NamedTuple):
    """Of one connection, since it was opened.

    Attributes:
        rtt_us: the shortest round trip of the last minutes; 0: not known.
        bytes_per_s: at which it has delivered lately; of a transfer that had the way to itself, its rate.
        acked, received: bytes that the other side has, and that have come.
    """

    rtt_us: int
    bytes_per_s: int
    acked: int
    received: int


class Connection:
    """A connection of libzmq, by the descriptor that its monitor has named. `ends`: None, if that was none any more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        copy = copy_of(fd)
        self.ends: Ends | None = None
        if copy is not None:
            with closing(copy):
                self.ends = ends_of(copy)

    def flow(self) -> Flow | None:
        """What the kernel has counted; None: it is closed by now."""
        if self.ends is None or (copy := copy_of(self._fd)) is None:
            return None
        with closing(copy):
            return _read(copy) if ends_of(copy) == self.ends else None


def _read(copy: socket.socket) -> Flow | None:
    try:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _RATE_OFFSET + _RATE.size:  # of an old kernel
        return None
    (rtt_us,), (rate,) = _MIN_RTT.unpack_from(info, _MIN_RTT_OFFSET), _RATE.unpack_from(info, _RATE_OFFSET)
    acked, received = _RECEIVED.unpack_from(info, _RECEIVED_OFFSET)
    return Flow(0 if rtt_us == _NO_RTT else rtt_us, rate, acked, received)

"""What the kernel counts of a TCP connection (TCP_INFO): round trips and rates of what is sent anyway."""

import os
import socket
import struct
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

Ends = tuple[Any, Any]
"""Addresses of a connection: here, and there."""

_NUMBER: Final = struct.Struct("<I")
_MSS_OFFSET: Final = 16  # of tcpi_snd_mss in struct tcp_info, in bytes
_RTT_OFFSET: Final = 68  # of tcpi_rtt, in microseconds
_DELIVERED_OFFSET: Final = 192  # of tcpi_delivered, in packets: also of those behind a lost one
_MIN_RTT_OFFSET: Final = 148  # of tcpi_min_rtt, in microseconds
_RECEIVED: Final = struct.Struct("<QQ")
_RECEIVED_OFFSET: Final = 120  # of tcpi_bytes_acked and tcpi_bytes_received
_RATE: Final = struct.Struct("<Q")
_RATE_OFFSET: Final = (
    160  # of tcpi_delivery_rate: the last one that the sender did not limit, or the highest that it did
)
_INFO_BYTES: Final = 256
_NO_RTT: Final = 2**32 - 1

QUEUE_US: Final = 5_000
QUEUE_SHARE: Final = 0.125
"""Packets wait on the way if round trips take so much longer than the shortest, and so large a part of it."""


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
        delivered: about as many as acked, but without waiting for those that were lost before them.
        is_queueing: round trips take longer than they have to.
    """

    rtt_us: int
    bytes_per_s: int
    acked: int
    received: int
    delivered: int
    is_queueing: bool


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
        if (copy := self._copy()) is None:
            return None
        with closing(copy):
            return _read(copy)

    def prefer(self, congestion_control: str) -> None:
        """For what is sent from now on; the kernel's default stays where this one is not there, or not allowed."""
        if (copy := self._copy()) is None:
            return
        with closing(copy), suppress(OSError):
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())

    def _copy(self) -> socket.socket | None:
        """None: the descriptor is closed, or another connection's, by now."""
        if self.ends is None or (copy := copy_of(self._fd)) is None:
            return None
        if ends_of(copy) == self.ends:
            return copy
        copy.close()
        return None


def _read(copy: socket.socket) -> Flow | None:
    try:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _DELIVERED_OFFSET + _NUMBER.size:  # of an old kernel
        return None
    offsets = _MSS_OFFSET, _RTT_OFFSET, _MIN_RTT_OFFSET, _DELIVERED_OFFSET
    mss, rtt_us, least_us, num_delivered = (_NUMBER.unpack_from(info, each)[0] for each in offsets)
    (rate,), (acked, received) = _RATE.unpack_from(info, _RATE_OFFSET), _RECEIVED.unpack_from(info, _RECEIVED_OFFSET)
    is_queueing = least_us != _NO_RTT and rtt_us - least_us > max(QUEUE_US, QUEUE_SHARE * least_us)
    return Flow(0 if least_us == _NO_RTT else least_us, rate, acked, received, num_delivered * mss, is_queueing)

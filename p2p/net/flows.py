"""What the kernel counts of a TCP connection (TCP_INFO): round trips and rates of what is sent anyway."""

import os
import socket
import struct
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

Ends = tuple[Any, Any]
"""Addresses of a connection: here, and there."""

_TCP_INFO: Final = struct.Struct("<16xI48xI48xQQ12xI8xQ24xI")
"""Of struct tcp_info, in its order: tcpi_snd_mss, tcpi_rtt (us), tcpi_bytes_acked and tcpi_bytes_received, tcpi_min_rtt
(us), tcpi_delivery_rate (the last one that the sender did not limit, or the highest that it did), and tcpi_delivered,
in packets: also of those behind a lost one."""
_INFO_BYTES: Final = 256
_ANOTHER: Final = "reno"
"""Every kernel has it, and lets everybody use it."""
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
        self._family = socket.AF_INET
        if copy is not None:
            with closing(copy):
                self.ends, self._family = ends_of(copy), copy.family

    def flow(self) -> Flow | None:
        """What the kernel has counted; None: it is closed by now, or the kernel is old."""
        if self.ends is None:
            return None
        # Read first, then looked whose it is: ends that are still there have been there at the reading, too.
        try:
            borrowed = socket.socket(self._family, socket.SOCK_STREAM, socket.IPPROTO_TCP, self._fd)
        except OSError:
            return None
        try:
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            return _parse(info) if ends_of(borrowed) == self.ends else None
        except OSError:
            return None
        finally:
            borrowed.detach()

    def prefer(self, congestion_control: str) -> None:
        """For what is sent from now on; the kernel's default stays where this one is not there, or not allowed."""
        self._switch("", congestion_control)

    def renew(self, congestion_control: str) -> None:
        """Have it begin anew with what it knows of the way, if this is the one in use.

        BBR sends four packets per round trip, and no more, for 200 ms, when the shortest round trip that it has seen is
        10 s old (PROBE_RTT: Cardwell et al., ACM Queue 14(5), 2016). Who begins anew takes the shortest one of the last
        minutes from the kernel, and the window as it was. It costs some ten system calls.
        """
        self._switch(congestion_control, _ANOTHER, congestion_control)

    def _switch(self, used: str, *names: str) -> None:
        """To these in turn; if `used` is one, only where that is in use now."""
        if self.ends is None or (copy := copy_of(self._fd)) is None:
            return
        option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
        with closing(copy), suppress(OSError):
            if ends_of(copy) != self.ends or used not in ("", copy.getsockopt(*option, 16).rstrip(b"\0").decode()):
                return
            for name in names:
                copy.setsockopt(*option, name.encode())


def _parse(info: bytes) -> Flow | None:
    if len(info) < _TCP_INFO.size:  # of an old kernel
        return None
    mss, rtt_us, acked, received, least_us, rate, num_delivered = _TCP_INFO.unpack_from(info)
    is_queueing = least_us != _NO_RTT and rtt_us - least_us > max(QUEUE_US, QUEUE_SHARE * least_us)
    return Flow(0 if least_us == _NO_RTT else least_us, rate, acked, received, num_delivered * mss, is_queueing)

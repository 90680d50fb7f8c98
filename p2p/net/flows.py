"""The kernel's counters of TCP connections (TCP_INFO): round trips and rates, measured on regular traffic."""

import os
import socket
import struct
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

Ends = tuple[Any, Any]
"""Local and remote address of a connection."""

_TCP_INFO: Final = struct.Struct("<16xI48xI48xQQ12xI8xQ24xI")
"""Fields of struct tcp_info, in its order: tcpi_snd_mss, tcpi_rtt (us), tcpi_bytes_acked and tcpi_bytes_received,
tcpi_min_rtt (us), tcpi_delivery_rate (the last one that was not limited by the sender, or the highest that was), and
tcpi_delivered (in packets, including those received after a lost one)."""
_INFO_BYTES: Final = 256
_ANOTHER: Final = "reno"
"""Available in every kernel, to unprivileged processes too."""
_NO_RTT: Final = 2**32 - 1

QUEUE_US: Final = 5_000
QUEUE_SHARE: Final = 0.125
"""Packets are queueing if round trips exceed the shortest by more than `QUEUE_US` and by more than this fraction of
it."""


def copy_of(fd: int) -> socket.socket | None:
    """A duplicate of `fd`; None: it is closed, or no socket, or no descriptor is left for the duplicate."""
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
    """Counters of one connection since it was opened.

    Attributes:
        rtt_us: the shortest round trip of the last minutes; 0: not known.
        bytes_per_s: recent delivery rate; for a transfer without competing traffic, its rate.
        acked, received: bytes that the other side has acknowledged, and that have arrived here.
        delivered: like `acked`, approximately, but including bytes received after a lost packet.
        is_queueing: round trips are longer than the shortest one, by more than the limits above.
    """

    rtt_us: int
    bytes_per_s: int
    acked: int
    received: int
    delivered: int
    is_queueing: bool


class Connection:
    """A connection of libzmq, by the descriptor that its monitor reported. `ends`: None if that was closed already."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        copy = copy_of(fd)
        self.ends: Ends | None = None
        self._family = socket.AF_INET
        if copy is not None:
            with closing(copy):
                self.ends, self._family = ends_of(copy), copy.family

    def flow(self) -> Flow | None:
        """The kernel's counters; None: the connection is closed, or the kernel is too old."""
        if self.ends is None:
            return None
        # Read first, then compare the ends: if they match now, they matched at the time of reading.
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
        """Use this congestion control from now on; keep the kernel's default if it is unavailable or forbidden."""
        self._switch("", congestion_control)

    def renew(self, congestion_control: str) -> None:
        """Restart this congestion control's path estimate, if it is the one in use.

        BBR sends four packets per round trip, and no more, for 200 ms, when the shortest round trip that it has seen is
        10 s old (PROBE_RTT: Cardwell et al., ACM Queue 14(5), 2016). A restarted BBR takes the shortest round trip of
        the last minutes from the kernel, and keeps its window. Costs about ten system calls.
        """
        self._switch(congestion_control, _ANOTHER, congestion_control)

    def _switch(self, used: str, *names: str) -> None:
        """Set these in turn; if `used` is not empty, only if that one is in use now."""
        if self.ends is None or (copy := copy_of(self._fd)) is None:
            return
        option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
        with closing(copy), suppress(OSError):
            if ends_of(copy) != self.ends or used not in ("", copy.getsockopt(*option, 16).rstrip(b"\0").decode()):
                return
            for name in names:
                copy.setsockopt(*option, name.encode())


def _parse(info: bytes) -> Flow | None:
    if len(info) < _TCP_INFO.size:  # old kernel
        return None
    mss, rtt_us, acked, received, least_us, rate, num_delivered = _TCP_INFO.unpack_from(info)
    is_queueing = least_us != _NO_RTT and rtt_us - least_us > max(QUEUE_US, QUEUE_SHARE * least_us)
    return Flow(0 if least_us == _NO_RTT else least_us, rate, acked, received, num_delivered * mss, is_queueing)

"""Frames at the lab's end of a veth pair (packet(7)), as the kernel holds them before segmentation into packets.

A virtio_net_hdr precedes each frame (`PACKET_VNET_HDR`; virtio 1.2, section 5.1.6). It gives the segment size and the
checksum that is missing, so Python handles up to 64 KB as one frame.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ETH_BYTES: Final = 14
BUFFER_BYTES: Final = 65536 + 256
BURST: Final = 32
"""The most frames that are read from one host before the next host."""

_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_VNET_HDR: Final = 15
_PACKET_QDISC_BYPASS: Final = 20
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_TIMESTAMPNS: Final = 35
_SO_RCVBUFFORCE: Final = 33
_ETH_P_IP: Final = 0x0800
_RECEIVE_BYTES: Final = 64 << 20

_HEADER: Final = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
_STAMP: Final = struct.Struct("=qq")
_ANCILLARY_BYTES: Final = 64
_UDP: Final = 5
_UDP_BYTES: Final = 8
_DESTINATION: Final = slice(_HEADER.size + ETH_BYTES + 16, _HEADER.size + ETH_BYTES + 20)


@dataclass(slots=True)
class Frame:
    """One or several packets.

    Attributes:
        data: the bytes to forward, with the virtio header.
        destination: IPv4 address.
        received_ns: the kernel's timestamp, CLOCK_REALTIME.
        num_bytes: of all its packets, with IP headers.
        num_packets: of the frame after segmentation.
    """

    data: bytes
    destination: bytes
    received_ns: int
    num_bytes: int
    num_packets: int


class Port:
    """The lab's end of the veth pair to one host."""

    def __init__(self, device: str) -> None:
        """Raises OSError."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._buffer = bytearray(BUFFER_BYTES)
        self._num_missed = 0
        for option in (_PACKET_VNET_HDR, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING):
            self._socket.setsockopt(_SOL_PACKET, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)  # up to net.core.rmem_max
        self._socket.bind((device, _ETH_P_IP))

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> Iterator[Frame]:
        """The available frames, at most `BURST`."""
        buffer, receive = self._buffer, self._socket.recvmsg_into
        for _ in range(BURST):
            try:
                size, ancillary, _, _ = receive([buffer], _ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            if size < _DESTINATION.stop:
                continue
            seconds, rest = _STAMP.unpack(ancillary[0][2][:16]) if ancillary else (0, 0)
            num_bytes, num_packets = measure(buffer, size)
            yield Frame(
                bytes(buffer[:size]), bytes(buffer[_DESTINATION]), seconds * 10**9 + rest, num_bytes, num_packets
            )

    def send(self, frame: Frame) -> None:
        """Pass a frame to the host. Raises OSError if the device is gone."""
        self._socket.send(frame.data)

    def num_missed(self) -> int:
        """Number of frames that the kernel dropped because this process did not read them in time."""
        _, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        self._num_missed += dropped
        return self._num_missed


def measure(data: bytearray, size: int) -> tuple[int, int]:
    """Total bytes, with IP headers, and number of the packets of a frame of `size` bytes."""
    _, gso_type, _, gso_size, csum_start, _ = _HEADER.unpack_from(data)
    ip_bytes = size - _HEADER.size - ETH_BYTES
    if not gso_type or not gso_size:
        return ip_bytes, 1
    transport = _HEADER.size + csum_start
    header = csum_start - ETH_BYTES + (_UDP_BYTES if gso_type == _UDP else (data[transport + 12] >> 4) * 4)
    num_packets = max(1, -(-(ip_bytes - header) // gso_size))
    return ip_bytes + (num_packets - 1) * header, num_packets

"""A doorbell of its own for each process: a datagram socket without a file. Stands in for a peer's data link."""

import select
import socket
from collections.abc import Sequence
from contextlib import suppress


class Doorbell:
    """The bell of this process, and the ropes of all others."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")  # the kernel chooses an abstract address
        self._socket.setblocking(False)
        self.address = bytes(self._socket.getsockname()).hex()
        self._addresses: list[bytes] = []
        self.num_rung = 0

    def connect(self, addresses: Sequence[str]) -> None:
        """Know the bells of all, in rank order."""
        self._addresses = [bytes.fromhex(address) for address in addresses]

    def ring(self, rank: int) -> None:
        self.num_rung += 1
        with suppress(BlockingIOError):  # it has rung and was not heard yet
            self._socket.sendto(b"", self._addresses[rank])

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang, within so many seconds or since the last time."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return False
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
        return True

    def close(self) -> None:
        self._socket.close()

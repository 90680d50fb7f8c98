"""A doorbell for each peer, which all peers of this host can ring: it ends the owner's wait for its sockets.

A pipe. Its owner polls it; others open it anew among the descriptors of its process, as they find an arena, by the
number that its owner says. Ringing is one write, a tenth of what a frame
costs, and wakes one thread, not three.
"""

import os
import weakref
from contextlib import suppress

_ENOUGH_BYTES = 4096


class Doorbell:
    """The doorbell of this peer.

    Attributes:
        fd: is readable when it has rung.
        number: by which others find it.
    """

    def __init__(self) -> None:
        """Hang it up.

        Raises:
            OSError: there is no descriptor left.
        """
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.number = os.fstat(self.fd).st_ino

    def clear(self) -> bool:
        """Hear it; whether it had rung."""
        with suppress(BlockingIOError):
            return bool(os.read(self.fd, _ENOUGH_BYTES))
        return False

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)


class RemoteDoorbell:
    """The doorbell of another peer."""

    def __init__(self, fd: int) -> None:
        """`fd` can be written to, and is closed with the last reference, but not by the interpreter's end."""
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False  # which may come before that of the peer

    def ring(self) -> None:
        """Ring. Never waits."""
        with suppress(BlockingIOError):  # it rings already
            os.write(self._fd, b"\0")


def link_of(number: int) -> str:
    """The name in /proc of a descriptor of that doorbell."""
    return f"pipe:[{number}]"

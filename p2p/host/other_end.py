"""Who is at the other end of a Unix socket."""

import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid: `struct ucred` of <sys/socket.h>."""


def process_behind(connection: socket.socket) -> tuple[int, int]:
    """Process and user id of who has connected it, listened there, or made the pair; 0: not to be seen from here."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)

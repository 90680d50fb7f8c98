"""The process at the other end of a Unix socket."""

import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid: `struct ucred` of <sys/socket.h>."""


def process_behind(connection: socket.socket) -> tuple[int, int]:
    """Pid and user id of the process that connected, listened, or created the pair; pid 0: in another pid namespace."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)

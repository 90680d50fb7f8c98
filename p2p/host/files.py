"""The limit of open files of this process. libzmq aborts a process that reaches it."""

import os
import resource
from typing import Final

PER_PEER: Final = 16
"""Descriptors that a peer opens per other peer of its host: sockets, pipes, memory, handles; 13 were counted."""
OF_ITS_OWN: Final = 256

_FEWEST_PER_PEER: Final = 13
_FEWEST_OF_ITS_OWN: Final = 20
_OF_TCP: Final = 16
_FEWEST_LEFT: Final = 8
_MOST_LEFT: Final = 64
"""Upper bound of the reserve that a peer keeps when it opens links, so that libzmq can accept connections."""


def raise_file_limit(num_peers: int) -> str:
    """Raise the soft limit to the hard one; return a warning if `num_peers` need more, else an empty string."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = PER_PEER * num_peers + OF_ITS_OWN
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"at most {hard} files can be open here, and {num_peers} peers may need {needed}: {_advice(needed)}"


def why_too_few_files(num_peers: int, *, has_tcp: bool, num_open: int | None = None) -> str:
    """Why the limit is too low for one of `num_peers` peers of this host to run at all; empty: it suffices.

    Args:
        num_peers: this peer included.
        has_tcp: the peer also listens for other hosts.
        num_open: files already open, without those of the peer; None: counted in this process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(_open_files()) if num_open is None else num_open
    own = _FEWEST_OF_ITS_OWN + _OF_TCP * has_tcp + _FEWEST_LEFT
    needed = num_open + own + _FEWEST_PER_PEER * (num_peers - 1)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"at most {hard} files can be open here, and each of {num_peers} peers needs {needed}: {_advice(needed)}"


def _open_files() -> list[str]:
    """Numbers of the open files, and that of the descriptor with which the folder is read."""
    try:
        return os.listdir("/proc/self/fd")
    except OSError:  # the registry says what is wrong with /proc
        return []


def is_near_fd_limit() -> bool:
    """Whether only the reserve of descriptors is left, so that connections that can wait should not be opened."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return False
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(number)  # the lowest free number; higher ones may be open
    num_open = max(number, sum(int(name) < soft for name in _open_files()) - 1)  # one is that of the folder
    return num_open >= soft - max(_FEWEST_LEFT, min(_MOST_LEFT, soft // 8))


def _advice(needed: int) -> str:
    return f"raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service)"

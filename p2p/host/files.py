"""How many files this process may have open. libzmq ends a process that can open no more."""

import os
import resource
from typing import Final

PER_PEER: Final = 16
"""Sockets, pipes, memory and handles that a peer has for each other one of its host; thirteen were counted."""
OF_ITS_OWN: Final = 256

_FEWEST_PER_PEER: Final = 13
_FEWEST_OF_ITS_OWN: Final = 20
_OF_TCP: Final = 16
_FEWEST_LEFT: Final = 8
_MOST_LEFT: Final = 64
"""That a peer leaves alone when it opens links: others connect to it, and libzmq has to be able to accept them."""


def raise_file_limit(num_peers: int) -> str:
    """Raise the soft limit to the hard one; what is wrong if `num_peers` need more, else empty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = PER_PEER * num_peers + OF_ITS_OWN
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"at most {hard} files can be open here, and {num_peers} peers may need {needed}: {_advice(needed)}"


def why_too_few_files(num_peers: int, *, has_tcp: bool, num_open: int | None = None) -> str:
    """Why one of `num_peers` of this host cannot run, since it may not open what it needs at least; empty: it can.

    Args:
        num_peers: itself among them.
        has_tcp: it listens to other hosts, too.
        num_open: files that it has open by now, without those of the peer; None: this process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(_open_files()) if num_open is None else num_open
    own = _FEWEST_OF_ITS_OWN + _OF_TCP * has_tcp + _FEWEST_LEFT
    needed = num_open + own + _FEWEST_PER_PEER * (num_peers - 1)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"at most {hard} files can be open here, and each of {num_peers} peers needs {needed}: {_advice(needed)}"


def _open_files() -> list[str]:
    """Their numbers, and that of the folder which is read for it."""
    try:
        return os.listdir("/proc/self/fd")
    except OSError:  # the registry says what is wrong with /proc
        return []


def is_nearly_full() -> bool:
    """Whether no more than a reserve of files can be opened, so that what can wait should not be opened."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return False
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(number)  # the least that is free; more may be open behind it
    num_open = max(number, sum(int(name) < soft for name in _open_files()) - 1)  # one is that of the folder
    return num_open >= soft - max(_FEWEST_LEFT, min(_MOST_LEFT, soft // 8))


def _advice(needed: int) -> str:
    return f"raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service)"

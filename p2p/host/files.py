"""How many files this process may have open. libzmq ends a process that can open no more."""

import resource
from typing import Final

PER_PEER: Final = 16
"""Sockets, pipes, memory and handles that a peer has for each other one of its host; twelve were counted."""
OF_ITS_OWN: Final = 256


def raise_file_limit(num_peers: int) -> str:
    """Raise the soft limit to the hard one; what is wrong if `num_peers` need more, else empty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = PER_PEER * num_peers + OF_ITS_OWN
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return (
        f"at most {hard} files can be open here, and {num_peers} peers may need {needed}: "
        f"raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service)"
    )

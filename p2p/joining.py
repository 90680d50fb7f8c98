"""`p2p.join`: this process becomes a peer, with what `shoal run` has set in the environment."""

import atexit
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from .config import PeerConfig
from .peer import Peer


def join(
    *,
    swarm: str | None = None,
    home: str | os.PathLike[str] | None = None,
    min_peers: int | None = None,
    receipts: str | os.PathLike[str] | None = None,
    **timeouts: float,
) -> Peer:
    """Make this process a peer of a swarm, known to the others; `wait_view` gives it a seat.

    What is not given is what `shoal run` has set, or the default. A SIGTERM ends the script with SystemExit, so that
    the peer leaves, unless the script has its own handler.

    Args:
        swarm: name of the swarm.
        home: the registry folder.
        min_peers: step 0 is held until so many take part.
        receipts: folder for receipts and timings.
        timeouts: join_timeout_s, step_timeout_s, leave_timeout_s.

    Raises:
        RegistryError: the registry folder is not private, or its path too long.
    """
    given: dict[str, Any] = {"swarm": swarm, "min_peers": min_peers, **timeouts}
    given |= {name: Path(path) for name, path in (("home", home), ("receipts", receipts)) if path is not None}
    given = {name: value for name, value in given.items() if value is not None}
    peer = Peer(PeerConfig.from_environment(os.environ, **given))
    atexit.register(peer.leave)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    return peer


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

"""`p2p.join`: this process becomes a peer, with what `shoal run` has set in the environment."""

import atexit
import os
import signal
import threading
from collections.abc import Callable
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
    if threading.current_thread() is threading.main_thread():
        _let_leave(peer, signal.SIGTERM, signal.SIG_DFL, lambda: SystemExit(128 + signal.SIGTERM))
        _let_leave(peer, signal.SIGINT, signal.default_int_handler, KeyboardInterrupt)
    return peer


def _let_leave(peer: Peer, number: signal.Signals, default: object, make: Callable[[], BaseException]) -> None:
    """Make a signal end the script with an exception, so that the peer leaves. A handler of the script's own stays."""

    def handler(received: int, frame: FrameType | None) -> None:
        interruption = make()
        if not peer.defer(interruption):
            raise interruption

    if signal.getsignal(number) is default:
        signal.signal(number, handler)

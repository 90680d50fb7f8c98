"""`p2p.join`: this process becomes a peer, with what `shoal run` has set in the environment."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from .config import PeerConfig
from .errors import ShoalError
from .peer import Peer
from .session.stacks import show_on


def join(
    *,
    swarm: str | None = None,
    home: str | os.PathLike[str] | None = None,
    min_peers: int | None = None,
    policy: str | None = None,
    receipts: str | os.PathLike[str] | None = None,
    join_timeout_s: float | None = None,
    step_timeout_s: float | None = None,
    leave_timeout_s: float | None = None,
    arena_bytes: int | None = None,
    rejoin: bool = True,
    seeds: str | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    key: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    network: str | None = None,
) -> Peer:
    """Make this process a peer of a swarm, known to the others; `wait_view` gives it a seat.

    What is not given is what `shoal run` has set, or the default; `PeerConfig` and `TcpOptions` say what it means.
    Unless the script has handlers of its own, SIGTERM and SIGINT end it with an exception, so that the peer leaves, and
    SIGUSR1 prints where each thread is. An error of shoal that nobody catches is printed as one line.

    Raises:
        RegistryError: the registry folder is not private, or its path too long.
        NetworkError, SecurityError: an address cannot be used, or there is no key that keeps strangers out.
    """
    given: dict[str, Any] = {
        "swarm": swarm,
        "home": None if home is None else Path(home),
        "min_peers": min_peers,
        "policy": policy,
        "receipts": None if receipts is None else Path(receipts),
        "join_timeout_s": join_timeout_s,
        "step_timeout_s": step_timeout_s,
        "leave_timeout_s": leave_timeout_s,
        "arena_bytes": arena_bytes,
        "rejoin": rejoin,
        "seeds": seeds,
        "bind": bind,
        "advertise": advertise,
        "key": None if key is None else Path(key),
        "insecure": insecure,
        "network": network,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_error
    peer = Peer(PeerConfig.from_environment(os.environ, **given))
    atexit.register(peer.leave)
    if threading.current_thread() is threading.main_thread():
        _let_leave(peer, signal.SIGTERM, signal.SIG_DFL, lambda: SystemExit(128 + signal.SIGTERM))
        _let_leave(peer, signal.SIGINT, signal.default_int_handler, KeyboardInterrupt)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.__stderr__ is not None:
            show_on(signal.SIGUSR1, sys.__stderr__)
    return peer


class _Handler:
    """Ends the script with an exception, when its peer can be interrupted."""

    def __init__(self, peer: Peer, make: Callable[[], BaseException]) -> None:
        self._peer, self._make = peer, make

    def __call__(self, received: int, frame: FrameType | None) -> None:
        interruption = self._make()
        if not self._peer._defer(interruption):
            raise interruption


def _let_leave(peer: Peer, number: signal.Signals, default: object, make: Callable[[], BaseException]) -> None:
    """Make a signal end the script with an exception, so that the peer leaves. A handler of the script's own stays."""
    before = signal.getsignal(number)
    if before is default or isinstance(before, _Handler):
        signal.signal(number, _Handler(peer, make))


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ShoalError):
        sys.stderr.write(f"shoal: {error}\n")
    else:
        sys.__excepthook__(kind, error, trace)

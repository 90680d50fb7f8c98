"""`p2p.join`: this process becomes a peer, with what `shoal run` has set in the environment."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from .config import PeerConfig
from .errors import ShoalError
from .peer import Peer
from .session.stacks import show_on

DEFAULTS: Final[dict[int, Any]] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""What the interpreter does with the signals at which a peer leaves."""


def join(
    *,
    swarm: str | None = None,
    home: str | os.PathLike[str] | None = None,
    min_peers: int | None = None,
    policy: str | None = None,
    receipts: str | os.PathLike[str] | None = None,
    receipts_full: str | None = None,
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
    """Make this process a peer of a swarm, known to the others; `Peer.wait_view` gives it a seat.

    Whatever is None is what `shoal run` has set in the environment, or the default. Opens the sockets, starts one
    thread and takes 12 MiB of shared memory; waits for nobody.

    Changes what this process does at its end. A peer that has not left does so when the interpreter ends. If the script
    has no `sys.excepthook` of its own, it gets one that prints an error of shoal as one line, without a traceback.
    Called in the main thread, and if the script has no handlers of its own, SIGTERM and SIGINT raise `SystemExit(143)`
    and `KeyboardInterrupt` there, so that the peer leaves, and SIGUSR1 prints where each thread is to stderr. A forked
    child is no peer: there these signals, and the end, do what they do in a process without shoal.

    Args:
        swarm: those who may meet; 1 to 64 letters, digits, `.`, `_` or `-` (SHOAL_SWARM; "default").
        home: the registry folder, private to this user, with a short path (SHOAL_HOME; the user's runtime folder).
        min_peers: step 0 is held until so many peers take part; the founder's value counts (SHOAL_MIN_PEERS; 1).
        policy: who may decide the next view: `live` (more than half of the members, or all that are left, if the others
            are proven dead) or `majority`; the founder's value counts (SHOAL_POLICY; `live`).
        receipts: folder for a receipt per committed step, about 200 bytes and 100 per member, and for timings
            (SHOAL_RECEIPTS; none).
        receipts_full: what to do when they cannot be written any more: `warn`, that is say so once and go on without,
            or `stop`, that is leave, and raise `ShoalError` at the next step (SHOAL_RECEIPTS_FULL; `warn`).
        join_timeout_s: seconds to wait for a seat, and for the first `min_peers` peers (600).
        step_timeout_s: seconds to wait for a step to commit; longer than the slowest member's backward pass (600).
        leave_timeout_s: seconds to wait, when leaving, for the others to agree on a view without this peer (5).
        arena_bytes: at most so many bytes of this peer are read in place by the others of its host; 0: none
            (SHOAL_ARENA; 1 GiB).
        rejoin: whether a peer that trains a model comes back by itself if it was removed, and may be brought back by
            `Peer.wait_view` if it trains none.
        seeds: `host:port,host:port`, the same everywhere: who is called first on other hosts (SHOAL_SEEDS; none).
        bind: `host:port` to listen at for other hosts, and the next port; port 0: any two (SHOAL_BIND; with `seeds`
            any host, port 0).
        advertise: `host` or `host:port` that other hosts are told (SHOAL_ADVERTISE; chosen from `bind` and `seeds`).
        key: file with the swarm key (SHOAL_KEY). Without it there is no TCP, unless `insecure`.
        insecure: TCP without a key, for a network on which everybody is trusted (SHOAL_INSECURE; False).
        network: `lan`, or `wan` for delays of a tenth of a second and more; the same for all (SHOAL_NETWORK; `lan`).

    Returns:
        A peer without a seat. Use it in a `with` block, or call `Peer.leave`.

    Raises:
        ValueError: a number, `policy` or `receipts_full` is out of range.
        RegistryError: the registry folder cannot be used: it is not private, say, or its path too long.
        NetworkError: an address cannot be used.
        SecurityError: there is no key that keeps strangers out.
        ShoalError: receipts cannot be written.
        OSError: a socket of this host cannot be opened.
    """
    given: dict[str, Any] = {
        "swarm": swarm,
        "home": None if home is None else Path(home),
        "min_peers": min_peers,
        "policy": policy,
        "receipts": None if receipts is None else Path(receipts),
        "receipts_full": receipts_full,
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
    atexit.register(peer._end)
    if threading.current_thread() is threading.main_thread():
        _let_leave(peer, signal.SIGTERM, lambda: SystemExit(128 + signal.SIGTERM))
        _let_leave(peer, signal.SIGINT, KeyboardInterrupt)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.__stderr__ is not None:
            show_on(signal.SIGUSR1, sys.__stderr__)
    return peer


class _Handler:
    """Ends the script with an exception, when its peer can be interrupted."""

    def __init__(self, peer: Peer, make: Callable[[], BaseException]) -> None:
        self._peer, self._make, self._pid = peer, make, os.getpid()

    def __call__(self, received: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a handler of the script's own passes it on, in a forked child
            signal.signal(received, DEFAULTS[received])
            signal.raise_signal(received)
            return
        interruption = self._make()
        if not self._peer._defer(interruption):
            raise interruption


def _let_leave(peer: Peer, number: signal.Signals, make: Callable[[], BaseException]) -> None:
    """Make a signal end the script with an exception, so that the peer leaves. A handler of the script's own stays."""
    before = signal.getsignal(number)
    if before is DEFAULTS[number]:
        os.register_at_fork(after_in_child=_forget_handlers)
    if before is DEFAULTS[number] or isinstance(before, _Handler):
        signal.signal(number, _Handler(peer, make))


def _forget_handlers() -> None:
    """In a forked child, which is no peer: its signals do what they do in a process without shoal."""
    for number, default in DEFAULTS.items():
        if isinstance(signal.getsignal(number), _Handler):
            signal.signal(number, default)


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ShoalError):
        sys.stderr.write(f"shoal: {error}\n")
    else:
        sys.__excepthook__(kind, error, trace)

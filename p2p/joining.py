"""`p2p.join`: makes this process a peer, with the settings of `shoal run` in the environment."""

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import current_process, parent_process
from multiprocessing.util import Finalize
from types import FrameType, TracebackType
from typing import Any, Final

from gossip import View

from .config import PeerConfig
from .errors import ShoalError
from .given import setting
from .host.allocator import keep_memory
from .host.files import raise_file_limit, why_too_few_files
from .host.naming import NO_NAME, has_other_hosts, runs_of_script, this_program
from .host.threads import OF_A_PEER, why_no_thread, why_too_few_threads
from .peer import Peer
from .session.reporter import Reporter, listening_launcher
from .session.stacks import show_on_sigusr1

HELD: Final = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
}
"""Signals that are blocked while a peer is created, some 50 ms."""

DEFAULTS: Final[dict[int, Any]] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""The interpreter's handlers of the signals at which a peer leaves."""

IMPORTED_ANEW: Final = (
    "this process is a worker that imports the script anew (start method spawn or forkserver, the default from Python "
    "3.14 on), and would be one more peer: put the training under `if __name__ == '__main__':`"
)

_joined: Final[weakref.WeakKeyDictionary[Peer, int]] = weakref.WeakKeyDictionary()
"""The peers of this process, each with the thread that has joined."""


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
    seeds: str | Sequence[str] | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    key: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    network: str | None = None,
    may_differ: Sequence[str] | None = None,
    mixed: str | None = None,
    on_all_dead: str | None = None,
    slow_peers: str | None = None,
    slow_factor: float | None = None,
) -> Peer:
    """Make this process a peer of a swarm, known to the others; `Peer.wait_view` gives it a seat.

    Prints one line on stderr when this peer has a seat: the swarm that it has founded or joined, and the step; and
    every 5 s what it waits for, unless its launcher does. Raises the soft limit of open files to the hard one.

    Arguments that are None are taken from the environment, as set by `shoal run`, or from the defaults. Opens the
    sockets, starts a thread that drives them, one that reports the status of this peer and, if called in the main
    thread, one that prints stacks on SIGUSR1; takes 12 MiB of shared memory, and does not wait for other peers.

    Changes the exit of this process. A peer that has not left does so when the interpreter ends. If the script has no
    `sys.excepthook` of its own, one is installed that prints an error of shoal as one line, without a traceback. If
    called in the main thread, and the script has no handlers of its own, SIGTERM and SIGINT raise `SystemExit(143)` and
    `KeyboardInterrupt` there, so that the peer leaves, and SIGUSR1 prints the stacks of all threads to stderr. A forked
    child is no peer: its signals and its exit behave as in a process without shoal.

    Args:
        swarm: name of the swarm; 1 to 64 letters, digits, `.`, `_` or `-` (SHOAL_SWARM; the name of the script's file,
            and, without `seeds` and `bind`, 8 digits that stand for its path and arguments).
        home: the registry folder, private to this user, with a short path (SHOAL_HOME; the user's runtime folder).
        min_peers: step 0 waits until this many peers take part; the founder's value counts (SHOAL_MIN_PEERS; 1).
        policy: which members may decide the next view: `live` (more than half, or all survivors, if the others are
            proven dead) or `majority`; the founder's value counts (SHOAL_POLICY; `live`).
        receipts: folder for a receipt per committed step, about 200 bytes and 100 per member, and for the flight
            recorder's records, 64 bytes per record and some five records per step (SHOAL_RECEIPTS; none).
        receipts_full: what to do when they cannot be written any more: `warn`, that is log it once and continue
            without, or `stop`, that is leave, and raise `ShoalError` at the next step (SHOAL_RECEIPTS_FULL; `warn`).
        join_timeout_s: seconds to wait for a seat, and for the first `min_peers` peers (600).
        step_timeout_s: seconds to wait for a step to commit; longer than the slowest member's backward pass (600).
        leave_timeout_s: seconds to wait, when leaving, for the others to agree on a view without this peer (5).
        arena_bytes: the most bytes of this peer that the others of its host read in place; 0: none (SHOAL_ARENA; this
            peer's part of a quarter of the memory that machine and cgroups leave, at least 1 GiB).
        rejoin: whether a removed peer may return: by itself if it trains a model, else through `Peer.wait_view`.
        seeds: `host:port,host:port`, or a list of these, the same everywhere: the peers on other hosts that are called
            first (SHOAL_SEEDS; none).
        bind: `host:port` to listen at for other hosts, and the next port; port 0: any two (SHOAL_BIND; with `seeds`
            any host, port 0).
        advertise: `host` or `host:port` given to other hosts (SHOAL_ADVERTISE; chosen from `bind` and `seeds`).
        key: file with the swarm key, or `env:NAME`, or `fd:N` (SHOAL_KEY). Without one there is no TCP, unless
            `insecure`.
        insecure: TCP without a key, for a network where all hosts are trusted (SHOAL_INSECURE; False).
        network: `lan`, or `wan` for delays of a tenth of a second and more; the same for all (SHOAL_NETWORK; `lan`).
        may_differ: arguments of the script in which this peer may differ from the others, by flag (`lr` for `--lr 0.1`)
            or place (`1`), or `script` (SHOAL_MAY_DIFFER, with commas; none). A peer that differs in others is refused.
        mixed: treatment of peers with another processor, torch or optimizer code, whose updates are rounded
            differently: `resync` (they train together, and each step resynchronises one slice of the replica) or
            `refuse` (peers that differ from the founder are refused); the same for all (SHOAL_MIXED; `resync`).
        on_all_dead: what observers do when all members have died: `stop`, that is raise `RegistryError`, or `restart`:
            the observer with the newest state continues with it, in another lineage, which the others join; steps after
            it are lost (SHOAL_ON_ALL_DEAD; `stop`). Deaths on other hosts are known only through `shoal run`.
        slow_peers: what happens to a member whose own part of a step, from a commit to its last gradient, takes
            `slow_factor` times as long as the others', by the medians of 20 training steps: `name` (the log and
            `status` name it) or `leave` (that, and it raises `TooSlow`, and leaves); the same for all that train a
            model (SHOAL_SLOW_PEERS and SHOAL_SLOW_FACTOR; `name`, 2).
        slow_factor: above 1 (2).

    Returns:
        A peer without a seat. Use it in a `with` block, or call `Peer.leave`.

    Raises:
        TypeError: an argument has another type.
        ValueError: a number, `policy`, `mixed`, `on_all_dead`, `slow_peers` or `receipts_full` is out of range; or no
            `swarm` is given, and there is no script to name it after.
        RegistryError: the registry folder cannot be used: it is not private, say, or its path too long.
        NetworkError: an address cannot be used.
        SecurityError: there is no usable swarm key, or strangers could connect.
        ShoalError: this thread is a peer of this swarm already; receipts cannot be written; or this process may not
            open as many files as a peer needs.
        OSError: a socket of this host cannot be opened.
    """
    given: dict[str, Any] = {
        "swarm": swarm,
        "home": home,
        "min_peers": min_peers,
        "policy": policy,
        "receipts": receipts,
        "receipts_full": receipts_full,
        "join_timeout_s": join_timeout_s,
        "step_timeout_s": step_timeout_s,
        "leave_timeout_s": leave_timeout_s,
        "arena_bytes": arena_bytes,
        "rejoin": rejoin,
        "seeds": seeds,
        "bind": bind,
        "advertise": advertise,
        "key": key,
        "insecure": insecure,
        "network": network,
        "may_differ": may_differ,
        "mixed": mixed,
        "on_all_dead": on_all_dead,
        "slow_peers": slow_peers,
        "slow_factor": slow_factor,
    }
    return join_as({name: setting(name, value) for name, value in given.items() if value is not None})


def join_as(given: dict[str, Any]) -> Peer:
    """As `join`, with any fields of `PeerConfig` and `TcpOptions`, those of tests and benchmarks among them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_error
    if getattr(current_process(), "_inheriting", False):
        raise ShoalError(IMPORTED_ANEW)
    _set_up_log(os.environ.get("SHOAL_LOG", "").upper())
    config = _configure(given)
    _check_is_another(config)
    launcher = listening_launcher(os.environ)
    if (warning := raise_file_limit(config.min_peers)) and launcher is None:
        say(warning)
    if why := why_too_few_files(config.min_peers, has_tcp=False):
        raise ShoalError(f"this peer cannot run: {why}")
    if why := why_too_few_threads(OF_A_PEER):
        raise ShoalError(f"this peer cannot run: {why}")
    keep_memory(os.environ)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # a handler that raises would leave a peer half created
    try:
        peer = Peer(config)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        _set_up(peer, config, launcher)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except BaseException:
        peer.leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    return peer


def _set_up(peer: Peer, config: PeerConfig, launcher: socket.socket | None) -> None:
    """Register the peer in this process, start its reports, and install signal handlers."""
    _joined[peer] = threading.get_ident()
    if peer._session.loop.is_alone:
        _name_other_runs(config)
    peer._session.history.seat_listeners.append(partial(_say_where, peer, config))
    reporter = Reporter(peer._session, config.swarm, launcher, say)
    try:
        reporter.start()
    except RuntimeError as error:
        raise ShoalError(f"this peer cannot run: {why_no_thread()}") from error
    atexit.register(peer._end_at_exit)
    if parent_process() is not None:  # a forked one ends without atexit
        Finalize(None, _end_if_there, (weakref.ref(peer),), exitpriority=0)
    if threading.current_thread() is threading.main_thread():
        _let_leave(peer, signal.SIGTERM, lambda: SystemExit(128 + signal.SIGTERM))
        _let_leave(peer, signal.SIGINT, KeyboardInterrupt)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.__stderr__ is not None:
            show_on_sigusr1(sys.__stderr__)


def _end_if_there(peer: "weakref.ref[Peer]") -> None:
    """Called at the end of a multiprocessing process; a peer that has left may be gone."""
    if (found := peer()) is not None:
        found._end_at_exit()


def _configure(given: dict[str, Any]) -> PeerConfig:
    """Settings of this process, including a name for the swarm."""
    program = this_program()
    if program is not None:
        given |= {"script": program.name, "program": program.traits()}
    if "swarm" not in given and not os.environ.get("SHOAL_SWARM"):
        if program is None:
            raise ValueError(NO_NAME)
        given["swarm"] = program.swarm(one_host=not has_other_hosts(os.environ, given.get("seeds"), given.get("bind")))
    return PeerConfig.from_environment(os.environ, **given)


def _check_is_another(config: PeerConfig) -> None:
    """Raise ShoalError if this thread is a peer of the swarm already: it cannot wait for a seat and run steps, too."""
    for peer, thread in _joined.items():
        session, is_ours = peer._session, thread == threading.get_ident()
        is_same = (peer._config.swarm, peer._config.home) == (config.swarm, config.home)
        if is_ours and is_same and session.membership.unusable is None and not session.callers.is_fork:
            raise ShoalError(
                f"this process is peer {peer.peer_id} of swarm {config.swarm} already: use that one, or let it leave "
                "before the next p2p.join"
            )


def _set_up_log(level: str) -> None:
    """Write this peer's log to stderr, if `shoal run -v` asks for it."""
    logger = logging.getLogger("p2p")
    if level and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("shoal: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def _name_other_runs(config: PeerConfig) -> None:
    """Name other runs of this script: this peer founds a swarm, but its user may have meant one of these."""
    for swarm, number in runs_of_script(config.home, config.script).items() if config.script else ():
        if swarm != config.swarm:
            say(
                f"a run of {config.script} is under way here as swarm {swarm} ({number} peer{'s' * (number > 1)}), "
                f"and this is another one, {config.swarm}; to join that one, with its arguments: "
                f"shoal run --join --swarm {swarm}, or SHOAL_SWARM={swarm}"
            )


def _say_where(peer: Peer, config: PeerConfig, view: View, done: int) -> None:
    has_founded = done <= 0 and view.members[0].peer_id == peer.peer_id
    size = len(view.members)
    members = f"{size} member{'s' if size > 1 else ''}"
    if config.only_founds and done > 0:
        raise ShoalError(
            f"swarm {config.swarm} is under way, at step {done}, and --new only founds: this peer has left; pass "
            "--join, or another --swarm"
        )
    say(f"{'founded' if has_founded else 'joined'} swarm {config.swarm} at step {max(done, 0)}, {members}")


def say(text: str) -> None:
    """Print a line to stderr, unless started by `shoal run -q`."""
    if sys.stderr is not None and not os.environ.get("SHOAL_QUIET"):
        sys.stderr.write(f"shoal: {text}\n")


class _Handler:
    """Signal handler that ends the script with an exception, when its peer can be interrupted."""

    def __init__(self, peer: Peer, make: Callable[[], BaseException]) -> None:
        self._peer, self._make, self._pid = weakref.ref(peer), make, os.getpid()  # if it is gone, it has left

    def __call__(self, received: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # passed on by the script's own handler, in a forked child
            signal.signal(received, DEFAULTS[received])
            signal.raise_signal(received)
            return
        peer, interruption = self._peer(), self._make()
        if peer is None or not peer._defer(interruption):
            raise interruption


def _let_leave(peer: Peer, number: signal.Signals, make: Callable[[], BaseException]) -> None:
    """Have a signal end the script with an exception, so that the peer leaves. The script's own handlers are kept."""
    before = signal.getsignal(number)
    if before is DEFAULTS[number]:
        os.register_at_fork(after_in_child=_forget_handlers)
    if before is DEFAULTS[number] or isinstance(before, _Handler):
        signal.signal(number, _Handler(peer, make))


def _forget_handlers() -> None:
    """In a forked child, which is no peer: restore the default signal handlers."""
    for number, default in DEFAULTS.items():
        if isinstance(signal.getsignal(number), _Handler):
            signal.signal(number, default)


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ShoalError):
        sys.stderr.write(f"shoal: {error}\n")
    else:
        sys.__excepthook__(kind, error, trace)

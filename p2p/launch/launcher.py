"""`shoal run`: starts the peers of one host, passes their output on, and leaves none behind.

The launcher decides nothing for the peers: it hands each of them the same environment, and they find each
other. Each peer is the leader of its own session, so that Ctrl-C in the terminal reaches the launcher only,
which then asks the peers to leave. On Linux the kernel kills the peers if the launcher itself is killed.

One thread, one selector: it wakes up for output, for the end of a peer (SIGCHLD), of which it tells the peers of other
hosts, and for the signals that end the run. Left out: restarting peers, and starting them on other hosts (Slurm,
Kubernetes or Ray do both).
"""

import ctypes
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Final

from p2p.errors import LaunchError
from p2p.host.processes import process_start
from p2p.host.registry import Registry, default_home
from p2p.launch.death_notices import DeathNotices
from p2p.net.tcp import TcpConfig, TcpOptions

READ_BYTES: Final = 1 << 16
LINE_MAX_BYTES: Final = 1 << 20
"""A longer line is passed on in pieces, so that output without line ends does not fill the memory."""

PREFIX_STYLES: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What to start, and how often.

    Attributes:
        policy: `live` or `majority`; None: as for `p2p.join`.
        min_peers: the swarm's first step waits for this many; None: for `num_peers`.
        home: the registry folder; None: `registry.default_home`.
        receipts: folder for the peers' receipts; None: they write none.
        tcp: how other hosts reach the peers; peer i listens at ports 2 i and 2 i + 1 beyond the one in `bind`.
        grace_s: a peer that was asked to leave is killed after this.
    """

    script: Path
    args: tuple[str, ...] = ()
    num_peers: int
    swarm: str = "default"
    home: Path | None = None
    min_peers: int | None = None
    policy: str | None = None
    receipts: Path | None = None
    tcp: TcpOptions = field(default_factory=TcpOptions)
    grace_s: float = 10.0

    def check(self) -> TcpConfig | None:
        """How to reach other hosts, if at all.

        Raises:
            LaunchError: something cannot be started.
            NetworkError, SecurityError: TCP cannot be used.
        """
        if self.num_peers < 1:
            raise LaunchError(f"-n is the number of peers and must be at least 1, got {self.num_peers}")
        if self.min_peers is not None and self.min_peers < 1:
            raise LaunchError(f"--min-peers must be at least 1, got {self.min_peers}")
        if self.policy not in (None, "live", "majority"):
            raise LaunchError(f"--policy must be live or majority, got {self.policy!r}")
        if not self.script.is_file():
            what = "is not a file" if self.script.exists() else "does not exist"
            raise LaunchError(f"the script {self.script} {what}")
        return self.tcp.check(self.swarm)


def peer_environment(config: LaunchConfig, index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of peer `index`: `environ`, and what `p2p.join()` reads."""
    added = {
        "PYTHONUNBUFFERED": "1",
        "SHOAL_LAUNCH_INDEX": str(index),
        "SHOAL_MIN_PEERS": str(config.min_peers or config.num_peers),
        "SHOAL_SWARM": config.swarm,
    }
    if config.policy is not None:
        added["SHOAL_POLICY"] = config.policy
    if config.home is not None:
        added["SHOAL_HOME"] = str(config.home.absolute())
    if config.receipts is not None:
        added["SHOAL_RECEIPTS"] = str(config.receipts.absolute())
    # Left to itself, glibc gives the memory of each large frame back to the system, and faults it in again for the
    # next: a tenth of the time of a 16 MB all-reduce.
    memory = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
    # Left to itself, torch would give every peer a thread on every core.
    num_threads = max(1, num_usable_cores() // config.num_peers)
    return {**memory, "OMP_NUM_THREADS": str(num_threads), **environ, **added, **config.tcp.to_environment(index)}


class LinePrefixer:
    """Turns chunks of bytes into whole lines, each with a prefix, in UTF-8."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The lines that `chunk` completes; b"" if none."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) >= LINE_MAX_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(map(self._finish, lines))

    def close(self) -> bytes:
        """The last line, if it was not ended."""
        rest, self._rest = self._rest, b""
        return self._finish(rest) if rest else b""

    def _finish(self, line: bytes) -> bytes:
        return self._prefix + line.decode(errors="replace").encode() + b"\n"


@dataclass(eq=False, slots=True)
class Stream:
    """One output of one peer, on its way to the descriptor `sink`."""

    source: IO[bytes]
    sink: int
    prefixer: LinePrefixer


@dataclass(eq=False, slots=True)
class RunningPeer:
    index: int
    pid: int
    start: int | None
    process: subprocess.Popen[bytes]
    streams: tuple[Stream, ...]


class Launcher:
    """Runs `config.num_peers` peers to their end: once, and in the main thread, which gets the signals.

    The kernel kills the peers when the thread that started them ends.
    """

    def __init__(self, config: LaunchConfig, *, environ: Mapping[str, str], stdout: int, stderr: int) -> None:
        """Check what can be known to fail before the first peer starts.

        Args:
            config: what to start.
            environ: what the peers inherit; says where the registry is if `config` does not.
            stdout: descriptor for what peers write to theirs.
            stderr: the same, and for what the launcher itself has to say.

        Raises:
            LaunchError, NetworkError, SecurityError: the config asks for what cannot be started.
            RegistryError: no peer could use the registry folder.
        """
        tcp = config.check()
        registry = Registry(config.home or default_home(environ), config.swarm)
        self._death_notices = DeathNotices(registry, tcp, time.monotonic)
        self._config = config
        self._environ = environ
        self._sinks = (stdout, stderr)
        self._selector = selectors.DefaultSelector()
        self._peers: list[RunningPeer] = []
        self._return_codes: list[int] = []
        self._ended_by: int | None = None
        self._kill_at = math.inf

    def run(self) -> int:
        """Start the peers, wait until the last has ended, and return the exit code of the run."""
        with self._selector, signals_to_socket() as wake_up:
            self._selector.register(wake_up, selectors.EVENT_READ)
            try:
                for index in range(self._config.num_peers):
                    self._peers.append(self._start(index))
                while self._peers:
                    self._wait(wake_up)
            finally:
                self._kill_all()
                self._warn(self._death_notices.close())
        return run_exit_code(self._return_codes, self._ended_by)

    def _start(self, index: int) -> RunningPeer:
        try:
            process = subprocess.Popen(
                [sys.executable, str(self._config.script), *self._config.args],
                env=peer_environment(self._config, index, self._environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise LaunchError(f"cannot start peer {index}, so none runs: {error.strerror}") from error
        assert process.stdout is not None and process.stderr is not None, "pipes were asked for"
        streams = []
        for source, sink in zip((process.stdout, process.stderr), self._sinks, strict=True):
            os.set_blocking(source.fileno(), False)
            streams.append(Stream(source, sink, LinePrefixer(prefix(index, sink))))
            self._selector.register(source, selectors.EVENT_READ, streams[-1])
        return RunningPeer(index, process.pid, process_start(process.pid), process, tuple(streams))

    def _wait(self, wake_up: socket.socket) -> None:
        """Sleep until something happens, and deal with it."""
        wake_at = min(self._kill_at, self._death_notices.deadline)
        for key, _ in self._selector.select(None if wake_at == math.inf else max(0.0, wake_at - time.monotonic())):
            if isinstance(key.data, Stream):
                self._pass_on(key.data)
            else:
                for number in wake_up.recv(READ_BYTES):
                    self._receive_signal(number)
        if time.monotonic() >= self._death_notices.deadline:
            self._warn(self._death_notices.look())
        if self._peers and time.monotonic() >= self._kill_at:
            self._say(f"killing {self._names()}, still there after {self._config.grace_s:g} s")
            self._kill_all()

    def _receive_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            for peer in list(self._peers):
                self._reap(peer)
        elif self._ended_by is None:
            self._end(number, signal_name(number))
        elif self._peers:
            self._say(f"{signal_name(number)} again: killing {self._names()}")
            self._kill_all()

    def _end(self, number: int, why: str) -> None:
        """Ask the peers to leave the swarm, as if signal `number` had come."""
        self._ended_by = number
        self._kill_at = time.monotonic() + self._config.grace_s
        self._say(f"{why}: asking {self._names()} to leave")
        for peer in self._peers:
            os.kill(peer.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        for peer in self._peers:
            kill_session(peer.pid)
        for peer in list(self._peers):
            self._reap(peer, killed=True)

    def _reap(self, peer: RunningPeer, *, killed: bool = False) -> None:
        """If `peer` has ended, pass on its last words and say so; wait for its end if it was `killed`."""
        if os.waitid(os.P_PID, peer.pid, os.WEXITED | os.WNOWAIT | (0 if killed else os.WNOHANG)) is None:
            return
        # Helpers, such as DataLoader workers, do not outlive their peer. Only while the peer itself is not
        # reaped can its pid not belong to somebody else.
        kill_session(peer.pid)
        self._warn(self._death_notices.announce(peer.pid, peer.start))
        return_code = peer.process.wait()
        self._peers.remove(peer)
        self._return_codes.append(return_code)
        for stream in peer.streams:
            while self._pass_on(stream):
                pass
            self._close(stream)
        if return_code and self._ended_by is None and not killed:
            how = f"ended with exit code {return_code}"
            if return_code < 0:
                how = f"was killed by {signal_name(-return_code)}"
            self._say(f"peer {peer.index} (pid {peer.pid}) {how}; {len(self._peers) or 'none'} left")

    def _pass_on(self, stream: Stream) -> bool:
        """Pass on one chunk; False if there is none, now or any more."""
        if stream.source.closed:
            return False
        chunk = stream.source.read(READ_BYTES)
        if chunk:
            self._write(stream.sink, stream.prefixer.feed(chunk))
        elif chunk is not None:
            self._close(stream)
        return bool(chunk)

    def _close(self, stream: Stream) -> None:
        if not stream.source.closed:
            self._selector.unregister(stream.source)
            stream.source.close()
            self._write(stream.sink, stream.prefixer.close())

    def _write(self, sink: int, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(sink, rest) :]
        except OSError as error:
            if self._ended_by is None:
                self._end(signal.SIGPIPE, f"the output cannot be written ({error.strerror})")

    def _say(self, text: str) -> None:
        self._write(self._sinks[1], f"shoal: {text}\n".encode())

    def _warn(self, text: str) -> None:
        if text and self._ended_by is None:
            self._say(text)

    def _names(self) -> str:
        return "peer " + ", ".join(str(peer.index) for peer in self._peers)


def run_exit_code(return_codes: Sequence[int], ended_by: int | None) -> int:
    """The exit code of a run whose peers ended with `return_codes` (-N: by signal N), in that order.

    0 if a peer ended with 0 and none with another exit code: that peers are killed is what the others
    survive. Otherwise the first other exit code, or 128 + N for the signal that ended the run or all peers.
    """
    if ended_by is not None:
        return 128 + ended_by
    failures = [code for code in return_codes if code > 0]
    if failures:
        return failures[0]
    return 0 if 0 in return_codes else 128 - return_codes[0]


def num_usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def prefix(index: int, sink: int) -> str:
    """What precedes each line of peer `index`; in colour if `sink` is a terminal that shows it."""
    plain = f"[{index}] "
    if not os.isatty(sink):
        return plain
    # Only here, as most runs write to a file or a pipe.
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True)
    with console.capture() as capture:
        console.print(Text(plain, style=PREFIX_STYLES[index % len(PREFIX_STYLES)]), end="")
    return capture.get()


def kill_session(pid: int) -> None:
    """Kill the peer `pid`, which leads a session, and what it forked."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs between fork and exec, so that the kernel kills it when this thread ends."""
    if sys.platform != "linux":
        return None  # A killed launcher leaves its peers running there; they still train and finish.
    # Looked up before the fork: afterwards the child should do little more than system calls.
    prctl = ctypes.CDLL(None).prctl
    launcher = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)  # it was killed before prctl could tell us

    return prepare


@contextmanager
def signals_to_socket() -> Iterator[socket.socket]:
    """Until the end of `with`, the signals that matter to a launcher arrive as bytes of this socket."""
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup says that it must not matter
        numbers.append(signal.SIGHUP)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers_before = {number: signal.signal(number, ignore) for number in numbers}
        try:
            yield ours
        finally:
            for number, handler in handlers_before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; a signal needs a handler for its byte to be written."""

"""A peer as child process of its launcher: it leads its own session, and ends with its parent."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from typing import IO, Final, Self

from ..errors import LaunchError
from ..host.peercred import process_behind
from ..host.processes import process_start
from ..telemetry.snapshot import MOST_BYTES
from .config import LaunchConfig

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


class Child:
    """A peer that was started, and is not reaped yet.

    Attributes:
        pid: of its process.
        process_start: as in the registry; None: it cannot be read.
        outputs: the pipes of its stdout and stderr; reading them does not block.
    """

    def __init__(self, process: subprocess.Popen[bytes], reports: socket.socket, listener: socket.socket) -> None:
        """`process` has inherited the other end of `reports`; if it closed that, it connects to `listener`."""
        assert process.stdout is not None and process.stderr is not None, "pipes were asked for"
        self.pid = process.pid
        try:
            self.process_start = process_start(process.pid)
        except OSError:  # no file can be opened
            self.process_start = None
        self.outputs: tuple[IO[bytes], IO[bytes]] = process.stdout, process.stderr
        for output in self.outputs:
            os.set_blocking(output.fileno(), False)
        self._reports, self._listener = reports, listener
        self._connection: socket.socket | None = None
        self._later: list[socket.socket] = []
        for each in self.sources:
            each.setblocking(False)
        self._has_inherited = False
        self._process = process

    @classmethod
    def start(
        cls, config: LaunchConfig, index: int, environ: Mapping[str, str], cores: frozenset[int] = frozenset()
    ) -> Self:
        """Start peer `index`, with `environ` as from `peer_environment`, and a socket for its reports.

        `cores`: that the peer is bound to; empty: those of the launcher.

        Raises:
            LaunchError: the system cannot start the process.
        """
        command, name = config.target.command, secrets.token_hex(16)
        try:
            with ExitStack() as on_failure:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                on_failure.enter_context(ours)
                with theirs:
                    listener = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                    listener.bind(f"\0{name}")  # an abstract name: it vanishes with the socket
                    listener.listen(1)
                    number = theirs.fileno()
                    process = subprocess.Popen(
                        command,
                        env={**environ, "SHOAL_REPORT": f"{number}:{os.fstat(number).st_ino}:{name}"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        bufsize=0,
                        start_new_session=True,
                        pass_fds=[number, *config.key_fds],
                        preexec_fn=die_with_parent(cores),
                    )
                on_failure.pop_all()
        except OSError as error:
            raise LaunchError(f"cannot start peer {index}: {command[0]}: {error.strerror}") from error
        except subprocess.SubprocessError as error:  # what runs between fork and exec
            raise LaunchError(f"cannot start peer {index} on cores {sorted(cores)}: {error}") from error
        return cls(process, ours, listener)

    @property
    def sources(self) -> list[socket.socket]:
        """The sockets to `receive_report`, when they are readable."""
        return [self._listener, self._reports, *filter(None, [self._connection]), *self._later]

    def receive_report(self, source: socket.socket, joined: int | None = None) -> bytes | None:
        """The next report from `source`; b"": no more will arrive there; None: there is none now.

        `joined`: the process whose reports were heard so far; None: of none.
        """
        try:
            if source is self._listener:
                self._admit(joined)
                return None
            if source is self._connection and self._has_inherited:  # it is of another process of the script
                return b""
            report = source.recv(MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self._has_inherited = self._has_inherited or (source is self._reports and bool(report))
        return report

    def _admit(self, joined: int | None) -> None:
        """Accept the first connection of our user, unless reports already arrive by the inherited socket.

        Later connections are from other processes that the script started, or from the process that has `joined`, if it
        has left and joined again, or replaced its program (exec), which closes the inherited socket.
        """
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        pid, user = process_behind(connection)
        if user == os.geteuid() and pid == joined:
            self._later.append(connection)
        elif user == os.geteuid() and not self._has_inherited and self._connection is None:
            self._connection = connection
        else:
            connection.close()

    def has_ended(self) -> bool:
        """Whether the process has ended; it is not reaped by this."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def wait(self) -> None:
        """Wait until the process has ended, without reaping it."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def process(self, joined: int | None) -> int:
        """Pid of the process `joined` of the child's session, as long as it runs; else that of the child itself.

        The child may be a wrapper, which goes on after a process that it started has joined, and left.
        """
        with suppress(OSError):
            if joined is not None and os.getsid(joined) == self.pid and process_start(joined) is not None:
                return joined
        return self.pid

    def signal(self, number: int, joined: int | None) -> None:
        """Send a signal to the child, or to the process `joined` of its session that has joined in its place."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.process(joined), number)

    def kill(self) -> None:
        """Kill the peer and what it forked."""
        kill_session(self.pid)

    def reap(self) -> int:
        """Reap the ended process, whose pid may be reused from now on. Returns its code, -N for signal N."""
        for each in self.sources:
            each.close()
        return self._process.wait()


def kill_session(pid: int) -> None:
    """Kill the process `pid`, which leads a session, and what it forked."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reap_orphans(ours: Collection[int]) -> None:
    """Reap all ended children but `ours`. For a container's first process, which inherits the orphans of all others."""
    with suppress(ChildProcessError):  # there is no child at all
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in ours:
            os.waitpid(ended.si_pid, os.WNOHANG)


def die_with_parent(cores: frozenset[int] = frozenset()) -> Callable[[], None]:
    """The function that a child runs between fork and exec, so that the kernel kills it when this thread ends.

    `cores`: that the child is bound to; memory that it touches first is then near these.
    """
    # Looked up before the fork: after it, the child should only make system calls.
    prctl = ctypes.CDLL(None).prctl
    launcher = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)  # the launcher was killed before prctl took effect
        if cores:
            os.sched_setaffinity(0, cores)

    return prepare

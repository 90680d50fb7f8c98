"""The client of the fork server (server.py): starts peers in milliseconds, as forks.

A fork is a separate process, with its own session, environment and output; SIGKILL, SIGSTOP and SIGCONT affect it as
any process. No fork outlives the zygote, or the thread that created the zygote.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..errors import LaunchError
from ..launch.children import die_with_parent
from .program import ImportFailed

IMPORT_S: Final = 120.0
ANSWER_S: Final = 20.0
MAX_BYTES: Final = 1 << 12

WITH_TORCH: Final = ("p2p.joining", "p2p.training", "torch._dynamo")
"""The first optimizer that is created imports `torch._dynamo`."""

NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy starts the threads of its BLAS at import, and a process with several threads cannot be forked."""


class Child:
    """A fork, with the interface of `subprocess.Popen`: pid, poll, wait, send_signal, kill, returncode."""

    def __init__(self, zygote: "Zygote", pid: int, pidfd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._zygote = zygote
        self._pidfd = pidfd

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, -N if signal N killed the process; None while it runs."""
        if self.returncode is None:
            self._zygote.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Block until the process has ended. Raises subprocess.TimeoutExpired; None means `ANSWER_S`."""
        limit_s = ANSWER_S if timeout is None else timeout
        deadline = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", limit_s)
            self._zygote.listen(left_s)
        return code

    def end(self, code: int) -> None:
        """Record the exit code of the reaped process. Called by the zygote."""
        self.returncode = code
        os.close(self._pidfd)
        self._pidfd = -1


class Zygote:
    """Forks processes until the end of `with`. For one thread."""

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str] = WITH_TORCH) -> None:
        """Import `modules` in a process with this environment; takes seconds with torch.

        Libraries read their settings (OMP_NUM_THREADS, PYTHONPATH) here, and not again in a fork.

        Raises:
            ImportFailed: one of the modules cannot be imported.
            LaunchError: the process ended, or is not ready in time.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._children: dict[int, Child] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "p2p.forking.server", str(theirs.fileno()), *modules],
                env={**environ, **NO_THREADS, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        try:
            self._receive(IMPORT_S)
        except BaseException:
            self._process.kill()  # it has no forks yet, and may still import for seconds
            self.close()
            raise

    def start(
        self,
        script: Path,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        *,
        stdin: int | None = None,
        folder: Path | None = None,
    ) -> Child:
        """Run `python script arguments`; see `start_program`."""
        words = (str(script.absolute()), *arguments)
        return self.start_program(words, environ, stdout, stderr, stdin=stdin, folder=folder)

    def start_program(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        *,
        stdin: int | None = None,
        folder: Path | None = None,
        resident_bytes: int = 0,
    ) -> Child:
        """Run `python WORDS`: a script, or `-m` and a module, with arguments.

        Args:
            words: the words after `python`.
            environ: its complete environment.
            stdout: a descriptor, which the caller still has to close.
            stderr: as `stdout`.
            stdin: as `stdout`; None: empty.
            folder: working directory; None: that of this process.
            resident_bytes: additional memory that the process keeps resident.

        Raises:
            LaunchError: the fork server has ended, or does not answer.
        """
        request = {
            "words": list(words),
            "environ": dict(environ),
            "folder": str(folder or Path.cwd()),
            "resident_bytes": resident_bytes,
        }
        with open(os.devnull, "rb") as nothing:
            fds = [nothing.fileno() if stdin is None else stdin, stdout, stderr]
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        known = set(self._children)
        deadline = time.monotonic() + ANSWER_S
        while not (new := self._children.keys() - known):
            self._receive(max(0.0, deadline - time.monotonic()))
        (pid,) = new
        return self._children[pid]

    def listen(self, timeout_s: float) -> None:
        """Process the messages of the server, waiting up to `timeout_s` for the first one."""
        while select.select([self._socket], [], [], timeout_s)[0]:
            self._receive(ANSWER_S)
            timeout_s = 0.0

    def _receive(self, timeout_s: float) -> None:
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, MAX_BYTES, 1)
        except TimeoutError:
            raise LaunchError(f"the fork server (pid {self._process.pid}) said nothing for {timeout_s:g} s") from None
        if not packet:
            raise LaunchError(f"the fork server ended with {self._process.wait(ANSWER_S)}; its stderr says why")
        answer: dict[str, Any] = json.loads(packet)
        if "module" in answer:
            raise ImportFailed(answer["module"], answer["why"])
        if "pid" in answer:
            (pidfd,) = fds
            self._children[answer["pid"]] = Child(self, answer["pid"], pidfd)
        elif "ended" in answer:
            self._children.pop(answer["ended"]).end(answer["code"])

    def close(self) -> None:
        """Kill the forks that still run, and the server."""
        self._socket.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and with it its forks
            self._process.wait()
        for child in self._children.values():
            child.end(-signal.SIGKILL)
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

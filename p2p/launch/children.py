"""A peer as its launcher has it: a child process, which leads a session of its own and ends with its parent."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Final, Self

from ..errors import LaunchError
from ..host.processes import process_start
from .config import LaunchConfig, peer_environment

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


class Child:
    """A peer that was started, and is not reaped yet.

    Attributes:
        index: which one of the run.
        pid: of its process.
        process_start: as in the registry; None: it cannot be read.
        outputs: the pipes that it writes its stdout and stderr to; reading them does not block.
    """

    def __init__(self, index: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None, "pipes were asked for"
        self.index, self.pid, self.process_start = index, process.pid, process_start(process.pid)
        self.outputs: tuple[IO[bytes], IO[bytes]] = process.stdout, process.stderr
        for output in self.outputs:
            os.set_blocking(output.fileno(), False)
        self._process = process

    @classmethod
    def start(cls, config: LaunchConfig, index: int, environ: Mapping[str, str]) -> Self:
        """Start peer `index`, with `environ` and what `config` adds to it.

        Raises:
            LaunchError: the system cannot.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, str(config.script), *config.args],
                env=peer_environment(config, index, environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise LaunchError(f"cannot start peer {index}, so none runs: {error.strerror}") from error
        return cls(index, process)

    def has_ended(self) -> bool:
        """Whether it has; it can still be looked at as a process."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def wait(self) -> None:
        """Until it has ended, as above."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def ask_to_leave(self) -> None:
        """Its swarm, and end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """It, and what it forked."""
        kill_session(self.pid)

    def reap(self) -> int:
        """It has ended: its return code, -N for signal N. From now on its pid may be that of another process."""
        return self._process.wait()


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

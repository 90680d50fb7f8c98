"""Commands that run in the hosts of a lab."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from .messages import Message


class Ask(Protocol):
    """Sends a message with descriptors to a lab and returns the answer; LabError if the answer is an error."""

    def __call__(self, message: Message, descriptors: Sequence[int] = ()) -> Message: ...


class Command:
    """A process in a host, with the interface of `subprocess.Popen`. `pid`: in the pid namespace of its host.

    The descriptor becomes readable when the process has ended.
    """

    def __init__(self, ask: Ask, host: int, pid: int, end: int) -> None:
        self.host = host
        self.pid = pid
        self.returncode: int | None = None
        self._ask = ask
        self._end = end

    def fileno(self) -> int:
        return self._end

    def poll(self) -> int | None:
        """Return the exit code; -N if signal N ended the process, -9 also if its host is gone; None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            said = os.read(self._end, 16)
            self.returncode = int(said) if said else -signal.SIGKILL
            os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Block until the process has ended; return its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"pid {self.pid} of host {self.host}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process and its children, unless it has ended."""
        if self.poll() is None:
            self._ask({"do": "signal", "host": self.host, "pid": self.pid, "signal": number})

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    ask: Ask,
    host: int,
    command: Sequence[str],
    *,
    streams: tuple[int, int, int],
    environ: Mapping[str, str],
    folder: Path,
) -> Command:
    """Start a command in a host; LabError if that fails. `streams`: stdin, stdout, stderr; `environ`: complete."""
    end, theirs = os.pipe2(os.O_CLOEXEC)
    message = {
        "do": "start",
        "host": host,
        "argv": list(command),
        "environ": dict(environ),
        "folder": str(folder.absolute()),
    }
    try:
        pid = ask(message, [*streams, theirs])["pid"]
    except BaseException:
        os.close(end)
        raise
    finally:
        os.close(theirs)
    return Command(ask, host, pid, end)

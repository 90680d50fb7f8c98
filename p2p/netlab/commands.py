"""What runs in hosts."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from .messages import Message


class Ask(Protocol):
    """Sends a message to a lab, with descriptors, and returns its answer; LabError if that is one."""

    def __call__(self, message: Message, descriptors: Sequence[int] = ()) -> Message: ...


class Command:
    """What runs in a host, with what `subprocess.Popen` offers for a process. `pid`: as its host numbers it.

    Its descriptor becomes readable when it has ended.
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
        """The exit code; -N if signal N ended it, -9 also if its host is gone; None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            said = os.read(self._end, 16)
            self.returncode = int(said) if said else -signal.SIGKILL
            os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"pid {self.pid} of host {self.host}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """To it and its children, unless it has ended."""
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
    """Run a command in a host. `streams`: stdin, stdout and stderr; `environ`: all of it. LabError if it cannot be."""
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

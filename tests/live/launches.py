"""Launches of `shoal run`, and their outcomes."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from p2p.forking.zygote import Zygote
from p2p.launch.launcher import NOBODY_JOINED

EXECUTED = "-m", "p2p.cli", "run"
"""The command for tests in which no process may be a fork."""

SHOAL = Path(__file__).with_name("shoal.py")
"""The program that forks run."""

STAY_S = 60.0
"""Timeout for the end of a launcher."""

NOBODY = f"shoal: {NOBODY_JOINED}"
"""Message about scripts that end with 0 without joining; the run ends with 1."""


class ForkedLaunch:
    """A forked launcher (test_zygote.py), which saves half a second of imports; has what tests use of `Popen`."""

    def __init__(
        self,
        zygote: Zygote,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        *,
        program: Path = SHOAL,
    ) -> None:
        """Start `shoal ARGUMENTS`, or another program."""
        with ExitStack() as stack:
            pipes = [os.pipe() for _ in range(3)]
            (stdin, write_end), (out_end, stdout), (err_end, stderr) = pipes
            for fd in (stdin, stdout, stderr):
                stack.callback(os.close, fd)
            self.stdin, self.stdout, self.stderr = os.fdopen(write_end, "w"), os.fdopen(out_end), os.fdopen(err_end)
            self._child = zygote.start(program, arguments, environ, stdout, stderr, stdin=stdin, folder=folder)
        self.pid, self.send_signal, self.kill, self.poll = (
            self._child.pid,
            self._child.send_signal,
            self._child.kill,
            self._child.poll,
        )

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`, with `STAY_S` as default timeout."""
        return self._child.wait(STAY_S if timeout is None else timeout)

    def communicate(self, text: str | None = None) -> tuple[str, str]:
        """Write `text`; returns the rest of stdout and stderr, once all their writers have ended."""
        if not self.stdin.closed:
            self.stdin.write(text or "")
            self.stdin.close()
        streams = self.stdout, self.stderr
        with ThreadPoolExecutor(2) as readers:
            said = list(readers.map(lambda stream: "" if stream.closed else stream.read(), streams))
        for stream in streams:
            stream.close()
        self.wait()
        return said[0], said[1]


Launch = subprocess.Popen[str] | ForkedLaunch
Shoal = Callable[..., Launch]
"""Starts `shoal run ARGUMENTS`; the fixture is in conftest.py."""


def outcome(process: Launch) -> tuple[int, list[str], list[str]]:
    """Exit code and sorted lines of stdout and stderr, once all peers have ended."""
    stdout, stderr = process.communicate()
    return process.wait(), sorted(stdout.splitlines()), sorted(stderr.splitlines())

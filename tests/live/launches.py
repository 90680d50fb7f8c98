"""`shoal run`, and what came of it."""

import subprocess
from collections.abc import Callable

from p2p.launch.launcher import NOBODY_JOINED

Shoal = Callable[..., subprocess.Popen[str]]
"""Starts `shoal run ARGUMENTS`; the fixture is in conftest.py."""


NOBODY = f"shoal: {NOBODY_JOINED}"
"""What is said of scripts that are no peers, and end with 0; the run ends with 1."""


def outcome(process: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    """Exit code and sorted lines of stdout and stderr, once all peers have ended."""
    stdout, stderr = process.communicate()
    return process.returncode, sorted(stdout.splitlines()), sorted(stderr.splitlines())

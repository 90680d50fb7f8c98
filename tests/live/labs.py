"""Helpers for tests on hosts of a network lab."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from p2p.errors import LabError
from p2p.netlab.commands import Command
from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab
from tests.live.swarm import HANG_S, Process

NewLab = Callable[..., NetworkLab]


FOR_WANT_OF: Final = ("cannot make namespaces", "cannot make a host", "the lab needs")
"""Beginnings of errors that are caused by this machine."""


def why_there_is_no_lab() -> str:
    """Why this machine has no lab; empty: it has one, or the lab itself fails."""
    try:
        with NetworkLab(LabConfig.uniform(1)):
            return ""
    except LabError as error:
        return str(error) if str(error).startswith(FOR_WANT_OF) else ""


def program(lab: NetworkLab, host: int, *command: str, folder: Path | None = None, hang_s: float = HANG_S) -> Process:
    """Start a command on a host; `hang_s`: timeout of waits for its lines."""

    def start(stdin: int, stdout: int, stderr: int) -> Command:
        return lab.start(host, command, streams=(stdin, stdout, stderr), folder=folder)

    return Process(start, hang_s)

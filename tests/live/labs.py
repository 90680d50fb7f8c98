"""Hosts of a network lab, as tests use them."""

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
"""How errors begin that are this machine's."""


def why_there_is_no_lab() -> str:
    """Empty, if there is one, or if it is the lab that is wrong."""
    try:
        with NetworkLab(LabConfig.uniform(1)):
            return ""
    except LabError as error:
        return str(error) if str(error).startswith(FOR_WANT_OF) else ""


def program(lab: NetworkLab, host: int, *command: str, folder: Path | None = None, hang_s: float = HANG_S) -> Process:
    """A command in a host, whose lines are listened to, and waited for so long."""

    def start(stdin: int, stdout: int, stderr: int) -> Command:
        return lab.start(host, command, streams=(stdin, stdout, stderr), folder=folder)

    return Process(start, hang_s)

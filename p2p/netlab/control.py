"""The control socket of a running lab, in the abstract namespace (unix(7)): it leaves no file and ends with the lab.

Both sides refuse a process of another user.
"""

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import LabError
from ..host.peercred import process_behind
from .messages import Message, receive, send

SOCKETS: Final = Path("/proc/net/unix")
_NAME: Final = re.compile(r"[\w.-]{1,40}")


def listen(name: str) -> socket.socket:
    """Listen on the control socket of the lab `name`; LabError if that lab is running, or the name is invalid."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is not a name of a lab: use up to 40 letters, digits, dots and dashes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(_address(name))
    except OSError:
        listener.close()
        raise LabError(f"a lab with the name {name} is running: give this one another --name") from None
    listener.listen()
    return listener


def running() -> list[str]:
    """Names of this user's running labs on this host."""
    start = "@" + _address("")[1:]
    words = (line.split()[-1] for line in SOCKETS.read_text().splitlines())
    return sorted({word.removeprefix(start) for word in words if word.startswith(start)})


def ask(name: str, message: Message, descriptors: Sequence[int] = ()) -> Message:
    """Send a message to the lab `name`, or to the only lab if `name` is empty; return the answer.

    Raises:
        LabError: no such lab runs, or several run and `name` is empty; or the answer is an error.
    """
    names = running()
    if not name and len(names) != 1:
        raise LabError(
            f"{len(names)} labs are running: name one with --name ({', '.join(names)})"
            if names
            else "no lab is running"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        try:
            channel.connect(_address(name or names[0]))
            if not is_ours(channel):
                raise LabError(f"the lab {name or names[0]} belongs to another user")
            send(channel, message, descriptors)
            answer, _ = receive(channel)
        except (OSError, EOFError):
            raise LabError(
                f"no lab {name} is running; there {'is' if len(names) == 1 else 'are'}: {', '.join(names) or 'none'}"
            ) from None
    if "error" in answer:
        raise LabError(answer["error"])
    return answer


def is_ours(channel: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    return process_behind(channel)[1] == os.geteuid()


def _address(name: str) -> str:
    return f"\0shoal-lab/{os.getuid()}/{name}"

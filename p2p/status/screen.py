"""Prints the status of swarms, once or repeatedly."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import ShoalError
from ..host.folders import default_home
from .arguments import StatusArguments
from .local import PeerStatus, read_swarms
from .report import for_people, for_programs

if TYPE_CHECKING:
    from ..net.tcp import TcpOptions

EVERY_S: Final = 1.0
MOST_EACH_SECOND: Final = 32
"""With more peers than this, `top` looks less often than once a second, to limit its cost."""
WIDTH: Final = 160
"""Columns of output to a file or a pipe."""

Look = Callable[[], Mapping[str, Sequence[PeerStatus]]]


def run_status(asked: StatusArguments) -> int:
    """Show what is asked for; returns the exit code."""
    try:
        show(asked.home, asked.swarm, None, is_json=asked.is_json, watches=asked.watches)
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports a failed write at exit
        return 1
    return 0


def show(home: Path | None, swarm: str, tcp: "TcpOptions | None", *, is_json: bool, watches: bool) -> None:
    """Show the swarms of this host, or one of them; with `tcp`, the swarm of the peers at its seeds.

    Raises:
        LaunchError: there are no peers.
        NetworkError, SecurityError, RemoteProtocolError: no peer can be asked, or none answers.
    """
    if tcp is None:
        folder = home or default_home(os.environ)
        present(lambda: read_swarms(folder, swarm, time.monotonic_ns), is_json=is_json, watches=watches)
        return
    from .remote import ask

    present(lambda: ask(tcp, swarm, time.monotonic), is_json=is_json, watches=watches)


def present(look_now: Look, *, is_json: bool, watches: bool) -> None:
    """Print what `look_now` finds; `watches`: every second, until Ctrl-C."""
    if is_json:
        _print_json(look_now())
        while watches and _pause():
            _print_json(look_now())
        return
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=WIDTH, color_system=None)
    found = for_people(look_now())
    if not watches:
        console.print(found)
        return
    from rich.live import Live

    with Live(found, console=console, auto_refresh=False, screen=sys.stdout.isatty()) as live:
        while _pause():
            live.update(for_people(look_now()), refresh=True)


def top(home: Path | None, swarm: str) -> None:
    """Show a row per peer, with its last steps, until Ctrl-C; once if stdout is no terminal.

    Raises:
        LaunchError: there are no peers.
    """
    from rich.console import Console
    from rich.live import Live

    from .follow import StatusReader
    from .top import NUM_LATEST, screen

    folder = home or default_home(os.environ)
    follower = StatusReader(folder, swarm, time.monotonic_ns, NUM_LATEST)
    found = follower.read() or read_swarms(folder, swarm, time.monotonic_ns)  # raises, and says why there are no peers
    if not sys.stdout.isatty():
        Console(width=WIDTH, color_system=None).print(screen(found, follower.steps_us()))
        return
    with Live(screen(found, follower.steps_us()), auto_refresh=False, screen=True) as live:
        while _pause(EVERY_S * max(1.0, sum(map(len, found.values())) / MOST_EACH_SECOND)):
            found = follower.read()
            live.update(screen(found, follower.steps_us()), refresh=True)


def _print_json(found: Mapping[str, Sequence[PeerStatus]]) -> None:
    print(json.dumps(for_programs(found), separators=(",", ":"), allow_nan=False), flush=True)


def _pause(seconds: float = EVERY_S) -> bool:
    """Wait for the next look; False after Ctrl-C."""
    try:
        threading.Event().wait(seconds)
    except KeyboardInterrupt:
        return False
    return True

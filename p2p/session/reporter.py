"""Where a peer stands, once a second: for the launcher that has started it, or, while it waits, for people on stderr.

A launcher that listens says so in SHOAL_REPORT: a descriptor of a socket and its inode, since a process that the
script has started may have another file under that number. A report that is not taken in time is dropped.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from gossip import View

from ..host.processes import is_stopped
from ..step.transitions import Stage
from .session import Session

EVERY_S: Final = 1.0
REMIND: Final = 5
"""So many looks after one another that show the same step, and this peer waiting: then it says for whom."""


def listening_launcher(environ: Mapping[str, str]) -> socket.socket | None:
    """The launcher's socket; None: nobody listens."""
    fd, _, inode = environ.get("SHOAL_REPORT", "").partition(":")
    try:
        if os.fstat(int(fd)).st_ino != int(inode):
            return None
        os.set_inheritable(int(fd), False)
        return socket.socket(fileno=os.dup(int(fd)))
    except (ValueError, OSError):
        return None


class Reporter:
    """Of one peer; a thread of its own, from `start` to `stop`."""

    def __init__(
        self, session: Session, swarm: str, launcher: socket.socket | None, say: Callable[[str], None]
    ) -> None:
        """Report nothing yet.

        Args:
            session: read only.
            swarm: its name.
            launcher: is told; None: nobody.
            say: prints a line, if there is no launcher.
        """
        self._session = session
        self._swarm = swarm
        self._launcher = launcher
        self._say = say
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-reporter", daemon=True)
        self._seen: tuple[int, int] = -2, 0

    def start(self) -> None:
        """Begin; also when the peer has a seat, at once."""
        self._session.history.seat_listeners.append(self._seated)
        self._session.history.end_listeners.append(self._stop)
        self._thread.start()

    def _stop(self) -> None:
        self._is_over.set()
        self._send()
        if self._launcher is not None:
            self._launcher.close()

    def _seated(self, view: View, done: int) -> None:
        self._send()

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            done, number = self._seen
            now = self._session.done
            self._seen = now, number + 1 if now == done else 0
            with suppress(RuntimeError, OSError):  # what it reads has changed meanwhile: there is another look
                self._send()
                self._remind(self._seen[1])

    def _remind(self, number: int) -> None:
        if self._launcher is None and number and number % REMIND == 0 and (why := self._waits_for()):
            self._say(f"{why} (for {number * EVERY_S:g} s)")

    def _send(self) -> None:
        if self._launcher is not None:
            text = json.dumps(self._standing()).encode()
            with suppress(OSError):  # it is gone, or stopped and has enough to read
                self._launcher.send(text, socket.MSG_DONTWAIT)

    def _standing(self) -> dict[str, Any]:
        """As the launcher reads it, launch/standing.py."""
        core, history = self._session.loop.core, self._session.history
        view = core.view
        return {
            "pid": os.getpid(),
            "peer_id": self._session.loop.peer_id,
            "swarm": self._swarm,
            "done": history.done,
            "has_begun": history.view is not None,
            "steps": history.num_steps,
            "samples": history.num_samples,
            "view": 0 if view is None else view.number,
            "needed": 0 if view is None else view.founding_size,
            "members": [] if view is None else [[member.peer_id, member.incarnation] for member in view.members],
            "reasons": list(self._session.loop.inbox.explained),
            "waits": self._waits_for(),
        }

    def _waits_for(self) -> str:
        """Whom this peer waits for, in words; empty: it does not."""
        core = self._session.loop.core
        if self._session.history.view is None:
            if core.view is None:
                return f"waits for a seat in swarm {self._swarm}: {core.reason}"
            here, size = core.view.members, core.view.founding_size
            return f"waits for {size - len(here)} of {size} peers; here are {', '.join(map(str, here))}"
        if self._session.loop.open_step.stage in (Stage.CLOSED, Stage.FINISHED):
            why = [self._session.loop.explain(), *self._stopped()]
            return f"waits in step {self._session.done + 1}: {'; '.join(why)}"
        return ""

    def _stopped(self) -> list[str]:
        """Members on this host that do nothing until somebody wakes them, and what to do, in words."""
        view = self._session.loop.core.view
        members = set() if view is None else {member.peer_id for member in view.members}
        here, _ = self._session.loop.resources.registry.read(apart_from=self._session.loop.peer_id)
        return [
            f"peer {entry.peer_id} is stopped (SIGSTOP or Ctrl-Z): `kill -CONT {entry.pid}` wakes it, and after "
            f"`kill -KILL {entry.pid}`, which `shoal run --fence S` does by itself, the others go on without it"
            for entry in here
            if entry.peer_id in members and is_stopped(entry.pid)
        ]

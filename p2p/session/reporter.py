"""Status reports of a peer, once a second: to its page, to its launcher, or, while it waits, to stderr.

A listening launcher sets SHOAL_REPORT: a descriptor of a socket and its inode (a child process of the script may have
another file under that number); and the name of a socket to connect to if the descriptor was closed. A report that is
not received in time is dropped.
"""

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gossip import View

from ..errors import RemovedFromView
from ..host.exiting import lives
from ..host.peercred import process_behind
from ..host.processes import is_stopped, process_start
from ..step.transitions import Stage
from ..step.waiting import awaited
from ..telemetry.snapshot import Change, Counted, Other, Snapshot, Waiting
from ..telemetry.timeline import last_change, pace
from .history import NEVER
from .session import Session
from .status import named

EVERY_S: Final = 1.0
REMIND: Final = 5
"""Number of consecutive reports with the same step, while this peer waits, after which it prints what it waits for."""


def listening_launcher(environ: Mapping[str, str]) -> socket.socket | None:
    """The launcher's socket; None: no launcher listens."""
    inherited, _, name = environ.get("SHOAL_REPORT", "").rpartition(":")
    fd, _, inode = inherited.partition(":")
    try:
        if os.fstat(int(fd)).st_ino == int(inode):
            os.set_inheritable(int(fd), False)
            return socket.socket(fileno=os.dup(int(fd)))
    except (ValueError, OSError):
        pass
    return _connect(name) if name else None


def _connect(name: str) -> socket.socket | None:
    launcher = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher.setblocking(False)
    try:
        launcher.connect(f"\0{name}")
        if process_behind(launcher)[1] == os.geteuid():
            return launcher
    except OSError:  # the launcher is gone, in another network namespace, or listens to another process
        pass
    launcher.close()
    return None


class Reporter:
    """Reporter of one peer; runs in its own thread, from `start` until the history ends."""

    def __init__(
        self, session: Session, swarm: str, launcher: socket.socket | None, say: Callable[[str], None]
    ) -> None:
        """Idle until `start`.

        Args:
            session: read only, except for the loss, which is passed on with the next status.
            swarm: its name.
            launcher: receives reports; None: there is none. This peer leaves when the launcher has died.
            say: prints a line.
        """
        self._session = session
        self._page = session.loop.resources.telemetry_page
        self._swarm = swarm
        self._launcher = launcher
        self._say = say
        self._is_over = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-reporter", daemon=True)
        self._lock = threading.RLock()  # a signal handler may leave in the middle of a report
        self._seen: tuple[int, int] = NEVER, 0
        self._counted_ns = 0
        self._change = Change()
        self._untold: deque[tuple[int, View, Change]] = deque()

    def start(self) -> None:
        """Start reporting; also at once when the peer gets a seat, and when the view changes.

        Raises:
            RuntimeError: no thread can be started; reporting has not begun.
        """
        self._thread.start()
        history = self._session.history
        history.seat_listeners.append(self._seated)
        history.count_listeners.append(self._counted)
        history.listeners.append(self._changed)
        history.end_listeners.append(self._stop)
        self._report()

    def _seated(self, view: View, done: int) -> None:
        self._keep_change(view)
        self._report()

    def _changed(self, view: View) -> None:
        self._keep_change(view)
        self._news.set()

    def _keep_change(self, view: View) -> None:
        """Keep the change to this view until a report: its records are soon overwritten, and another may follow."""
        change = last_change(self._page.latest(), view.number)
        if change is not None and change.view == view.number:  # an observer does not see how views become active
            self._change = change
            self._untold.append((self._page.now(), view, change))

    def _counted(self) -> None:
        self._counted_ns = self._page.now()
        self._news.set()

    def _stop(self) -> None:
        self._is_over = True
        self._news.set()
        self._thread.join(EVERY_S)
        self._report()
        if self._launcher is not None:
            self._launcher.close()

    def _run(self) -> None:
        while not self._is_over:
            is_early = self._news.wait(EVERY_S)
            self._news.clear()
            self._report()
            if not is_early:
                self._remind()

    def _remind(self) -> None:
        done, number = self._seen
        now = self._session.done
        self._seen = now, number + 1 if now == done else 0
        number = self._seen[1]
        if self._launcher is None and number and number % REMIND == 0:
            with suppress(RuntimeError, OSError):
                if why := self._waiting().text:
                    self._say(f"{why} (for {number * EVERY_S:g} s)")

    def _report(self) -> None:
        with self._lock, suppress(RuntimeError, OSError):  # data changed while being read: the next report follows
            snapshot = self._snapshot()
            self._page.show(snapshot)
            self._session.loop.core.set_loss(loss=self._session.logged.values.get("loss", 0.0))
            for earlier in self._earlier(snapshot):
                self._tell(earlier.pack())
            self._tell(self._page.shown)

    def _earlier(self, snapshot: Snapshot) -> list[Snapshot]:
        """A snapshot for each change before the last one that no report has shown."""
        untold = [self._untold.popleft() for _ in range(len(self._untold))]
        return [
            replace(
                snapshot,
                time_ns=at_ns,
                lineage=view.lineage.hex(),
                view=view.number,
                members=_members(view),
                change=change,
            )
            for at_ns, view, change in untold
            if view.number != snapshot.view
        ]

    def _tell(self, report: bytes) -> None:
        if (launcher := self._launcher) is None:
            return
        try:
            launcher.send(report, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the launcher is stopped, and its queue full
            pass
        except OSError:
            pid, _ = process_behind(launcher)
            launcher.close()
            self._launcher = None  # the launcher listens to another process of the script, or has died
            if pid and has_died(pid) and not self._is_over:
                with suppress(OSError):  # the launcher passed on what this peer writes
                    self._say(f"the launcher (process {pid}) has died, so this peer leaves")
                os.kill(os.getpid(), signal.SIGTERM)  # the kernel has killed the launcher's own children

    def _snapshot(self) -> Snapshot:
        loop, history = self._session.loop, self._session.history
        core = loop.core
        view, now_ns = core.view, self._page.now()
        records = self._page.latest()
        change = last_change(records) or self._change
        claims = [claim for claim in core.claims() if claim.member != core.me]
        failure = loop.inbox.failure
        return Snapshot(
            identity=self._page.identity,
            time_ns=now_ns,
            phase=core.phase.name,
            view=0 if view is None else view.number,
            members=() if view is None else _members(view),
            needed=0 if view is None else view.founding_size,
            others=tuple(
                Other(
                    peer_id=claim.member.peer_id,
                    view=claim.status.view_number,
                    step=claim.status.step,
                    steps_per_s=claim.status.steps_per_s,
                    loss=claim.status.loss,
                    address=claim.contact.remote_control,
                )
                for claim in claims
            ),
            step=history.done,
            has_begun=history.view is not None,
            lineage="" if history.view is None else history.view.lineage.hex(),
            reason=core.reason,
            events=tuple(loop.inbox.explained),
            resident_bytes=resident_bytes(),
            num_files=num_files(),
            dropped=loop.dropped_frames,
            slowest="" if history.speeds.slowest is None else named(history.speeds.slowest),
            error=str(failure or self._session.membership.too_slow or ""),
            is_removed=isinstance(failure, RemovedFromView),
            left_cleanly=self._is_over and loop.resources.registry.ends_well,
            waiting=self._waiting(),
            pace=pace(records, now_ns),
            change=change,
            counted=Counted(steps=history.num_steps, samples=history.num_samples, since_ns=self._counted_ns),
            logged=self._session.logged.values,
            links=loop.measuring.shown(),
            home=str(loop.resources.registry.folder.parent),
        )

    def _waiting(self) -> Waiting:
        loop = self._session.loop
        core = loop.core
        if self._session.history.view is None:
            if core.view is None:
                return Waiting(text=f"waits for a seat in swarm {self._swarm}: {core.reason}")
            here, size = core.view.members, core.view.founding_size
            text = f"waits for {size - len(here)} of {size} peers; here are {', '.join(map(str, here))}"
            text = text if len(here) < size else f"waits for the start: {loop.explain()}"
            return Waiting(text=text)
        if loop.open_step.stage not in (Stage.CLOSED, Stage.FINISHED):
            return Waiting()
        members = awaited(core, loop.now())
        text = f"waits in step {self._session.done + 1}: {'; '.join([loop.explain(), *self._stopped()])}"
        return Waiting(text=text, peers=tuple(member.peer_id for member in members if member != core.me))

    def _stopped(self) -> list[str]:
        """Messages for members on this host that are stopped until resumed, and what to do."""
        loop = self._session.loop
        members = set() if loop.core.view is None else {member.peer_id for member in loop.core.view.members}
        here, _ = loop.resources.registry.read(apart_from=loop.peer_id)
        return [
            f"peer {entry.peer_id} is stopped (SIGSTOP or Ctrl-Z): `kill -CONT {entry.pid}` wakes it, and after "
            f"`kill -KILL {entry.pid}`, which `shoal run --fence S` does by itself, the others continue without it"
            for entry in here
            if entry.peer_id in members and is_stopped(entry.pid)
        ]


def _members(view: View) -> tuple[tuple[str, int], ...]:
    return tuple((member.peer_id, member.incarnation) for member in view.members)


def has_died(pid: int) -> bool:
    """Whether process `pid` runs no more code, even if it has not released its resources yet."""
    start = process_start(pid)
    return start is None or not lives(pid, start)


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0: unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:  # no descriptors are left
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def num_files() -> int:
    """Descriptors of this process; 0: unknown."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one is that of the folder
    except OSError:
        return 0

"""The peers of an experiment: processes of a user's script, observed from outside, by their pages and receipts."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from ...errors import ExperimentError, RemoteProtocolError
from ...host.processes import read_offsets
from ...launch.config import LaunchConfig, peer_environment
from ...step.receipts import parse_receipt
from ...telemetry.page import SUFFIX as PAGE
from ...telemetry.records import Kind, unpack_record
from ...telemetry.snapshot import Identity, Snapshot
from ...telemetry.trace import TRACES, Tail, trace_path, write_trace
from ..events import STATE
from ..usage import Usage
from .testbed import Process, Testbed

BATCH: Final = 512
"""Records per write."""
TAIL_BYTES: Final = 1 << 16
END_S: Final = 20.0


@dataclass(slots=True, eq=False)
class PeerProcess:
    """A process that was started.

    Attributes:
        index: in the order of starts.
        host, place: number of the host, and index among the processes started there.
        began_ns: time of the start, by the monotonic clock.
        ended_ns, code: set once the process has ended.
        ended_by_experiment: by this experiment: killed, or asked to leave.
        stopped: currently paused.
        peer: None: the process has not joined.
    """

    index: int
    host: int
    place: int
    process: Process
    log: Path
    began_ns: int
    ended_ns: int = 0
    code: int | None = None
    ended_by_experiment: bool = False
    stopped: bool = False
    peer: "TrackedPeer | None" = None


@dataclass(slots=True, eq=False)
class TrackedPeer:
    """A peer, as its page shows it.

    Attributes:
        pidfd: of its process, which is the started one, or one of its session; -1: it is on another host, or has ended.
        step, commit_ns: the last step that it has committed as a member, -1: none; and when.
        first_ns: when it first committed a step after step 0; 0: never.
        fed_ns: when it was last asked to send its state.
        seated_ns: when it installed a view that seats it, after a time without a seat.
        out: for each removed member, when it installed a view without that member, or was first seen in one.
        members, members_ns: of its view, and when, in the last snapshot.
        raw: records that are not written yet.
        phase: the phase it is in, one of `events.DURING`; empty: none of these.
    """

    tail: Tail
    pidfd: int
    step: int = -1
    commit_ns: int = 0
    first_ns: int = 0
    fed_ns: int = 0
    seated_ns: int = 0
    out: dict[str, int] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    members_ns: int = 0
    raw: list[bytes] = field(default_factory=list)
    phase: str = ""

    @property
    def peer_id(self) -> str:
        return self.tail.identity.peer_id

    def read_records(self) -> None:
        """Read new records from its page."""
        new = self.tail.read()
        self.raw += new
        for record in sorted(map(unpack_record, new), key=attrgetter("time_ns")):
            self.phase = _PHASES.get(record.kind, self.phase)
            if record.kind == Kind.COMMITTED:
                self.step, self.commit_ns = record.step, record.time_ns
                if not self.first_ns and record.step > 0:
                    self.first_ns = record.time_ns
            elif record.kind == Kind.OUT:
                self.out[record.peer_id] = record.time_ns
            elif record.kind == Kind.IN and record.peer_id == self.peer_id:
                self.seated_ns = record.time_ns
            elif record.kind == Kind.GIVES:
                self.fed_ns = record.time_ns

    def compare_members(self, snapshot: Snapshot) -> None:
        """Note who is out of its view: the record of that may have been overwritten before it was read."""
        members = frozenset(peer_id for peer_id, _ in snapshot.members)
        for gone in self.members - members if members else ():
            if self.out.get(gone, 0) <= self.members_ns:
                self.out[gone] = snapshot.time_ns
        self.members, self.members_ns = members or self.members, snapshot.time_ns

    def close(self) -> None:
        """Read the last records, and close all descriptors: the peer has ended."""
        self.read_records()
        self.tail.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


_PHASES: Final[Mapping[int, str]] = {
    Kind.BEGUN: "backward",
    Kind.SUBMITTED: "exchange",
    Kind.FINISHED: "",
    Kind.COMMITTED: "",
    Kind.RECEIVED: "",
    Kind.STATE: STATE,
    Kind.LOADED: "",
}


class Swarm:
    """Peers of one run, in a registry folder of their own.

    Attributes:
        started: all processes that were started.
        losses: (monotonic ns, index of the peer, loss).
        usage: of memory and files, from snapshots.
    """

    def __init__(
        self, config: LaunchConfig, folder: Path, environ: Mapping[str, str], venue: Testbed, loss: str = ""
    ) -> None:
        """A swarm without peers.

        Args:
            config: of all peers, except the home.
            folder: for receipts, traces and output; it exists.
            environ: environment that peers inherit.
            venue: the hosts of the peers.
            loss: pattern, with one group, that finds losses in their output.
        """
        self._config, self._folder, self._environ = config, folder, environ
        self.venue = venue
        self._pattern = re.compile(loss.encode()) if loss else None
        self._offsets: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        self.started: list[PeerProcess] = []
        self._living: list[PeerProcess] = []
        self._ended: list[PeerProcess] = []  # since output was last read
        self._known: set[str] = set()
        self._last = 0, -1  # of the peer that ended last after committing a step: when it ended, and its last step
        self.losses: list[tuple[int, int, float]] = []
        self.usage: list[Usage] = []

    # Actions.

    def start(self, number: int, now_ns: int, *, joins: bool = False) -> list[PeerProcess]:
        """Start peers; `joins`: they only join, and found no swarm."""
        return [self._start_one("join" if joins else "", now_ns) for _ in range(number)]

    def _start_one(self, only: str, now_ns: int) -> PeerProcess:
        """Start a process on the host with the fewest peers."""
        index, numbers = len(self.started), Counter(each.host for each in self.living())
        host = min(
            (host for host in range(len(self.venue.homes)) if host not in self.venue.crashed_hosts),
            key=numbers.__getitem__,
        )
        place = sum(each.host == host for each in self.started)
        config = replace(self._config, only=only, home=self.venue.homes[host], tcp=self.venue.tcp(host))
        log = self._folder / f"peer-{index}.log"
        with log.open("wb") as output:
            environ = peer_environment(config, index, self._environ, place)
            process = self.venue.start(host, config.target.command, environ, output.fileno())
        new = PeerProcess(index, host, place, process, log, now_ns)
        self.started.append(new)
        self._living.append(new)
        return new

    def signal(self, started: PeerProcess, number: int) -> bool:
        """Signal a process that has joined; False: it has not joined, or has ended. A reused pid is never signalled."""
        if started.peer is None or started.code is not None:
            return False
        try:
            self.venue.send_signal(started.process, started.peer.pidfd, number)
        except ProcessLookupError:
            return False
        started.stopped = number == signal.SIGSTOP
        return True

    def ask_to_leave(self) -> None:
        """Ask all running peers to leave; processes that have not joined yet are killed."""
        for each in self.living():
            each.ended_by_experiment = True
            if not self.signal(each, signal.SIGTERM):
                self.venue.kill(each.process)
            if each.stopped:
                self.signal(each, signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all running processes, and those that they forked."""
        for each in self.living():
            each.ended_by_experiment = True
            self.venue.kill(each.process)

    def close(self, now_ns: Callable[[], int]) -> None:
        """Kill all processes, wait for them, and write all records."""
        self.kill_all()
        for each in self.started:
            each.process.wait(END_S)
        self.poll(now_ns())
        for each in self.started:
            if each.peer is not None:
                self._write(each.peer)

    # Observations.

    def living(self) -> list[PeerProcess]:
        return [*self._living]

    def seated(self) -> list[PeerProcess]:
        """Processes that run, are not stopped, and have committed a step as a member."""
        return [each for each in self.living() if not each.stopped and each.peer is not None and each.peer.step >= 0]

    def members(self) -> list[PeerProcess]:
        """Members of the last step, in rank order, by its receipt; includes members that have ended."""
        seen = [each.peer for each in self.started if each.peer is not None and each.peer.step >= 0]
        newest = max(seen, key=lambda peer: peer.commit_ns, default=None)
        if newest is None:
            return []
        path = self._folder / "receipts" / f"{newest.peer_id}.receipts.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        if len(lines) < 2:
            return []
        by_id = {each.peer.peer_id: each for each in self.started if each.peer is not None}
        ids = [entry.peer_id for entry in parse_receipt(json.loads(lines[-2])).contributions]
        return [by_id[peer_id] for peer_id in ids if peer_id in by_id]

    def newest_step(self) -> int:
        """The newest step committed by a running peer, or, if none runs, by the one that ended last; -1: none."""
        steps = [each.peer.step for each in self._living if each.peer is not None and each.peer.step >= 0]
        return max(steps, default=self._last[1])

    def poll(self, now_ns: int) -> None:
        """Read new pages, records and exit codes. The cost grows with running processes, not with ended ones."""
        if any(each.peer is None for each in self._living):
            self._find()
        for each in self.living():
            if each.peer is not None:
                each.peer.read_records()
                if len(each.peer.raw) >= BATCH:
                    self._write(each.peer)
            if (code := each.process.poll()) is not None:
                self._on_exit(each, code, now_ns)

    def _on_exit(self, each: PeerProcess, code: int, now_ns: int) -> None:
        each.code, each.ended_ns = code, now_ns
        self._living.remove(each)
        self._ended.append(each)
        if each.peer is not None:
            each.peer.close()
            if each.peer.step >= 0:
                self._last = max(self._last, (now_ns, each.peer.step))

    def poll_snapshots(self, now_ns: int) -> None:
        """Read losses and usage from output and snapshots since the last call."""
        looked_at, self._ended = [*self._ended, *self._living], []
        for each in looked_at:
            if self._pattern is not None:
                self._read_log(each, now_ns)
            snapshot = each.peer.tail.snapshot() if each.peer is not None and each.code is None else None
            if snapshot is None or snapshot.time_ns == self._shown.get(each.index):
                continue
            self._shown[each.index] = snapshot.time_ns
            assert each.peer is not None
            each.peer.compare_members(snapshot)
            use = snapshot.resident_bytes, snapshot.num_files, len(snapshot.members)
            self.usage.append(Usage(snapshot.time_ns, each.index, *use))
            if self._pattern is None and "loss" in snapshot.logged:
                self.losses.append((snapshot.time_ns, each.index, snapshot.logged["loss"]))

    def _read_log(self, each: PeerProcess, now_ns: int) -> None:
        assert self._pattern is not None
        with each.log.open("rb") as file:
            file.seek(self._offsets.get(each.index, 0))
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._offsets[each.index] = self._offsets.get(each.index, 0) + end
        for match in self._pattern.finditer(text[:end]):
            with suppress(ValueError):
                self.losses.append((now_ns, each.index, float(match.group(1))))

    def _find(self) -> None:
        """Find the pages of processes that were started here; other pages are left alone."""
        for host, home in enumerate(self.venue.homes):
            for path in (home / self._config.swarm_name).glob(f"*{PAGE}"):
                if path.stem in self._known:
                    continue
                try:
                    self._take_page(host, Tail(path))
                except (OSError, RemoteProtocolError):
                    continue  # the page is being created, or its process has ended

    def _take_page(self, host: int, tail: Tail) -> None:
        for each in self.living():
            if each.host == host and each.peer is None and self.venue.owns(each.process, each.place, tail.identity):
                self._check_clocks(tail.identity)
                each.peer = TrackedPeer(tail, self.venue.handle(tail.identity))
                self._known.add(each.peer.peer_id)
                return

    def _check_clocks(self, who: Identity) -> None:
        """ExperimentError: this peer's times are by another clock than those of events."""
        if who.offsets != (own := read_offsets()):
            raise ExperimentError(
                f"process {who.pid} has other clocks than this one, by its time namespace ({who.offsets}; here {own}): "
                "start `shoal experiment` in the time namespace of its peers"
            )

    def _write(self, peer: TrackedPeer) -> None:
        (self._folder / TRACES).mkdir(exist_ok=True)
        write_trace(trace_path(self._folder, peer.peer_id), peer.tail.identity, peer.raw)
        peer.raw = []

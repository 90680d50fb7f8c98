"""Peers that a benchmark starts one by one, kills, and observes through the files they write."""

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from bench.here import environment
from bench.recorded import read_records
from bench.trace import Trace
from p2p.forking.zygote import Child, Zygote
from p2p.launch.children import die_with_parent, kill_session
from p2p.launch.config import LaunchConfig, peer_environment
from p2p.launch.target import Target
from p2p.step.receipts import Receipt, parse_receipt, read_receipts
from p2p.telemetry.page import page_path
from p2p.telemetry.records import Kind, Record
from p2p.telemetry.trace import trace_path

POLL_S: Final = 0.05
START_S: Final = 60.0
LEAVE_S: Final = 20.0
NUM_LAST: Final = 8
"""Log lines of each peer that are shown after a failure."""

STACKS_S: Final = 0.5
"""Time for a hanging process to write its stacks."""

TAIL_BYTES: Final = 1 << 14
"""More than the size of a receipt."""

never = threading.Event()


@dataclass(frozen=True, slots=True, eq=False)
class RunningPeer:
    """A process that prints its peer_id on `stdout`; its stderr goes to `log`."""

    peer_id: str
    process: "subprocess.Popen[bytes] | Child"
    stdout: IO[str]
    log: Path


class Swarm:
    """Peers that run `script`, in a folder that is removed at the end. No peer outlives `with`, or this thread.

    Attributes:
        peers: peers that should be alive.
        leaving: peers that were asked to leave.
        pids: of all peers that ever ran.
    """

    def __init__(
        self, script: Path, num_peers: int, *, arguments: tuple[str, ...] = (), zygote: Zygote | None = None
    ) -> None:
        """Create the folder; `start` starts peers.

        Args:
            script: prints its peer_id once it knows it; on SIGUSR1 it writes its stacks to stderr (`faulthandler`).
            num_peers: step 0 waits for this many peers.
            arguments: of the script.
            zygote: forks the peers; None: each is a plain process, which imports torch for itself.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        self.receipts = self.folder / "receipts"
        self.config = LaunchConfig(
            target=Target.script(script, arguments),
            num_peers=num_peers,
            swarm=f"bench-{secrets.token_hex(4)}",
            home=self.folder,
            receipts=self.receipts,
        )
        self._zygote = zygote
        self._num_started = 0
        self._read: dict[str, tuple[int, int]] = {}
        self.peers: list[RunningPeer] = []
        self.leaving: list[RunningPeer] = []
        self.pids: set[int] = set()

    def start(self, number: int = 1) -> list[RunningPeer]:
        """Start peers, and return them once each has printed its peer_id."""
        started = [introduce(*self._spawn()) for _ in range(number)]
        self.peers += started
        self.pids |= {peer.process.pid for peer in started}
        return started

    def kill(self, *peers: RunningPeer) -> float:
        """Send SIGKILL to all of `peers`; returns the monotonic time right before."""
        self.peers = [peer for peer in self.peers if peer not in peers]
        self.leaving = [peer for peer in self.leaving if peer not in peers]
        before_s = time.monotonic()
        for peer in peers:
            peer.process.kill()
        for peer in peers:
            peer.process.wait(LEAVE_S)
            peer.stdout.close()
        return before_s

    def ask_to_leave(self, *peers: RunningPeer) -> None:
        """Send SIGTERM to `peers`; `wait_left` waits for their end."""
        self.peers = [peer for peer in self.peers if peer not in peers]
        self.leaving += peers
        for peer in peers:
            peer.process.send_signal(signal.SIGTERM)

    def wait_left(self) -> None:
        """Wait until all peers that were asked to leave have ended by SIGTERM.

        Raises:
            RuntimeError: a peer does not end, or ended in another way.
        """
        for peer in self.leaving:
            try:
                code = peer.process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"peer {peer.peer_id} did not leave\n{self.last_words()}") from None
            if code != 128 + signal.SIGTERM:
                raise RuntimeError(f"peer {peer.peer_id} ended with {code} when asked to leave\n{self.last_words()}")
            peer.stdout.close()
        self.leaving = []

    def now(self) -> float:
        """The time by the clock of the peers' records."""
        return time.monotonic()

    # Files of the peers

    def num_receipts(self, peer: RunningPeer) -> int:
        """Number of a peer's receipts. Reads only what is new since the last call, to disturb the peers little."""
        path = self.receipts / f"{peer.peer_id}.receipts.jsonl"
        offset, number = self._read.get(peer.peer_id, (0, 0))
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                added = file.read()
            offset, number = offset + len(added), number + added.count(b"\n")
            self._read[peer.peer_id] = offset, number
        return number

    def wait_for_steps(self, number: int, what: str, peers: Sequence[RunningPeer] | None = None) -> None:
        """Wait until each of `peers` (default: all) has committed `number` more steps."""
        awaited = list(self.peers if peers is None else peers)
        enough = {peer: self.num_receipts(peer) + number for peer in awaited}
        self.wait_until(lambda: all(self.num_receipts(peer) >= enough[peer] for peer in awaited), what)

    def trace(self, peer_id: str) -> Trace:
        """Receipts and records of a peer, dead or alive."""
        receipts = read_receipts(self.receipts / f"{peer_id}.receipts.jsonl")
        return Trace(receipts, self.records(peer_id))

    def records(self, peer_id: str) -> list[Record]:
        """All records of a peer's flight recorder, in the order of time."""
        page = page_path(self.folder / self.config.swarm_name, peer_id)
        return read_records(trace_path(self.receipts, peer_id), page)

    def traces(self) -> dict[str, Trace]:
        """Traces of all peers that wrote receipts, by peer_id."""
        peer_ids = [path.name.partition(".")[0] for path in self.receipts.glob("*.receipts.jsonl")]
        return {peer_id: self.trace(peer_id) for peer_id in peer_ids}

    # Waiting

    def wait_until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Poll `is_so` until it is true.

        Raises:
            RuntimeError: it stays false, or a peer ended that was not killed.
        """
        deadline = time.monotonic() + timeout_s
        while not is_so():
            for peer in self.peers:
                if peer.process.poll() is not None:
                    why = f"peer {peer.peer_id} ended with {peer.process.returncode} before {what}"
                    raise RuntimeError(f"{why}\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not in {timeout_s:g} s: {what}\n{self.last_words()}")
            pause(POLL_S)

    def last_words(self) -> str:
        """Last log lines, last records and current stacks of each peer that should be alive, to diagnose a hang."""
        peers = [peer for peer in (*self.peers, *self.leaving) if peer.process.poll() is None]
        logged = {peer: peer.log.read_text(encoding="utf-8", errors="replace") for peer in peers}
        for peer in peers:
            peer.process.send_signal(signal.SIGUSR1)
        pause(STACKS_S)
        texts = []
        for peer in peers:
            noted = [f"{Kind(each.kind).name} {each}" for each in self.records(peer.peer_id)]
            stacks = peer.log.read_text(encoding="utf-8", errors="replace")[len(logged[peer]) :]
            lines = [*logged[peer].splitlines()[-NUM_LAST:], *noted[-NUM_LAST:], stacks]
            texts += [f"peer {peer.peer_id}, pid {peer.process.pid}:", *lines]
        return "\n".join(texts)

    def stop(self) -> None:
        """Ask all peers to leave, and wait until they have."""
        self.ask_to_leave(*self.peers)
        self.wait_left()

    def _spawn(self) -> tuple["subprocess.Popen[bytes] | Child", IO[str], Path]:
        environ = peer_environment(self.config, self._num_started, environment())
        log = self.folder / f"{self._num_started}.log"
        self._num_started += 1
        source, sink = os.pipe()
        with open(sink, "wb") as stdout, log.open("wb") as stderr:
            if self._zygote is not None:
                outputs = stdout.fileno(), stderr.fileno()
                _, script, *arguments = self.config.target.command
                return self._zygote.start(Path(script), arguments, environ, *outputs), open(source), log
            process = subprocess.Popen(
                self.config.target.command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        return process, open(source), log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in (*self.peers, *self.leaving):
            if peer.process.poll() is None:
                kill_session(peer.process.pid)
                peer.process.kill()
            peer.process.wait(LEAVE_S)
            peer.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def introduce(process: "subprocess.Popen[bytes] | Child", stdout: IO[str], log: Path) -> RunningPeer:
    """Wait until the peer has printed its peer_id."""
    line = stdout.readline().strip() if select.select([stdout], [], [], START_S)[0] else ""
    if not line:
        process.kill()
        code = process.wait(LEAVE_S)
        raise RuntimeError(f"a peer ended with {code} before it joined\n{log.read_text(errors='replace')}")
    return RunningPeer(line, process, stdout, log)


def pause(time_s: float) -> None:
    """Let the peers run for a fixed time, without waiting for an event."""
    never.wait(time_s)


def last_receipt(path: Path) -> Receipt | None:
    """The receipt of the last step that its writer has committed."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().split(b"\n")
    return parse_receipt(json.loads(lines[-2])) if len(lines) > 1 else None

"""The stage of the demo: starts and ends processes, and reads the files that they write."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from p2p.host.entry import Entry, parse_entry
from p2p.host.processes import process_start
from p2p.launch.children import die_with_parent
from p2p.step.receipts import Receipt, read_receipts
from p2p.telemetry.records import Record
from p2p.telemetry.trace import read_trace, trace_path

from .verdict import Run, member_ids

SCRIPT = Path(__file__).parents[1] / "gpt.py"
NUM_PEERS = 4
SWARM = "demo"
KILLED_IN = "peers"
"""The launch whose peer is killed: it ends with 1, and reports that."""
GLOBAL_BATCH = 96
LOOK_EVERY_S = 0.02
LIMIT_S = 240.0
GRACE_S = 15.0
"""Longer than the launcher waits, 10 s, before it kills peers that were asked to leave."""


class DemoFailed(Exception):
    """The demo cannot continue; the text says why."""


class Stage:
    """The peers of one demo; all of them have ended when `with` ends."""

    def __init__(self, home: Path, folder: Path, steps: int, draw: Callable[["Stage"], None]) -> None:
        """Start nothing yet.

        Args:
            home: the registry folder.
            folder: for receipts and output.
            steps: of a run without a kill.
            draw: called after each look at the files.
        """
        self.steps = steps
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self.newest: Receipt | None = None
        self.victim = ""
        self.killed_at_s = 0.0
        self._draw = draw
        self._registry = home / SWARM
        self._receipts = folder / "receipts"
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._environ["SHOAL_HOME"] = str(home)
        self._launches: dict[str, subprocess.Popen[bytes]] = {}
        self._size = 0
        self._never = threading.Event()
        self._end_at_s = time.monotonic() + LIMIT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [process for process in self._launches.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Events

    def start(self, name: str, num_peers: int) -> None:
        """Start `shoal run` in its own session, so that Ctrl-C reaches only the director; output goes to a file."""
        command = [sys.executable, "-m", "p2p.cli", "run", "-n", str(num_peers), "--receipts", str(self._receipts)]
        command += ["--swarm", SWARM, str(SCRIPT), "--steps", str(self.steps), "--global-batch", str(GLOBAL_BATCH)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._launches[name] = subprocess.Popen(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def kill(self, rank: int) -> str:
        """Send SIGKILL to the member of this rank; returns its description."""
        self.victim = self.members[rank]
        pid = self.entries[self.victim].pid
        self.killed_at_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return f"peer {self.victim} (pid {pid})"

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        """Look at the files until something has happened.

        Raises:
            DemoFailed: that took too long, or a launcher ended before.
        """
        while not happened():
            for name, process in self._launches.items():
                if process.poll() is not None:
                    raise DemoFailed(f"{name} ended with exit code {process.returncode} before {what}")
            self._pass_time(what)

    def wait_end(self) -> None:
        """Look at the files until every process has ended."""
        while any(process.poll() is None for process in self._launches.values()):
            self._pass_time("the end of all processes")

    def _pass_time(self, what: str) -> None:
        if time.monotonic() > self._end_at_s:
            raise DemoFailed(f"waited in vain for {what}, {LIMIT_S:g} s after the start, at step {self.done}")
        self._never.wait(LOOK_EVERY_S)
        self._look()
        self._draw(self)

    # Observations

    @property
    def done(self) -> int:
        """The last step that is known to be committed."""
        return -1 if self.newest is None else self.newest.step

    @property
    def members(self) -> list[str]:
        """The members on that step's receipt, in rank order."""
        return [] if self.newest is None else member_ids(self.newest)

    def _look(self) -> None:
        """Read the longest file of receipts, which has the last step, and new registry entries."""
        sizes = {path: path.stat().st_size for path in self._receipts.glob("*.receipts.jsonl")}
        longest = max(sizes, key=sizes.__getitem__, default=None)
        if longest is not None and sizes[longest] > self._size:
            self._size = sizes[longest]
            self.newest = max(read_receipts(longest), key=lambda receipt: receipt.step, default=None)
        for path in self._registry.glob("*.json"):
            if path.stem not in self.entries:
                with suppress(FileNotFoundError):
                    self.entries[path.stem] = parse_entry(path.read_bytes())

    # Results

    def gather(self) -> tuple[Run, dict[str, list[Record]]]:
        """Receipts and records of all peers.

        Raises:
            DemoFailed: they are not of the founders and one joiner.
        """
        names = [path.name.split(".")[0] for path in self._receipts.glob("*.receipts.jsonl")]
        receipts = {name: read_receipts(self._receipts / f"{name}.receipts.jsonl") for name in names}
        records = {name: read_trace(trace_path(self._receipts, name))[1] for name in names}
        founders = {name for own in receipts.values() if own and own[0].step == 0 for name in member_ids(own[0])}
        joiners = sorted(receipts.keys() - founders)
        if len(founders) != NUM_PEERS or len(joiners) != 1:
            raise DemoFailed(f"{len(founders)} peers founded and {len(joiners)} joined, instead of {NUM_PEERS} and 1")
        num_samples = self.steps * GLOBAL_BATCH
        return Run(receipts=receipts, victim=self.victim, joiner=joiners[0], num_samples=num_samples), records

    def leftovers(self) -> tuple[str, ...]:
        """Processes, files and exit codes that should not exist once all peers have ended."""
        failed = {name: p.returncode for name, p in self._launches.items() if p.returncode and name != KILLED_IN}
        codes = [f"{name} ended with exit code {code}" for name, code in failed.items()]
        files = [f"{path.name} is left in the registry" for path in self._registry.glob("*") if path.name != "lock"]
        living = [
            f"peer {entry.peer_id} still runs, as process {entry.pid}"
            for entry in self.entries.values()
            if process_start(entry.pid) == entry.process_start
        ]
        return (*codes, *files, *living)

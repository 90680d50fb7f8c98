"""Peers that a benchmark starts one by one, kills, and watches through the files they write."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from p2p.launch import LaunchConfig, die_with_parent, kill_session, peer_environment

ROOT: Final = Path(__file__).parents[1]
POLL_S: Final = 0.05
LEAVE_S: Final = 20.0
NUM_LAST: Final = 8
"""Lines of each peer that are shown when something goes wrong."""

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

never = threading.Event()


@dataclass(frozen=True, slots=True, eq=False)
class RunningPeer:
    """A process that said its peer_id on stdout; its stderr goes to `log`."""

    peer_id: str
    process: subprocess.Popen[str]
    log: Path


class Swarm:
    """Peers that run `script`, in a folder that is removed at the end. None outlives `with`, or this thread."""

    def __init__(self, script: Path, num_peers: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        self.receipts = self.folder / "receipts"
        self._config = LaunchConfig(
            script=script,
            num_peers=num_peers,
            swarm=f"bench-{secrets.token_hex(4)}",
            home=self.folder,
            receipts=self.receipts,
        )
        self._num_started = 0
        self._read: dict[str, tuple[int, int]] = {}
        self.peers: list[RunningPeer] = []

    def start(self, number: int = 1) -> list[RunningPeer]:
        """Start peers, and return them once each has said who it is."""
        spawned = [self._spawn() for _ in range(number)]
        started = [RunningPeer(first_line(process, log), process, log) for process, log in spawned]
        self.peers += started
        return started

    def kill(self, peer: RunningPeer) -> float:
        """End `peer` with SIGKILL; returns the monotonic time right before."""
        self.peers.remove(peer)
        before_s = time.monotonic()
        peer.process.kill()
        peer.process.wait()
        return before_s

    def num_receipts(self, peer: RunningPeer) -> int:
        """Reads what was added since the last call: whoever watches should not be what is measured."""
        path = self.receipts / f"{peer.peer_id}.receipts.jsonl"
        offset, number = self._read.get(peer.peer_id, (0, 0))
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                added = file.read()
            offset, number = offset + len(added), number + added.count(b"\n")
            self._read[peer.peer_id] = offset, number
        return number

    def wait_until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Ask `is_so` again and again.

        Raises:
            RuntimeError: it stays false, or a peer ended that nobody killed.
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
        """What each living peer logged and noted last, to see why it does not go on."""
        texts = []
        for peer in self.peers:
            noted = (self.receipts / f"{peer.peer_id}.timings.jsonl").read_text(encoding="utf-8").splitlines()
            logged = peer.log.read_text(encoding="utf-8", errors="replace").splitlines()
            texts += [f"peer {peer.peer_id}:", *logged[-NUM_LAST:], *noted[-NUM_LAST:]]
        return "\n".join(texts)

    def stop(self) -> None:
        """Let all peers leave, and wait until they have."""
        for peer in self.peers:
            peer.process.send_signal(signal.SIGTERM)
        for peer in self.peers:
            try:
                peer.process.communicate(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"peer {peer.peer_id} did not leave\n{self.last_words()}") from None
        self.peers = []

    def _spawn(self) -> tuple[subprocess.Popen[str], Path]:
        environ = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        log = self.folder / f"{self._num_started}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(self._config.script)],
                env=peer_environment(self._config, self._num_started, environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._num_started += 1
        return process, log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in self.peers:
            kill_session(peer.process.pid)
            peer.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


def first_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a peer ended with {process.wait()} before it joined\n{log.read_text(errors='replace')}")
    return line


def pause(time_s: float) -> None:
    """Let the peers run for a while; nothing is waited for."""
    never.wait(time_s)

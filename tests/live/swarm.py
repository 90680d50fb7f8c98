"""Private swarms of real processes: starts peers, reads their output, and checks the files that they leave behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from p2p.forking.zygote import Child, Zygote
from p2p.netlab.commands import Command
from p2p.telemetry.records import Kind, Record
from p2p.telemetry.trace import read_trace, trace_path
from tests.live.launches import ForkedLaunch

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH: Final = ("p2p.joining",)
"""Imports of a zygote whose forks train no model."""

HANG_S = 20.0
"""Timeout of waits without any new output: a longer one is a hang."""

LONGEST_S = 50.0
"""Timeout of waits with other output: tests make no assertions about the machine's speed."""

OF_SPEED = re.compile(
    r"peer [0-9a-f]{16} is the slowest: |shoal: waits .* \(for \d+ s\)$|"
    r"\d+ of \d+ members of view \d+ can be heard, not "
)
"""Messages of a peer on a machine with other load."""

STREAM = """
import select, sys
import numpy as np
import p2p

def command():
    ready, _, _ = select.select([sys.stdin], [], [], 0.002)
    return sys.stdin.readline().strip() if ready else ""

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_view_change(lambda view: print("view of", len(view.members)))
    peer.wait_view()
    word, num_dropped = "", 0
    wish = np.zeros(2, np.int64)
    while not wish[0] and word != "leave":
        if peer.last_step % 2:  # the same choice on every peer, joiners too
            wish = np.array([word == "stop", 1], np.int64)
            peer.all_reduce(wish)
            assert wish[1] == peer.world_size
        else:
            large = np.full(300_000, peer.last_step, np.float32)
            peer.all_reduce(large, algorithm="ring")
            assert (large == peer.world_size * (peer.last_step - 1)).all(), (peer.last_step, large)
        print("step", peer.last_step, peer.rank, peer.world_size)
        if peer.status()["dropped_frames"].get("invalid", 0) != num_dropped:
            num_dropped = peer.status()["dropped_frames"]["invalid"]
            print("dropped", num_dropped)
        word = word or command()
"""
"""Small and large sums in turn, each checked, until a peer gets the word `stop`. A peer that gets `leave` leaves."""


class Process:
    """A child, and every line that it has printed so far."""

    def __init__(
        self, start: Callable[[int, int, int], subprocess.Popen[bytes] | Child | Command], hang_s: float = HANG_S
    ) -> None:
        """`start` starts the child with descriptors for stdin, stdout and stderr; `hang_s`: as `HANG_S`."""
        self._hang_s = hang_s
        (stdin, told), (printed, stdout), (complained, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._child = start(stdin, stdout, stderr)
        finally:
            for theirs in (stdin, stdout, stderr):
                os.close(theirs)
        self.pid = self._child.pid
        self._stdin = os.fdopen(told, "w", buffering=1)
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._news = threading.Condition()
        self._num_open = 2
        pairs = ((os.fdopen(printed), self.stdout), (os.fdopen(complained), self.stderr))
        self._listeners = [threading.Thread(target=self._listen, args=pair, daemon=True) for pair in pairs]
        for listener in self._listeners:
            listener.start()

    def _listen(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()
        pipe.close()
        with self._news:
            self._num_open -= 1
            self._news.notify_all()

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`, or the output has ended, or the time is up."""
        end_s = time.monotonic() + max(LONGEST_S, self._hang_s)
        while (left_s := end_s - time.monotonic()) > 0:
            num_lines = len(self.stdout) + len(self.stderr)
            has_news = partial(self._has_news, is_so, num_lines)
            if not self._news.wait_for(has_news, timeout=min(self._hang_s, left_s)) or is_so() or not self._num_open:
                return

    def _has_news(self, is_so: Callable[[], bool], num_lines: int) -> bool:
        return is_so() or not self._num_open or len(self.stdout) + len(self.stderr) > num_lines

    def complaints(self) -> list[str]:
        """Lines of stderr, except messages about slow, silent or waiting peers, which other load can cause."""
        return [line for line in self.stderr if not OF_SPEED.match(line)]

    def expect(self, start: str) -> str:
        """Block until a line of stdout starts with `start`; returns the first such line."""

        def found() -> str | None:
            return next((line for line in self.stdout if line.startswith(start)), None)

        with self._news:
            self._wait_for(lambda: found() is not None)
            line = found()
        assert line is not None, f"no line {start!r} came\n{self.report()}"
        return line

    def expect_line(self, pattern: str, after: str = "", *, is_error: bool = False) -> str:
        """Block until a line of stdout, or stderr, matches fully, after the first line `after`; returns the first."""
        output = self.stderr if is_error else self.stdout

        def found() -> str | None:
            start = output.index(after) + 1 if after in output else 0
            lines = output[start:] if start or not after else []
            return next((line for line in lines if re.fullmatch(pattern, line)), None)

        with self._news:
            self._wait_for(lambda: found() is not None)
            line = found()
        assert line is not None, f"no line like {pattern!r} came\n{self.report()}"
        return line

    def expect_step(self, step: int) -> None:
        """Block until the script has printed `step N` with an N of at least `step`."""
        assert self.reaches(step), f"step {step} did not come\n{self.report()}"

    def reaches(self, step: int) -> bool:
        """Block until the script has printed such a step, or prints nothing more; returns whether it has."""

        def is_there() -> bool:
            words = next((line.split() for line in reversed(self.stdout) if line.startswith("step ")), None)
            return words is not None and int(words[1]) >= step

        with self._news:
            self._wait_for(is_there)
            return is_there()

    def tell(self, word: str) -> None:
        """Write one line to the script's stdin."""
        self._stdin.write(word + "\n")

    def send_signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, unless the child has ended."""
        self._child.kill()

    def end(self) -> int:
        """Block until the child has ended; returns its exit code, -N if signal N killed it."""
        with self._news:
            self._wait_for(lambda: False)
        try:
            code = self._child.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.report()}") from None
        for listener in self._listeners:
            listener.join(HANG_S)
        self._stdin.close()
        return code

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def report(self) -> str:
        """The last lines of output."""
        return "\n".join([f"-- pid {self.pid}, code {self._child.poll()}", *self.stdout[-10:], *self.stderr[-120:]])


class Swarm:
    """Peers that meet in one registry folder."""

    def __init__(self, home: Path, folder: Path, zygote: Zygote) -> None:
        """Create a swarm without peers.

        Args:
            home: with a short path, since a socket's path has at most 107 bytes.
            folder: for scripts and receipts.
            zygote: forks the peers, which saves seconds of imports; they are ordinary processes (test_zygote.py).
        """
        self.home = home
        self._zygote = zygote
        self.policy = "live"
        self.prefix: tuple[str, ...] = ()
        """Prefix of each command, for example to enter a namespace; such peers are not forks."""
        self.environ: dict[str, str] = {}
        """Environment of peers that are started from now on."""
        self.leaves_files = False
        """Whether the last peer is killed, so that no peer cleans up."""
        self.receipts = folder / "receipts"
        self._folder = folder
        self.started: list[Process] = []
        """All started processes."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OMP_"))}
        self._environ = {
            **clean,
            "SHOAL_HOME": str(home),
            "SHOAL_RECEIPTS": str(self.receipts),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SHOAL_QUIET": "1",  # so that stderr is empty unless there are errors
            "SHOAL_MAY_DIFFER": "script,1,2,3,4,5",  # tests may give peers different tasks
        }

    def start(self, script: str, *arguments: str, min_peers: int = 1, name: str = "default") -> Process:
        """Start one peer that runs the source `script`."""
        environ = {"SHOAL_MIN_PEERS": str(min_peers), "SHOAL_SWARM": name, "SHOAL_POLICY": self.policy}
        path = self._write(script)
        if self.prefix:
            return self._execute([str(path), *arguments], environ)
        return self._fork(path, arguments, environ)

    def start_all(self, count: int, script: str, *arguments: str) -> list[Process]:
        """Start `count` peers, the first of which founds the swarm and is rank 0; step 0 waits for all."""
        peers = [self.start(script, *arguments, min_peers=count)]
        peers[0].expect("here")
        peers += [self.start(script, *arguments, min_peers=count) for _ in range(count - 1)]
        return peers

    def launch(self, count: int, script: str, *arguments: str, options: Sequence[str] = ()) -> Process:
        """Start `shoal run -n count`, with further `options`; `arguments` are the script's."""
        command = ["-m", "p2p.cli", "run", "-n", str(count), *options, str(self._write(script)), *arguments]
        return self._execute(command, {"SHOAL_SWARM": "default"})

    def ask(self, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `shoal ARGUMENTS`, on this registry folder or another."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        environ = {**clean, "SHOAL_HOME": str(home or self.home), "PYTHONPATH": str(ROOT)}
        asked = ForkedLaunch(self._zygote, arguments, environ, self._folder)
        stdout, stderr = asked.communicate()
        return subprocess.CompletedProcess(arguments, asked.wait(), stdout, stderr)

    def _write(self, script: str) -> Path:
        path = self._folder / f"script{len(self.started)}.py"
        path.write_text(script)
        return path

    def _fork(self, script: Path, arguments: Sequence[str], environ: dict[str, str]) -> Process:
        whole = self._environ | self.environ | environ

        def start(stdin: int, stdout: int, stderr: int) -> Child:
            return self._zygote.start(script, arguments, whole, stdout, stderr, stdin=stdin, folder=self._folder)

        return self._keep(Process(start))

    def _execute(self, arguments: Sequence[str], environ: dict[str, str]) -> Process:
        command = [*self.prefix, sys.executable, *arguments]
        whole = self._environ | self.environ | environ

        def start(stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, cwd=self._folder, env=whole, stdin=stdin, stdout=stdout, stderr=stderr)

        return self._keep(Process(start))

    def _keep(self, process: Process) -> Process:
        self.started.append(process)
        return process

    # Files left behind

    def receipt_files(self) -> dict[str, bytes]:
        """The complete lines of each peer's receipts, by peer_id."""
        files = {path.name.split(".")[0]: path.read_bytes() for path in self.receipts.glob("*.receipts.jsonl")}
        return {peer_id: content[: content.rfind(b"\n") + 1] for peer_id, content in files.items()}

    def records(self, peer: Process, kind: Kind) -> list[Record]:
        """Records of this kind in the trace of `peer`, which has left."""
        _, records = read_trace(trace_path(self.receipts, name(peer)))
        return [record for record in records if record.kind == kind]

    def left_behind(self) -> list[str]:
        """Files in the registry, other than locks."""
        return sorted(str(path) for path in self.home.rglob("*") if path.is_file() or path.is_socket())

    def close(self) -> None:
        """Kill all peers that still run; raise AssertionError if there were any, or if files are left."""
        running = [process for process in self.started if not process.has_ended()]
        reports = [process.report() for process in self.started if running]  # also of those that ended too early
        for process in running:
            process.kill()
        for process in self.started:
            process.end()
        assert not running, "\n".join(["still running at the end of the test", *reports])
        left = [path for path in self.left_behind() if not path.endswith("/lock")]
        assert self.leaves_files or not left, f"left behind: {left}"


def name(peer: Process) -> str:
    """The peer_id that the script has printed after `here`."""
    return peer.expect("here").split()[1]


def stop(peers: Sequence[Process]) -> None:
    """End a stream, and check that all members of its last step end with 0."""
    peers[0].tell("stop")
    for peer in peers:
        assert peer.end() == 0, peer.report()

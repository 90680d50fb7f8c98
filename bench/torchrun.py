"""Cost of a kill with torchrun, which restarts all workers from their last checkpoint (bench.elastic --against)."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.here import ONE_THREAD, ROOT
from p2p.launch.children import die_with_parent, kill_session

SCRIPT: Final = ROOT / "bench" / "ddp_training.py"
POLL_S: Final = 0.05
START_S: Final = 120.0
STAY_S: Final = 20.0
MOST_RESTARTS: Final = 1000
"""A kill may cause several restarts: restarted workers may fail to find each other, and fail again."""
never = threading.Event()


class Done(NamedTuple):
    """A step that a worker has completed."""

    rank: int
    step: int
    time_ns: int
    digest: str


Workers = Mapping[int, Sequence[Done]]
"""Completed steps of each worker, by pid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Cost of a kill.

    Attributes:
        resume_ms: until all workers had completed a step that none had completed before; less the median step.
        again_ms: until all had completed any step; less the median step.
        steps_lost: steps that all had completed before the kill, and that were repeated.
        replicas_equal: whether all had the same parameters after each step, before and after.
    """

    peers: int
    resume_ms: float
    again_ms: float
    step_ms: float
    steps_lost: int
    replicas_equal: bool


def kill_workers(
    num_peers: int, number: int, every: int, seed: int, advance: Callable[[], None]
) -> tuple[list[Restart], str]:
    """Kill random workers at random moments, `number` times; `every`: steps between checkpoints.

    Returns:
        The cost of each kill; and why there were fewer kills: the workers did not continue after one.
    """
    rng, found = random.Random(seed), list[Restart]()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_peers}"]
        command += [f"--max-restarts={MOST_RESTARTS}", str(SCRIPT), name, str(every)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **ONE_THREAD},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        try:
            before = frozenset(wait_for(folder, process, num_peers, frozenset(), every))
            known = before
            for _ in range(number):
                never.wait(rng.uniform(0.1, 0.6))
                time_ns = kill(rng.choice(sorted(before)), name)
                try:
                    after = wait_for(folder, process, num_peers, known, 2 * every)
                except RuntimeError as error:
                    return found, f"after kill {len(found) + 1} of {num_peers} workers: {error}"
                found.append(cost(time_ns, read(folder, before), after))
                before = frozenset(after)
                known |= before
                advance()
        finally:
            end(process, folder)
    return found, ""


def kill(pid: int, folder: str) -> int:
    """Send SIGKILL to a worker that trains in this folder; returns the monotonic time right before.

    Raises:
        OSError: the worker has ended.
    """
    pidfd = os.pidfd_open(pid)
    try:
        if os.fsencode(folder) not in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise ProcessLookupError(pid)
        time_ns = time.monotonic_ns()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return time_ns
    finally:
        os.close(pidfd)


def end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """End torchrun with all its workers."""
    process.terminate()
    try:
        process.wait(STAY_S)
    finally:
        kill_session(process.pid)
        process.wait()
        for pid in read(folder):
            with suppress(OSError):
                kill(pid, str(folder))


def read(folder: Path, pids: frozenset[int] | None = None) -> dict[int, list[Done]]:
    """Completed steps of these workers, or of all."""
    found: dict[int, list[Done]] = {}
    for path in folder.glob("*.steps"):
        pid = int(path.stem)
        if pids is None or pid in pids:
            lines = path.read_text().splitlines(keepends=True)
            words = (line.split() for line in lines if line.endswith("\n"))
            found[pid] = [Done(int(rank), int(step), int(time_ns), digest) for rank, step, time_ns, digest in words]
    return found


def wait_for(
    folder: Path, process: "subprocess.Popen[bytes]", num_peers: int, known: frozenset[int], steps: int
) -> dict[int, list[Done]]:
    """Wait for `num_peers` workers that are not `known`, until each has completed `steps` steps; returns their steps.

    Raises:
        RuntimeError: that takes too long, or torchrun has ended.
    """
    until_s = time.monotonic() + START_S
    while True:
        new = {pid: done for pid, done in read(folder).items() if pid not in known and len(done) >= steps}
        if len(new) == num_peers:
            return new
        if process.poll() is not None or time.monotonic() > until_s:
            said = (folder / "log").read_text(errors="replace").splitlines()[-8:]
            raise RuntimeError("\n".join([f"the workers of torchrun do not go on within {START_S:g} s", *said]))
        never.wait(POLL_S)


def cost(time_ns: int, before: Workers, after: Workers) -> Restart:
    """Cost of one kill. `after`: steps of the workers that were started after it. Pure."""
    step_ns = median(
        later.time_ns - earlier.time_ns
        for done in (*before.values(), *after.values())
        for earlier, later in pairwise(done)
    )
    last = min(max((each.step for each in done if each.time_ns <= time_ns), default=0) for done in before.values())
    first = max(done[0].step for done in after.values())
    again_ns = max(next(each.time_ns for each in done if each.step == first) for done in after.values())
    new_ns = max(next(each.time_ns for each in done if each.step > last) for done in after.values())
    digests: dict[tuple[int, int], set[str]] = {}
    for generation, workers in enumerate((before, after)):
        for done in workers.values():
            for each in done:
                digests.setdefault((generation, each.step), set()).add(each.digest)
    return Restart(
        peers=len(after),
        resume_ms=round((new_ns - time_ns - step_ns) / 1e6, 1),
        again_ms=round((again_ns - time_ns - step_ns) / 1e6, 1),
        step_ms=round(step_ns / 1e6, 2),
        steps_lost=max(0, last - first + 1),
        replicas_equal=all(len(each) == 1 for each in digests.values()),
    )

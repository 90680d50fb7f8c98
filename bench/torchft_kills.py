"""What a kill costs where torchft goes on with those who are left (bench.elastic --against torchft).

Each worker is a replica group of one process, which commits a step with whoever is there. What a kill costs is mostly
how long the lighthouse goes without a heartbeat before it counts a replica out: 5 s, if nothing else is said. Whoever
was killed is replaced when the others have gone on.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from bench.here import ONE_THREAD, ROOT
from bench.torchrun import POLL_S, START_S, Restart, Workers, kill, never, read
from p2p.launch.children import die_with_parent

SCRIPT: Final = ROOT / "bench" / "torchft_training.py"
SEVERAL: Final = 20
"""Steps of each, before a kill and after it."""

Process = subprocess.Popen[str]


def why_not(against: str) -> str:
    """Why nothing can be compared with it here; empty: it can."""
    if against == "hivemind":
        return (
            "--against hivemind is not built: its optimizer averages when a target of samples is reached, in no steps"
        )
    if against == "torchft" and find_spec("torchft") is None:
        return "--against torchft needs torchft, which is not installed: pip install torchft-nightly"
    return ""


def kill_replicas(
    num_peers: int, number: int, heartbeat_ms: int, seed: int, advance: Callable[[], None]
) -> tuple[list[Restart], str]:
    """Kill a random worker again and again, at random moments; without a heartbeat for so long it counts as gone.

    Returns:
        What each kill has cost; and why it was not done more often: the others did not go on after one.
    """
    rng, found = random.Random(seed), list[Restart]()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name, ExitStack() as stack:
        folder = Path(name)
        lighthouse = stack.enter_context(started("--lighthouse", str(heartbeat_ms), folder=folder))
        assert lighthouse.stdout is not None
        address = lighthouse.stdout.readline().strip()
        living = {each.pid: each for each in (_worker(stack, folder, address) for _ in range(num_peers))}
        try:
            wait_for(folder, living, 0)
            for _ in range(number):
                never.wait(rng.uniform(0.1, 0.6))
                victim = rng.choice(sorted(living))
                time_ns = kill(victim, name)
                living.pop(victim).wait()
                wait_for(folder, living, time_ns)
                found.append(cost(time_ns, read(folder), sorted(living)))
                new = _worker(stack, folder, address)
                living[new.pid] = new
                wait_for(folder, living, time.monotonic_ns())
                advance()
        except RuntimeError as error:
            return found, f"after kill {len(found) + 1} of {num_peers} workers: {error}"
    return found, ""


def _worker(stack: ExitStack, folder: Path, address: str) -> Process:
    return stack.enter_context(started(str(folder), address, folder=folder))


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[Process]:
    """A worker, or the lighthouse; killed at the end."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=die_with_parent(),
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(folder: Path, living: dict[int, Process], since_ns: int) -> None:
    """Return when each of them has committed several steps since then.

    Raises:
        RuntimeError: that takes too long, or one has ended.
    """
    until_s = time.monotonic() + START_S
    while True:
        done = read(folder, frozenset(living))
        if all(sum(each.time_ns > since_ns for each in done.get(pid, ())) >= SEVERAL for pid in living):
            return
        if time.monotonic() > until_s or any(each.poll() is not None for each in living.values()):
            said = (folder / "log").read_text(errors="replace").splitlines()[-8:]
            raise RuntimeError("\n".join([f"the workers of torchft do not go on within {START_S:g} s", *said]))
        never.wait(POLL_S)


def cost(time_ns: int, done: Workers, survivors: Sequence[int]) -> Restart:
    """Of one kill: until the longest wait of each survivor since is over. Pure.

    A step under way may still commit with what the victim has sent, so the next one may come before that.
    """
    of_each = [done[pid] for pid in survivors]
    step_ns = median(
        later.time_ns - earlier.time_ns
        for steps in of_each
        for earlier, later in pairwise(steps)
        if later.time_ns <= time_ns
    )
    ends = []
    for steps in of_each:
        waits = [(later.time_ns - earlier.time_ns, later.time_ns) for earlier, later in pairwise(steps)]
        ends.append(max(wait for wait in waits if wait[1] > time_ns)[1])
    resume_ms = round((max(ends) - time_ns - step_ns) / 1e6, 1)
    digests: dict[int, set[str]] = {}
    for steps in done.values():
        for each in steps:
            digests.setdefault(each.step, set()).add(each.digest)
    return Restart(
        peers=len(survivors) + 1,
        resume_ms=resume_ms,
        again_ms=resume_ms,
        step_ms=round(step_ns / 1e6, 2),
        steps_lost=max(len(steps) - len({each.step for each in steps}) for steps in of_each),
        replicas_equal=all(len(each) == 1 for each in digests.values()),
    )

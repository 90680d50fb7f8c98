"""Cost of a kill with torchft, which continues with the survivors (bench.elastic --against torchft).

Each worker is a replica group of one process, which commits a step with the available replicas. The cost is mostly the
lighthouse's heartbeat timeout, 5 s by default. A killed worker is replaced after the others have continued.
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
"""Steps of each worker before and after a kill."""

Process = subprocess.Popen[str]


def why_not(against: str) -> str:
    """Why a comparison with `against` is not possible here; empty: it is."""
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
    """Kill random workers at random moments, `number` times; `heartbeat_ms`: timeout of a heartbeat.

    Returns:
        The cost of each kill; and why there were fewer kills: the others did not continue after one.
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
    """Start a worker or the lighthouse; killed at the end."""
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
    """Wait until each worker has committed several steps after `since_ns`.

    Raises:
        RuntimeError: that takes too long, or a worker has ended.
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
    """Cost of one kill: until the longest wait of each survivor after it is over. Pure.

    A step in progress may still commit with data that the victim has sent, so the first commit after the kill may come
    before the wait.
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

"""One rank of `shoal bench all-reduce`: measures, verifies, and writes what it found into a folder.

    python worker.py FOLDER PLAN

The contenders take turns within every iteration, in the order and then back, so that whatever else the machine does
meets all of them. Before each turn they wait for each other, in their own way; only the sum itself is timed. Every
result is verified, untimed: the values are small integers, so the sum has to be exact.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from p2p.benchmark.contenders import SHOAL, TIMEOUT, Array, Contender, Gloo
from p2p.benchmark.plan import CURVE, ITEM_BYTES, OTHER_HOSTS, OWN_SWARM, Plan
from p2p.benchmark.result import Measurement
from p2p.errors import ShoalError
from p2p.joining import join
from p2p.peer import Peer

REPORT_S: Final = 0.25
"""RunProgress is reported this often: reports must not be what is measured."""

VALUES: Final = 251
SHIFTS: Final = 61
"""Both prime, so that ranks, positions and turns never fall into step."""


def main(folder: Path, plan: Plan, index: int) -> None:
    """Measure as number `index` of the peers."""
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        contenders: list[Contender] = []
        for name in plan.algorithms:
            way = name.partition("@")[2]
            swarm = way if way in OWN_SWARM else ""
            if swarm not in peers:
                peers[swarm] = enter(stack, folder, index, swarm)
            contenders.append(SHOAL[way](peers[swarm], name, plan.num_peers))
        if plan.baseline == Gloo.name:
            contenders.append(stack.enter_context(Gloo(folder / "gloo", index, plan.num_peers)))
        progress = RunProgress(len(plan.sizes_bytes) * plan.num_rounds, is_shown=index == 0)
        found = [m for size in plan.sizes_bytes for m in measure(plan, contenders, size, index, progress)]
        (folder / f"{index}.json").write_text(json.dumps([asdict(measurement) for measurement in found]))


def enter(stack: ExitStack, folder: Path, index: int, way: str) -> Peer:
    """Take a seat among peers that share memory, or in a swarm of its own where none do, or each seems another host."""
    given: dict[str, Any] = {}
    if way:
        given = {"swarm": f"{os.environ['SHOAL_SWARM']}-{way}", "arena_bytes": 0}
    if way in OTHER_HOSTS:
        seed = (folder / f"{way}.seed").read_text()
        given |= {"home": folder / f"host{index}", "seeds": seed, "bind": "127.0.0.1:0" if index else seed}
        given |= {"key": folder / "swarm.key"} if way == CURVE else {"insecure": True}
    timeout_s = TIMEOUT.total_seconds()
    peer = stack.enter_context(join(**given, join_timeout_s=timeout_s, step_timeout_s=timeout_s))
    peer.wait_view()
    return peer


def measure(
    plan: Plan, contenders: Sequence[Contender], size_bytes: int, index: int, progress: "RunProgress"
) -> list[Measurement]:
    """All contenders at one size."""
    count = size_bytes // ITEM_BYTES
    own = contribution(index, count)
    expected = sum((contribution(i, count) for i in range(plan.num_peers)), start=np.zeros(count, np.float32))
    array = np.empty_like(own)
    times_s: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    cpu_times_s: dict[str, list[float]] = {name: [] for name in times_s}
    wrong = dict.fromkeys(times_s, 0)
    ran = dict.fromkeys(times_s, "")
    for turn, (is_timed, contender) in enumerate(turns(plan, contenders)):
        shift = turn % SHIFTS  # what an earlier turn left in a buffer is wrong in this one
        np.add(own, np.float32(shift), out=array)
        contender.begin(array)
        contender.barrier()
        cpu_start, start = time.process_time(), time.perf_counter()
        contender.all_reduce()
        time_s, cpu_time_s = time.perf_counter() - start, time.process_time() - cpu_start
        if is_timed:
            times_s[contender.name].append(time_s)
            cpu_times_s[contender.name].append(cpu_time_s)
        np.subtract(contender.result(), np.float32(shift * plan.num_peers), out=array)
        wrong[contender.name] += int(np.count_nonzero(array != expected))
        ran[contender.name] = contender.ran
        progress.advance(1 / len(contenders))
    return [
        Measurement(
            algorithm=name,
            ran=ran[name],
            size_bytes=size_bytes,
            wrong=wrong[name],
            times_s=tuple(times),
            cpu_times_s=tuple(cpu_times_s[name]),
        )
        for name, times in times_s.items()
    ]


def contribution(index: int, count: int) -> Array:
    """What peer `index` adds: whole numbers below `VALUES`, another at each peer and at neighbouring positions."""
    return ((np.arange(count) * 7 + index * 31) % VALUES).astype(np.float32)


def turns(plan: Plan, contenders: Sequence[Contender]) -> Iterator[tuple[bool, Contender]]:
    """Whose turn it is, and whether it is timed; the same on every rank."""
    for number in range(plan.num_rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            yield number >= plan.num_warmup, contender


class RunProgress:
    """Writes the part that is done to stdout, for the director, now and then."""

    def __init__(self, total: float, *, is_shown: bool) -> None:
        self._total, self._done = total, 0.0
        self._next_s = 0.0 if is_shown else float("inf")

    def advance(self, number: float) -> None:
        self._done += number
        now = time.perf_counter()
        if now >= self._next_s:
            self._next_s = now + REPORT_S
            print(f"{self._done / self._total:.4f}", flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Plan.from_json(sys.argv[2]), int(os.environ["SHOAL_LAUNCH_INDEX"]))
    except ShoalError as error:
        sys.exit(f"shoal: {error}")

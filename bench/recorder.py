"""Cost of the flight recorder: ns per record, and the time that it adds to a small training step.

    python -m bench.recorder [--peers 1] [--quads 1000] [--block 4] [--json FILE]

Records are written in a loop, and the best of five is taken. Steps are of processes that train a model of 4,000
parameters. All switch their recorder on, off, off, on, or the reverse, each time for a block of the same steps, so a
slow machine is as slow for both; the check of the switch is part of both. Prints p50 with and without the recorder, and
the median over the quads of blocks of the difference, with its bootstrap interval; and the number of records per step
times the time of one, which other load changes little. Replicas are compared at the end. Exits with 1 if a figure
misses its target, and names it; the difference misses it if its whole interval is above. A wider interval means that
the machine was too busy.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from bench.here import environment
from p2p.benchmark.results.machine import commit, machine
from p2p.telemetry.records import RING_BYTES, Kind, Memory, Note, RecordRing, read_ring

MOST_NS: Final = 1000.0
"""Target for a record."""
MOST_ADDED_US: Final = 10.0
"""1 % of a step of 1 ms."""
NUM_RECORDS: Final = 100_000
WARM_UP: Final = 400
"""Steps before the blocks."""
BLOCKS: Final = 4
"""On, off, off, on; or the reverse, at random: periodic work of a peer must not coincide with one of them."""
LEVEL: Final = 0.95
NUM_RESAMPLES: Final = 10_000


def ns_per_record() -> float:
    """The best time of five; checks that the last record reads as it was written."""
    half = RecordRing(memoryview(bytearray(RING_BYTES)), time.monotonic_ns)
    took = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for step in range(NUM_RECORDS):
            half.note(Kind.FINISHED, step, 3)
        took.append((time.perf_counter_ns() - began) / NUM_RECORDS)
    last = read_ring(half._memory)[-1]
    assert (last.kind, last.step, last.view) == (Kind.FINISHED, NUM_RECORDS - 1, 3), last
    return min(took)


def order(num_quads: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each block of each quad, whether records are written; the same in each process."""
    begins_on = np.random.default_rng(0).random((num_quads, 1)) < 0.5
    is_on: np.ndarray[Any, np.dtype[np.bool_]] = np.array([True, False, False, True]) == begins_on
    return is_on


class Switch:
    """Switches the recorder of this process; counts records, also those that are not written."""

    def __init__(self) -> None:
        """The switch is on, and applies to all halves that are created from now on."""
        self.is_on, self.count = True, 0
        make = RecordRing.__init__

        def made(half: RecordRing, memory: Memory, clock: Callable[[], int]) -> None:
            make(half, memory, clock)
            half.note = self._switched(half.note)

        RecordRing.__init__ = made  # type: ignore[method-assign, assignment]

    def _switched(self, written: Note) -> Note:
        def note(*arguments: Any, **values: Any) -> None:
            self.count += 1
            if self.is_on:
                written(*arguments, **values)

        return note


def train(num_quads: int, block: int, out: Path) -> None:
    """Run one peer; writes its times, in ns, and a digest of its replica."""
    import hashlib

    import torch

    import p2p

    switch, is_on = Switch(), order(num_quads).ravel()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with p2p.join() as peer:
        parallel = p2p.DataParallel(peer, model, optimizer)
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(peer.rank))
        times: list[int] = []
        for step in range(WARM_UP + is_on.size * block):
            switch.is_on = bool(is_on[max(0, step - WARM_UP) // block])
            began = time.perf_counter_ns()
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter_ns() - began)
        digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
        values = {"times_ns": times[WARM_UP:], "replica": digest, "done": peer.done, "count": switch.count}
        (out / f"{peer.rank}.json").write_text(json.dumps(values))


def steps(num_peers: int, num_quads: int, block: int) -> dict[str, Any]:
    """p50 with and without the recorder, and the difference with its interval, in us."""
    num_steps = num_quads * BLOCKS * block
    with TemporaryDirectory(prefix="shoal-recorder-") as name:
        out = Path(name)
        command = [
            sys.executable,
            "-m",
            "p2p",
            "run",
            "-n",
            str(num_peers),
            "-q",
            "--home",
            str(out / "home"),
            __file__,
        ]
        peer = ["--peer", str(out), "--quads", str(num_quads), "--block", str(block)]
        subprocess.run([*command, *peer], check=True, env=environment(), timeout=600)
        told = [json.loads((out / f"{rank}.json").read_text()) for rank in range(num_peers)]
    assert [each["done"] for each in told] == [WARM_UP + num_steps] * num_peers, told
    assert len({each["replica"] for each in told}) == 1, "the replicas differ"
    times = np.array([each["times_ns"] for each in told]).mean(0).reshape(num_quads, BLOCKS, block) / 1e3
    is_on = order(num_quads)
    on, off = (times[each].reshape(num_quads, -1) for each in (is_on, ~is_on))
    added = np.median(on, axis=1) - np.median(off, axis=1)
    draws = np.random.default_rng(0).integers(0, num_quads, (NUM_RESAMPLES, num_quads))
    low, high = np.quantile(np.median(added[draws], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "p50_on_us": round(float(np.median(on)), 2),
        "p50_off_us": round(float(np.median(off)), 2),
        "added_us": [round(float(each), 2) for each in (np.median(added), low, high)],
        "records_per_step": round(max(each["count"] for each in told) / (WARM_UP + num_steps), 2),
        "num_steps": num_steps,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """Missed targets, in words."""
    wrong = []
    if found["record_ns"] > MOST_NS:
        wrong.append(f"a record takes {found['record_ns']:.0f} ns, more than {MOST_NS:.0f}")
    if found["written_us"] > MOST_ADDED_US:
        wrong.append(f"the records of a step take {found['written_us']} us, more than {MOST_ADDED_US}")
    if found["added_us"][1] > MOST_ADDED_US:
        wrong.append(f"the recorder adds {found['added_us'][1]} us to a step at least, more than {MOST_ADDED_US}")
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Measure and print, or run as a peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--quads", type=int, default=1000, help="of blocks: on, off, off, on")
    parser.add_argument("--block", type=int, default=4, help="steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.peer:
        train(args.quads, args.block, args.peer)
        return 0
    where = {"commit": commit(), "machine": machine()}
    record_ns = round(median(ns_per_record() for _ in range(3)), 1)
    found = {**where, "record_ns": record_ns, **steps(args.peers, args.quads, args.block), "peers": args.peers}
    found["load_after"] = os.getloadavg()[0]
    found["written_us"] = round(found["records_per_step"] * record_ns / 1e3, 2)
    value, low, high = found["added_us"]
    print(f"{record_ns:.0f} ns per record, {found['records_per_step']} records a step: {found['written_us']} us")
    print(f"{found['num_steps']} steps: p50 {found['p50_on_us']} us with the recorder, {found['p50_off_us']} without")
    print(f"it adds {value} us ({low} to {high}, {LEVEL:.0%} of draws of {args.quads} quads)")
    print(f"load {found['load_after']:.1f}" + "; too busy a machine to tell" * (low <= MOST_ADDED_US < high))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for each in (wrong := missed(found)):
        print(f"missed: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

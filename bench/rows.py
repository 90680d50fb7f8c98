"""How soon do all members know the links to a joiner, and what does measuring them cost?

    python -m bench.rows [--net "rate=200mbit,delay=20ms,queue=200ms"] [--kib 64] [--json FILE]

Three hosts of a network lab commit steps of `--kib`, with a pause in place of computation; a fourth host joins. Prints
how long after the first step of four their rows are gathered and their table is used, and the median step of the first
three hosts in the 3 s after the join, and later, with as many members. Exits with 1 if a figure misses its target. Also
a part of `bench.wan`.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

import p2p
from bench.lab import Told
from p2p.benchmark.results.machine import commit, machine
from p2p.netlab.config import LabConfig
from p2p.netlab.lab import NetworkLab

NET: Final = "rate=200mbit,delay=20ms,queue=200ms"
NUM_MEMBERS: Final = 3
BEFORE: Final = 60
"""Steps of the members before the joiner is started."""
AFTER: Final = 60
"""Steps with the table of all four that begin at least `WITHIN_S` after the fourth member has joined."""
LONGEST_S: Final = 60.0
"""Limit after the fourth member has joined, even without its table."""
PAUSE_S: Final = 0.05
WITHIN_S: Final = 3.0
LONGER: Final = 1.1


class Step(NamedTuple):
    """One step at one peer. `num_rows`: number of the latest rows; `is_used`: whether their table is used."""

    began_s: float
    ended_s: float
    num_members: int
    num_rows: int
    is_used: bool

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


def train(kib: int, *, joins: bool) -> None:
    """Run one peer until the first peer has enough steps; prints its steps."""
    with p2p.join(swarm="rows", network="wan", may_differ=["peer"]) as peer:
        peer.wait_view()
        agreed, steps = peer._session.loop.open_step.agreed, list[Step]()
        array, num_after, until = np.zeros(kib << 8, np.float32), 0, float("inf")
        while not array[0]:
            threading.Event().wait(PAUSE_S)
            array[0] = peer.rank == 0 and (num_after >= AFTER or time.monotonic() > until)
            began_s = time.monotonic()
            with peer.step(samples=1):
                peer.all_reduce(array)
            ended_s, rows = time.monotonic(), agreed.rows or agreed.used
            num_rows = 0 if rows is None else len(rows.members)
            steps.append(Step(began_s, ended_s, peer.world_size, num_rows, rows is not None and rows is agreed.used))
            if peer.world_size > NUM_MEMBERS:
                until = min(until, ended_s + LONGEST_S)
                is_late = began_s > until - LONGEST_S + WITHIN_S
                num_after += is_late and num_rows > NUM_MEMBERS and steps[-1].is_used
            if len(steps) == BEFORE and not joins:
                print(json.dumps({"rank": peer.rank}), flush=True)
        print(json.dumps({"steps": steps}), flush=True)


def measure(net: str = NET, kib: int = 64) -> dict[str, Any]:
    """Measure one joiner."""
    words = "env", f"SHOAL_MIN_PEERS={NUM_MEMBERS}", sys.executable, "-m", "bench.rows", "--kib", str(kib), "--peer"
    with NetworkLab(LabConfig.uniform(NUM_MEMBERS + 1, net)) as lab:
        hosts = [Told(lab, host, *words, "member") for host in range(NUM_MEMBERS)]
        for host in hosts:
            host.next()
        hosts.append(Told(lab, NUM_MEMBERS, *words, "joiner"))
        ends = [[Step(*step) for step in host.next()["steps"]] for host in reversed(hosts)]  # the join may be refused
        ends.reverse()
        codes = [host.command.wait(LONGEST_S) for host in hosts]
        late = lab.show()["lateness_us"]
    found = evaluate(ends[:NUM_MEMBERS])
    return found | {"net": net, "kib": kib, "codes": codes, "lateness_us": late, "steps": ends}


def evaluate(members: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """Seconds from the first step of four until the last member knows rows of four, and uses them; medians of steps.

    None: that never happened, or there was no such step. A median is the greatest of all members' medians.
    """
    fours = [[step for step in steps if step.num_members > NUM_MEMBERS] for steps in members]
    joined_s = min(steps[0].began_s for steps in fours)

    def until(is_so: Callable[[Step], bool]) -> float | None:
        ends = [next((step.ended_s for step in steps if is_so(step)), None) for steps in fours]
        return None if None in ends else max(end for end in ends if end is not None) - joined_s

    def middle(parts: Sequence[Sequence[Step]]) -> float | None:
        return max((median(step.took_s for step in part) for part in parts if part), default=None)

    before = [[step for step in steps[BEFORE // 2 :] if step.num_members == NUM_MEMBERS] for steps in members]
    meanwhile = [[step for step in steps if step.began_s < joined_s + WITHIN_S] for steps in fours]
    after = [[step for step in steps if step.began_s >= joined_s + WITHIN_S] for steps in fours]
    return {
        "rows_s": until(lambda step: step.num_rows > NUM_MEMBERS),
        "table_s": until(lambda step: step.num_rows > NUM_MEMBERS and step.is_used),
        "step_before_s": middle(before),
        "step_meanwhile_s": middle(meanwhile),
        "step_after_s": middle(after),
        "num_meanwhile": max(map(len, meanwhile)),
    }


def problems(found: dict[str, Any]) -> Iterator[str]:
    """Missed targets, in words."""
    if found["rows_s"] is None or found["rows_s"] > WITHIN_S:
        yield f"joins: rows of {NUM_MEMBERS + 1} hosts are gathered {found['rows_s']} s after a join, not {WITHIN_S:g}"
    meanwhile_s, after_s = found["step_meanwhile_s"], found["step_after_s"]
    if meanwhile_s is None or after_s is None or meanwhile_s > LONGER * after_s:
        yield f"joins: the others' p50 was {meanwhile_s} s within {WITHIN_S:g} s of the join, and later {after_s}"
    if any(found["codes"]):
        yield f"joins: peers have ended with {found['codes']}"


def sentence(found: dict[str, Any]) -> str:
    """The figures in one line."""

    def told(seconds: float | None, unit: str = "s") -> str:
        return "never" if seconds is None else f"{seconds:.1f} s" if unit == "s" else f"{seconds * 1e3:.0f} ms"

    times = [told(found[f"step_{name}_s"], "ms") for name in ("before", "meanwhile", "after")]
    return (
        f"{NUM_MEMBERS + 1} hosts, `{found['net']}`: rows {told(found['rows_s'])} after a join, a table of them "
        f"{told(found['table_s'])}; the others' p50 {times[0]} before, {times[1]} in the {WITHIN_S:g} s after it "
        f"({found['num_meanwhile']} steps), {times[2]} later"
    )


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the figures, with machine and commit."""
    path.write_text(json.dumps({"commit": commit(), "machine": machine(), **found}) + "\n")


def main() -> int:
    """Measure, or run as a peer; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default=NET)
    parser.add_argument("--kib", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", choices=("member", "joiner"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer is not None:
        train(options.kib, joins=options.peer == "joiner")
        return 0
    found = measure(options.net, options.kib)
    print(f"{sentence(found)} (load {os.getloadavg()[0]:.0f})")
    if options.json is not None:
        write(options.json, found)
    for problem in (said := list(problems(found))):
        print(f"not as it should be: {problem}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())

"""Cost of computing a table of prices during small training steps: p50 and p99, with and without.

    python -m bench.tables [--quads 200] [--block 25] [--ranks 8] [--json FILE]

Two processes that act as separate hosts train a model of 4,000 parameters over TCP, which takes a millisecond or two a
step. Their loops compute the table of `--ranks` hosts of a WAN repeatedly, by the code that computes it from measured
rows, during one block of steps; not during the next two; and again in the fourth, or the reverse, at random. Prints p50
and p99 of the slowest peer of each step, and the ratios of with to without, with their bootstrap intervals over the
quads of blocks; and the processor time of a step, which other load changes little. Replicas are compared at the end,
and the table with one that is computed in one go. Exits with 1 if a figure misses its target, and names it; a ratio
misses it if its whole interval is above. A wider interval means that the machine was too busy.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from bench.here import environment
from bench.recorder import BLOCKS, LEVEL, order
from collectives.price_table import PriceTable, tabulate
from collectives.pricing import run_to_end
from gossip import Member
from p2p.benchmark.measuring.venue import free_ports
from p2p.benchmark.results.bootstrap import Floats
from p2p.benchmark.results.machine import commit, machine
from p2p.loop.link_rows import Pair, Row, known_slices
from p2p.loop.measuring import Measuring
from p2p.step.agreed_rows import Rows, Table

NUM_PEERS: Final = 2
MOST: Final = 1.05
"""Target for the ratio of with to without."""
LEAST_SHARE: Final = 0.03
"""Least share of the steps in which a peer must compute a part; the loop decides how often it does."""
WARM_UP: Final = 1000
"""Steps in which the links are measured, and their table is computed."""
NUM_RESAMPLES: Final = 2000
PERCENTILES: Final = (50, 99)
LONGEST_S: Final = 900.0
BYTES_PER_S, RTT_US, MESSAGE_NS = 25_000_000, 40_000, 300_000


def rows_of_hosts(num_ranks: int) -> Rows:
    """Rows as `num_ranks` members on separate hosts would have gathered them."""
    names = [f"{rank + 1:016x}" for rank in range(num_ranks)]
    packed = []
    for name in names:
        to = {other: Pair(RTT_US, BYTES_PER_S) for other in names if other != name}
        packed.append(Row(BYTES_PER_S, BYTES_PER_S, MESSAGE_NS, to, up_is_line=True, down_is_line=True).pack())
    members = tuple(Member(name, 1) for name in names)
    return Rows(1, members, np.concatenate(packed), tuple(range(num_ranks)))


class Again:
    """Makes this process's loop compute one table repeatedly, while `is_on`, in the parts that the loop takes.

    Attributes:
        num_parts, num_tables: parts and tables that were computed.
        last: the last table.
        untabulated: as in `AgreedRows`, which this object replaces during a part.
    """

    def __init__(self, measuring: Measuring, rows: Rows) -> None:
        self.is_on, self.num_parts, self.num_tables = False, 0, 0
        self.last: Table | None = None
        self.untabulated = rows
        self._measuring, self._makes, self._kept = measuring, measuring._tabulate, measuring._making
        measuring._tabulate = self._make  # type: ignore[method-assign]

    def switch(self, *, is_on: bool) -> None:
        """Switch on or off, from the loop's next turn on."""
        if is_on != self.is_on:
            self.is_on, self._measuring.next_at = is_on, 0.0

    def tabulated(self, rows: Rows, table: Table) -> None:
        """As in `AgreedRows`."""
        assert rows is self.untabulated
        self.last, self.num_tables = table, self.num_tables + 1

    def finished(self) -> Table:
        """The last table; if there is none, completes the one that was begun. Call it after the loop has ended."""
        if self.last is None and self._kept is not None:
            self.last = run_to_end(self._kept[1])
        assert self.last is not None, "no part of a table was made"
        return self.last

    def _make(self) -> None:
        measuring = self._measuring
        if not self.is_on:
            measuring._making = None
            self._makes()
            return
        agreed, measuring._agreed = measuring._agreed, self  # type: ignore[assignment]
        measuring._making = self._kept
        try:
            self._makes()
        finally:
            self._kept, measuring._agreed = measuring._making, agreed
        self.num_parts += 1


def train(num_quads: int, block: int, num_ranks: int, index: int, seed: str, out: Path) -> None:
    """Run one peer; writes its times, in ns, whether each step computed a part, and a digest of its replica."""
    import torch

    import p2p

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(index))
    is_on, rows = order(num_quads).ravel(), rows_of_hosts(num_ranks)
    told: dict[str, Any] = {"home": out / f"host{index}", "seeds": seed, "bind": "127.0.0.1:0" if index else seed}
    with p2p.join(swarm="tables", insecure=True, min_peers=NUM_PEERS, may_differ=["index"], **told) as peer:
        again = Again(peer._session.loop.measuring, rows)
        parallel = p2p.DataParallel(peer, model, optimizer)
        times, parts, cpu_times = list[int](), list[int](), list[int]()
        for step in range(WARM_UP + is_on.size * block):
            again.switch(is_on=step >= WARM_UP and bool(is_on[(step - WARM_UP) // block]))
            before, cpu_began, began = again.num_parts, time.process_time_ns(), time.perf_counter_ns()
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter_ns() - began)
            cpu_times.append(time.process_time_ns() - cpu_began)
            parts.append(again.num_parts - before)
        digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
        values = {"times_ns": times[WARM_UP:], "parts": parts[WARM_UP:], "replica": digest, "done": peer.done}
        values |= {"cpu_times_ns": cpu_times[WARM_UP:]}
    values |= {"num_tables": again.num_tables, "is_right": is_right(again.finished(), rows)}
    (out / f"{index}.json").write_text(json.dumps(values))


def is_right(table: Table, rows: Rows) -> bool:
    """Whether its prices equal those of a table that is computed in one go."""
    assert isinstance(table, PriceTable) and table.links is not None
    links, _ = run_to_end(known_slices(rows, table.links.segment_bytes))
    assert links is not None
    return table.predicted == run_to_end(tabulate(links)).predicted


def steps(num_quads: int, block: int, num_ranks: int) -> dict[str, Any]:
    """Results of both peers."""
    with TemporaryDirectory(prefix="shoal-tables-") as name:
        out, seed = Path(name), f"127.0.0.1:{free_ports(1)[0]}"
        words = [sys.executable, "-m", "bench.tables", "--quads", str(num_quads), "--block", str(block)]
        words += ["--ranks", str(num_ranks), "--out", name, "--seed", seed, "--index"]
        peers = [subprocess.Popen([*words, str(index)], env=environment()) for index in range(NUM_PEERS)]
        try:
            codes = [each.wait(LONGEST_S) for each in peers]
        finally:
            for each in peers:
                each.kill()
                each.wait()
        if any(codes):
            raise SystemExit(f"the peers have ended with {codes}")
        told = [json.loads((out / f"{index}.json").read_text()) for index in range(NUM_PEERS)]
    num_steps = num_quads * BLOCKS * block
    assert [each["done"] for each in told] == [WARM_UP + num_steps] * NUM_PEERS, [each["done"] for each in told]
    assert len({each["replica"] for each in told}) == 1, "the replicas differ"
    times_us = np.array([each["times_ns"] for each in told]).max(0) / 1e3
    parts = np.array([each["parts"] for each in told]).max(0)
    shape, is_on = (num_quads, BLOCKS, block), order(num_quads)
    cpu_us = (np.array([each["cpu_times_ns"] for each in told]).mean(0) / 1e3).reshape(shape)
    return {
        **of_times(times_us.reshape(shape), is_on),
        "cpu_us": [round(float(cpu_us[each].mean()), 1) for each in (is_on, ~is_on)],
        "share_of_steps": round(float((parts.reshape(shape)[is_on] > 0).mean()), 3),
        "num_tables": [each["num_tables"] for each in told],
        "are_right": [each["is_right"] for each in told],
        "num_steps": num_steps,
    }


def of_times(times_us: Floats, is_on: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """Percentiles with and without, and their ratios with intervals.

    Args:
        times_us: by quad, block and step.
        is_on: by quad and block.
    """
    num_quads = len(times_us)
    on, off = (times_us[each].reshape(num_quads, -1) for each in (is_on, ~is_on))
    draws = np.random.default_rng(0).integers(0, num_quads, (NUM_RESAMPLES, num_quads))
    both = [(np.percentile(on[each], PERCENTILES), np.percentile(off[each], PERCENTILES)) for each in draws]
    resampled = np.array([with_it / without for with_it, without in both])
    found: dict[str, Any] = {}
    for place, percentile in enumerate(PERCENTILES):
        values = [float(np.percentile(each, percentile)) for each in (on, off)]
        low, high = np.quantile(resampled[:, place], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        found[f"p{percentile}_us"] = [round(each, 1) for each in values]
        found[f"p{percentile}_ratio"] = [round(float(each), 4) for each in (values[0] / values[1], low, high)]
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Missed targets, in words."""
    wrong = []
    for percentile in PERCENTILES:
        value, low, high = found[f"p{percentile}_ratio"]
        if low > MOST:
            wrong.append(f"p{percentile} is {value:.3f} times as long ({low:.3f} to {high:.3f}), not {MOST} at most")
    if found["share_of_steps"] < LEAST_SHARE:
        wrong.append(f"a part of the table was made in {found['share_of_steps']:.0%} of the steps meanwhile alone")
    if found["are_right"] != [True] * NUM_PEERS:
        wrong.append(f"a table has other prices than one that is made at once: {found['are_right']}")
    return wrong


def say(found: dict[str, Any]) -> None:
    for percentile in PERCENTILES:
        (with_it, without), (value, low, high) = found[f"p{percentile}_us"], found[f"p{percentile}_ratio"]
        is_unclear = low <= MOST < high
        print(
            f"p{percentile} of a step: {with_it:.0f} us while tables are made, {without:.0f} without: {value:.3f} x "
            f"({low:.3f} to {high:.3f}, {LEVEL:.0%} of resamples)" + "; too busy a machine to tell" * is_unclear
        )
    with_it, without = found["cpu_us"]
    print(f"processor time of a step and peer: {with_it:.0f} us, and {without:.0f} without, in the mean")
    print(
        f"{found['num_steps']} steps of {NUM_PEERS} peers; a part in {found['share_of_steps']:.0%} of those meanwhile; "
        f"{found['num_tables']} tables of {found['ranks']} ranks; load {found['load_after']:.1f}"
    )


def main(arguments: Sequence[str]) -> int:
    """Measure and print, or run as a peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=200, help="of blocks: on, off, off, on")
    parser.add_argument("--block", type=int, default=25, help="steps")
    parser.add_argument("--ranks", type=int, default=8, help="of the table, each on a host")
    parser.add_argument("--json", type=Path)
    for hidden, kind in (("--out", Path), ("--seed", str), ("--index", int)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.out:
        train(args.quads, args.block, args.ranks, args.index, args.seed, args.out)
        return 0
    if min(args.quads, args.block, args.ranks - 1) < 1:
        parser.error("--quads and --block are 1 or more, --ranks 2 or more")
    found = {"commit": commit(), "machine": machine(), "ranks": args.ranks}
    found |= steps(args.quads, args.block, args.ranks)
    found |= {"load_after": os.getloadavg()[0], "missed": (wrong := missed(found))}
    say(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for each in wrong:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

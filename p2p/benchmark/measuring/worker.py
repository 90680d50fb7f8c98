"""One rank of `shoal bench`: measures, verifies, and writes its results into a folder.

    python worker.py FOLDER PLAN

The contenders take turns within every round, in order and then in reverse, so that other load on the machine affects
all of them. Before each turn the ranks meet in the contender's own barrier; only the operation itself is timed. Every
result is verified, untimed: the values are small integers, so a sum has to be exact. The first round of a size is not
timed, and has values whose sums round, to compare the bits of operations with the same result on all ranks. After each
batch of rounds all times go to the first peer, which chooses the next batch.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from p2p.benchmark.arrays import Array, digest, put_shifted, rounding, values_of
from p2p.benchmark.measuring.contenders import SHOAL, Contender, check_all_are_there
from p2p.benchmark.measuring.gloo import TIMEOUT, Gloo
from p2p.benchmark.measuring.link_warmup import warm_up_links, warmup_sizes
from p2p.benchmark.measuring.pacing import Batch, Pacer
from p2p.benchmark.measuring.storage import Find, Storage, storage_of
from p2p.benchmark.own import rates_of, register, register_for_rates
from p2p.benchmark.plan import (
    ADDS,
    BY_SIZE,
    CURVE,
    HOST,
    ITEM_BYTES,
    OTHER_HOSTS,
    OWN_SWARM,
    WITHOUT_MEMORY,
    Plan,
)
from p2p.benchmark.results.bootstrap import Floats
from p2p.benchmark.results.result import Measurement
from p2p.benchmark.roles import ALL_REDUCE, BARRIER, SAME_EVERYWHERE, Role
from p2p.benchmark.turns import Turns, meet
from p2p.config import LoopConfig
from p2p.errors import ShoalError
from p2p.joining import join_as
from p2p.peer import Peer
from p2p.staging import cuda_devices

REPORT_S: Final = 0.25
"""Interval of progress reports, long enough not to disturb what is measured."""
NUM_CALIBRATIONS: Final = 9
NO_BATCH: Final = -1.0
BY_LINKS: Final = (ALL_REDUCE, "broadcast")
"""Operations whose algorithms are chosen by measured links."""


def main(folder: Path, plan: Plan, index: int, find: Find = cuda_devices) -> None:
    """Measure as peer number `index`; `find`: returns the devices of this process, of which it uses one."""
    register(plan.schedules, plan.num_peers)
    storage = storage_of(plan, index, find)
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        contenders: list[Contender] = []
        for name in plan.algorithms:
            algorithm, _, way = name.partition("@")
            swarm = way if way in OWN_SWARM else ""
            if swarm not in peers:
                peers[swarm] = enter(stack, folder, index, swarm, storage)
            if rates_of(algorithm, plan.num_peers) is not None:
                register_for_rates([algorithm], numbers_of(peers[swarm], index))
            contenders.append(SHOAL[way](peers[swarm], name, plan, storage))
        if plan.baseline == Gloo.name:
            gloo = Gloo(folder / "gloo", index, plan.num_peers, plan.operation, plan.root, storage)
            contenders.append(stack.enter_context(gloo))
        table = PeerExchange(next(iter(peers.values())), plan.num_peers, index)
        calibration_s = calibrate(table) if plan.net is not None else []
        if plan.net is not None and plan.operation in BY_LINKS and BY_SIZE in plan.algorithms:
            warm_up_links(table, warmup_sizes(plan))
        takes_turns = index == 0 and plan.turns is not None
        turns = stack.enter_context(meet(Path(plan.turns or ""), plan.shared)) if takes_turns else None
        bench = Bench(plan, contenders, index, turns=turns)
        bench.run(table)
        calibration_s += calibrate(table) if plan.net is not None else []
        explained = [table.peer.explain(size) for size in plan.sizes_bytes]
        links = links_of(table.peer)
        said = {"found": bench.written(), "calibration_s": calibration_s, "explained": explained, "links": links}
        said |= {"turns": turns.meeting} if turns is not None else {}
        said["device"] = storage.said()
        (folder / f"{index}.json").write_text(json.dumps(said))


def enter(stack: ExitStack, folder: Path, index: int, way: str, storage: Storage) -> Peer:
    """Join the swarm for a way: one that shares memory, or one that shares none, or one as if on separate hosts."""
    given: dict[str, Any] = {"loop": LoopConfig(device_of=storage.device_of, device_adds=way == ADDS)}
    if way:
        given |= {"swarm": f"{os.environ['SHOAL_SWARM']}-{way}"}
    if way in WITHOUT_MEMORY:
        given |= {"arena_bytes": 0}
    if way in OTHER_HOSTS:
        seed = (folder / f"{way}.seed").read_text()
        given |= {"home": folder / f"host{index}", "seeds": seed, "bind": "127.0.0.1:0" if index else seed}
        given |= {"key": folder / "swarm.key"} if way == CURVE else {"insecure": True}
    timeout_s = TIMEOUT.total_seconds()
    peer = stack.enter_context(join_as({**given, "join_timeout_s": timeout_s, "step_timeout_s": timeout_s}))
    peer.wait_view()
    return peer


def numbers_of(peer: Peer, index: int) -> list[int]:
    """The peer number of each rank; where each peer has a host of its own, also the host's number."""
    return [int(each) for each in np.asarray(peer.all_gather(np.array([index]))).ravel()]


@dataclass(frozen=True)
class PeerExchange:
    """Exchanges numbers between all peers, by committed operations."""

    peer: Peer
    num_peers: int
    index: int

    def exchange(self, numbers: Floats) -> Floats:
        """The numbers of each peer, by its index."""
        rows = np.zeros((self.num_peers, *numbers.shape))
        rows[self.index] = numbers
        self.peer.all_reduce(rows)
        check_all_are_there(self.peer, self.num_peers)  # else a lost first peer's zeros would be a batch of no rounds
        return rows


def calibrate(table: PeerExchange) -> list[float]:
    """Times of sums of one number that each peer sends to each, on the slowest peer; they give the cost of a message.

    They depend on other load of the processors, so they are measured before and after the rounds.
    """
    times_s = []
    for _ in range(NUM_CALIBRATIONS):
        table.peer.barrier()
        start = time.perf_counter()
        table.peer.all_reduce(np.ones(1, np.float32), algorithm="one-shot", commit=False)
        times_s.append(time.perf_counter() - start)
    return [float(each) for each in table.exchange(np.array(times_s)).max(axis=0)]


def links_of(peer: Peer) -> dict[str, Any] | None:
    """The links between the peers, as all have measured and agreed on; None: not known yet."""
    links = None if peer.view is None else peer._session.loop.measuring.links(peer.view)
    return None if links is None else asdict(links)


@dataclass
class Bench:
    """The rounds of one rank.

    Attributes:
        found: measurements by size and contender.
        barrier_times: begin and end of each round of a barrier, by contender.
        is_single_host: all peers are on this machine, and a director shows their progress.
        turns: at the first peer, if another run takes turns with this one.
    """

    plan: Plan
    contenders: Sequence[Contender]
    index: int
    found: list[list[Measurement]] = field(default_factory=list)
    barrier_times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    is_single_host: bool = True
    turns: Turns | None = None

    def run(self, table: PeerExchange) -> None:
        """Run batches until the first peer ends the run."""
        self.found = [
            [Measurement(algorithm=each.name, size_bytes=size) for each in self.contenders]
            for size in self.plan.sizes_bytes
        ]
        pacer, progress = Pacer(self.plan), Progress(self.plan, is_shown=self.index == 0 and self.is_single_host)
        while (batch := self._next(table, pacer, progress)) is not None:
            self._measure(batch, progress)
            if self.turns is not None:
                self.turns.end()
            own = [each.times_s[-batch.num_rounds :] for each in self.found[batch.size_index]]
            pacer.take(batch.size_index, table.exchange(np.array(own)).max(axis=0))
            if self.plan.operation == BARRIER and self.is_single_host:
                self._check_meetings(table, batch)

    def written(self) -> list[dict[str, Any]]:
        """All measurements, for a file."""
        return [asdict(each) for row in self.found for each in row]

    def _next(self, table: PeerExchange, pacer: Pacer, progress: "Progress") -> Batch | None:
        numbers = np.full(3, NO_BATCH)
        if self.turns is not None:
            self.turns.take()
        if self.index == 0 and (batch := pacer.next(progress.elapsed_s())) is not None:
            numbers[:] = batch.size_index, batch.num_warmup, batch.num_rounds
        said = table.exchange(numbers)[0]
        return None if said[0] == NO_BATCH else Batch(*map(int, said))

    def _measure(self, batch: Batch, progress: "Progress") -> None:
        """Measure all contenders at one size."""
        plan, found = self.plan, self.found[batch.size_index]
        count = plan.sizes_bytes[batch.size_index] // ITEM_BYTES[plan.dtype]
        if batch.num_warmup:
            self._compare_bits(count, found)
            progress.advance(1)
            batch = replace(batch, num_warmup=batch.num_warmup - 1)
        roles = {each.rank: self._role(each, count) for each in self.contenders}
        arrays = {rank: np.empty_like(role.input) for rank, role in roles.items()}
        for turn, (is_timed, place) in enumerate(turns(batch, len(self.contenders), len(found[0].times_s))):
            shift = turn % values_of(plan.dtype).shifts  # results left over from an earlier turn are wrong in this one
            contender, each = self.contenders[place], found[place]
            role, array = roles[contender.rank], arrays[contender.rank]
            put_shifted(role.input, shift, array)
            self._take_turn(contender, array, role, each if is_timed else None)
            each.wrong += role.num_wrong(contender.result(), shift)
            each.ran = contender.ran
            if is_timed:
                each.rans.append(each.ran)
            progress.advance(1 / len(self.contenders))

    def _role(self, contender: Contender, count: int) -> Role:
        plan = self.plan
        return Role(plan.operation, contender.rank, plan.num_peers, plan.root, count, plan.dtype)

    def _take_turn(self, contender: Contender, array: Array, role: Role, timed: Measurement | None) -> None:
        contender.begin(array, role)
        contender.barrier()
        cpu_start, start = time.process_time(), time.perf_counter()
        contender.run()
        if share := self.plan.slowed.get(contender.name):
            until = start + (1 + share) * (time.perf_counter() - start)
            while time.perf_counter() < until:
                pass
        end, cpu_time_s = time.perf_counter(), time.process_time() - cpu_start
        if timed is not None:
            timed.times_s.append(end - start)
            timed.cpu_times_s.append(cpu_time_s)
            if (stages_s := contender.stages_s(start, end)) is not None:
                timed.stages_s.append(list(stages_s))
            if self.plan.operation == BARRIER:
                self.barrier_times.setdefault(timed.algorithm, []).append((start, end))

    def _compare_bits(self, count: int, found: Sequence[Measurement]) -> None:
        for contender, each in zip(self.contenders, found, strict=True):
            role = self._role(contender, count)
            own = rounding(contender.rank, role.length, self.plan.dtype)[role.own]
            self._take_turn(contender, own.copy(), role, None)
            if self.plan.operation in SAME_EVERYWHERE:
                each.digest = digest(contender.result())

    def _check_meetings(self, table: PeerExchange, batch: Batch) -> None:
        """Count as wrong each barrier that a rank left before the last rank had entered; one machine has one clock."""
        for each in self.found[batch.size_index]:
            own = self.barrier_times.pop(each.algorithm)
            met = table.exchange(np.array(own))
            each.wrong += int(np.count_nonzero(np.array(own)[:, 1] < met[:, :, 0].max(axis=0)))


def turns(batch: Batch, num_contenders: int, num_before: int) -> Iterator[tuple[bool, int]]:
    """Yields whether a turn is timed, and the contender's index; the same on every rank.

    The first contender of a batch pays for the change of size, so the order keeps alternating from batch to batch.
    """
    order = range(num_contenders)
    for number in range(-batch.num_warmup, batch.num_rounds):
        for place in order if (num_before + number) % 2 == 0 else reversed(order):
            yield number >= 0, place


class Progress:
    """Writes the share that is done to stdout at intervals, for the director."""

    def __init__(self, plan: Plan, *, is_shown: bool) -> None:
        self._plan, self._num_rounds = plan, 0.0
        self._start_s = time.perf_counter()
        self._next_s = 0.0 if is_shown else float("inf")

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s

    def advance(self, num_rounds: float) -> None:
        self._num_rounds += num_rounds
        elapsed_s = self.elapsed_s()
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + REPORT_S
            plan = self._plan
            total = len(plan.sizes_bytes) * (plan.num_warmup + (plan.num_iters or 0))
            part = self._num_rounds / total if plan.duration_s is None else elapsed_s / plan.duration_s
            print(f"{min(1.0, part):.4f}", flush=True)


def run(find: Find = cuda_devices) -> None:
    """Run as the script of a peer: see the module, and `main`."""
    try:
        plan = Plan.from_json(sys.argv[2])
        place = int(os.environ.get(HOST, "0")) * plan.per_host + int(os.environ["SHOAL_LAUNCH_INDEX"])
        main(Path(sys.argv[1]), plan, place, find)
    except ShoalError as error:
        sys.exit(f"shoal: {error}")


if __name__ == "__main__":
    run()

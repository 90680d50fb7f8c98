"""One rank of `python -m bench.arena`: the contenders take turns at summing, and every result is verified.

    python bench/arena_peer.py FOLDER RANK TRIAL

A turn begins with a barrier over the arena, then comes a burst of operations, which is what is timed. The values are
small whole numbers, so that the sum has to be exact, and others in each turn.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import torch
import xxhash
from torch import distributed
from torch._C._distributed_c10d import FileStore

from bench.doorbell import Doorbell
from collectives.program import Program, all_reduce_program
from p2p.arena import Arena, Mapping, Memory, Region, align
from p2p.benchmark.contenders import TIMEOUT, Array
from p2p.benchmark.result import Measurement
from p2p.benchmark.worker import SHIFTS, contribution
from p2p.exchange import Exchange, Signals
from p2p.lending import Call, Seat, result_bytes

ITEM_BYTES: Final = 4
ONE_SHOT_MAX_BYTES: Final = 1 << 20
SLOT_BYTES: Final = ONE_SHOT_MAX_BYTES
TAG: Final = 1
BARRIER_SPIN_S: Final = 0.05
"""Who is woken up comes late: all are to begin together."""

LIMIT_S: Final = TIMEOUT.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is measured, by all ranks alike."""

    num_peers: int
    sizes_bytes: tuple[int, ...]
    num_iters: int
    max_burst: int
    with_digest: bool

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(**{**fields, "sizes_bytes": tuple(fields["sizes_bytes"])})

    def num_turns(self, size_bytes: int) -> int:
        """Fewer where each takes long."""
        return max(12, min(self.num_iters, (self.num_iters << 20) // size_bytes))

    def burst(self, size_bytes: int) -> int:
        """Operations in one turn."""
        return max(1, min(self.max_burst, (1 << 20) // size_bytes))


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    def prepare(self, values: Array) -> None:
        """Take `values` as the input of this rank in all operations of the next turn."""

    def run(self, index: int) -> None:
        """Carry out one operation of the turn; this is timed."""

    def results(self) -> list[Array]:
        """What can still be seen of the sums of this turn."""


class Host:
    """The arenas of all ranks, and this rank's exchange; group 1 is for barriers."""

    def __init__(self, store: Any, rank: int, trial: Trial) -> None:
        largest = max(trial.sizes_bytes)
        spare = 6 * SLOT_BYTES
        self.arena = Arena(-(-(2 * align(largest) + spare) // 4096) * 4096)
        self.arena.board.install(TAG)
        self._bell = Doorbell()
        arena = self.arena
        mine = [os.getpid(), arena.fd, arena.size, arena.nonce.hex(), self._bell.address]
        store.set(f"peer{rank}", json.dumps(mine))
        all_of = [json.loads(store.get(f"peer{peer}")) for peer in range(trial.num_peers)]
        self._bell.connect([address for *_, address in all_of])
        memories: list[Memory] = [
            arena if peer == rank else Mapping.open(pid, fd, size, bytes.fromhex(nonce))
            for peer, (pid, fd, size, nonce, _) in enumerate(all_of)
        ]
        signals = Signals(self._bell.ring, self._bell.wait, lambda: False)
        digest = xxhash.xxh3_128_digest if trial.with_digest else None
        self.exchange = Exchange(memories, Seat(rank, 1, TAG), signals, digest=digest)
        self._barriers = Exchange(memories, Seat(rank, 1, TAG, group=1), signals, spin_s=BARRIER_SPIN_S)
        self.rank, self.world_size = rank, trial.num_peers
        self._one = allocate(arena, ITEM_BYTES)

    @property
    def num_caught(self) -> int:
        return self.exchange.num_caught + self._barriers.num_caught

    def program(self, algorithm: str, size_bytes: int) -> Program:
        program = all_reduce_program(algorithm, self.rank, self.world_size, size_bytes)
        assert program is not None
        return program

    def barrier(self) -> None:
        program = self.program("one-shot", ITEM_BYTES)
        sink = np.empty(1, np.float32)
        self._barriers.run(program, Call(bytes(16), self._one, np.float32, result=sink), LIMIT_S)


class ByReference:
    """Inputs lie in the arena, the results of `direct` too; small inputs take turns in two slots."""

    def __init__(self, name: str, host: Host, size_bytes: int) -> None:
        self.name, self._host, self._size_bytes = name, host, size_bytes
        self._program = host.program(name, size_bytes)
        arena = host.arena
        self._regions = [allocate(arena, size_bytes)]
        self._lent: Region | None = None
        self._result = np.empty(size_bytes // ITEM_BYTES, np.float32)
        if self._program.lends_result:
            self._lent = allocate(arena, result_bytes(size_bytes, self._program))
            self._result = arena.array(Region(self._lent.offset, size_bytes), np.float32)
        else:
            self._regions.append(allocate(arena, size_bytes))

    def prepare(self, values: Array) -> None:
        for region in self._regions:
            self._host.arena.array(region, np.float32)[:] = values

    def run(self, index: int) -> None:
        region = self._regions[index % len(self._regions)]
        call = Call(bytes(16), region, np.float32, self._lent, self._result)
        self._host.exchange.run(self._program, call, LIMIT_S)

    def results(self) -> list[Array]:
        return [self._result]

    def close(self) -> None:
        for region in (*self._regions, *((self._lent,) if self._lent else ())):
            self._host.arena.free(region)


class Gloo:
    """Sums in place, so each operation of a turn has a tensor of its own."""

    name = "gloo"

    def __init__(self, size_bytes: int, burst: int) -> None:
        self._arrays = [np.empty(size_bytes // ITEM_BYTES, np.float32) for _ in range(burst)]
        self._tensors = [torch.from_numpy(array) for array in self._arrays]

    def prepare(self, values: Array) -> None:
        for array in self._arrays:
            array[:] = values

    def run(self, index: int) -> None:
        distributed.all_reduce(self._tensors[index])

    def results(self) -> list[Array]:
        return list(self._arrays)


def allocate(arena: Arena, length: int) -> Region:
    region = arena.allocate(length)
    assert region is not None, f"{length} bytes do not fit"
    return region


def main(folder: Path, rank: int, trial: Trial) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(str(folder / "gloo"), trial.num_peers)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=trial.num_peers, timeout=TIMEOUT)
    host = Host(store, rank, trial)
    found = [each for size_bytes in trial.sizes_bytes for each in measure(host, trial, size_bytes)]
    report = {"measurements": [asdict(each) for each in found], "num_caught": host.num_caught}
    (folder / f"{rank}.json").write_text(json.dumps(report))
    distributed.barrier()
    distributed.destroy_process_group()


def measure(host: Host, trial: Trial, size_bytes: int) -> list[Measurement]:
    """All contenders at one size."""
    count, ranks = size_bytes // ITEM_BYTES, range(trial.num_peers)
    own = contribution(host.rank, count)
    expected = sum((contribution(rank, count) for rank in ranks), start=np.zeros(count, np.float32))
    names = ("one-shot", "direct") if size_bytes <= ONE_SHOT_MAX_BYTES else ("direct",)
    ours = [ByReference(name, host, size_bytes) for name in names]
    burst = trial.burst(size_bytes)
    contenders: list[Contender] = [*ours, Gloo(size_bytes, burst)]
    times_s: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    wrong = dict.fromkeys(times_s, 0)
    num_turns = trial.num_turns(size_bytes)
    num_warmup = num_turns // 5
    for number in range(num_warmup + num_turns):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            shift = number % SHIFTS
            contender.prepare(own + np.float32(shift))
            time_s = timed(host, contender, burst)
            if number >= num_warmup:
                times_s[contender.name].append(time_s)
            for result in contender.results():
                wrong[contender.name] += int(np.count_nonzero(result - np.float32(shift * trial.num_peers) != expected))
    for each in ours:
        each.close()
    return [
        Measurement(algorithm=name, ran=name, size_bytes=size_bytes, wrong=wrong[name], times_s=tuple(times))
        for name, times in times_s.items()
    ]


def timed(host: Host, contender: Contender, burst: int) -> float:
    """Seconds per operation."""
    host.barrier()
    start = time.perf_counter()
    for index in range(burst):
        contender.run(index)
    time_s = (time.perf_counter() - start) / burst
    host.barrier()  # others may still read the last input
    return time_s


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Trial.from_json(sys.argv[3]))

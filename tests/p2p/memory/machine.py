"""All ranks of a view in one process and one thread, each with an arena of its own, mapped by the others as usual."""

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import xxhash

from collectives import Array, Reducer, Reduction, reducer
from collectives.program import Program
from collectives.programs import all_gather_program, all_reduce_program
from p2p.memory.arena import REGIONS_OFFSET, Arena, Memory, Region, RemoteArena, Slots, align
from p2p.memory.exchange import DigestFunction, Exchange
from p2p.memory.host_memory import NUM_SLOTS
from p2p.memory.operands import OwnOperands, RankInView
from p2p.memory.shared_run import Pieces, SharedRun
from p2p.memory.shared_runner import RunState, SharedRunner

SAME = bytes(16)
SMALL_PIECES = Pieces(first_bytes=64 << 10, long_bytes=1 << 20)
"""Small pieces for tests, since their laws do not depend on size. Blocks (collectives/programs.py) begin at 1 MiB."""
SPACE = 4 << 20
"""Bytes for arrays in the arena that are not in a slot."""
MOST_TURNS = 10_000
"""More turns than any test needs: ranks that need more are deadlocked."""


class Host:
    """The arenas of several peers.

    Attributes:
        arenas: of all peers.
        memories: for each peer, the memory that it can read: its own arena, and mappings of the others.
    """

    def __init__(self, num_peers: int, size: int = 1 << 20) -> None:
        peer_ids = [secrets.token_hex(8) for _ in range(num_peers)]
        self.arenas = [Arena(size, peer_id) for peer_id in peer_ids]
        self.memories: list[list[Memory]] = [
            [
                arena if arena is own else RemoteArena.open(os.getpid(), peer_id)
                for arena, peer_id in zip(self.arenas, peer_ids, strict=True)
            ]
            for own in self.arenas
        ]
        self._view_number = 2

    def enter_view(self, *peers: int) -> list[RankInView]:
        """Enter another view, of these peers in rank order. The others are in none."""
        self._view_number += 1
        tag = 100 + self._view_number
        for peer, arena in enumerate(self.arenas):
            arena.board.install(tag if peer in peers else 0)
        return [RankInView(rank, self._view_number, tag) for rank in range(len(peers))]

    def memories_of(self, *peers: int) -> list[list[Memory]]:
        """For each rank of a view of these peers, the memories that it can read, in rank order."""
        return [[self.memories[me][peer] for peer in peers] for me in peers]

    def close(self) -> None:
        for own, memories in zip(self.arenas, self.memories, strict=True):
            for memory in memories:
                if memory is not own:
                    memory.close()
            own.close()


class Rank:
    """One rank: its arena, its exchange, and the ranks for which it has rung."""

    def __init__(self, arena: Arena, memories: Sequence[Memory], in_view: RankInView, digest: DigestFunction) -> None:
        self.rank, self.arena, self.in_view = in_view.rank, arena, in_view
        self.rung: list[int] = []
        self.exchange = Exchange(memories, in_view, self.rung.append, digest=digest)

    def lend(self, values: Array) -> Region:
        region = self.arena.allocate(values.nbytes)
        assert region is not None
        self.arena.array(region, values.dtype)[:] = values
        return region

    def begin(
        self,
        program: Program,
        values: Array,
        *,
        reduce: Reducer | None = None,
        is_heap: bool = False,
        fingerprint: bytes = SAME,
        checked: int = 0,
    ) -> Array:
        """Begin a sum; returns the array of the result: outside the arena, if `is_heap`."""
        region, lent = self.lend(values), None
        self.result = np.full_like(values, 99)
        if program.lends_results:
            lent = self.arena.allocate(values.nbytes)
            assert lent is not None
            if not is_heap:
                self.result = self.arena.array(lent, values.dtype)
        call = OwnOperands(fingerprint, region, values.dtype, lent, self.result if is_heap or lent is None else None)
        reduce = reduce or reducer(Reduction(), values.dtype)
        self.exchange.begin(program, call, reduce, checked=checked)
        return self.result


def ranks_of(host: Host, world_size: int, *, digest: DigestFunction = xxhash.xxh3_128_digest) -> list[Rank]:
    """The first peers of `host`, in a new view."""
    peers = range(world_size)
    seats, memories = host.enter_view(*peers), host.memories_of(*peers)
    return [Rank(host.arenas[rank], memories[rank], seats[rank], digest) for rank in peers]


class Machine:
    """All peers, with slots, in one view after the other."""

    def __init__(self, num_peers: int, pieces: Pieces = SMALL_PIECES, space_bytes: int = SPACE) -> None:
        self.pieces, self.space_bytes = pieces, space_bytes
        size = REGIONS_OFFSET + NUM_SLOTS * align(pieces.first_bytes) + space_bytes
        self.host = Host(num_peers, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.slots: list[tuple[Slots, Region]] = []
        for arena in self.host.arenas:
            inputs, results = Slots.of(arena, pieces.first_bytes), arena.allocate(pieces.first_bytes)
            assert inputs is not None and results is not None
            self.slots.append((inputs, results))
        spaces = [arena.allocate(space_bytes) for arena in self.host.arenas]
        self.spaces = [space for space in spaces if space is not None]

    def enter_view(self, *peers: int) -> list[SharedRunner]:
        """Enter a view of these peers; returns their runners in rank order."""
        seats, memories = self.host.enter_view(*peers), self.host.memories_of(*peers)
        self.rung: list[tuple[int, int]] = []

        def ring_of(rank: int) -> Callable[[int], None]:
            return lambda other: self.rung.append((rank, other))

        return [
            SharedRunner(
                self.host.arenas[peer], self.slots[peer], memories[rank], seats[rank], ring_of(rank), self.pieces
            )
            for rank, peer in enumerate(peers)
        ]

    def place(self, peer: int, values: Array, offset: int = 0) -> Array:
        """Copy `values` into the arena of `peer`; returns the copy."""
        copy = self.host.arenas[peer].array(self.spaces[peer], np.uint8)[offset : offset + values.nbytes]
        copy[:] = values.view(np.uint8)
        return copy.view(values.dtype)


def finish(rng: Random, *steps: Callable[[], Any]) -> None:
    """Call the steps in random order until each has returned a true value."""
    left = list(steps)
    for _ in range(MOST_TURNS):
        if not left:
            return
        chosen = rng.randrange(len(left))
        if left[chosen]():
            del left[chosen]
    raise AssertionError(f"{len(left)} of {len(steps)} wait in vain")


def carry_out(group: Sequence[SharedRunner], runs: Sequence[SharedRun], seed: int = 0) -> None:
    """Advance until all runs are done; checks that their digests are equal."""

    def step_of(sharing: SharedRunner, run: SharedRun) -> Callable[[], bool]:
        def step() -> bool:
            assert sharing.advance() is not RunState.IDLE
            return run.done

        return step

    finish(Random(seed), *map(step_of, group, runs))
    assert len({run.digest() for run in runs}) == 1


def all_reduce_of(runner: SharedRunner, algorithm: str, values: Array) -> Callable[[slice], Program]:
    """The programs of a rank for an algorithm."""
    rank, world_size = runner._in_view.rank, len(runner._exchange._boards)
    length, itemsize = values.size, values.itemsize
    return lambda of: all_reduce_program(algorithm, rank, world_size, length, itemsize, of.start, of.stop)


def gather_of(runner: SharedRunner) -> Callable[[slice], Program]:
    """The program of a rank that gathers a piece of each rank."""
    program = all_gather_program(runner._in_view.rank, len(runner._exchange._boards))
    return lambda _: program

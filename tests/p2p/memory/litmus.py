"""Litmus tests: two processes that try to observe violations of the memory order, and lost wake-ups.

    python -m tests.p2p.memory.litmus NUMBER sums|tags SECONDS

Both try for SECONDS, and longer until a violation would have been possible often enough, or `PATIENCE_S` have passed.

`sums`: one operation after the other, with random delays, so that each process sleeps at times. Every sum is checked.
`tags`: process 0 writes its memory repeatedly, as if it entered one view after the other; process 1 reads it without
waiting. Data that it read under one tag must have been written under that tag.
"""

import os
import secrets
import select
import sys
import time
from random import Random

import numpy as np
import xxhash

from collectives import Reduction, reducer
from collectives.program import Program
from collectives.programs import one_shot_program
from p2p.memory.arena import REGIONS_OFFSET, Arena, Memory, Region, RemoteArena, Slots
from p2p.memory.doorbell import Doorbell
from p2p.memory.exchange import Exchange
from p2p.memory.operands import OwnOperands, RankInView
from tests.p2p.memory.processes import meet, say

COUNT = 1024
WHOLE = Region(REGIONS_OFFSET, 8 * COUNT)
BOTH_HALVES = (1 << 32) + 1
"""A torn word has different halves. No value repeats: after a pause a process could not distinguish the two."""

SPIN_S = 20e-6
NET_S = 20e-3
BELL_S = 5.0
"""Timeout of a wait for the doorbell: a process may be stopped between its progress and its ring."""
HANG_S = 30.0
PATIENCE_S = 60.0
"""Time limit, long enough for a machine with other load."""
ENOUGH = 20
DELAY_MAX_S = 60e-6
TAG = 1


def main(number: int, what: str, limit_s: float) -> None:
    peer_id = secrets.token_hex(8)
    arena = Arena(1 << 20, peer_id)
    arena.board.install(TAG)
    memories = meet(number, arena, peer_id)
    if what == "sums":
        sums(number, arena, memories, limit_s)
    elif number == 0:
        write_tags(arena, memories[1], limit_s)
    else:
        read_tags(arena, memories[0])


class Limits:
    """Time limits of the attempts."""

    def __init__(self, limit_s: float) -> None:
        now = time.perf_counter()
        self._end, self._deadline = now + limit_s, now + limit_s + PATIENCE_S

    def are_over(self, *, has_tried: bool) -> bool:
        now = time.perf_counter()
        return now > (self._end if has_tried else self._deadline)


def delay(rng: Random) -> None:
    """Wait in one of three cases, for up to three times the length of the spin."""
    if rng.randrange(3) == 0:
        end = time.perf_counter() + rng.uniform(0, DELAY_MAX_S)
        while time.perf_counter() < end:
            pass


class Ropes:
    """The doorbells of all other processes."""

    def __init__(self, memories: list[Memory]) -> None:
        self._memories = memories
        self.num_pulled = 0

    def ring(self, rank: int) -> None:
        self.num_pulled += 1
        mapping = self._memories[rank]
        assert isinstance(mapping, RemoteArena)
        mapping.remote_doorbell.ring()


class Driver:
    """Waits for the other process as the loop of a peer does, sometimes without a spin.

    Attributes:
        num_sleeps: waits that were longer than a spin.
        num_caught: sleeps that no doorbell ended, although one should have. Must stay 0.
    """

    def __init__(self, exchange: Exchange, doorbell: Doorbell, rng: Random) -> None:
        self._exchange, self._doorbell, self._rng = exchange, doorbell, rng
        self._reduce = reducer(Reduction(), np.dtype(np.int64))
        self.num_sleeps = self.num_caught = 0

    def run(self, program: Program, call: OwnOperands) -> None:
        self._exchange.begin(program, call, self._reduce)
        deadline = time.perf_counter() + HANG_S
        while not self._exchange.advance():
            assert time.perf_counter() < deadline, f"ranks {self._exchange.progress.late()} do not come"
            self._wait()

    def _wait(self) -> None:
        limit = time.perf_counter() + self._rng.choice((0.0, SPIN_S, SPIN_S))
        while self._exchange.progress.late():
            if time.perf_counter() > limit:
                self._sleep()
                return
            os.sched_yield()

    def _sleep(self) -> None:
        self.num_sleeps += 1
        if self._exchange.progress.prepare_to_wait() and not self._rings(NET_S) and not self._exchange.progress.late():
            # Either the doorbell is about to ring, or the other process has not seen that this one sleeps.
            self.num_caught += not self._rings(BELL_S)
        self._exchange.progress.finish_wait()

    def _rings(self, timeout_s: float) -> bool:
        """Whether the doorbell rings within `timeout_s`, or has rung since the last call."""
        return bool(select.select([self._doorbell.fd], [], [], timeout_s)[0]) and self._doorbell.clear()


def sums(rank: int, arena: Arena, memories: list[Memory], limit_s: float) -> None:
    """Run checked sums; a negative input of rank 0 marks the last operation."""
    slots = Slots.of(arena, 8 * COUNT)
    assert slots is not None
    program, rng, result = one_shot_program(rank, 2), Random(rank), np.empty(COUNT, np.int64)
    ropes = Ropes(memories)
    exchange = Exchange(memories, RankInView(rank, 1, TAG), ropes.ring, digest=xxhash.xxh3_128_digest)
    driver = Driver(exchange, arena.doorbell, rng)
    fingerprint, limits, number, is_last = bytes(16), Limits(limit_s), 0, False
    while not is_last:
        number += 1
        region = slots.take(8 * COUNT)
        delay(rng)
        has_tried = min(number // 10, driver.num_sleeps, ropes.num_pulled) > ENOUGH
        is_over = rank == 0 and limits.are_over(has_tried=has_tried)
        arena.array(region, np.int64)[:] = -(1 << 40) if is_over else number * (rank + 1)
        delay(rng)
        driver.run(program, OwnOperands(fingerprint, region, np.int64, result=result))
        is_last = int(result[0]) < 0
        expected = 2 * number - (1 << 40) if is_last else 3 * number
        assert (result == expected).all(), f"operation {number}: {set(result.tolist())} instead of {expected}"
    say([number, driver.num_sleeps, driver.num_caught, ropes.num_pulled])


def write_tags(arena: Arena, reader: Memory, limit_s: float) -> None:
    """Repeatedly leave the view, write the memory, and enter the next view."""
    data, rng, number = arena.array(WHOLE, np.uint64), Random(0), 0
    limits, has_tried = Limits(limit_s), reader.board.progress
    while not limits.are_over(has_tried=bool(has_tried[0])):
        number += 1
        value = (number + 1) * BOTH_HALVES
        arena.board.install(0)
        data[:] = value
        arena.board.install(value)
        delay(rng)
    arena.board.progress[0] = 1
    say([number])


def read_tags(arena: Arena, writer: Memory) -> None:
    data, progress, tag = writer.array(WHOLE, np.uint64), writer.board.progress, writer.board.tag
    copy, num_good, num_void, seen = np.empty(COUNT, np.uint64), 0, 0, set()
    while not progress[0]:
        before = tag[0]
        copy[:] = data
        after = tag[0]
        assert before % BOTH_HALVES == after % BOTH_HALVES == 0 or TAG in (before, after), (
            f"torn: {before:x}, {after:x}"
        )
        if before in (0, TAG) or after != before:
            num_void += 1
            continue
        assert (copy == before).all(), f"read {set(copy.tolist())} under tag {before:x}"
        num_good += 1
        seen.add(before)
        arena.board.progress[0] = min(num_good, num_void, 10 * len(seen)) > ENOUGH
    say([num_good, num_void, len(seen)])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))

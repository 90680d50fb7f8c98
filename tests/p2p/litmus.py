"""Two processes that try to catch the memory order, and the wake-ups, in the act.

    python -m tests.p2p.litmus NUMBER sums|tags SECONDS

`sums`: one operation after the other, with delays drawn anew each time, so that either of them sleeps now and then.
Every sum is checked. `tags`: process 0 writes its memory again and again, as if it entered one view after the other;
process 1 reads it without any wait. What it read under one tag must be what was written under it.
"""

import sys
import time
from random import Random

import numpy as np

from bench.doorbell import Doorbell
from collectives.program import one_shot_program
from p2p.arena import Arena, Memory, Region, Slots
from p2p.exchange import Exchange, Signals
from p2p.lending import Call, Seat
from tests.p2p.processes import meet, say

COUNT = 1024
WHOLE = Region(4096, 8 * COUNT)
BOTH_HALVES = (1 << 32) + 1
"""A torn word has halves that differ. No value comes twice: who is stopped for a while could not tell it has."""

SPIN_S = 20e-6
DELAY_MAX_S = 60e-6
TAG = 1


def main(number: int, what: str, limit_s: float) -> None:
    arena, bell = Arena(1 << 20), Doorbell()
    arena.board.install(TAG)
    memories = meet(number, arena, bell)
    if what == "sums":
        sums(number, arena, memories, bell, limit_s)
    elif number == 0:
        write_tags(arena, memories[1], limit_s)
    else:
        read_tags(arena, memories[0])


def delay(rng: Random) -> None:
    """Nothing in two cases of three; else up to three times as long as the spin."""
    if rng.randrange(3) == 0:
        end = time.perf_counter() + rng.uniform(0, DELAY_MAX_S)
        while time.perf_counter() < end:
            pass


def sums(rank: int, arena: Arena, memories: list[Memory], bell: Doorbell, limit_s: float) -> None:
    """Rank 0 says by a negative input that this is the last operation."""
    signals = Signals(bell.ring, bell.wait, lambda: False)
    exchange = Exchange(memories, Seat(rank, 1, TAG), signals, spin_s=SPIN_S)
    slots = Slots.of(arena, 8 * COUNT)
    assert slots is not None
    program, rng, result = one_shot_program(rank, 2), Random(rank), np.empty(COUNT, np.int64)
    fingerprint, end, number, is_last = bytes(16), time.perf_counter() + limit_s, 0, False
    while not is_last:
        number += 1
        region = slots.take(8 * COUNT)
        delay(rng)
        is_over = rank == 0 and time.perf_counter() > end
        arena.array(region, np.int64)[:] = -(1 << 40) if is_over else number * (rank + 1)
        delay(rng)
        exchange.run(program, Call(fingerprint, region, np.int64, result=result), 30.0)
        is_last = int(result[0]) < 0
        expected = 2 * number - (1 << 40) if is_last else 3 * number
        assert (result == expected).all(), f"operation {number}: {set(result.tolist())} instead of {expected}"
    say([number, exchange.num_sleeps, exchange.num_caught, bell.num_rung])


def write_tags(arena: Arena, reader: Memory, limit_s: float) -> None:
    """Leave the view before the memory is written, and enter the next one after."""
    data, rng, number = arena.array(WHOLE, np.uint64), Random(0), 0
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        number += 1
        value = (number + 1) * BOTH_HALVES
        arena.board.install(0)
        data[:] = value
        arena.board.install(value)
        delay(rng)
    arena.board.progress(0)[0] = 1
    say([number])


def read_tags(arena: Arena, writer: Memory) -> None:
    data, progress, tag = writer.array(WHOLE, np.uint64), writer.board.progress(0), writer.board.tag
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
    say([num_good, num_void, len(seen)])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))

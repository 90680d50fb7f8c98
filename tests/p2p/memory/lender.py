"""A process with an arena of its own that maps those of all others, reports that, and waits to be killed."""

import secrets
import sys

import numpy as np

from p2p.memory.arena import Arena
from tests.p2p.memory.processes import hear, meet, say

SIZE_BYTES = 4 << 20
LENGTH = 1 << 20


def main(number: int) -> None:
    peer_id = secrets.token_hex(8)
    arena = Arena(SIZE_BYTES, peer_id)
    region = arena.allocate(LENGTH)
    assert region is not None
    arena.array(region, np.int64)[:] = number + 1
    memories = meet(number, arena, peer_id)
    say([int(memory.array(region, np.int64).sum()) for memory in memories])
    hear()


if __name__ == "__main__":
    main(int(sys.argv[1]))

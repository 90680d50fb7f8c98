"""Another process with an arena, as a peer of this host has one: a device is tried with memory that is not its own.

    python -m p2p.doctor.lender NUM_BYTES

Prints under which name its arena is found when its bytes are there, and ends when its stdin does.
"""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from collectives import Array

from ..errors import ShoalError
from ..memory.arena import REGIONS_OFFSET, Arena, Region


class Lent(NamedTuple):
    """Where it is."""

    pid: int
    peer_id: str
    region: Region


def pattern(num_bytes: int) -> Array:
    """What is in it."""
    return np.resize(np.arange(251, dtype=np.uint8), num_bytes)


@contextmanager
def lent(num_bytes: int) -> Iterator[Lent]:
    """As long as the block lasts.

    Raises:
        ShoalError: that process has no such memory.
    """
    command = [sys.executable, "-m", "p2p.doctor.lender", str(num_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        name = child.stdout.readline().strip()
        if not name:
            raise ShoalError(f"another process could not share memory: {child.stderr.read().strip()}")
        yield Lent(child.pid, name, Region(REGIONS_OFFSET, num_bytes))


def main(num_bytes: int) -> None:
    """See above."""
    name = secrets.token_hex(8)
    try:
        arena = Arena(REGIONS_OFFSET + num_bytes, name)
    except ShoalError as error:
        sys.exit(str(error))
    region = arena.allocate(num_bytes)
    if region is None:
        sys.exit(f"there are no {num_bytes} bytes of memory")
    arena.array(region, np.uint8)[:] = pattern(num_bytes)
    print(name, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))

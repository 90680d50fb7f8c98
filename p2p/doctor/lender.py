"""A second process with an arena like that of a peer, for checks of a device with memory of another process.

    python -m p2p.doctor.lender NUM_BYTES

Prints the name of its arena once the bytes are written, and ends when its stdin is closed.
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
    """The lent memory: process, name of the arena, and region."""

    pid: int
    peer_id: str
    region: Region


def pattern(num_bytes: int) -> Array:
    """The content of the lent memory."""
    return np.resize(np.arange(251, dtype=np.uint8), num_bytes)


@contextmanager
def lent(num_bytes: int) -> Iterator[Lent]:
    """Run the process, and lend its memory, until the end of `with`.

    Raises:
        ShoalError: the process cannot allocate the memory.
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
    """Lend `num_bytes` until stdin is closed."""
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

"""Runs a script or module as the program of this process, with a given amount of resident memory beside it.

    python -P -m p2p.forking.program RESIDENT_BYTES SCRIPT.PY ARGUMENTS
    python -P -m p2p.forking.program RESIDENT_BYTES -m MODULE ARGUMENTS

The memory is private to the process, and each page is written once: when the process is killed, the kernel frees all
of it before it closes the sockets.
"""

import mmap
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import LaunchError

ROOM = "p2p.forking.program"


class ImportFailed(LaunchError):
    """The fork server could not import this module."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(f"cannot import {module}: {why}")
        self.module, self.why = module, why


def command(words: Sequence[str], resident_bytes: int) -> tuple[str, ...]:
    """The command that runs `words`, `python SCRIPT` or `python -m MODULE`, with so much resident memory."""
    return (words[0], "-P", "-m", ROOM, str(resident_bytes), *words[1:])


def run(words: Sequence[str], resident_bytes: int) -> None:
    """Run `python WORDS` in this process, which was started with -P.

    Raises:
        MemoryError: the memory cannot be allocated.
    """
    ballast = allocate_resident(resident_bytes)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    assert ballast is None or len(ballast) == resident_bytes, "it is kept until now"


def allocate_resident(num_bytes: int) -> mmap.mmap | None:
    """Allocate memory and write to each page; None for 0 bytes. Raises MemoryError."""
    if not num_bytes:
        return None
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot get {num_bytes} bytes of resident memory: {error.strerror}") from error
    num_pages = -(-num_bytes // mmap.PAGESIZE)
    with memoryview(memory) as view:
        view[:: mmap.PAGESIZE] = b"\1" * num_pages
    return memory


if __name__ == "__main__":
    run(sys.argv[2:], int(sys.argv[1]))

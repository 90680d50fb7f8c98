"""Memory whose pages are faulted in before use.

The first write to a page waits for the kernel to allocate it. Under a hypervisor that can take a second for 100 MB,
during which a thread that copies a state delays the next update, or answers no peer. So a thread with a lower priority
than training touches the pages in advance. Leaves out: pages that the kernel reclaims, as with swap.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

NICENESS: Final = 10
"""Niceness of the thread: a tenth of a processor where threads of normal priority keep all processors busy."""

PIECE_BYTES: Final = 8 << 20
"""Bytes touched between two checks for `drop`. The thread does not hold the GIL in between."""

ALIGNED_TO: Final = 64


def touched(num_bytes: int) -> Bytes:
    """Zeros whose pages are faulted in."""
    memory = np.empty(num_bytes, np.uint8)
    memory[...] = 0
    return memory


def room_of(sizes: Iterable[int]) -> int:
    """Total bytes for pieces of these sizes, each aligned."""
    return sum(-(-size // ALIGNED_TO) * ALIGNED_TO for size in sizes)


class PrefaultedMemory:
    """One block from which pieces are taken once it is ready; freed with the last of these."""

    def __init__(self, num_bytes: int) -> None:
        """Allocate the block and start the thread that touches it."""
        self._block: Bytes = np.empty(0, np.uint8)
        with suppress(MemoryError):  # `take` allocates then, which may succeed
            self._block = np.empty(num_bytes, np.uint8)
        self._at, self._end = self._block.ctypes.data, self._block.ctypes.data + len(self._block)
        self._num_taken = self._num_touched = 0
        self._is_dropped = threading.Event()
        self._is_ready = threading.Event()
        try:
            threading.Thread(target=self._touch, args=(self._block,), name="shoal-memory", daemon=True).start()
        except RuntimeError:  # no thread can be started: the pages fault in at the first write
            self._is_ready.set()

    @property
    def is_ready(self) -> bool:
        return self._is_ready.is_set()

    def wait(self) -> None:
        """Block until the memory is ready or was dropped."""
        self._is_ready.wait()

    def take(self, num_bytes: int) -> Bytes:
        """Take a piece of the block; if it is too small or not ready, newly allocated memory, not yet faulted in."""
        return self.reserve(num_bytes) if self.is_ready else np.empty(num_bytes, np.uint8)

    def reserve(self, num_bytes: int) -> Bytes:
        """As `take`, but also before the block is ready: do not write to the piece until `reaches` is True for it."""
        begin = self._num_taken
        if begin + num_bytes > len(self._block):
            return np.empty(num_bytes, np.uint8)
        self._num_taken += room_of([num_bytes])
        return self._block[begin : begin + num_bytes]

    def reaches(self, piece: Bytes) -> bool:
        """Whether a reserved piece is touched already, or does not belong to this block."""
        at = piece.ctypes.data  # the thread also touches dropped memory until its next check
        return self.is_ready or not self._at <= at < self._end or at + len(piece) <= self._at + self._num_touched

    def drop(self) -> None:
        """Stop touching, and release the block. Pieces that were taken stay valid."""
        self._is_dropped.set()
        self._block = np.empty(0, np.uint8)

    def _touch(self, block: Bytes) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        for begin in range(0, len(block), PIECE_BYTES):
            if self._is_dropped.is_set():
                break
            block[begin : begin + PIECE_BYTES] = 0
            self._num_touched = begin + PIECE_BYTES
        del block
        self._is_ready.set()

"""Memory whose pages are there before it is needed.

The first write to a page waits for the kernel to find one. Where a hypervisor has to back it, that takes a second for
100 MB, and whoever copies a state into such memory keeps the next update waiting, or does not hear its peers. So the
pages are touched before, by a thread, with less priority than what trains. Leaves out: pages that the kernel takes
back, as with swap.
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
"""Of the thread: a tenth of a processor where all are busy with what has the usual priority."""

PIECE_BYTES: Final = 8 << 20
"""Between looks whether it is wanted still. The interpreter is free meanwhile."""

ALIGNED_TO: Final = 64


def touched(num_bytes: int) -> Bytes:
    """Zeros, whose pages are there."""
    memory = np.empty(num_bytes, np.uint8)
    memory[...] = 0
    return memory


def room_of(sizes: Iterable[int]) -> int:
    """Bytes for pieces of these sizes, each aligned."""
    return sum(-(-size // ALIGNED_TO) * ALIGNED_TO for size in sizes)


class ReadyMemory:
    """One block, which pieces are taken from, once it is ready; it is given back with the last of these."""

    def __init__(self, num_bytes: int) -> None:
        """Begin to touch it."""
        self._block: Bytes = np.empty(0, np.uint8)
        with suppress(MemoryError):  # whoever takes from it may have better luck
            self._block = np.empty(num_bytes, np.uint8)
        self._at, self._end = self._block.ctypes.data, self._block.ctypes.data + len(self._block)
        self._num_taken = self._num_touched = 0
        self._is_dropped = threading.Event()
        self._is_ready = threading.Event()
        try:
            threading.Thread(target=self._touch, args=(self._block,), name="shoal-memory", daemon=True).start()
        except RuntimeError:  # there can be no more threads: pages are touched as they are written
            self._is_ready.set()

    @property
    def is_ready(self) -> bool:
        return self._is_ready.is_set()

    def wait(self) -> None:
        """Until it is ready, or was dropped."""
        self._is_ready.wait()

    def take(self, num_bytes: int) -> Bytes:
        """Memory that nobody else has; where there is not so much of it, or not yet, with pages to be touched."""
        return self.reserve(num_bytes) if self.is_ready else np.empty(num_bytes, np.uint8)

    def reserve(self, num_bytes: int) -> Bytes:
        """As `take`, ready or not: nobody may write there before this `reaches` it."""
        begin = self._num_taken
        if begin + num_bytes > len(self._block):
            return np.empty(num_bytes, np.uint8)
        self._num_taken += room_of([num_bytes])
        return self._block[begin : begin + num_bytes]

    def reaches(self, piece: Bytes) -> bool:
        """Whether a piece of what was reserved is touched, or none of this block."""
        at = piece.ctypes.data  # dropped memory, too, is touched until the thread has seen that
        return self.is_ready or not self._at <= at < self._end or at + len(piece) <= self._at + self._num_touched

    def drop(self) -> None:
        """It is not wanted any more. What was taken remains."""
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

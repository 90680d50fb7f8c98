"""Arenas of others as a device reads them: mapped once more, writable, and registered by a thread of its own.

CUDA registers no memory that may only be read, so an arena that a device is to read is mapped a second time, shared
and writable. Nothing is ever written there, and nobody but an adder is given an array of it.

Extents lie as their owner has them (extents.py). One is registered when all of its pages are there: registering a hole
would take memory that its owner has not. A thread opens, registers and releases windows, in the order in which that was
asked for, since each may take as long as the device is busy; until then the host adds.
"""

import logging
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

import numpy as np

from collectives import Array

from ..device import Device, PinRefused
from .arena import Region, RemoteArena, find_arena, leave_out_of_forks
from .extents import extent_at, extents_of

logger = logging.getLogger("p2p")

MOST_TURNS: Final = 1 << 12
"""A caller that was told of a hole asks again after twice as many turns as last time, up to this limit."""


class BackgroundWorker:
    """A thread that does one thing after the other. It begins with the first."""

    def __init__(self, name: str) -> None:
        """A thread without tasks."""
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        """After those before it. For one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def end(self) -> None:
        """Return when all is done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:  # of the device, which then adds nothing up either
                logger.warning("memory of another peer could not be registered or released", exc_info=True)


class Window:
    """The arena of one peer, as `device` reads it."""

    def __init__(self, mapping: RemoteArena, device: Device, extent_bytes: int, aside: BackgroundWorker) -> None:
        """A window that maps nothing yet. `extent_bytes`: as of the own arena; `aside` runs slow calls."""
        self._owner, self._size, self._inode = mapping.owner, mapping.size, mapping.inode
        self._device, self._extent_bytes, self._aside = device, extent_bytes, aside
        self._fd = -1
        self._mapped: mmap.mmap | None = None
        self._pinned: dict[int, Array] = {}
        self._is_refused = False
        self._turns: dict[int, int] = {}
        """Until it is asked again, and how many these were: by extent."""
        self._waits: dict[int, int] = {}

    # For who adds.

    def array(self, region: Region) -> Array | None:
        """Its bytes, for a device to read; None where they are not registered: that is asked for."""
        indices = extents_of(region, self._extent_bytes)
        missing = [index for index in indices if index not in self._pinned]
        if missing:
            self._ask(missing)
            return None
        assert self._mapped is not None
        return np.frombuffer(self._mapped, np.uint8, region.length, region.offset)

    def _ask(self, indices: list[int]) -> None:
        for index in [] if self._is_refused else indices:
            if (left := self._turns.get(index, 0)) > 0:
                self._turns[index] = left - 1
                continue
            waits = self._waits[index] = min(2 * self._waits.get(index, 1), MOST_TURNS)
            self._turns[index] = waits
            self._aside.do(lambda index=index: self._pin(index))  # type: ignore[misc]

    def close(self) -> None:
        """Release and unmap it; no sum of it is under way, and none is asked for any more."""
        self._aside.do(self._release)

    # Aside.

    def _pin(self, index: int) -> None:
        if index in self._pinned or self._is_refused:
            return
        try:
            mapped = self._open()
            extent = extent_at(index, self._extent_bytes, self._size)
            if os.lseek(self._fd, extent.offset, os.SEEK_HOLE) < extent.offset + extent.length:
                return
            memory = np.frombuffer(mapped, np.uint8, extent.length, extent.offset)
            self._device.pin(memory)
        except (OSError, PinRefused, RuntimeError) as error:
            self._is_refused = True
            logger.info("memory of peer %s is added up by the host: %s", self._owner[1], error)
        else:
            self._pinned[index] = memory

    def _open(self) -> mmap.mmap:
        if self._mapped is None:
            found = find_arena(*self._owner, os.O_RDWR)
            if found is None:
                raise PinRefused("its process ends")
            self._fd = found
            if os.fstat(found).st_ino != self._inode:
                raise PinRefused("its process is another one")
            mapped = mmap.mmap(self._fd, self._size)
            leave_out_of_forks(mapped)
            self._mapped = mapped
        return self._mapped

    def _release(self) -> None:
        self._is_refused = True
        while self._pinned:
            memory = self._pinned.popitem()[1]
            with suppress(RuntimeError):  # of a device that is lost, which has nothing registered
                self._device.unpin(memory)
        self._mapped = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

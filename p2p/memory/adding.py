"""Sums that a device makes for the operations of one peer, out of the arenas of all and into its own.

Whoever asks for a sum is given a mark, or told that the host has to: since no device adds (yet), since the chunk is
short, or since some of its memory is not registered. Each rank decides that for itself, as the bits are the same; so a
chunk that every rank adds up for itself, which may have another NaN elsewhere, is left to the host.

A sum that is under way reads and writes regions whatever becomes of the operation. So it is waited for (`drain`) before
anybody else may have these regions: where nothing more runs, where a view is left, and before memory is released.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from collectives import Array, Reduction

from ..device import Adder, Device, Mark, MemoryShort, failures_named
from ..errors import DeviceLost
from .arena import Arena, Memory, RemoteArena
from .extents import Extents, ends_in
from .windows import BackgroundWorker, Window

logger = logging.getLogger("p2p")


class Adding:
    """Of one peer."""

    def __init__(self, arena: Arena, extents: Extents, extent_bytes: int) -> None:
        """The host adds. `extents` are those of `arena`, and as long as those of others."""
        self.arena, self.extents, self.extent_bytes = arena, extents, extent_bytes
        self.adder: Adder | None = None
        self.lock = threading.Lock()
        """Of who gives work to the device, and who ends that."""
        self.is_short = False
        """The device had no memory for the parts of a sum: the host adds."""
        self._device: Device | None = None
        self._has_ended = False
        self._windows: dict[Memory, Window] = {}
        self._aside = BackgroundWorker("shoal-windows")

    def use(self, device: Device) -> None:
        """Let `device` add from now on, if it can, and no other one does so already. For the training thread."""
        with self.lock:
            if self._device is None and device.adder is not None and not self._has_ended:
                self._device, self.adder = device, device.adder

    def sum_of(self, memories: Sequence[Memory], reduction: Reduction, dtype: np.dtype[Any]) -> "DeviceSum | None":
        """For the chunks of one operation of ranks with these memories; None: the host makes all sums."""
        adder = self.adder
        if adder is None or self.is_short or not adder.supports(reduction, dtype):
            return None
        return DeviceSum(self, memories, reduction, dtype)

    def window(self, mapping: RemoteArena) -> Window:
        """As the device reads it."""
        window = self._windows.get(mapping)
        if window is None:
            assert self._device is not None
            window = Window(mapping, self._device, self.extent_bytes, self._aside)
            self._windows[mapping] = window
        return window

    def drain(self) -> None:
        """Return when no sum is under way. Any thread may call this."""
        if (adder := self.adder) is not None:
            adder.drain()

    def keep(self, mappings: Iterable[Memory]) -> None:
        """Release windows to all memory but these; no sum over the rest is in flight. For the loop."""
        with self.lock:
            for mapping in self._windows.keys() - set(mappings):
                self._windows.pop(mapping).close()

    def end(self) -> None:
        """The host adds from now on; what was registered of others is released. Any thread may call this."""
        with self.lock:
            self.drain()
            self._has_ended, self.adder = True, None
            windows, self._windows = self._windows, {}
            for window in windows.values():
                window.close()
            aside, self._aside = self._aside, BackgroundWorker("nothing")
        aside.end()


class DeviceSum:
    """The chunks of one operation."""

    def __init__(self, adding: Adding, memories: Sequence[Memory], reduction: Reduction, dtype: np.dtype[Any]) -> None:
        """`memories`: of all ranks."""
        self._adding, self._memories, self._reduction, self._dtype = adding, memories, reduction, dtype

    def begin(self, sources: Sequence[tuple[int, Array]], into: Array, *, completes: bool) -> Mark | None:
        """Begin to write what becomes of arrays of these ranks into one of the own arena; None: the host has to.

        When the mark is over, so are those that were given before.

        Raises:
            DeviceLost: the device has failed.
        """
        adding = self._adding
        with adding.lock:
            adder = adding.adder
            if adder is None or adding.is_short or into.nbytes < max(1, adder.least_bytes):
                return None
            found = [self._reach(self._memories[rank], array) for rank, array in sources]
            target = self._reach(adding.arena, into)
            given = [each for each in found if each is not None]
            if target is None or len(given) < len(found):
                return None
            ends = {end // into.itemsize for _, cuts in (*given, target) for end in cuts}
            bounds = [0, *sorted(ends), len(into)]
            mark: Mark | None = None
            for start, stop in pairwise(bounds):
                pieces = [array[start:stop] for array, _ in given]
                try:
                    with failures_named():
                        mark = adder.add(pieces, into[start:stop], self._reduction, self._dtype, completes=completes)
                except MemoryShort as short:
                    if mark is not None:  # its result may lie over an input, which the host would need
                        raise DeviceLost(f"in the middle of a sum {short}") from None
                    adding.is_short = True
                    logger.warning("of the device's memory, %s, for a part of a sum: the host adds from now on", short)
                    return None
            return mark

    def _reach(self, memory: Memory, array: Array) -> tuple[Array, Sequence[int]] | None:
        """The array as the device sees it, and where extents end in it, in bytes; None: it cannot be mapped."""
        adding = self._adding
        region = memory.region_of(array)
        if region is None:
            return None
        ends = ends_in(region, adding.extent_bytes)
        if memory is adding.arena:
            return (array, ends) if adding.extents.is_pinned(region) else None
        assert isinstance(memory, RemoteArena)
        found = adding.window(memory).array(region)
        return None if found is None else (found.view(array.dtype), ends)

"""Parts of the own arena that are registered with a device, which then copies them by itself.

An extent is `EXTENT_BYTES` of the arena, counted from its first region on. It is filled and registered as a whole when
something in it is first wanted by a device, and stays so: the arena gives no page back. No two registered parts share a
page, and no copy crosses the end of one (`cut`), which CUDA would refuse. What cannot be registered is copied as other
memory is.

What others have in their arenas is in windows.py.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

import numpy as np

from collectives import Array

from ..device import Device, PinRefused
from ..host.memory_left import memory_left
from .arena import REGIONS_OFFSET, Arena, Region

logger = logging.getLogger("p2p")

EXTENT_BYTES: Final = 64 << 20


class Extents:
    """Of one arena. Any thread may call these."""

    def __init__(self, arena: Arena, extent_bytes: int = EXTENT_BYTES) -> None:
        """None is registered. `extent_bytes`: whole pages."""
        self._arena, self._extent_bytes = arena, extent_bytes
        self._pinned: dict[int, tuple[Device, Array]] = {}
        self._refused: set[int] = set()
        self._lock = threading.Lock()
        self._has_warned = False
        self._is_closed = False

    def is_pinned(self, region: Region) -> bool:
        """Whether all of it is."""
        return all(index in self._pinned for index in extents_of(region, self._extent_bytes))

    def unknown(self, arrays: Iterable[Array]) -> list[int]:
        """Extents with parts of `arrays` that were not requested yet."""
        found: set[int] = set()
        for array in arrays:
            region = self._arena.region_of(array)
            if region is not None:
                found.update(extents_of(region, self._extent_bytes))
        return sorted(found - self._pinned.keys() - self._refused)

    def outside_bytes(self, arrays: Iterable[Array]) -> int:
        """How many bytes of `arrays` lie outside the arena."""
        return sum(array.nbytes for array in arrays if self._arena.region_of(array) is None)

    def pin(self, device: Device, indices: Iterable[int], outside_bytes: int = 0) -> None:
        """Register these with `device`. What cannot be is said once, and copied as other memory is.

        `outside_bytes`: as many are wanted, for which the arena has no room.
        """
        reason = f"the arena has {self._arena.size} bytes, see arena_bytes" if outside_bytes else ""
        with self._lock:
            for index in indices:
                if self._is_closed or index in self._pinned or index in self._refused:
                    continue
                try:
                    self._pin(device, index)
                except (PinRefused, RuntimeError) as error:  # of a device that fails, which the next copy says
                    self._refused.add(index)
                    reason = str(error)
        if reason and not self._has_warned:
            self._has_warned = True
            num_pinned, num_refused = len(self._pinned), len(self._refused)
            asked, got = (each * self._extent_bytes for each in (num_pinned + num_refused, num_pinned))
            asked, got = (asked + outside_bytes) >> 10, got >> 10
            logger.warning(
                "of %d KiB of memory that a device copies, %d KiB could be pinned (%s): copies of the rest are right, "
                "but several times slower; `shoal doctor` says what limits it",
                *(asked, got, reason),
            )

    def _pin(self, device: Device, index: int) -> None:
        extent = extent_at(index, self._extent_bytes, self._arena.size)
        if not self._arena.fill(extent):
            left = memory_left()
            raise PinRefused(
                f"{left.limited_by} leaves {left.num_bytes} bytes of memory, and {extent.length} are wanted"
            )
        memory = self._arena.array(extent, np.uint8)
        device.pin(memory)
        self._pinned[index] = device, memory

    def cut(self, array: Array) -> Sequence[slice]:
        """As `staging.Cut`: where extents end, whether they are registered or not yet."""
        region = self._arena.region_of(array)
        if region is None:
            return (slice(0, len(array)),)
        bounds = [0, *(end // array.itemsize for end in ends_in(region, self._extent_bytes)), len(array)]
        return [slice(start, stop) for start, stop in pairwise(bounds)]

    def unpin(self) -> None:
        """Register nothing any more; the arena may be unmapped."""
        with self._lock:
            self._is_closed = True
            for device in {device for device, _ in self._pinned.values()}:
                device.wait_for_copies()
            while self._pinned:
                _, (device, memory) = self._pinned.popitem()
                with suppress(RuntimeError):  # of a device that is lost, which has nothing registered
                    device.unpin(memory)


def extents_of(region: Region, extent_bytes: int) -> range:
    """Numbers of those that `region` has a part of."""
    start = region.offset - REGIONS_OFFSET
    return range(start // extent_bytes, -(-(start + region.length) // extent_bytes) if region.length else 0)


def extent_at(index: int, extent_bytes: int, arena_bytes: int) -> Region:
    """Number `index` of an arena of that size."""
    offset = REGIONS_OFFSET + index * extent_bytes
    return Region(offset, min(extent_bytes, arena_bytes - offset))


def ends_in(region: Region, extent_bytes: int) -> range:
    """The ends of extents in `region`, in bytes from its beginning."""
    first = extent_bytes - (region.offset - REGIONS_OFFSET) % extent_bytes
    return range(first, region.length, extent_bytes)

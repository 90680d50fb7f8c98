"""The arenas of the peers of one host, which all others read. Belongs to the loop."""

import logging
import mmap
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from collectives import Array
from gossip import Member, View

from ..device import Device
from .adding import Adding
from .arena import REGIONS_OFFSET, Arena, ArenaError, MappingRefused, Memory, Region, RemoteArena, Slots
from .board import IS_ORDERED, tag_of
from .doorbell import Doorbell
from .extents import EXTENT_BYTES, Extents
from .operands import RankInView
from .progress import VIEW_SHIFT
from .shared_run import PIECES, Pieces
from .shared_runner import SharedRunner

logger = logging.getLogger("p2p")

NUM_SLOTS: Final = 3
"""Two for inputs, and one for a result."""


class HostMemory:
    """Without an arena of its own, this peer and all that talk to it use sockets."""

    def __init__(
        self,
        peer_id: str,
        size: int,
        pieces: Pieces = PIECES,
        extent_bytes: int = EXTENT_BYTES,
        *,
        device_adds: bool = False,
    ) -> None:
        """Make the arena.

        Args:
            peer_id: under which others find it.
            size: limit of the arena in bytes; 0: none is wanted.
            pieces: into which operations are cut, the same at all peers.
            extent_bytes: of the parts that are registered with a device.
            device_adds: whether one that can adds up.
        """
        self._pieces, self._device_adds = pieces, device_adds
        self._adding: Adding | None = None
        self._mappings: dict[Member, RemoteArena] = {}
        self._arena: Arena | None = None
        self._extents: Extents | None = None
        self._pinning: list[threading.Thread] = []
        self._freed: SimpleQueue[Region] = SimpleQueue()
        self._lock = threading.Lock()
        self._installed: dict[Member, RemoteArena] = {}
        if size == 0 or not IS_ORDERED:
            return
        size -= size % mmap.PAGESIZE
        least = least_bytes(pieces)
        if size < least:
            logger.warning("arena_bytes must be %d at least, or 0; this peer exchanges through sockets", least)
            return
        try:
            arena = Arena(size, peer_id)
        except ArenaError as error:
            logger.warning("%s; this peer exchanges through sockets", error)
            return
        inputs, result = Slots.of(arena, pieces.first_bytes), arena.allocate(pieces.first_bytes)
        if inputs is None or result is None:
            logger.warning("an arena of %d bytes cannot be had; this peer exchanges through sockets", least)
            arena.close()
            return
        self._arena, self._slots = arena, (inputs, result)
        self._extents = Extents(arena, extent_bytes)
        self._adding = Adding(arena, self._extents, extent_bytes)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A one-dimensional array of undefined elements, in the arena if there is room. For the training thread."""
        with self._lock:
            if self._arena is None:
                return np.empty(count, dtype)
            while not self._freed.empty():
                self._arena.free(self._freed.get_nowait())
            region = self._arena.allocate(count * dtype.itemsize)
            return np.empty(count, dtype) if region is None else self._arena.lend(region, dtype, self._freed.put)

    def pin(self, device: Device, arrays: Sequence[Array], *, is_aside: bool) -> None:
        """Register with `device` where `arrays` lie, if in the arena; `is_aside`: by a thread.

        For the training thread.
        """
        if self._extents is None:
            return
        if self._device_adds and self._adding is not None:
            self._adding.use(device)
        found, outside = self._extents.unknown(arrays), self._extents.outside_bytes(arrays)
        if not is_aside or not found:
            self._extents.pin(device, found, outside)
            return
        given = device, found, outside
        thread = threading.Thread(target=self._extents.pin, args=given, name="shoal-pin", daemon=True)
        self._pinning = [each for each in self._pinning if each.is_alive()] + [thread]
        thread.start()

    def end_pinning(self) -> None:
        """Return when what is to be registered is, or was refused. For the training thread."""
        for thread in self._pinning:
            thread.join()
        self._pinning = []

    def cut(self, array: Array) -> Sequence[slice]:
        """As `staging.Cut`."""
        return (slice(0, len(array)),) if self._extents is None else self._extents.cut(array)

    def unpin(self) -> None:
        """Unregister the arena for good. For the training thread, which makes no more copies."""
        if self._adding is not None:
            self._adding.end()
        if self._extents is not None:
            self._extents.unpin()
        self.end_pinning()

    def map(self, member: Member, pid: int) -> bool:
        """Map the arena of a peer whose process was seen to be alive; whether it can be read."""
        if self._arena is None:
            return False
        try:
            self._mappings[member] = RemoteArena.open(pid, member.peer_id)
        except MappingRefused as error:
            logger.info("peer %s is reached through sockets only: %s", member, error)
        return member in self._mappings

    def forget(self, member: Member) -> None:
        """Read the memory of `member` no more, apart from the installed view."""
        self._mappings.pop(member, None)
        self._keep_windows()

    def install(self, view: View | None) -> None:
        """Enter `view`, or leave all: what others read here in an older view is void from now on."""
        if self._adding is not None:
            self._adding.drain()  # what it still reads or writes is somebody else's from now on
        members = () if view is None else view.members
        self._installed = {member: self._mappings[member] for member in members if member in self._mappings}
        if self._arena is not None:
            self._arena.board.install(0 if view is None else tag_of(view.hash))
            if view is not None:  # in another lineage views may have lower numbers than the progress that stands there
                self._arena.board.progress[0] = view.number << VIEW_SHIFT
        self._keep_windows()

    def _keep_windows(self) -> None:
        if self._adding is not None:
            self._adding.keep([*self._mappings.values(), *self._installed.values()])

    @property
    def doorbell(self) -> Doorbell | None:
        """Rings when a member has come as far as this peer waits for."""
        return None if self._arena is None else self._arena.doorbell

    def runner(self, view: View, me: Member) -> SharedRunner:
        """Run the operations of `view`, the installed one, whose members can all read each other."""
        assert self._arena is not None
        rank = view.members.index(me)
        mappings = {r: self._installed[member] for r, member in enumerate(view.members) if r != rank}
        memories: list[Memory] = [mappings.get(r, self._arena) for r in range(len(view.members))]
        in_view = RankInView(rank, view.number, tag_of(view.hash))

        def ring(of_rank: int) -> None:
            mappings[of_rank].remote_doorbell.ring()

        return SharedRunner(self._arena, self._slots, memories, in_view, ring, self._pieces, self._adding)

    def vacate(self) -> None:
        """Leave all views, and read nobody's memory any more; that of this peer stays."""
        self._mappings = {}
        self.install(None)

    def close(self) -> None:
        """Let go of all memory."""
        self.vacate()
        self.unpin()
        with self._lock:  # the training thread may want a region of it
            arena, self._arena = self._arena, None
            if arena is not None:
                arena.close()


def least_bytes(pieces: Pieces) -> int:
    """Of an arena: board, tables and slots."""
    return REGIONS_OFFSET + NUM_SLOTS * pieces.first_bytes

"""Memory for the copies of a donor, prepared before the step that is copied, so that no update waits for page faults.

The first donor of a state starts to prepare memory when it is asked, and copies the state after a later step, when the
memory is ready. It tells the other donors at once, which prepare theirs, too, and copy when they are asked for that
step. A peer with a seat needs the state after one certain step of its view, so no memory is prepared for it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from gossip import Member

from ..host.memory_left import memory_bytes
from ..host.prefaulted_memory import Bytes, room_of
from ..net.parcels import ShareRequest

LEAST_BYTES: Final = 8 << 20
"""Smaller copies need no prepared memory."""

LONGEST_S: Final = 15.0
"""Longest wait for memory; it takes that long only where all processors are busy."""

UNUSED_S: Final = 30.0
"""After this long, memory for a share that was never copied is released."""


class Room(Protocol):
    """As `PrefaultedMemory`."""

    @property
    def is_ready(self) -> bool: ...

    def take(self, num_bytes: int) -> Bytes: ...

    def reserve(self, num_bytes: int) -> Bytes: ...

    def reaches(self, piece: Bytes) -> bool: ...

    def drop(self) -> None: ...


Make = Callable[[int], Room]


def check_memory(sizes: Sequence[int]) -> None:
    """Raise MemoryError if a copy of so many bytes is more than this process may take: the kernel would end it."""
    if not _is_there(sizes):
        wanted, left = sum(sizes) / 1e6, memory_bytes() / 1e6
        raise MemoryError(f"a copy of it takes {wanted:.0f} MB, and this member has {left:.0f} MB left")


def _is_there(sizes: Sequence[int]) -> bool:
    return sum(sizes) < LEAST_BYTES or sum(sizes) <= memory_bytes()


class Rooms:
    """Memory of one donor: one room for a whole state, and one for each announced share."""

    def __init__(self, make: Make | None = None) -> None:
        """`make`: prepares a room of so many bytes; None: no memory is prepared or waited for."""
        self._make = make
        self._whole: Room | None = None
        self._since = math.inf
        self._expected: dict[Member, ShareRequest] = {}
        self._shares: dict[Member, tuple[Room, ShareRequest, float]] = {}

    @property
    def may_begin(self) -> bool:
        """Whether a room for a whole state can be prepared, and none was begun."""
        return self._whole is None and self._make is not None

    def is_ready(self, now: float) -> bool:
        """Whether the room for a whole state is ready, or was waited for long enough."""
        return self._whole is not None and not self.is_held(now)

    def check(self, now: float, sizes: Sequence[int]) -> None:
        """Raise MemoryError if there is no room for such a state, and no memory to make it now."""
        if not self.is_ready(now):
            check_memory(sizes)

    def is_held(self, now: float) -> bool:
        """Whether requests for a state wait for its memory."""
        return self._whole is not None and not self._whole.is_ready and now - self._since < LONGEST_S

    def begin(self, now: float, sizes: Sequence[int]) -> bool:
        """Start to prepare a room for a state of tensors of these sizes in bytes. Returns whether that was started."""
        if sum(sizes) < LEAST_BYTES or not _is_there(sizes):
            return False
        assert self._make is not None and self._whole is None
        self._whole, self._since = self._make(room_of(sizes)), now
        return True

    @contextmanager
    def taken(self, observer: Member | None = None) -> Iterator[Room | None]:
        """The room for a whole state, or for the share for `observer`; None: there is none.

        Memory taken from it belongs to the caller; the rest is released.
        """
        if observer is None:
            room, self._whole = self._whole, None
        else:
            self._expected.pop(observer, None)
            room, *_ = self._shares.pop(observer, (None,))
        try:
            yield room
        finally:
            if room is not None:
                room.drop()

    # Shares.

    @property
    def expected(self) -> list[ShareRequest]:
        """Announced shares for which a room is to be prepared."""
        return [*self._expected.values()]

    def expect(self, wish: ShareRequest) -> None:
        """A share was announced: it will be asked for."""
        if self._make is not None:
            self.forget(wish.observer)
            self._expected[wish.observer] = wish

    def begin_share(self, now: float, wish: ShareRequest, sizes: Sequence[int]) -> None:
        """Start to prepare a room for chunks of these sizes in bytes."""
        assert self._make is not None
        del self._expected[wish.observer]
        if sum(sizes) >= LEAST_BYTES and _is_there(sizes):
            self._shares[wish.observer] = self._make(room_of(sizes)), wish, now

    def forget(self, member: Member) -> None:
        """`member` is gone: drop the shares that it has announced, and those for it."""
        self._expected = {who: wish for who, wish in self._expected.items() if member not in (who, wish.first)}
        for observer, (room, wish, _) in [*self._shares.items()]:
            if member in (observer, wish.first):
                del self._shares[observer]
                room.drop()

    def expire(self, now: float, *, is_wanted: bool) -> None:
        """Release unused rooms. `is_wanted`: a peer waits for a state."""
        if self._whole is not None and not is_wanted:
            self._whole.drop()
            self._whole = None
        for observer, (room, _, since) in [*self._shares.items()]:
            if now - since > UNUSED_S:
                del self._shares[observer]
                room.drop()

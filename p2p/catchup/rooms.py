"""Memory for the copies that a donor is about to make: ready before the step that is copied, so no update waits for it.

The first donor of a state has it made ready once it is asked, and copies when it is, after a later step; it lets the
others know at once, which have theirs made ready, too, and copy when they are asked for that step. Who has a seat is
given the state after the one step that its view needs, so for it nothing is made ready.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from gossip import Member

from ..host.memory_left import memory_bytes
from ..host.ready_memory import Bytes, room_of
from ..net.parcels import Wish

LEAST_BYTES: Final = 8 << 20
"""Memory for less is there at once."""

LONGEST_S: Final = 15.0
"""Nobody is kept waiting for longer, as where all processors are busy."""

UNUSED_S: Final = 30.0
"""Memory that no share was copied into is given back."""


class Room(Protocol):
    """As `ReadyMemory`."""

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
    """Of one donor: one for all of a state, and one for each share that it will be asked for."""

    def __init__(self, make: Make | None = None) -> None:
        """`make`: room for so many bytes; None: nothing is made ready, and nobody waits for it."""
        self._make = make
        self._whole: Room | None = None
        self._since = math.inf
        self._expected: dict[Member, Wish] = {}
        self._shares: dict[Member, tuple[Room, Wish, float]] = {}

    @property
    def may_begin(self) -> bool:
        """Whether room for all of a state is neither there nor being made, and can be."""
        return self._whole is None and self._make is not None

    def is_ready(self, now: float) -> bool:
        """Whether there is room for all of a state, or was waited for in vain."""
        return self._whole is not None and not self.is_held(now)

    def check(self, now: float, sizes: Sequence[int]) -> None:
        """Raise MemoryError if there is no room for such a state, and no memory to make it now."""
        if not self.is_ready(now):
            check_memory(sizes)

    def is_held(self, now: float) -> bool:
        """Whether who asks for a state waits for its memory."""
        return self._whole is not None and not self._whole.is_ready and now - self._since < LONGEST_S

    def begin(self, now: float, sizes: Sequence[int]) -> bool:
        """Have room made for a state whose tensors have these sizes in bytes. Whether that was begun just now."""
        if sum(sizes) < LEAST_BYTES or not _is_there(sizes):
            return False
        assert self._make is not None and self._whole is None
        self._whole, self._since = self._make(room_of(sizes)), now
        return True

    @contextmanager
    def taken(self, observer: Member | None = None) -> Iterator[Room | None]:
        """That for the whole of a state, or for the share that `observer` is to get; None: there is none.

        What is taken from it is the caller's, and the rest is given back.
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
    def expected(self) -> list[Wish]:
        """Shares for which room is to be made."""
        return [*self._expected.values()]

    def expect(self, wish: Wish) -> None:
        """A share will be asked for."""
        if self._make is not None:
            self.forget(wish.observer)
            self._expected[wish.observer] = wish

    def begin_share(self, now: float, wish: Wish, sizes: Sequence[int]) -> None:
        """Have room made for chunks of these sizes in bytes."""
        assert self._make is not None
        del self._expected[wish.observer]
        if sum(sizes) >= LEAST_BYTES and _is_there(sizes):
            self._shares[wish.observer] = self._make(room_of(sizes)), wish, now

    def forget(self, member: Member) -> None:
        """It is gone: what it has announced, or is to get, is of no use."""
        self._expected = {who: wish for who, wish in self._expected.items() if member not in (who, wish.first)}
        for observer, (room, wish, _) in [*self._shares.items()]:
            if member in (observer, wish.first):
                del self._shares[observer]
                room.drop()

    def expire(self, now: float, *, is_wanted: bool) -> None:
        """Give back what nobody has come for. `is_wanted`: somebody waits for a state."""
        if self._whole is not None and not is_wanted:
            self._whole.drop()
            self._whole = None
        for observer, (room, _, since) in [*self._shares.items()]:
            if now - since > UNUSED_S:
                del self._shares[observer]
                room.drop()

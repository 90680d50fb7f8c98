"""One state on its way from several donors: which chunks are here, and which are to be had from the first one.

The first donor was asked, and says what a chunk is: its digest of it counts, whoever sends the bytes. A chunk that
differs, or whose donor is gone, has nothing to send, or sends nothing for a while, is had from the first, which has
all.

Knows chunks by their names; their bytes are kept by the observer. Times are monotonic seconds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gossip import Member

from ..net.parcels import Chunk

STALL_S: Final = 2.0
"""Who sends nothing for so long may not do so any more."""

MOST_ASKED: Final = 1024
"""Chunks that the first is asked for at once."""

LOOK_S: Final = 0.25
"""How often it is looked at who is silent."""

MOST_EARLY: Final = 4096
"""Chunks that are kept before the first has said anything of them."""


class Gathering:
    """Of one state.

    Attributes:
        first: the donor that was asked for it.
        step: after which it is.
        odd: who has sent which chunk as something else than the first says.
        is_void: the first contradicts itself.
    """

    def __init__(self, now: float, first: Member, step: int) -> None:
        """Nothing has come."""
        self.first, self.step = first, step
        self.odd: dict[Chunk, Member] = {}
        self.is_void = False
        self._expected: Mapping[Chunk, bytes] = {}
        self._owners: dict[Chunk, Member] = {}
        self._here: dict[Chunk, tuple[Member, bytes]] = {}
        self._begun_at = self._look_at = now
        self._moved: dict[Member, float] = {}
        self._over: set[Member] = set()
        self._asked: dict[Chunk, float] = {}

    @property
    def knows(self) -> bool:
        """Whether the first has said what the chunks are."""
        return bool(self._expected)

    @property
    def is_complete(self) -> bool:
        return self.knows and len(self._here) == len(self._expected)

    def begin(self, now: float, donors: Sequence[Member], digests: Mapping[Chunk, bytes]) -> list[Chunk]:
        """The first says who sends what, and the digest of each chunk, in order.

        Returns:
            Those that came before, and are not what it says.
        """
        self._begun_at, self._moved[self.first], self._expected = now, now, digests
        self._owners = {chunk: donors[number % len(donors)] for number, chunk in enumerate(digests)}
        early, self._here = self._here, {}
        return [chunk for chunk, (source, digest) in early.items() if not self.came(now, source, chunk, digest)]

    def came(self, now: float, source: Member, chunk: Chunk, digest: bytes) -> bool:
        """`source` has sent a chunk with this digest, which was looked at. Whether it is to be kept."""
        self._moved[source] = now
        if not self.knows:
            is_news = chunk not in self._here and len(self._here) < MOST_EARLY
            self._here |= {chunk: (source, digest)} if is_news else {}
            return is_news
        if chunk in self._here or chunk not in self._expected:
            return False
        if digest != self._expected[chunk]:
            self.odd[chunk], self._look_at = source, now
            self.is_void |= source == self.first
            return False
        self._here[chunk] = source, digest
        return True

    def over(self, donor: Member) -> None:
        """It has sent its share, or never will."""
        self._over.add(donor)
        self._look_at = -math.inf

    def missing(self, now: float) -> list[Chunk]:
        """What is to be asked of the first now: what nobody else will send, unless that is under way from it."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        lost = [chunk for chunk in self._expected if chunk not in self._here and self._is_lost(now, chunk)]
        due = [chunk for chunk in lost if chunk not in self._asked or self._is_unanswered(now, chunk)][:MOST_ASKED]
        self._asked |= dict.fromkeys(due, now)
        return due

    def _is_lost(self, now: float, chunk: Chunk) -> bool:
        owner = self._owners[chunk]
        is_silent = now - max(self._moved.get(owner, -math.inf), self._begun_at) >= STALL_S
        return chunk in self.odd or owner in self._over or is_silent

    def _is_unanswered(self, now: float, chunk: Chunk) -> bool:
        """It was asked for, and the first sends nothing."""
        return now - max(self._asked[chunk], self._moved[self.first]) >= STALL_S

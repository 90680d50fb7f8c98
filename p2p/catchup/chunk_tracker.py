"""One state in flight from several donors: which chunks have arrived, and which to request from the first donor.

The first donor is the one that was asked. Its digest of a chunk is authoritative, whichever donor sends the bytes. The
first donor, which has all chunks, also sends those that differ, and those of donors that are gone, have nothing to
send, or stay silent.

Handles names of chunks only; the observer keeps the bytes. Times are monotonic seconds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gossip import Member

from ..net.parcels import Chunk

STALL_S: Final = 2.0
"""A donor that was silent for this long is taken for stalled."""

MOST_ASKED: Final = 1024
"""Most chunks requested from the first donor at once."""

LOOK_S: Final = 0.25
"""Interval between looks for silent donors."""

MOST_EARLY: Final = 4096
"""Most chunks kept before their digests have come from the first donor."""


class ChunkTracker:
    """The chunks of one state.

    Attributes:
        first: the donor that was asked for the state.
        step: the state is that after this step.
        odd: chunks whose bytes did not match the digest of the first donor, with their senders.
        is_void: the first donor contradicts itself.
    """

    def __init__(self, now: float, first: Member, step: int) -> None:
        """A state of which no chunk has arrived."""
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
        """Whether the digests of the first donor have arrived."""
        return bool(self._expected)

    @property
    def is_complete(self) -> bool:
        return self.knows and len(self._here) == len(self._expected)

    def begin(self, now: float, donors: Sequence[Member], digests: Mapping[Chunk, bytes]) -> list[Chunk]:
        """The first donor says which donors send the state, and the digest of each chunk, in order.

        Returns:
            Chunks that arrived before, and do not match their digests.
        """
        self._begun_at, self._moved[self.first], self._expected = now, now, digests
        self._owners = {chunk: donors[number % len(donors)] for number, chunk in enumerate(digests)}
        early, self._here = self._here, {}
        return [chunk for chunk, (source, digest) in early.items() if not self.came(now, source, chunk, digest)]

    def came(self, now: float, source: Member, chunk: Chunk, digest: bytes) -> bool:
        """`source` has sent a chunk whose bytes have this digest. Returns whether to keep them."""
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
        """`donor` has sent its share, or never will."""
        self._over.add(donor)
        self._look_at = -math.inf

    def missing(self, now: float) -> list[Chunk]:
        """Chunks to request from the first donor now: no other donor will send them, and they are not requested yet."""
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
        """Whether `chunk` was requested from the first donor, which has been silent since."""
        return now - max(self._asked[chunk], self._moved[self.first]) >= STALL_S

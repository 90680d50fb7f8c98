"""Committed steps that an observer was fed, until it runs them, and which it drops for lack of room: R9.

A dropped step is not fed again, so a state has to make up for it. Kept are therefore the steps that the script needs
until it can load a state, and those that follow the state. The first are some next steps, since the script may be
within a batch, and the operations of its own after them. The second are, before a state has arrived, the newest steps
and those that follow them, since the state will be about as new; then those that follow the state. Consecutive
operations are kept up to a limit, too.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .progress import NOTHING_DONE

MOST_FED: Final = 1024
"""Limit of the steps that are kept; also of those that a feeder keeps for one observer until it takes them."""

MOST_FED_BYTES: Final = 1 << 30
"""Limit of the bytes of their results."""

NUM_NEXT: Final = 64
"""Number of next steps to keep, at most half of all kept. Batches have fewer updates."""

FEWEST_KEPT: Final = 8
"""Number of steps that are kept at any size."""

ChainPosition = tuple[int, bytes]
"""A step, and a digest of the chain: up to it, or, as a key, before it."""


@dataclass(frozen=True, slots=True)
class _Fed:
    digest: bytes
    num_bytes: int
    is_own: bool


class FedSteps:
    """Fed steps by number and digest of the chain before them: until one swarm is joined, two may feed.

    Attributes:
        most: limit of the steps.
        most_bytes: limit of the bytes of their results, beyond `FEWEST_KEPT`.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._kept: dict[ChainPosition, _Fed] = {}
        self._sorted: list[ChainPosition] = []
        self._num_bytes = 0

    def newest(self, done: int) -> int:
        """Number of the newest step. Limited by the number of kept steps after `done`: another swarm's may be any."""
        return min(self._sorted[-1][0], done + len(self._kept)) if self._sorted else NOTHING_DONE

    def after(self, done: int, digest: bytes) -> bytes | None:
        """Digest of the step that follows `done`, if it is kept."""
        fed = self._kept.get(_next_key((done, digest)))
        return None if fed is None else fed.digest

    def is_own(self, step: int, digest: bytes) -> bool:
        """Whether that step is kept, and is an operation that scripts call by themselves."""
        begin, end = (bisect_left(self._sorted, (each, b"")) for each in (step, step + 1))
        found = (self._kept[key] for key in self._sorted[begin:end])
        return any(fed.is_own for fed in found if fed.digest == digest)

    def add(
        self,
        step: int,
        previous: bytes,
        digest: bytes,
        num_bytes: int,
        *,
        is_own: bool,
        places: Sequence[ChainPosition],
        coming: int = NOTHING_DONE,
    ) -> list[ChainPosition]:
        """Keep a step. Returns the steps, with their digests, that are dropped for it, perhaps itself.

        Without room it costs 5 to 12 us on average, and half a millisecond for one of some sixty.

        Args:
            step: its number.
            previous: digest of the chain before it.
            digest: of the chain up to it.
            num_bytes: of its results.
            is_own: it is an operation that scripts call by themselves, whose result no state contains.
            places: step and digest of the last one run or loaded, then of each state that has arrived.
            coming: step of the state in flight.
        """
        key = step, previous
        if (known := self._kept.get(key)) is not None:
            return [] if known.digest == digest else [(step, digest)]
        is_needed = is_own and (key in map(_next_key, places) or self._follows(key))
        self._kept[key] = _Fed(digest, num_bytes, is_own)
        self._num_bytes += num_bytes
        insort(self._sorted, key)
        if not self._is_full():
            return []
        has_state = len(places) > 1
        let_go = [] if has_state else self._make_room(key, self._needed(self._starts(places, coming)))
        if not self._is_full() or (is_needed and len(self._kept) <= self.most + self._most_own):
            return let_go
        return [*let_go, self._pop(key)]

    def _make_room(self, newcomer: ChainPosition, needed: Collection[ChainPosition]) -> list[ChainPosition]:
        """Drop the oldest steps, and some more, so that the search is not repeated for each new one."""
        let_go: list[ChainPosition] = []
        num_more = len(self._kept) // 16
        for key in [each for each in self._sorted if each not in needed]:
            num_more -= not self._is_full()
            if key == newcomer or num_more < 0:
                break
            let_go.append(self._pop(key))
        return let_go

    @property
    def _most_own(self) -> int:
        """Limit of consecutive operations."""
        return max(NUM_NEXT, self.most // 2)

    def _starts(self, places: Iterable[ChainPosition], coming: int = NOTHING_DONE) -> list[ChainPosition]:
        """Keys of the steps that follow each of `places`, and the state that is `coming`, at any digest."""
        begin, end = (bisect_left(self._sorted, (step, b"")) for step in (coming + 1, coming + 2))
        return [*map(_next_key, places), *(self._sorted[begin:end] if coming != NOTHING_DONE else [])]

    def _follows(self, key: ChainPosition) -> bool:
        """Whether the step before it is kept."""
        begin, end = (bisect_left(self._sorted, (step, b"")) for step in (key[0] - 1, key[0]))
        return any(self._kept[each].digest == key[1] for each in self._sorted[begin:end])

    def _is_full(self) -> bool:
        num = len(self._kept)
        return num > self.most or (num > FEWEST_KEPT and self._num_bytes > self.most_bytes)

    def _pop(self, key: ChainPosition) -> ChainPosition:
        fed = self._kept.pop(key)
        del self._sorted[bisect_left(self._sorted, key)]
        self._num_bytes -= fed.num_bytes
        return key[0], fed.digest

    def _needed(self, starts: Iterable[ChainPosition]) -> set[ChainPosition]:
        """Steps from `starts` on that the script may run before it can load a state: not within its own operations."""
        needed, num_next = set(), max(1, min(NUM_NEXT, len(self._kept) // 2))
        for key in starts:
            last, last_own, num_bytes = key[0] + num_next, key[0] + self._most_own, self.most_bytes
            while (fed := self._kept.get(key)) is not None:
                num_bytes -= fed.num_bytes * fed.is_own
                if key[0] >= last and not (fed.is_own and key[0] < last_own and num_bytes >= 0):
                    break
                needed.add(key)
                key = _next_key((key[0], fed.digest))
        return needed

    def overtake(self, places: Sequence[ChainPosition], step: int) -> list[ChainPosition]:
        """The state after `step` has arrived. Drops and returns the steps, with their digests, that it replaces.

        The script may be at any of `places` when it can load the state.
        """
        needed = self._needed(self._starts(places))
        before = self._sorted[: bisect_left(self._sorted, (step + 1, b""))]
        return [self._pop(key) for key in before if key not in needed]

    def forget(self, done: int) -> list[ChainPosition]:
        """Drop and return the steps up to `done`."""
        return [self._pop(key) for key in self._sorted[: bisect_left(self._sorted, (done + 1, b""))]]


def _next_key(place: ChainPosition) -> ChainPosition:
    """Key of the step that follows."""
    return place[0] + 1, place[1]

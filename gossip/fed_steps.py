"""Committed steps that an observer was fed, until their turn, and which of them it lets go for lack of room: R9.

Nothing that is let go is fed again, so a state has to make up for it. What is kept is therefore what the script needs
until it can load one, and what follows that: some steps that are next, since it may be in the middle of a batch, with
the operations of its own behind them; and, while no state is here, the newest, since one that comes is about as new;
once one is here, those behind it.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from .progress import NOTHING_DONE

MOST_FED: Final = 1024
"""Steps that are kept; and that a feeder keeps for one observer until it takes them."""

MOST_FED_BYTES: Final = 1 << 30
"""Of their results."""

NUM_NEXT: Final = 64
"""Of the steps that are next, but no more than half of what is here. Batches have fewer updates."""

FEWEST_KEPT: Final = 8
"""So many steps are kept, whatever their size."""

Place = tuple[int, bytes]
"""A step, and a digest of the chain: up to it, or, as a key, before it."""


@dataclass(frozen=True, slots=True)
class _Fed:
    digest: bytes
    num_bytes: int
    is_own: bool


class FedSteps:
    """By step, and digest of the chain before it: two swarms may feed, before it is known which one is joined.

    Attributes:
        most: steps.
        most_bytes: of their results, beyond the fewest.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._kept: dict[Place, _Fed] = {}
        self._sorted: list[Place] = []
        self._num_bytes = 0

    @property
    def newest(self) -> int:
        """Its number."""
        return self._sorted[-1][0] if self._sorted else NOTHING_DONE

    def after(self, done: int, digest: bytes) -> bytes | None:
        """Digest of the step that follows `done`, if it is here."""
        fed = self._kept.get(_behind((done, digest)))
        return None if fed is None else fed.digest

    def add(
        self,
        step: int,
        previous: bytes,
        digest: bytes,
        num_bytes: int,
        *,
        is_own: bool,
        places: Sequence[Place],
    ) -> list[Place]:
        """Keep a step; the steps, with their digests, that are let go for it, of which it may be one itself.

        Args:
            step: its number.
            previous: digest of the chain before it.
            digest: of the chain up to it.
            num_bytes: of its results.
            is_own: it is an operation that scripts call by themselves, of which no state has the result.
            places: step and digest of what was run, or loaded, last, and then of the states that are here, if any is.
        """
        key = step, previous
        if (known := self._kept.get(key)) is not None:
            return [] if known.digest == digest else [(step, digest)]
        is_needed = is_own and (key in map(_behind, places) or self._follows(key))
        self._kept[key] = _Fed(digest, num_bytes, is_own)
        self._num_bytes += num_bytes
        insort(self._sorted, key)
        let_go: list[Place] = []
        while self._is_full:
            oldest = None if len(places) > 1 else self._oldest(places)
            if oldest is not None and oldest != key:
                let_go.append(self._pop(oldest))
                continue
            return let_go if is_needed else [*let_go, self._pop(key)]
        return let_go

    def _follows(self, key: Place) -> bool:
        """Whether the step in front is here."""
        begin, end = (bisect_left(self._sorted, (step, b"")) for step in (key[0] - 1, key[0]))
        return any(self._kept[each].digest == key[1] for each in self._sorted[begin:end])

    @property
    def _is_full(self) -> bool:
        num = len(self._kept)
        return num > self.most or (num > FEWEST_KEPT and self._num_bytes > self.most_bytes)

    def _pop(self, key: Place) -> Place:
        fed = self._kept.pop(key)
        del self._sorted[bisect_left(self._sorted, key)]
        self._num_bytes -= fed.num_bytes
        return key[0], fed.digest

    def _needed(self, places: Sequence[Place]) -> set[Place]:
        """What the script may have to run from there, before it can load a state: none in an operation of its own."""
        needed, num_next = set(), max(1, min(NUM_NEXT, len(self._kept) // 2))
        for place in places:
            key, last = _behind(place), place[0] + num_next
            while (fed := self._kept.get(key)) is not None and (fed.is_own or key[0] <= last):
                needed.add(key)
                key = _behind((key[0], fed.digest))
        return needed

    def _oldest(self, places: Sequence[Place]) -> Place | None:
        needed = self._needed(places)
        return next((key for key in islice(self._sorted, len(needed) + 1) if key not in needed), None)

    def overtake(self, places: Sequence[Place], step: int) -> list[Place]:
        """The state after `step` is here; the steps, with their digests, that it makes superfluous, and are let go.

        The script may be in any of `places` when it can load it.
        """
        needed = self._needed(places)
        before = self._sorted[: bisect_left(self._sorted, (step + 1, b""))]
        return [self._pop(key) for key in before if key not in needed]

    def forget(self, done: int) -> None:
        """What is `done` is of no use any more."""
        while self._sorted and self._sorted[0][0] <= done:
            self._pop(self._sorted[0])


def _behind(place: Place) -> Place:
    """Key of the step that follows."""
    return place[0] + 1, place[1]

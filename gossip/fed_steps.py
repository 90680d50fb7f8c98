"""Committed steps that an observer was fed, until their turn, and which of them it lets go for lack of room: R9.

Nothing that is let go is fed again, so a state has to make up for it. What is kept is therefore what the script needs
until it can load one, and what follows that: some steps that are next, since it may be in the middle of a batch, with
the operations of its own behind them; and, while no state is here, the newest, since one that comes is about as new,
and what is next behind that; once one is here, those behind it. Operations in a row are kept up to a limit, too.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
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

    def newest(self, done: int) -> int:
        """Number of the newest step, as seen from `done`: of another swarm it may be any, so no more than are here."""
        return min(self._sorted[-1][0], done + len(self._kept)) if self._sorted else NOTHING_DONE

    def after(self, done: int, digest: bytes) -> bytes | None:
        """Digest of the step that follows `done`, if it is here."""
        fed = self._kept.get(_behind((done, digest)))
        return None if fed is None else fed.digest

    def is_own(self, step: int, digest: bytes) -> bool:
        """Whether that one is here, and an operation that scripts call by themselves."""
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
        places: Sequence[Place],
        coming: int = NOTHING_DONE,
    ) -> list[Place]:
        """Keep a step; the steps, with their digests, that are let go for it, of which it may be one itself.

        Where there is no room it costs 5 to 12 us on average, and half a millisecond for one of some sixty.

        Args:
            step: its number.
            previous: digest of the chain before it.
            digest: of the chain up to it.
            num_bytes: of its results.
            is_own: it is an operation that scripts call by themselves, of which no state has the result.
            places: step and digest of what was run, or loaded, last, and then of the states that are here, if any is.
            coming: of the state that is on its way.
        """
        key = step, previous
        if (known := self._kept.get(key)) is not None:
            return [] if known.digest == digest else [(step, digest)]
        is_needed = is_own and (key in map(_behind, places) or self._follows(key))
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

    def _make_room(self, newcomer: Place, needed: Collection[Place]) -> list[Place]:
        """Let go of the oldest, and of some more, so that it is not looked for at each that comes."""
        let_go: list[Place] = []
        num_more = len(self._kept) // 16
        for key in [each for each in self._sorted if each not in needed]:
            num_more -= not self._is_full()
            if key == newcomer or num_more < 0:
                break
            let_go.append(self._pop(key))
        return let_go

    @property
    def _most_own(self) -> int:
        """Of operations in a row."""
        return max(NUM_NEXT, self.most // 2)

    def _starts(self, places: Iterable[Place], coming: int = NOTHING_DONE) -> list[Place]:
        """Keys of what follows each of `places`, and the state that is `coming`, whatever its digest is."""
        begin, end = (bisect_left(self._sorted, (step, b"")) for step in (coming + 1, coming + 2))
        return [*map(_behind, places), *(self._sorted[begin:end] if coming != NOTHING_DONE else [])]

    def _follows(self, key: Place) -> bool:
        """Whether the step in front is here."""
        begin, end = (bisect_left(self._sorted, (step, b"")) for step in (key[0] - 1, key[0]))
        return any(self._kept[each].digest == key[1] for each in self._sorted[begin:end])

    def _is_full(self) -> bool:
        num = len(self._kept)
        return num > self.most or (num > FEWEST_KEPT and self._num_bytes > self.most_bytes)

    def _pop(self, key: Place) -> Place:
        fed = self._kept.pop(key)
        del self._sorted[bisect_left(self._sorted, key)]
        self._num_bytes -= fed.num_bytes
        return key[0], fed.digest

    def _needed(self, starts: Iterable[Place]) -> set[Place]:
        """What the script may have to run from there, before it can load a state: none in an operation of its own."""
        needed, num_next = set(), max(1, min(NUM_NEXT, len(self._kept) // 2))
        for key in starts:
            last, last_own, num_bytes = key[0] + num_next, key[0] + self._most_own, self.most_bytes
            while (fed := self._kept.get(key)) is not None:
                num_bytes -= fed.num_bytes * fed.is_own
                if key[0] >= last and not (fed.is_own and key[0] < last_own and num_bytes >= 0):
                    break
                needed.add(key)
                key = _behind((key[0], fed.digest))
        return needed

    def overtake(self, places: Sequence[Place], step: int) -> list[Place]:
        """The state after `step` is here; the steps, with their digests, that it makes superfluous, and are let go.

        The script may be in any of `places` when it can load it.
        """
        needed = self._needed(self._starts(places))
        before = self._sorted[: bisect_left(self._sorted, (step + 1, b""))]
        return [self._pop(key) for key in before if key not in needed]

    def forget(self, done: int) -> list[Place]:
        """What is `done` is of no use any more, and is let go."""
        return [self._pop(key) for key in self._sorted[: bisect_left(self._sorted, (done + 1, b""))]]


def _behind(place: Place) -> Place:
    """Key of the step that follows."""
    return place[0] + 1, place[1]

"""Committed steps that an observer was fed, until their turn, and which of them it lets go for lack of room: R9.

Nothing that is let go is fed again, so a state has to make up for it. What is kept is therefore what the script needs
until it can load one, and what follows that: the step that is next, with the operations of the script's own behind it;
and, while no state is here, the newest steps, since one that comes is about as new; once one is here, those behind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from .progress import NOTHING_DONE

MOST_FED: Final = 1024
"""Steps that are kept; and that a feeder keeps for one observer until it takes them."""

MOST_FED_BYTES: Final = 1 << 30
"""Of their results."""

FEWEST_KEPT: Final = 8
"""So many steps are kept, whatever their size."""


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
        self._kept: dict[tuple[int, bytes], _Fed] = {}
        self._num_bytes = 0

    @property
    def newest(self) -> int:
        """Number of the step that came last."""
        return next(reversed(self._kept))[0] if self._kept else NOTHING_DONE

    def after(self, done: int, digest: bytes) -> bytes | None:
        """Digest of the step that follows `done`, if it is here."""
        fed = self._kept.get((done + 1, digest))
        return None if fed is None else fed.digest

    def add(
        self,
        step: int,
        previous: bytes,
        digest: bytes,
        num_bytes: int,
        *,
        is_own: bool,
        done: tuple[int, bytes],
        state: tuple[int, bytes] | None,
    ) -> list[tuple[int, bytes]]:
        """Keep a step; the steps, with their digests, that are let go for it, of which it may be one itself.

        Args:
            step: its number.
            previous: digest of the chain before it.
            digest: of the chain up to it.
            num_bytes: of its results.
            is_own: it is an operation that scripts call by themselves, of which no state has the result.
            done: step and digest that were run, or loaded, last.
            state: the newest that is here, and not loaded yet.
        """
        self._kept.pop((step, previous), None)
        last = next(reversed(self._kept.items()), None)
        ends = done if last is None else (last[0][0], last[1].digest)
        is_needed = is_own and (step - 1, previous) in (ends, state)
        self._kept[step, previous] = _Fed(digest, num_bytes, is_own)
        self._num_bytes += num_bytes
        let_go = []
        while self._is_full:
            oldest = None if state is not None else self._oldest(done)
            key = (step, previous) if oldest is None else oldest
            if key == (step, previous) and is_needed:
                break
            let_go.append(self._pop(key))
            if key == (step, previous):
                break
        return let_go

    @property
    def _is_full(self) -> bool:
        num = len(self._kept)
        return num > self.most or (num > FEWEST_KEPT and self._num_bytes > self.most_bytes)

    def _pop(self, key: tuple[int, bytes]) -> tuple[int, bytes]:
        fed = self._kept.pop(key)
        self._num_bytes -= fed.num_bytes
        return key[0], fed.digest

    def _head(self, done: tuple[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """What the script has to run before it can load a state: operations of its own; and the step in front."""
        key = done[0] + 1, done[1]
        while (fed := self._kept.get(key)) is not None and (fed.is_own or key[0] == done[0] + 1):
            yield key
            key = key[0] + 1, fed.digest

    def _oldest(self, done: tuple[int, bytes]) -> tuple[int, bytes] | None:
        head = set(self._head(done))
        return next((key for key in islice(self._kept, len(head) + 1) if key not in head), None)

    def overtake(self, done: tuple[int, bytes], step: int) -> list[tuple[int, bytes]]:
        """The state after `step` is here; the steps, with their digests, that it makes superfluous, and are let go."""
        head = set(self._head(done))
        return [self._pop(key) for key in list(self._kept) if key[0] <= step and key not in head]

    def forget(self, done: int) -> None:
        """What is `done` is of no use any more."""
        while self._kept and (key := next(iter(self._kept)))[0] <= done:
            self._pop(key)

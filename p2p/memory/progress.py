"""How far each rank is in a view, and who sleeps until others have come as far.

Each rank counts what it has published on its board. Nothing here waits: whoever has to looks again for a while; then it
says on its board what it waits for (`prepare_to_wait`), looks once more, and sleeps until its doorbell rings. Whoever
publishes rings for who sleeps, if it is the last one waited for.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from .board import Board, fence
from .operands import RankInView

VIEW_SHIFT: Final = 40
"""Progress counts from the number of the view, shifted by this."""
_SPINS_GIVEN_UP: Final = 4
_MOST_NAMED: Final = 64
"""Ranks, for which a board has bits."""


class Progress:
    """Of all ranks, as one of them sees it.

    Attributes:
        others: the other ranks.
        published: how far this rank is.
        awaited: ranks, and how far they have to come before this one goes on.
    """

    def __init__(self, boards: Sequence[Board], in_view: RankInView, ring: Callable[[int], None]) -> None:
        """Progress over these boards, not written yet; `ring` rings the doorbell of a rank, and never blocks."""
        own = boards[in_view.rank]
        self._counts = [board.progress for board in boards]
        self._own, self._ring = self._counts[in_view.rank], ring
        self._fences = threading.Lock()
        """A private lock: acquiring it is a memory fence, and so is releasing it."""
        self._sleeping, self._sleeps_for = own.sleeping, own.awaited
        self._sleepers = [
            (rank, board.sleeping, board.awaited) for rank, board in enumerate(boards) if rank != in_view.rank
        ]
        self.others = tuple(rank for rank, *_ in self._sleepers)
        self.published = in_view.view_number << VIEW_SHIFT
        self.awaited: tuple[tuple[int, ...], int] = ((), 0)
        self._num_long_waits = 0

    def publish(self) -> None:
        """Show that this rank has come one further, and ring for who waits for that."""
        with self._fences:  # a large copy may have been made with stores that the processor does not keep in order
            self.published += 1
            self._own[0] = self.published
        for rank, sleeping, awaited in self._sleepers:
            if 0 < (target := sleeping[0]) <= self.published and self._is_last(awaited[0], target):
                self._ring(rank)

    def _is_last(self, awaited: int, target: int) -> bool:
        """Whether all who are waited for have come as far as `target`. Of those who come at once one sees it."""
        return all(count[0] >= target for rank, count in enumerate(self._counts) if awaited >> rank & 1)

    def late(self) -> list[int]:
        """The ranks that have not come as far as what goes on next needs."""
        ranks, target = self.awaited
        late = []
        for rank in ranks:  # asked again and again, and up to Python 3.11 a comprehension is a call
            if self._counts[rank][0] < target:
                late.append(rank)
        return late

    def is_over(self) -> bool:
        """Whether nobody is late."""
        ranks, target = self.awaited
        for rank in ranks:  # noqa: SIM110 - asked again and again, and a generator costs as much as two such calls
            if self._counts[rank][0] < target:
                return False
        return True

    @property
    def spins(self) -> bool:
        """Whether to look again before sleeping: not after several waits in which that was all in vain."""
        return self._num_long_waits < _SPINS_GIVEN_UP

    def waited(self, *, is_long: bool) -> None:
        """A wait is over, or longer than a spin."""
        self._num_long_waits = self._num_long_waits + 1 if is_long else 0

    def prepare_to_wait(self) -> bool:
        """Say that this rank sleeps until nobody is late. Whether it has to: somebody still is."""
        ranks, target = self.awaited
        self._sleeps_for[0] = sum(1 << rank for rank in ranks) if max(ranks, default=0) < _MOST_NAMED else 0
        self._sleeping[0] = target
        fence()
        return not self.is_over()

    def finish_wait(self) -> None:
        """This rank is awake: others need not ring."""
        self._sleeping[0] = 0

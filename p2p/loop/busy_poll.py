"""Polling for data frames before all sockets are polled, as long as that pays off. Belongs to the loop."""

from collections.abc import Callable
from typing import Final

_GIVEN_UP: Final = 4


class BusyPoll:
    """The counterpart of `SharedRunner.progress` for waits for data frames.

    Attributes:
        is_over: whether data frames have arrived.
        is_for_much: the awaited data take longer than any spin.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self.is_over = is_over
        self.is_for_much = False
        self._num_long_waits = 0

    @property
    def spins(self) -> bool:
        """Whether to poll again before sleeping: not after several waits in which that was without success."""
        return self._num_long_waits < _GIVEN_UP and not self.is_for_much

    def waited(self, *, is_long: bool) -> None:
        """Record a wait; `is_long`: longer than a spin."""
        self._num_long_waits = self._num_long_waits + 1 if is_long else 0

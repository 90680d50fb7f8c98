"""Looking for data of others before all sockets are asked, for as long as that is worth it. Belongs to the loop."""

from collections.abc import Callable
from typing import Final

_GIVEN_UP: Final = 4


class Listening:
    """As `SharedRunner` is waited with, for who waits for data frames.

    Attributes:
        is_over: whether some have come.
        is_for_much: what is waited for takes longer than any spin.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self.is_over = is_over
        self.is_for_much = False
        self._num_long_waits = 0

    @property
    def spins(self) -> bool:
        """Whether to look again before sleeping: not after several waits in which that was all in vain."""
        return self._num_long_waits < _GIVEN_UP and not self.is_for_much

    def waited(self, *, is_long: bool) -> None:
        """A wait is over, or longer than a spin."""
        self._num_long_waits = self._num_long_waits + 1 if is_long else 0

"""Requests of an observer for a state: which members it asked, what has arrived, and how long that took. Pure."""

import math
from collections.abc import Callable
from typing import Final

from .progress import NOTHING_DONE
from .view import Member

PATIENCE_S: Final = 2.0
"""While a state arrives, no other member is asked for one until its last segment is this old."""


class StateFetch:
    """Requests of one observer.

    Attributes:
        members: those asked since a state was last loaded.
        source: sender of the last segment; None: none has arrived.
        step: the arriving state is that after this step.
        took_s: time from the first segment of its source to the last one.
    """

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.source: Member | None = None
        self.step = NOTHING_DONE
        self.took_s = 0.0
        self._at = self._since = -math.inf
        self._asked_since = math.inf
        self._coming_s = self._state_s = math.inf

    @property
    def longest_s(self) -> float:
        """Longest time from request to arrival: of the last complete state, or so far of the one that arrives."""
        return max(self._state_s, self._coming_s)

    def ask(self, now: float, donor: Member) -> None:
        """`donor` is asked for a state."""
        self._asked_since = min(self._asked_since, now)
        self.members[donor] = None

    def is_coming(self, now: float, is_gone: Callable[[Member], bool]) -> bool:
        """Whether a state is arriving, so that no other member needs to be asked."""
        return self.source is not None and now - self._at < PATIENCE_S and not is_gone(self.source)

    def segment_arrived(self, now: float, source: Member, step: int) -> bool:
        """A segment of the state after `step` has arrived. Returns whether it is useful: `source` was asked for it."""
        if source not in self.members:
            return False
        if (self.source, self.step) != (source, step):
            self._since = now
        self.source, self.step, self._at = source, step, now
        self.took_s, self._coming_s = now - self._since, now - min(self._asked_since, self._since)
        return True

    def state_arrived(self) -> None:
        """The state has arrived completely, whether it is of use or not: the next request is another one."""
        self._state_s, self._asked_since = self._coming_s, math.inf

    def drop(self) -> None:
        """The arrived state is of no use."""
        self.source, self.step = None, NOTHING_DONE

    def loaded(self) -> None:
        """A state was loaded: all requests are settled."""
        self.members, self._asked_since = {}, math.inf
        self.drop()

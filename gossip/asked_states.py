"""Whom an observer has asked for a state, what of one has come, and how long that took. Pure."""

import math
from collections.abc import Callable
from typing import Final

from .progress import NOTHING_DONE
from .view import Member

PATIENCE_S: Final = 2.0
"""While a state comes in, nobody else is asked for it; this long after its last segment somebody is."""


class AskedStates:
    """Of one observer.

    Attributes:
        members: that were asked, since a state was loaded last.
        source: of the segment that came last; None: none has come.
        step: after which that state is.
        took_s: from the first segment of its source to the last one.
    """

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.source: Member | None = None
        self.step = NOTHING_DONE
        self.took_s = 0.0
        self._at = self._since = self._asked_since = -math.inf
        self._coming_s = self._state_s = math.inf

    @property
    def longest_s(self) -> float:
        """That a state has taken from the question on, the last one that came whole or the one that comes."""
        return max(self._state_s, self._coming_s)

    def ask(self, now: float, donor: Member) -> None:
        """It is asked."""
        self._asked_since = self._asked_since if self.members else now
        self.members[donor] = None

    def is_coming(self, now: float, is_gone: Callable[[Member], bool]) -> bool:
        """Whether nobody else is to be asked."""
        return self.source is not None and now - self._at < PATIENCE_S and not is_gone(self.source)

    def comes(self, now: float, source: Member, step: int) -> bool:
        """A segment of the state after `step` has come. Whether it is of use: `source` was asked for it."""
        if source not in self.members:
            return False
        if self.source != source:
            self._since = now
        self.source, self.step, self._at = source, step, now
        self.took_s, self._coming_s = now - self._since, now - self._asked_since
        return True

    def came(self) -> None:
        """All of it."""
        self._state_s = self._coming_s

    def drop(self) -> None:
        """What has come is of no use."""
        self.source, self.step = None, NOTHING_DONE

    def loaded(self) -> None:
        """A state was loaded: nobody is asked any more."""
        self.members = {}
        self.drop()

"""When a peer whose step takes long looks whether the processes of members are about to end (host/exiting.py)."""

import math
from typing import Final

from gossip.progress import NOTHING_DONE

FIRST_LOOK_S: Final = 5e-3
"""A step that takes so long may wait for such a member."""
MOST_LOOK_S: Final = 0.1
"""Looks come at intervals that double, up to this."""


class ExitLooks:
    """Of one peer.

    Attributes:
        at: time of the next look; infinite: no step is open.
        step: the last one that was opened.
    """

    def __init__(self) -> None:
        self.at = math.inf
        self.step = NOTHING_DONE
        self._interval_s = FIRST_LOOK_S

    def begin(self, now: float, step: int) -> None:
        """This step is opened."""
        self.step, self._interval_s = step, FIRST_LOOK_S
        self.at = now + FIRST_LOOK_S

    def is_wanted(self, now: float, done: int) -> bool:
        """At the time of a look: whether the step is still open, where `done` is the last one that is committed."""
        is_open = done < self.step
        self._interval_s = min(2 * self._interval_s, MOST_LOOK_S)
        self.at = now + self._interval_s if is_open else math.inf
        return is_open

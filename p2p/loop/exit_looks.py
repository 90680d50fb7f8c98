"""Schedule of checks, during a long step, whether processes of members are exiting (host/exiting.py)."""

import math
from typing import Final

from gossip.progress import NOTHING_DONE

FIRST_LOOK_S: Final = 5e-3
"""A step that takes this long may be waiting for such a member."""
MOST_LOOK_S: Final = 0.1
"""Intervals between checks double, up to this."""


class ExitLooks:
    """Check schedule of one peer.

    Attributes:
        at: time of the next check; infinite: no step is open.
        step: the last one that was opened.
    """

    def __init__(self) -> None:
        self.at = math.inf
        self.step = NOTHING_DONE
        self._interval_s = FIRST_LOOK_S

    def begin(self, now: float, step: int) -> None:
        """Start the schedule for this new step."""
        self.step, self._interval_s = step, FIRST_LOOK_S
        self.at = now + FIRST_LOOK_S

    def is_wanted(self, now: float, done: int) -> bool:
        """Whether to check now: the step is still open. Schedules the next check. `done`: the last committed step."""
        is_open = done < self.step
        self._interval_s = min(2 * self._interval_s, MOST_LOOK_S)
        self.at = now + self._interval_s if is_open else math.inf
        return is_open

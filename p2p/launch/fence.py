"""`--fence S`: kills peers that have been stopped too long, so that the others have proof that they are gone.

If one of two peers is stopped, the other cannot tell whether it is alone or cut off, and waits. A killed process is
proven dead.
"""

import math
from collections.abc import Iterable
from typing import Final

from ..host.processes import is_stopped
from .children import Child
from .peer_slots import PeerSlot

LOOK_S: Final = 0.25


class Fence:
    """Measures how long each peer has been stopped. Times are monotonic seconds.

    Only the launcher's own running time counts: at most `LOOK_S` between two looks, so that no peer is killed because
    the launcher, or the whole machine, was stopped, too.
    """

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s`: None: no peer is observed or killed."""
        self.limit_s = math.inf if limit_s is None else limit_s
        self._stopped_s: dict[Child, float] = {}
        self._look_at = math.inf if limit_s is None else 0.0

    @property
    def deadline(self) -> float:
        """When to `poll`."""
        return self._look_at

    def poll(self, places: Iterable[PeerSlot], now: float) -> list[PeerSlot]:
        """Places whose peer has now been stopped too long; each is returned once."""
        if now < self._look_at:
            return []
        before, self._stopped_s = self._stopped_s, {}
        self._look_at = now + LOOK_S
        too_long = []
        for place in places:
            child = place.child
            if child is None or not is_stopped(child.process(place.pid)):
                continue
            self._stopped_s[child] = before.get(child, 0.0) + LOOK_S * (child in before)
            if before.get(child, 0.0) < self.limit_s <= self._stopped_s[child]:
                too_long.append(place)
        return too_long

"""What a peer lets all others know of itself: how far and how fast it is. Left out: who spreads it (swim.py)."""

import math

from .claim import Status
from .progress import NOTHING_DONE

MOST_CHARACTERS = 200
"""What a peer says of its capability."""


class OwnStatus:
    """The status of this peer, made anew now and then."""

    def __init__(self, *, now: float, every_s: float) -> None:
        self._every_s = every_s
        self._shown_at, self._done = now, NOTHING_DONE
        self._loss, self._capability = 0.0, ""

    def describe(self, loss: float, capability: str) -> None:
        """What the script and the host say."""
        self._loss = loss if math.isfinite(loss) else 0.0
        self._capability = capability[:MOST_CHARACTERS]

    def loaded(self, done: int) -> None:
        """The steps up to `done` were made by others: they say nothing of the speed of this peer."""
        self._done = done

    def renew(self, now: float, view_number: int, done: int, digest: bytes) -> Status | None:
        """What to show from now on; None if what is shown is still young."""
        elapsed_s = now - self._shown_at
        if elapsed_s < self._every_s:
            return None
        steps_per_s = round((done - self._done) / elapsed_s, 3)
        self._shown_at, self._done = now, done
        return Status(
            view_number=view_number,
            step=done,
            steps_per_s=steps_per_s,
            loss=self._loss,
            digest=digest,
            capability=self._capability,
        )

"""Status of this peer for all others: its progress and speed. Leaves out: spreading it (swim.py)."""

import math

from .claim import Status
from .progress import NOTHING_DONE


class OwnStatus:
    """The status of this peer, renewed at intervals."""

    def __init__(self, *, now: float, every_s: float) -> None:
        self._every_s = every_s
        self._shown_at, self._done = now, NOTHING_DONE
        self._loss = 0.0

    def set_loss(self, loss: float) -> None:
        """The loss of the last step, as the script gave it."""
        self._loss = loss if math.isfinite(loss) else 0.0

    def loaded(self, done: int) -> None:
        """The steps up to `done` were computed by others: they do not count for the speed of this peer."""
        self._done = done

    def renew(self, now: float, view_number: int, done: int, digest: bytes) -> Status | None:
        """The new status; None if the present one is recent."""
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
        )

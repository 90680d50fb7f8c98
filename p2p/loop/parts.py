"""Parts in which a price table is computed, as short as a step can spare. Belongs to the loop."""

from typing import Final

SHARE: Final = 0.02
"""Fraction of a usual step that one part takes, and limit for the fraction of time that all parts take."""

LEAST_S: Final = 50e-6
MOST_S: Final = 0.5e-3
WEIGHT: Final = 0.125
"""Weight of the last step in the moving average."""


class TableParts:
    """Schedule of one peer. A part takes a fiftieth of a step, so that the slowest percentile is hardly slower.

    Attributes:
        next_at: when the next part may begin.
    """

    def __init__(self) -> None:
        self.next_at = 0.0
        self._step_s = MOST_S / SHARE
        self._began_at: float | None = None
        self._run: object = None

    def watch(self, now: float, run: object) -> None:
        """Update with the run of the open step, if there is one: each step has a new one."""
        if run is None or run is self._run:
            return
        if self._began_at is not None:
            took_s = min(now - self._began_at, MOST_S / SHARE)  # longer ones can spare no more
            self._step_s += WEIGHT * (took_s - self._step_s)
        self._run, self._began_at = run, now

    @property
    def part_s(self) -> float:
        """Duration of a part, without its last slice."""
        return min(max(SHARE * self._step_s, LEAST_S), MOST_S)

    @property
    def late_at(self) -> float:
        """Until then the part is left to a call that waits for others, which it delays least: one more interval."""
        return self.next_at + self.every_s

    def was_made(self, now: float) -> None:
        self.next_at = now + self.every_s

    @property
    def every_s(self) -> float:
        """Interval between parts."""
        return self.part_s / SHARE

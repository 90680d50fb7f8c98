"""How much of a table of prices is made at a time: what a step can spare. Belongs to the loop."""

from typing import Final

SHARE: Final = 0.02
"""Of a usual step, in one part, and of the time, in all of them at most."""

LEAST_S: Final = 50e-6
MOST_S: Final = 0.5e-3
WEIGHT: Final = 0.125
"""Of the last step in what is usual."""


class TableParts:
    """Of one peer. A part in a step is a fiftieth of it, so its slowest hundredth is hardly slower than the others.

    Attributes:
        next_at: when the next one may be made.
    """

    def __init__(self) -> None:
        self.next_at = 0.0
        self._step_s = MOST_S / SHARE
        self._began_at: float | None = None
        self._run: object = None

    def watch(self, now: float, run: object) -> None:
        """The run of the open step, if there is one: each has another."""
        if run is None or run is self._run:
            return
        if self._began_at is not None:
            took_s = min(now - self._began_at, MOST_S / SHARE)  # longer ones can spare no more
            self._step_s += WEIGHT * (took_s - self._step_s)
        self._run, self._began_at = run, now

    @property
    def part_s(self) -> float:
        """So long one takes, but for its last slice."""
        return min(max(SHARE * self._step_s, LEAST_S), MOST_S)

    @property
    def late_at(self) -> float:
        """Until then it is left to a call that waits for others, which it holds up least: as long again."""
        return self.next_at + self.every_s

    def was_made(self, now: float) -> None:
        self.next_at = now + self.every_s

    @property
    def every_s(self) -> float:
        """From one to the next one."""
        return self.part_s / SHARE

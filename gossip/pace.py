"""Whether an observer's script comes near the members by what it is fed, and what it does if it does not (R9).

A script that takes longer for what it lacks than another state would take is *held* where it waits in a step of its
model: it is not told the result, and can load a state at once. Who is held asks for a seat as it is, and
is given the state in the barrier. So nobody waits for what such a script does.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from .admission import AdmissionConfig

MOST_HELD_S: Final = 10.0
"""After so long without a seat its script runs another step before it is held again."""


class Pace:
    """Of one observer.

    Attributes:
        is_held: its script is held.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self.is_held = False
        self._config = config
        self._took_s: deque[float] = deque(maxlen=2)
        self._began: float | None = None
        self._num_run = 0
        self._is_next_here = False
        self._held_since: float | None = None

    @property
    def step_s(self) -> float:
        """What its script takes for a step; 0: not known.

        The shorter of the last two times, since one may be anything. Operations of its own count as steps, and take
        next to nothing, so it is measured from one step of the model to another.
        """
        return min(self._took_s, default=0.0)

    @property
    def is_known(self) -> bool:
        """Not while it is measured for the first time."""
        return bool(self._took_s) or self._began is None

    def ran(self, now: float, *, is_next_here: bool) -> None:
        """A fed step was run. `is_next_here`: what is behind it has come, so that the script need not wait for that."""
        has_waited = self._began is None or not self._is_next_here
        self._began, self._num_run = (now, 1) if has_waited else (self._began, self._num_run + 1)
        self._is_next_here = is_next_here
        self.is_held, self._held_since = False, None

    def loaded(self, now: float) -> None:
        """A state was loaded: by a script that waits, so how long it waits for the next step says nothing.

        It still stands where it stood: how long it has been held goes on.
        """
        self._end(now)
        self.is_held = False

    def _end(self, now: float) -> None:
        if self._began is not None:
            self._took_s.append((now - self._began) / self._num_run)
            self._began = None

    def waits(self, now: float, num_lacking: int, state_s: float, fits: Callable[[], bool]) -> bool:
        """The script waits in a step of its model. Whether it is held there.

        Args:
            now: the time.
            num_lacking: so many committed steps it has still to compute, as far as is known: not the one it waits in.
            state_s: as long as the last state took, from asking on.
            fits: whether any state fits the script there; asked before it is held.
        """
        self._end(now)
        is_near = num_lacking * self.step_s <= max(self._config.lag_s, 2 * state_s)
        is_over = self._held_since is not None and now - self._held_since >= MOST_HELD_S
        if is_near or is_over or state_s > self._config.late_s / 2:
            self.is_held = False
        elif not self.is_held:
            self.is_held = fits()
        if self.is_held and self._held_since is None:
            self._held_since = now
        return self.is_held

"""Whether an observer's script comes near the members by what it is fed, and what it does if it does not (R9).

A script that takes longer for what it lacks than another state would take is *held* where it waits in a step of its
model: it is not told the result, and can load a state at once. Who is held asks for a seat as it is, and
is given the state in the barrier. So nobody waits for what such a script does.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from .admission import AdmissionConfig

MOST_HELD_S: Final = 10.0
"""After so long without a seat its script runs another step before it is held again."""

SHARE: Final = 0.1
"""Of the time for which a peer has lacked a seat: all may wait so long for its state."""


class Patience:
    """How long all may wait for the state of one peer that has no seat yet: for what takes long not often.

    Who is no faster than the members, and has a state that takes seconds, never comes near them by what it is fed. So a
    state may take 2 s (`late_s` / 2), or a tenth of the time for which its peer has lacked a seat, and is waited for
    twice as long.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._since = math.inf
        self._given_s, self._vain_s = config.late_s, 0.0

    def waits(self, now: float) -> None:
        """It lacks a seat."""
        self._since = min(self._since, now)

    def is_worth(self, now: float, state_s: float) -> bool:
        """Whether it has lacked a seat for ten times as long as its last state took."""
        return state_s <= SHARE * (now - self._since)

    def may_take(self, now: float, state_s: float) -> bool:
        """Whether all may wait for a state that takes so long. Not if they have done so in vain, for half as long."""
        limit_s = self.limit_s(now)
        return state_s <= limit_s / 2 and limit_s >= 2 * self._vain_s

    def limit_s(self, now: float) -> float:
        """As long as all may wait, if it is admitted now."""
        waited_s = max(0.0, now - self._since)
        return max(self._config.late_s, min(2 * SHARE * waited_s, self._config.late_max_s))

    def begin(self, now: float) -> float:
        """It is admitted, and all wait for its state. Until when."""
        self._given_s = self.limit_s(now)
        return now + self._given_s

    def was_late(self) -> float:
        """The state has not come until then; how long all have waited."""
        self._vain_s = self._given_s
        return self._given_s


class Pace:
    """Of one observer.

    Attributes:
        is_held: its script is held.
        patience: how long all may wait for its state.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self.is_held = False
        self.patience = Patience(config)
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
        self.patience.waits(now)
        catches_up_s = 0.0 if self.patience.is_worth(now, state_s) else 2 * state_s
        is_near = num_lacking * self.step_s <= max(self._config.lag_s, catches_up_s)
        is_over = self._held_since is not None and now - self._held_since >= MOST_HELD_S
        if is_near or is_over or not self.patience.may_take(now, state_s):
            self.is_held = False
        elif not self.is_held:
            self.is_held = fits()
        if self.is_held and self._held_since is None:
            self._held_since = now
        return self.is_held

"""Pace of an observer: whether its script catches up by fed steps, and how it is held if it does not (R9).

If the missing steps would take longer than another state, the script is *held* where it waits in a step of its model:
it is not told the result, and can load a state at once. A held peer asks for a seat as it is, and receives the state in
the barrier. So no member waits for such a script to compute.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from .admission import AdmissionConfig

MOST_HELD_S: Final = 10.0
"""A script held this long without a seat runs another step before it is held again."""

SHARE: Final = 0.1
"""Part of the time for which a peer has lacked a seat: all members may wait this long for its state."""


class Patience:
    """How long all members may wait for the state of one peer without a seat: a long transfer must be rare.

    A peer that is no faster than the members, with a state that takes seconds, never catches up by fed steps. So its
    state may take 2 s (`late_s` / 2), or a tenth of the time for which the peer has lacked a seat, and members wait
    twice as long for it.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._since = math.inf
        self._given_s, self._vain_s = config.load_timeout_s, 0.0

    def waits(self, now: float) -> None:
        """The peer lacks a seat now."""
        self._since = min(self._since, now)

    def is_worth(self, now: float, state_s: float) -> bool:
        """Whether the peer has lacked a seat for ten times as long as its last state took."""
        return state_s <= SHARE * (now - self._since)

    def may_take(self, now: float, state_s: float) -> bool:
        """Whether all may wait for a state that takes this long; after a failed wait, only at twice the limit."""
        limit_s = self.limit_s(now)
        return state_s <= limit_s / 2 and limit_s >= 2 * self._vain_s

    def limit_s(self, now: float) -> float:
        """How long all may wait if the peer is admitted now."""
        waited_s = max(0.0, now - self._since)
        return max(self._config.load_timeout_s, min(2 * SHARE * waited_s, self._config.load_timeout_max_s))

    def begin(self, now: float) -> float:
        """The peer is admitted, and all wait for its state. Returns until when."""
        self._given_s = self.limit_s(now)
        return now + self._given_s

    def was_late(self) -> float:
        """The state has not arrived in time. Returns how long all have waited."""
        self._vain_s = self._given_s
        return self._given_s


class Pace:
    """Pace of one observer.

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
        """The script's time for a step; 0: not known.

        The shorter of the last two measurements, since a single one may be off. Operations that it calls by itself
        count as steps and take almost no time, so a measurement runs from one step of the model to another.
        """
        return min(self._took_s, default=0.0)

    @property
    def is_known(self) -> bool:
        """Whether the time for a step is known, or not being measured."""
        return bool(self._took_s) or self._began is None

    def ran(self, now: float, *, is_next_here: bool) -> None:
        """A fed step was run. `is_next_here`: the next one has arrived, so that the script does not wait for it."""
        has_waited = self._began is None or not self._is_next_here
        self._began, self._num_run = (now, 1) if has_waited else (self._began, self._num_run + 1)
        self._is_next_here = is_next_here
        self.is_held, self._held_since = False, None

    def loaded(self, now: float) -> None:
        """A state was loaded, by a script that waits: how long it waits for the next step shows nothing.

        The script has not moved: the time for which it is held continues.
        """
        self._end(now)
        self.is_held = False

    def _end(self, now: float) -> None:
        if self._began is not None:
            self._took_s.append((now - self._began) / self._num_run)
            self._began = None

    def waits(self, now: float, num_lacking: int, state_s: float, fits: Callable[[], bool]) -> bool:
        """The script waits in a step of its model. Returns whether it is held there.

        Args:
            now: the time.
            num_lacking: committed steps that it still has to compute, as far as is known, without the one it waits in.
            state_s: how long the last state took, from the request on.
            fits: whether any state fits the script there; called before it is held.
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

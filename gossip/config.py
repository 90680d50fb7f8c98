"""Timers of the protocol: their meaning and their limits."""

import math
from dataclasses import dataclass, field
from typing import Final

from .admission import AdmissionConfig
from .agreement import AgreementConfig
from .fed_steps import MOST_FED, MOST_FED_BYTES
from .reports import ReportsConfig
from .swim_config import SwimConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Timers of one peer, for peers on one host or one fast network."""

    swim: SwimConfig = field(default_factory=SwimConfig)
    reports: ReportsConfig = field(default_factory=ReportsConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)

    beat_s: float = 0.25
    """Interval at which READY, FINISHED and reports are repeated; an unanswered JOIN half as often."""

    death_stagger_s: float = 0.02
    """After a certain death, each further survivor waits this much longer before it proposes."""

    join_stagger_s: float = 0.2
    """The same stagger when no member is known to be dead."""

    stale_s: float = 2.0
    """Without progress for this long, a member asks whether others know a later view."""

    stall_s: float = 5.0
    """An operation that all have submitted and that is still incomplete after this long is redone in a new view."""

    pause_s: float = 0.75
    """A peer that wakes this much too late knows that it was stopped itself, and does not count the silence of
    others."""

    leave_s: float = 5.0
    """A leaving member waits at most this long for a view without it."""

    connect_timeout_s: float = 2.5
    """A member to which no connection could be made for this long is reported, even if frames from it arrive: none
    reach it."""

    founding_s: float = 10.0
    """A seed or a discovered peer that has not answered for this long counts as unreachable."""

    greeting_s: float = 3.0
    """A peer listens for this long at its address before it founds a swarm; members call there four times a second. A
    third of this time is enough where all peers that the first step needs are waiting, too."""

    status_s: float = 5.0
    """Least interval between two messages about a peer's own status."""

    state_s: float = 1.0
    """A request for a state is repeated after this long."""

    heir_s: float = 60.0
    """Where all members have died: how long to wait for the heir if the peers that must name it are not heard from."""

    most_fed: int = MOST_FED
    """Limit of the steps that an observer keeps: fed, and not run yet."""

    most_fed_bytes: int = MOST_FED_BYTES
    """Limit of the bytes of their results; eight steps are kept in any case."""

    def __post_init__(self) -> None:
        if not (self.most_fed > 0 and self.most_fed_bytes > 0):
            most = self.most_fed, self.most_fed_bytes
            raise ValueError(f"most_fed and most_fed_bytes must be positive, are {most[0]} and {most[1]}")
        for name in _TIMERS:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, is {getattr(self, name)}")
        for name, value in (("stale_s", self.stale_s), ("pause_s", self.pause_s), ("stall_s", self.stall_s)):
            if value < self.beat_s:
                raise ValueError(f"{name} must be at least beat_s, got {value} and {self.beat_s}")
        for name, value in (
            ("reports.silent_s", self.reports.silent_s),
            ("reports.lease_s", self.reports.lease_s),
            ("admission.lease_s", self.admission.lease_s),
            ("swim.gap_s", self.swim.gap_s),
        ):
            if value <= 2 * self.beat_s:
                raise ValueError(f"{name} must outlast two beats, got {value} and beat_s {self.beat_s}")


_TIMERS = (
    "beat_s",
    "death_stagger_s",
    "join_stagger_s",
    "stale_s",
    "stall_s",
    "pause_s",
    "leave_s",
    "connect_timeout_s",
    "founding_s",
    "greeting_s",
    "status_s",
    "state_s",
    "heir_s",
)

WAN: Final = CoreConfig(
    swim=SwimConfig(
        probe_interval_s=4.0,
        probe_timeout_s=1.2,
        gossip_interval_s=0.8,
        lost_interval_s=4.0,
        gap_s=3.0,
        gaps_window_s=40.0,
        steady_s=12.0,
    ),
    reports=ReportsConfig(silent_s=6.0, lease_s=6.0, stable_s=1.2, force_cut_s=9.0),
    admission=AdmissionConfig(lease_s=6.0, least_lag_s=0.8, lag_s=2.0, settled_s=20.0, load_timeout_s=8.0),
    agreement=AgreementConfig(retry_s=0.8, retry_max_s=8.0),
    beat_s=1.0,
    join_stagger_s=0.8,
    stale_s=8.0,
    stall_s=20.0,
    pause_s=3.0,
    connect_timeout_s=10.0,
    greeting_s=8.0,
    state_s=4.0,
    heir_s=120.0,
)
"""For round trips of up to about half a second, where a lost packet or a stalled link costs seconds.

Every timeout on a sign of life is four times as long. Reactions to a certain death are not delayed at all.
"""

"""Timers of the protocol: what they mean, and what they may be."""

import math
from dataclasses import dataclass, field

from .agreement import AgreementConfig
from .swim import SwimConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Timers of one peer, for peers on one host or one fast network."""

    swim: SwimConfig = field(default_factory=SwimConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)

    beat_s: float = 0.25
    """READY and FINISHED are repeated this often; an unanswered JOIN twice as rarely."""

    death_stagger_s: float = 0.02
    """After a death, each further survivor waits this much longer before it proposes."""

    join_stagger_s: float = 0.2
    """The same when nobody is missing."""

    stale_s: float = 2.0
    """Without any progress for this long, ask whether others know a later view."""

    def __post_init__(self) -> None:
        for name in ("beat_s", "death_stagger_s", "join_stagger_s", "stale_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, is {getattr(self, name)}")
        if self.stale_s < self.beat_s:
            raise ValueError(f"stale_s must be at least beat_s, got {self.stale_s} and {self.beat_s}")

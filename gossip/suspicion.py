"""Duration of a suspicion (Lifeguard, Dadgar et al. 2018, dynamic suspicion timeouts; memberlist's numbers).

A single accuser may be unhealthy itself, so its suspicion lasts long. Each independent accuser shortens it.
"""

import math
from dataclasses import dataclass

from .swim_config import SwimConfig


@dataclass(slots=True)
class Suspicion:
    """The suspicion that one member, in its present refutation, does not answer.

    Attributes:
        started: when this peer began to suspect the member.
        least_s: duration once `wanted` accusers have joined the first.
        most_s: duration with the first accuser alone.
        accusers: the first, and up to `wanted` that joined it.
    """

    started: float
    least_s: float
    most_s: float
    wanted: int
    accusers: dict[str, None]

    def confirm(self, accuser: str) -> bool:
        """Count `accuser`. Returns whether it is new and needed."""
        if accuser in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers[accuser] = None
        return True

    @property
    def deadline(self) -> float:
        """When the suspicion turns into a loss."""
        confirmed = math.log(len(self.accusers)) / math.log(self.wanted + 1) if self.wanted else 1.0
        return self.started + max(self.least_s, self.most_s - confirmed * (self.most_s - self.least_s))


def begin_suspicion(now: float, accuser: str, num_peers: int, config: SwimConfig) -> Suspicion:
    """A suspicion by `accuser`, among `num_peers`."""
    least_s = config.suspicion_mult * max(1.0, math.log10(num_peers)) * config.probe_interval_s
    wanted = config.num_confirmations if config.lifeguard else 0
    if num_peers - 2 < wanted:  # no third peer could confirm it
        wanted = 0
    return Suspicion(now, least_s, least_s * config.suspicion_max_ratio, wanted, {accuser: None})

"""How long a suspicion lasts (Lifeguard, Dadgar et al. 2018, dynamic suspicion timeouts; memberlist's numbers).

One accuser may be ill itself, so alone it has to wait long. Each independent accuser that confirms it shortens that.
"""

import math
from dataclasses import dataclass

from .swim_config import SwimConfig


@dataclass(slots=True)
class Suspicion:
    """That one member, in its present refutation, does not answer.

    Attributes:
        started: when this peer took it up.
        least_s: it lasts this long once `wanted` accusers have joined the first, `most_s` with the first alone.
        accusers: the first, and those who joined it, up to `wanted`.
    """

    started: float
    least_s: float
    most_s: float
    wanted: int
    accusers: dict[str, None]

    def confirm(self, accuser: str) -> bool:
        """Whether `accuser` is new and counts."""
        if accuser in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers[accuser] = None
        return True

    @property
    def deadline(self) -> float:
        """When it turns into a loss."""
        confirmed = math.log(len(self.accusers)) / math.log(self.wanted + 1) if self.wanted else 1.0
        return self.started + max(self.least_s, self.most_s - confirmed * (self.most_s - self.least_s))


def begin_suspicion(now: float, accuser: str, num_peers: int, config: SwimConfig) -> Suspicion:
    """By `accuser`, among `num_peers`."""
    least_s = config.suspicion_mult * max(1.0, math.log10(num_peers)) * config.probe_interval_s
    wanted = config.num_confirmations if config.lifeguard else 0
    if num_peers - 2 < wanted:  # nobody could confirm it but the two who are concerned
        wanted = 0
    return Suspicion(now, least_s, least_s * config.suspicion_max_ratio, wanted, {accuser: None})

"""Settings of discovery: speed and traffic of failure detection and gossip (Das et al. 2002; Dadgar et al. 2018)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimConfig:
    """Timers and limits of one peer's discovery, for a LAN. They should be equal on all peers of a swarm."""

    probe_interval_s: float = 1.0
    """Interval between probes, one neighbour each; a probe without an answer by then has failed."""

    probe_timeout_s: float = 0.3
    """Wait this long for a direct answer before asking other peers to probe: near the p99 round trip."""

    num_indirect: int = 3
    """Number of peers asked to probe a neighbour that did not answer."""

    gossip_interval_s: float = 0.2
    """Interval between rounds of gossip while there is news."""

    gossip_fanout: int = 3
    """Neighbours told in one such round."""

    spread_mult: int = 4
    """Each piece of news is sent this many times log10 of the number of peers, rounded up."""

    claims_per_message: int = 8
    """Most claims piggybacked on one message."""

    suspicion_mult: float = 3.0
    """Shortest suspicion, in probe intervals times max(1, log10 of the number of peers). 0: a failed probe is a
    loss."""

    suspicion_max_ratio: float = 6.0
    """A suspicion that no other accuser confirms lasts this many times longer."""

    num_confirmations: int = 2
    """Number of further accusers that shorten a suspicion to the minimum."""

    sync_interval_s: float = 30.0
    """Interval between comparisons of all claims with a random neighbour; longer among more than 32 peers."""

    tombstone_s: float = 120.0
    """A member that is lost, has left or is dead is remembered in full for this long, and in brief for longer."""

    lost_interval_s: float = 1.0
    """Interval between pings to a lost member, one at a time: a partition may have healed."""

    broadcast_max: int = 64
    """Up to this many neighbours, each certain death is sent to all of them at once, and newcomers are greeted by
    all."""

    max_health: int = 8
    """Worst local health score: intervals and timeouts of probes grow by one plus the score."""

    lifeguard: bool = True
    """Local health, confirmations, notices to the accused and the hold-down of flapping members. False: plain SWIM."""

    flap_refutations: int = 5
    """A member that refutes this often within `flap_window_s` is treated as lost."""

    flap_window_s: float = 30.0
    """Window in which refutations and accusers count."""

    flap_half_life_s: float = 60.0
    """Half-life of a penalty for having been lost."""

    hold_down_s: float = 10.0
    """A member with two penalties is held down for this long after its last accusation; twice as long per further
    penalty."""

    hold_down_max_s: float = 600.0
    """Longest hold-down for past losses alone."""

    mute_s: float = 30.0
    """A member whose link answers counts as alive for this long after its last frame: its interpreter may be busy, or
    its frames may not get through."""

    gap_s: float = 0.75
    """No frame of a member for this long is a gap, unless its link was answered all the time."""

    gaps_window_s: float = 10.0
    """A member that was silent for more than half of this window, in several gaps, flaps."""

    steady_s: float = 3.0
    """A member that flaps is taken for steady again this long after its last gap."""

    def __post_init__(self) -> None:
        if not 0 < self.probe_timeout_s < self.probe_interval_s < math.inf:
            raise ValueError(
                "need 0 < probe_timeout_s < probe_interval_s < inf, "
                f"got {self.probe_timeout_s} and {self.probe_interval_s}"
            )
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, is {getattr(self, name)}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, is {getattr(self, name)}")
        if self.hold_down_s > self.hold_down_max_s:
            raise ValueError(f"need hold_down_s <= hold_down_max_s, got {self.hold_down_s} and {self.hold_down_max_s}")


_POSITIVE = (
    "mute_s",
    "gap_s",
    "gaps_window_s",
    "steady_s",
    "gossip_interval_s",
    "sync_interval_s",
    "tombstone_s",
    "lost_interval_s",
    "flap_window_s",
    "flap_half_life_s",
    "hold_down_s",
    "hold_down_max_s",
)
_AT_LEAST_ONE = ("gossip_fanout", "spread_mult", "claims_per_message", "suspicion_max_ratio", "flap_refutations")
_NOT_NEGATIVE = ("num_indirect", "suspicion_mult", "num_confirmations", "broadcast_max", "max_health")

"""Flap damping: members that are repeatedly lost, or nearly lost (PROTOCOL.md, G14).

A member whose link loses most frames is suspected all the time, and hears of it often enough to refute in time. So each
loss costs it a penalty, and so do `flap_refutations` refutations within `flap_window_s` against three or more accusers;
fewer accusers may be unhealthy themselves. Penalties halve with time. From the second one on the member is held down:
it is not alive, even if it refutes. Every further accusation restarts the hold-down, so a member that stays unhealthy
stays out. A recovered member returns at the end of the hold-down, or earlier if its frames arrive without gaps: after a
quiet time.
"""

import math
from dataclasses import dataclass, field

from .claim import Claim, State
from .deadlines import Deadlines
from .swim_config import SwimConfig

NUM_ACCUSERS = 3
MOST_ACCUSERS = 8
MOST_PENALTY = 16.0
LEAST_PENALTY = 1.5
"""Penalty of two losses within one half-life: the first has decayed to a half at most."""
FREE_PENALTY = 3.0
"""Up to this penalty, a recovered member has to be quiet for `steady_s`; twice as long with each further one."""


@dataclass(slots=True)
class _Record:
    """Accusations, refutations and penalty of one peer_id; a restart does not clear them."""

    penalty: float = 0.0
    penalty_at: float = 0.0
    accused_at: dict[str, float] = field(default_factory=dict)
    refuted_at: list[float] = field(default_factory=list)
    held_at: float = 0.0

    def accuse(self, now: float, accuser: str) -> None:
        self.accused_at.pop(accuser, None)
        self.accused_at[accuser] = now
        if len(self.accused_at) > MOST_ACCUSERS:
            del self.accused_at[next(iter(self.accused_at))]

    def refute(self, now: float, num_accusers: int, config: SwimConfig) -> bool:
        """Count a refutation. Returns whether that is one too many; then counting starts anew."""
        since = now - config.flap_window_s
        self.refuted_at = [*(when for when in self.refuted_at if when >= since), now]
        if len(self.refuted_at) < config.flap_refutations:
            return False
        self.refuted_at.clear()
        return sum(when >= since for when in self.accused_at.values()) >= num_accusers


class FlapDamping:
    """Records of flapping, at most one per known peer, and the hold-downs."""

    def __init__(self, config: SwimConfig) -> None:
        self._config = config
        self._records: dict[str, _Record] = {}
        self.holds = Deadlines()

    def __len__(self) -> int:
        return len(self._records)

    def note(self, now: float, claim: Claim, num_peers: int, *, is_refuted: bool) -> None:
        """`claim` is new, or of one more accuser; `is_refuted`: it refutes the one before."""
        if not self._config.lifeguard or not (is_refuted or claim.state in (State.SUSPECT, State.LOST)):
            return
        name = claim.member.peer_id
        record = self._records.setdefault(name, _Record())
        if claim.state is State.SUSPECT:
            record.accuse(now, claim.accuser)
        is_held = name in self.holds
        # Of three peers two can accuse; of two, the only accuser may be unhealthy itself.
        if is_refuted and record.refute(now, max(2, min(NUM_ACCUSERS, num_peers - 1)), self._config):
            self._punish(now, record, least=2.0)
            is_held = True
        if claim.state is State.LOST:
            self._punish(now, record, least=0.0)
            is_held = is_held or record.penalty >= LEAST_PENALTY
        if is_held:
            record.held_at = now
            hold_s = self._config.hold_down_s * math.exp2(min(self._penalty(now, record) - 2.0, 64.0))
            self.holds.set(name, now + min(hold_s, self._config.hold_down_max_s))

    def release(self, now: float, name: str, steady_since: float) -> bool:
        """End a hold-down if frames arrive without a gap, and no accusation is recent. Returns whether it ended."""
        if name not in self.holds:
            return False
        record = self._records[name]
        steady_s = self._config.steady_s * math.exp2(max(0.0, self._penalty(now, record) - FREE_PENALTY))
        if now - max(steady_since, record.held_at) < steady_s:
            return False
        self.holds.drop(name)
        return True

    def forget(self, name: str) -> None:
        self._records.pop(name, None)
        self.holds.drop(name)

    def _punish(self, now: float, record: _Record, *, least: float) -> None:
        record.penalty = min(MOST_PENALTY, max(least, self._penalty(now, record) + 1.0))
        record.penalty_at = now

    def _penalty(self, now: float, record: _Record) -> float:
        return record.penalty * math.exp2(-max(0.0, now - record.penalty_at) / self._config.flap_half_life_s)

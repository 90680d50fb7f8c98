"""Probes: direct, then through other peers (SWIM, Das et al. 2002, sections 3.1 and 4.3; Lifeguard's NO-ACK).

Neighbours are probed one at a time, in an order shuffled anew each round, so that each is probed within two rounds. The
results say what to send and which members did not answer; swim.py draws the conclusions.
"""

import math
from dataclasses import dataclass, field
from random import Random

from .health import LocalHealth
from .roster import Roster
from .swim_config import SwimConfig
from .view import Member

MOST_RELAYS = 256


@dataclass(frozen=True, slots=True)
class Probe:
    """Send PING to `target`."""

    target: Member
    nonce: int


@dataclass(frozen=True, slots=True)
class Indirect:
    """Ask `helper` to probe `target`."""

    helper: Member
    target: Member
    nonce: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """`target` answered neither this peer nor its helpers."""

    target: Member


@dataclass(slots=True)
class _Pending:
    target: Member
    nonce: int
    helpers: tuple[Member, ...] | None = None
    """None: no helper was asked yet."""
    excused: dict[Member, None] = field(default_factory=dict)
    """Helpers that answered with NO-ACK."""


class Detector:
    """Probes one neighbour at a time."""

    def __init__(self, roster: Roster, health: LocalHealth, *, rng: Random, config: SwimConfig, now: float) -> None:
        self._roster = roster
        self._health = health
        self._rng = rng
        self._config = config
        self._round: list[Member] = []
        self._pending: _Pending | None = None
        self._indirect_at = math.inf
        self._next = now + rng.uniform(0.5, 1.0) * config.probe_interval_s

    def next_deadline(self) -> float:
        return min(self._next, self._indirect_at)

    def restart(self, now: float) -> None:
        """Start over after this peer was stopped: missing answers prove nothing."""
        self._pending = None
        self._indirect_at = math.inf
        self._next = now + self._rng.uniform(0.5, 1.0) * self._config.probe_interval_s

    def tick(self, now: float, nonce: int) -> list[Probe | Indirect | ProbeFailed]:
        """Returns what is due. A new probe takes `nonce`, which must never have been used before."""
        results: list[Probe | Indirect | ProbeFailed] = []
        if now >= self._next:
            results += self._finish()
            results += self._begin(now, nonce)
        elif now >= self._indirect_at:
            results += self._ask_helpers()
        return results

    def receive_ack(self, source: Member, nonce: int) -> bool:
        """An ACK from the target, or passed on by a helper. Returns whether the pending probe waited for it."""
        pending = self._pending
        if pending is None or nonce != pending.nonce or source not in (pending.target, *(pending.helpers or ())):
            return False
        self._pending = None
        self._indirect_at = math.inf
        self._health.improve()
        return True

    def receive_sign(self, source: Member) -> bool:
        """A frame from `source` itself: as good as an ACK."""
        pending = self._pending
        return pending is not None and source == pending.target and self.receive_ack(source, pending.nonce)

    def receive_no_ack(self, source: Member, nonce: int) -> None:
        pending = self._pending
        if pending is not None and nonce == pending.nonce and source in (pending.helpers or ()):
            pending.excused[source] = None

    def _begin(self, now: float, nonce: int) -> list[Probe | Indirect | ProbeFailed]:
        patience = self._health.multiplier
        self._next = now + self._config.probe_interval_s * patience
        target = self._next_target()
        if target is None:
            return []
        self._pending = _Pending(target, nonce)
        self._indirect_at = now + self._config.probe_timeout_s * patience
        return [Probe(target, nonce)]

    def _ask_helpers(self) -> list[Probe | Indirect | ProbeFailed]:
        self._indirect_at = math.inf
        pending = self._pending
        assert pending is not None
        candidates = self._roster.alive()
        drawn = self._rng.sample(candidates, min(self._config.num_indirect + 1, len(candidates)))
        helpers = [member for member in drawn if member != pending.target][: self._config.num_indirect]
        pending.helpers = tuple(helpers)
        return [Indirect(helper, pending.target, pending.nonce) for helper in helpers]

    def _finish(self) -> list[Probe | Indirect | ProbeFailed]:
        pending, self._pending = self._pending, None
        self._indirect_at = math.inf
        if pending is None or not self._roster.is_neighbour(pending.target):
            return []
        helpers = pending.helpers or ()
        self._health.worsen(len(helpers) - len(pending.excused) if helpers else 1)
        return [ProbeFailed(pending.target)]

    def _next_target(self) -> Member | None:
        while True:
            while self._round:
                member = self._round.pop()
                if self._roster.is_neighbour(member):
                    return member
            self._round = list(self._roster.neighbours())
            if not self._round:
                return None
            self._rng.shuffle(self._round)


@dataclass(frozen=True, slots=True)
class Relay:
    """A probe of `target` on behalf of `origin`, which knows it by `nonce`."""

    origin: Member
    nonce: int
    target: Member
    deadline: float


class Relays:
    """Probes that this peer makes for other peers; at most `MOST_RELAYS` at a time."""

    def __init__(self, config: SwimConfig) -> None:
        # The rest of the origin's interval must be enough for two more one-way delays.
        self._patience_s = min(config.probe_timeout_s, (config.probe_interval_s - config.probe_timeout_s) / 2)
        self._relays: dict[int, Relay] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def begin(self, now: float, nonce: int, origin: Member, origin_nonce: int, target: Member) -> bool:
        """Returns whether to send `target` a PING with `nonce`."""
        if len(self._relays) >= MOST_RELAYS:
            return False
        self._relays[nonce] = Relay(origin, origin_nonce, target, now + self._patience_s)
        return True

    def finish(self, source: Member, nonce: int) -> Relay | None:
        """The relay that an ACK of `source` answers."""
        relay = self._relays.get(nonce)
        if relay is None or relay.target != source:
            return None
        return self._relays.pop(nonce)

    def next_deadline(self) -> float:
        return next((relay.deadline for relay in self._relays.values()), math.inf)  # all wait equally long

    def expire(self, now: float) -> list[Relay]:
        """Remove and return the relays whose targets did not answer in time."""
        due = [nonce for nonce, relay in self._relays.items() if relay.deadline <= now] if self._relays else []
        return [self._relays.pop(nonce) for nonce in due]

"""Anti-entropy: at intervals two peers compare all that they know (SYNC, SYNC-REPLY), beyond gossip and probes.

Often at first and after a pause, then ever more rarely. Their digests are computed in claim_digests.py.
"""

import math
from random import Random

from .beliefs import Beliefs
from .claim import Claim, State, order
from .claim_digests import NUM_BUCKETS
from .effects import Send
from .messages import Gossip, Sync, SyncReply
from .swim_config import SwimConfig
from .view import Member

CLAIMS_PER_SYNC = 512
"""Number of claims that ends a reply to SYNC, after a whole bucket; the rest follows in later comparisons."""


class AntiEntropy:
    """Schedule and partner of one peer's comparisons, and its answers."""

    def __init__(self, beliefs: Beliefs, *, rng: Random, config: SwimConfig, now: float, is_met: bool) -> None:
        """`is_met`: it knows other peers already, and they know it."""
        self._beliefs = beliefs
        self._roster = beliefs.roster
        self._rng = rng
        self._config = config
        self._partner: Member | None = None
        self._gap_s = self._interval_s() if is_met else config.probe_interval_s
        self._next = now + rng.random() * self._gap_s if is_met else now

    def _interval_s(self) -> float:
        """Longer where there are many peers, as in memberlist."""
        return self._config.sync_interval_s * max(1, math.ceil(math.log2(self._beliefs.num_peers)) - 4)

    def next_deadline(self) -> float:
        return self._next if self._roster.alive() or self._beliefs.unconfirmed else math.inf

    def restart(self, now: float) -> None:
        """Compare at once, and often again."""
        self._gap_s, self._next = self._config.probe_interval_s, now

    def tick(self, now: float) -> list[Send]:
        """Ask a random neighbour, if it is time."""
        candidates = self._roster.alive() or self._beliefs.unconfirmed
        if now < self._next or not candidates:
            return []
        self._next = now + min(self._gap_s, self._interval_s())
        self._partner = candidates[self._rng.randrange(len(candidates))]
        return [Send(self._partner, Sync(self._roster.digests()))]

    def answer(self, source: Member, digests: tuple[bytes, ...]) -> list[Send]:
        """SYNC-REPLY with the buckets that differ, from a random one on."""
        if len(digests) != NUM_BUCKETS:
            return []
        mine = self._roster.digests()
        differing = [number for number in range(NUM_BUCKETS) if mine[number] != digests[number]]
        start = self._rng.randrange(NUM_BUCKETS) if differing else 0
        buckets: list[int] = []
        claims: list[Claim] = []
        for number in sorted(differing, key=lambda number: (number - start) % NUM_BUCKETS):
            buckets.append(number)
            claims += self._roster.bucket(number)
            if len(claims) >= CLAIMS_PER_SYNC:
                break
        return [Send(source, SyncReply(tuple(buckets), tuple(claims)))]

    def take(self, now: float, source: Member, reply: SyncReply, *, has_met: bool) -> list[Send]:
        """Tell `source` what it lacks. `has_met`: its reply, taken in already, named unknown peers."""
        if source != self._partner:
            return []
        self._partner = None
        if has_met:
            self._gap_s = self._config.probe_interval_s
            self._next = min(self._next, now + self._gap_s)
        else:
            self._gap_s = min(2 * self._gap_s, self._interval_s())
        theirs = {claim.member.peer_id: order(claim) for claim in reply.claims}
        news = [
            claim
            for number in dict.fromkeys(reply.buckets)
            if 0 <= number < NUM_BUCKETS
            for claim in self._roster.bucket(number)
            if _is_news(claim, theirs.get(claim.member.peer_id))
        ]
        return [Send(source, Gossip(tuple(news)))] if news else []


def _is_news(claim: Claim, theirs: tuple[int, int, int, int, int] | None) -> bool:
    """Whether they should hear `claim`. If they lack a lost or gone member, they may have forgotten it."""
    return claim.state <= State.SUSPECT if theirs is None else order(claim) > theirs

"""Who exists: probes, and news that rides on them (SWIM, Das et al. 2002, sections 3.1 and 4.1).

Probes keep news flowing and show who is silent. They declare nobody dead: that is the kernel's word, or a link that
was lost and then refused, and the host brings it with `bury`. Leaves out: indirect probes, suspicion, anti-entropy.
"""

import math
from dataclasses import dataclass
from random import Random

from .claim import NOWHERE, Claim, State, overrides
from .messages import Ack, Discovered, Effect, Explain, Forget, Ping, Send
from .view import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimConfig:
    """How fast news travels, and what that costs in traffic."""

    probe_interval_s: float = 1.0
    """One peer is probed this often."""

    silent_after: int = 3
    """A peer that misses this many probes in a row is named."""

    claims_per_message: int = 8
    """News that rides on one message."""

    def __post_init__(self) -> None:
        if not 0 < self.probe_interval_s < math.inf:
            raise ValueError(f"probe_interval_s must be positive and finite, is {self.probe_interval_s}")
        if self.silent_after < 1 or self.claims_per_message < 1:
            raise ValueError(
                "silent_after and claims_per_message must be at least 1, "
                f"are {self.silent_after} and {self.claims_per_message}"
            )


class Swim:
    """All claims that this peer has heard, and the probing of those that are alive."""

    def __init__(self, me: Claim, *, rng: Random, config: SwimConfig, now: float) -> None:
        self._me = me
        self._rng = rng
        self._config = config
        self._claims: dict[str, Claim] = {me.member.peer_id: me}
        self._unspread: dict[str, int] = {}
        self._acquainted: set[Member] = set()
        self._unanswered: dict[Member, int] = {}
        self._round: list[Member] = []
        self._nonce = 0
        self._next_probe = now + config.probe_interval_s

    def alive(self) -> tuple[Member, ...]:
        """Every other peer that is alive as far as this one knows."""
        others = (c for c in self._claims.values() if c is not self._me and c.state is State.ALIVE)
        return tuple(claim.member for claim in others)

    def is_alive(self, member: Member) -> bool:
        """Whether `member` was met and nothing worse is known: the host watches it."""
        claim = self._claims.get(member.peer_id)
        return claim is not None and claim.member == member and claim.state is State.ALIVE

    def is_gone(self, member: Member) -> bool:
        """Whether `member` is dead, has left, or was followed by a later incarnation of itself."""
        claim = self._claims.get(member.peer_id)
        if claim is None:
            return False
        later = claim.member.incarnation > member.incarnation
        return later or (claim.member == member and claim.state is not State.ALIVE)

    def next_deadline(self) -> float:
        return self._next_probe

    def tick(self, now: float) -> list[Effect]:
        if now < self._next_probe:
            return []
        self._next_probe = now + self._config.probe_interval_s
        target = self._next_target()
        if target is None:
            return []
        missed = self._unanswered.get(target, 0)
        self._unanswered[target] = missed + 1
        effects: list[Effect] = [Send(target, self._ping(target))]
        if missed == self._config.silent_after:
            effects.append(Explain(f"{target} is silent: {missed} probes without an answer"))
        return effects

    def receive(self, source: Member, body: Ping | Ack) -> list[Effect]:
        effects = [effect for claim in body.claims for effect in self.hear(claim)]
        self._unanswered.pop(source, None)
        if isinstance(body, Ack):
            self._acquainted.add(source)
        else:
            effects.append(Send(source, Ack(body.nonce, self._news())))
        return effects

    def hear(self, claim: Claim) -> list[Effect]:
        """Take in what somebody says of a peer; what is not newer changes nothing."""
        name = claim.member.peer_id
        old = self._claims.get(name)
        if name == self._me.member.peer_id or (old is not None and not overrides(claim, old)):
            return []
        self._claims[name] = claim
        self._unspread[name] = 4 * math.ceil(math.log10(len(self._claims) + 1))
        effects: list[Effect] = []
        if old is not None and old.state is State.ALIVE:
            effects += [] if claim.member == old.member else [Forget(old.member)]
            self._unanswered.pop(old.member, None)
        if claim.state is State.ALIVE:
            effects += [Discovered(claim), Send(claim.member, self._ping(claim.member))]
        return effects

    def bury(self, member: Member, state: State) -> list[Effect]:
        """`member` is dead or has left for certain, met or not. Tells everybody at once."""
        if self.is_gone(member):
            return []
        known = self._claims.get(member.peer_id)
        contact = known.contact if known is not None and known.member == member else NOWHERE
        effects = self.hear(Claim(member, state, contact))
        return [*effects, *(Send(other, self._ping(other)) for other in self.alive())]

    def tell(self, member: Member) -> list[Effect]:
        """Let `member` know what is said of it."""
        self._nonce += 1
        return [Send(member, Ping(self._nonce, (self._claims[member.peer_id],)))]

    def _ping(self, target: Member) -> Ping:
        self._nonce += 1
        introduction = () if target in self._acquainted else (self._me,)
        return Ping(self._nonce, (*introduction, *self._news()))

    def _news(self) -> tuple[Claim, ...]:
        """The least spread claims first."""
        names = sorted(self._unspread, key=lambda name: (-self._unspread[name], name))
        names = names[: self._config.claims_per_message]
        for name in names:
            self._unspread[name] -= 1
            if not self._unspread[name]:
                del self._unspread[name]
        return tuple(self._claims[name] for name in names)

    def _next_target(self) -> Member | None:
        """Round-robin in an order shuffled anew each round, so that everybody's turn comes soon (section 4.3)."""
        alive = self.alive()
        while self._round and self._round[-1] not in alive:
            self._round.pop()
        if not self._round:
            self._round = list(alive)
            self._rng.shuffle(self._round)
        return self._round.pop() if self._round else None

"""Discovery and failure detection of peers (SWIM, Das et al. 2002; Lifeguard, Dadgar et al. 2018).

Probes find silent peers. Claims are piggybacked on probes and spread in rounds of gossip, and at intervals two peers
compare all that they know (anti_entropy.py). A peer is never declared dead here: a death is the kernel's word, which
the host passes to `declare_dead`. Leaves out: a bounded-degree overlay; `neighbours` is where it will be.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from .anti_entropy import AntiEntropy
from .beliefs import Beliefs
from .claim import Claim, State, Status, order
from .detector import Detector, Indirect, Probe, Relays
from .effects import Discovered, Effect, Forget, Send
from .messages import Ack, Gossip, NoAck, Ping, PingRequest, Sync, SyncReply
from .swim_config import SwimConfig
from .view import NOWHERE, Member

Body = Ping | Ack | PingRequest | NoAck | Gossip | Sync | SyncReply


class Swim:
    """Claims about all known peers, and the probing of those that are alive."""

    def __init__(self, me: Claim, *, rng: Random, config: SwimConfig, now: float, known: Iterable[Claim] = ()) -> None:
        """`known`: living peers that have links to this one and know it; no `Discovered` is returned for them."""
        known = tuple(claim for claim in known if claim.state is State.ALIVE)
        self._rng = rng
        self._config = config
        self._beliefs = Beliefs(me, known, config=config, now=now)
        self._roster = self._beliefs.roster
        self._detector = Detector(self._roster, self._beliefs.health, rng=rng, config=config, now=now)
        self._relays = Relays(config)
        self._nonce = 0
        self._strangers: set[str] = set()
        self._touched = now
        self._due: float | None = None  # None: to be computed anew
        self._next_gossip = now
        self._next_lost = now
        self._comparison = AntiEntropy(self._beliefs, rng=rng, config=config, now=now, is_met=bool(known))

    # Queries

    @property
    def me(self) -> Claim:
        """This peer's claim about itself."""
        return self._beliefs.me

    @property
    def is_declared_gone(self) -> bool:
        """Whether other peers claim that this very process has ended, which it cannot refute."""
        return self._beliefs.is_declared_gone

    def alive(self) -> tuple[Member, ...]:
        """All other peers that are alive or suspect, without those held down."""
        return self._roster.alive()

    def neighbours(self) -> tuple[Member, ...]:
        """Peers to link to and probe: those alive and those held down; later, some of them."""
        return self._roster.neighbours()

    def is_alive(self, member: Member) -> bool:
        """Whether `member` is one of `alive()`."""
        return self._roster.is_neighbour(member) and not self._beliefs.is_lost(member)

    def is_gone(self, member: Member) -> bool:
        """Whether `member` is dead, has left, or was replaced by a later incarnation. Final."""
        return self.state_of(member) >= State.LEFT

    def is_lost(self, member: Member) -> bool:
        """Whether `member` did not refute its suspicion in time, or refutes so often that it is held down."""
        return self._beliefs.is_lost(member)

    def state_of(self, member: Member) -> State:
        """State of `member`. LOST: unknown. DEAD also: replaced by a later incarnation."""
        claim = self._beliefs.latest(member.peer_id)
        if claim is None or claim.member.incarnation < member.incarnation:
            return State.LOST
        return claim.state if claim.member == member else State.DEAD

    def claim_of(self, member: Member) -> Claim | None:
        claim = self._roster.get(member.peer_id)
        return claim if claim is not None and claim.member == member else None

    def latest(self, member: Member) -> Claim | None:
        """The latest claim about `member` or a later incarnation of it."""
        claim = self._beliefs.latest(member.peer_id)
        return claim if claim is not None and claim.member >= member else None

    def known_claims(self) -> tuple[Claim, ...]:
        """Claims about all others that are not gone for good."""
        return tuple(claim for claim in self._roster.others() if claim.state < State.LEFT)

    def silence_s(self, now: float, member: Member) -> float:
        """Time since `member` was last heard from, or was discovered."""
        return self._beliefs.silence_s(now, member)

    def flaps(self, now: float, member: Member) -> bool:
        """Whether `member` flaps (G12): silent for most of the last seconds, though never for long."""
        return self._beliefs.signs.flaps(now, member.peer_id)

    def is_steady(self, now: float, member: Member) -> bool:
        """Whether `member` is steady, without a recent gap, so that it may have a seat."""
        return self._beliefs.signs.is_steady(now, member.peer_id)

    def health_multiplier(self) -> int:
        """Factor by which each limit on the silence of others is to be stretched: this peer may be unhealthy itself."""
        return self._beliefs.health.multiplier

    # Commands.

    def apply_claim(self, now: float, claim: Claim) -> list[Effect]:
        """Take in a claim about a peer; only a newer one changes anything."""
        self._notice_lateness(now)
        return self._greet(self._beliefs.apply_claim(now, claim))

    def frame_received(self, now: float, member: Member) -> None:
        """A frame of `member`, of any kind, has arrived: the member is alive and need not answer a probe."""
        is_released = self._beliefs.frame_received(now, member)
        if self._detector.receive_sign(member) or is_released:
            self._due = None

    def link_answered(self, now: float, member: Member) -> None:
        """The link to `member` is answered, maybe not by its interpreter. Counts for a while after its last frame."""
        if self._beliefs.link_answered(now, member) and self._detector.receive_sign(member):
            self._due = None

    def broke(self, now: float, member: Member) -> None:
        """The link to `member` is unanswered, or was for a moment: frames of the member may have been lost."""
        self._beliefs.signs.broke(now, member.peer_id)

    def declare_dead(self, now: float, member: Member, state: State) -> list[Effect]:
        """`member`, known or not, is dead for certain or has left. Tells all peers at once, or some of very many."""
        if self.is_gone(member) or member.peer_id == self.me.member.peer_id:
            return []
        self._notice_lateness(now)
        known = self.claim_of(member)
        claim = Claim(member, state, NOWHERE) if known is None else replace(known, state=state, accuser="")
        effects = self._beliefs.apply_claim(now, claim)
        if len(self.alive()) > self._config.broadcast_max:
            return effects  # the next round of gossip is due
        return [*effects, *(Send(other, Gossip((claim,))) for other in self.alive())]

    def suspect(self, now: float, member: Member) -> list[Effect]:
        """There is evidence against `member` other than a probe, such as a refused link."""
        self._notice_lateness(now)
        return self._beliefs.suspect(now, member)

    def tell(self, member: Member) -> list[Effect]:
        """Send `member` the latest claim about itself."""
        claim = self._beliefs.latest(member.peer_id)
        return [] if claim is None else [Send(member, Ping(self._new_nonce(), (claim,)))]

    def introduction(self) -> tuple[Gossip, Sync]:
        """Messages to a peer known only by address: this peer's claim about itself, and digests of all it knows."""
        return Gossip((self.me,)), Sync(self._roster.digests())

    def pin(self, members: Iterable[Member]) -> None:
        """Never forget `members`, however long they are lost: they have seats in a view."""
        before, self._beliefs.pinned = self._beliefs.pinned, frozenset(member.peer_id for member in members)
        for name in sorted(self._beliefs.pinned - before):
            self._beliefs.signs.watch(name)

    def set_status(self, now: float, status: Status) -> None:
        """Set this peer's status; `version` is counted here."""
        self._notice_lateness(now)
        version = self.me.status.version
        if replace(status, version=version) != self.me.status:
            self._beliefs.say_of_itself(replace(self.me, status=replace(status, version=version + 1)))

    def resume(self, now: float) -> None:
        """This process was stopped: the silence of others meanwhile proves nothing.

        After more than half of `tombstone_s`, others may have forgotten members that died in the meantime. So this peer
        forgets all members that are not dead, and asks those to which it had links.
        """
        is_long = now - self._touched > self._config.tombstone_s / 2
        self._touched = now
        self._beliefs.resume(now, is_long=is_long)
        self._detector.restart(now)
        self._comparison.restart(now)
        self._due = None

    # Time.

    def next_deadline(self) -> float:
        if self._due is None:
            self._due = self._find_due()
        return self._due

    def _find_due(self) -> float:
        return min(
            self._detector.next_deadline(),
            self._beliefs.next_deadline(),
            self._relays.next_deadline(),
            self._next_gossip if self._beliefs.rumours and self.alive() else math.inf,
            self._next_lost if self._roster.lost() else math.inf,
            self._comparison.next_deadline(),
        )

    def tick(self, now: float) -> list[Effect]:
        self._notice_lateness(now)
        if now < self.next_deadline():
            return []
        self._due = None
        effects = self._probe(now)
        effects += [Send(relay.origin, NoAck(relay.nonce)) for relay in self._relays.expire(now)]
        for effect in self._beliefs.tick(now):
            effects.append(effect)
            if isinstance(effect, Forget):
                self._strangers.discard(effect.member.peer_id)
        effects += self._seek_the_lost(now)
        effects += self._comparison.tick(now)
        effects += self._gossip(now)
        return effects

    def _notice_lateness(self, now: float) -> None:
        """If this peer is late for its own deadlines, answers may be waiting unread: excuse the silence of others."""
        if now - self._touched > self._config.probe_timeout_s and self._config.lifeguard:
            late_s = now - max(self._touched, self.next_deadline())
            if late_s > self._config.tombstone_s / 2:
                self.resume(now)
            if late_s > self._config.probe_timeout_s:
                self._beliefs.health.worsen()
                self._beliefs.excuse(now, late_s)
                self._detector.restart(now)
        self._touched, self._due = now, None

    def _probe(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for result in self._detector.tick(now, self._nonce + 1):
            match result:
                case Probe(target, nonce):
                    self._nonce = nonce
                    effects.append(Send(target, self._ping(target, nonce)))
                case Indirect(helper, target, nonce):
                    effects.append(Send(helper, PingRequest(nonce, target)))
                case _:
                    effects += [*self._beliefs.suspect(now, result.target), *self._accuse(result.target)]
        return effects

    def _accuse(self, target: Member) -> list[Effect]:
        """Tell the accused at once, so that it can refute early."""
        return [Send(target, self._ping(target, self._new_nonce()))] if self._config.lifeguard else []

    def _seek_the_lost(self, now: float) -> list[Effect]:
        """Ping a lost member: if a partition has healed, it learns of the claim and refutes."""
        lost = self._roster.lost()
        if now < self._next_lost or not lost:
            return []
        self._next_lost = now + self._config.lost_interval_s
        target = lost[self._rng.randrange(len(lost))]
        return [Send(target, self._ping(target, self._new_nonce()))] if self._beliefs.is_linked(target) else []

    def _gossip(self, now: float) -> list[Effect]:
        alive = self.alive()
        if now < self._next_gossip or not alive:
            return []
        effects: list[Effect] = []
        for target in self._rng.sample(alive, min(self._config.gossip_fanout, len(alive))):
            if not (claims := self._beliefs.news()):
                break
            effects.append(Send(target, Gossip(claims)))
        self._next_gossip = now + self._config.gossip_interval_s
        return effects

    # Messages.

    def receive(self, now: float, source: Member, body: Body) -> list[Effect]:
        """Handle any message. An invalid one changes nothing."""
        if source.peer_id == self.me.member.peer_id:
            return []
        self._notice_lateness(now)
        self._beliefs.frame_received(now, source)
        match body:
            case Ping(nonce, claims):
                self._strangers.discard(source.peer_id)
                effects = self._hear_all(now, source, claims)
                return [*effects, Send(source, Ack(nonce, self._answer(source, claims)))]
            case Ack(nonce, claims):
                return [*self._hear_all(now, source, claims), *self._receive_ack(source, nonce)]
            case PingRequest(nonce, target):
                return self._receive_request(now, source, nonce, target)
            case NoAck(nonce):
                self._detector.receive_no_ack(source, nonce)
                return []
            case Gossip(claims):
                return self._hear_all(now, source, claims)
            case Sync(digests):
                return [*self._comparison.answer(source, digests)]
            case _:
                effects = self._hear_all(now, source, body.claims, spread=False)
                has_met = any(isinstance(effect, Discovered) for effect in effects)
                return [*effects, *self._comparison.take(now, source, body, has_met=has_met)]

    def _hear_all(self, now: float, source: Member, claims: tuple[Claim, ...], *, spread: bool = True) -> list[Effect]:
        effects: list[Effect] = []
        for claim in claims:
            effects += self._beliefs.apply_claim(now, claim, spread=spread)
        return self._greet(effects, source) if effects else effects

    def _receive_ack(self, source: Member, nonce: int) -> list[Effect]:
        relay = self._relays.finish(source, nonce)
        if relay is not None:
            return [Send(relay.origin, Ack(relay.nonce, ()))]
        self._strangers.discard(source.peer_id)
        self._detector.receive_ack(source, nonce)
        return []

    def _receive_request(self, now: float, source: Member, nonce: int, target: Member) -> list[Effect]:
        if target == self.me.member:
            return [Send(source, Ack(nonce, ()))]
        known = self.claim_of(target)
        if known is None or known.state >= State.LEFT or not self._beliefs.is_linked(target):
            return []
        own_nonce = self._new_nonce()
        if not self._relays.begin(now, own_nonce, source, nonce, target):
            return []
        return [Send(target, self._ping(target, own_nonce))]

    # Claims to send

    def _answer(self, source: Member, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """News; first the claim that `source` should hear about itself, and this peer's own if it has that wrong."""
        mine = self.me
        wrong = any(c.member.peer_id == mine.member.peer_id and order(c) < order(mine) for c in claims)
        return (*self._said_of(source), *((mine,) if wrong else ()), *self._beliefs.news())

    def _ping(self, target: Member, nonce: int) -> Ping:
        introduction = (self.me,) if target.peer_id in self._strangers else ()
        return Ping(nonce, (*self._said_of(target), *introduction, *self._beliefs.news()))

    def _said_of(self, member: Member) -> tuple[Claim, ...]:
        """A suspect or worse member hears so first from each peer it talks to (Lifeguard's buddy system)."""
        claim = self._beliefs.latest(member.peer_id)
        if claim is None or (claim.state is State.ALIVE and claim.member == member):
            return ()
        return () if claim.state is State.SUSPECT and not self._config.lifeguard else (claim,)

    def _greet(self, effects: list[Effect], source: Member | None = None) -> list[Effect]:
        """Introduce this peer to the discovered peers. Where there are many, gossip does that."""
        met = [effect.claim.member for effect in effects if isinstance(effect, Discovered)]
        self._strangers.update(member.peer_id for member in met)
        if source is not None:
            self._strangers.discard(source.peer_id)
        if len(self.neighbours()) > self._config.broadcast_max:
            return effects
        return [*effects, *(Send(m, self._ping(m, self._new_nonce())) for m in met if m != source)]

    def _new_nonce(self) -> int:
        self._nonce += 1
        return self._nonce

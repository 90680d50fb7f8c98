"""Beliefs of one peer about itself and others, and how claims change them (SWIM, Das et al. 2002, section 4.2).

Takes claims in, spreads news, and ends suspicions and memories in time. Leaves out: probes, and which peers are told
(swim.py).
"""

from dataclasses import replace

from .claim import Claim, State, overrides
from .deadlines import Deadlines
from .effects import Discovered, Effect, Explain, Forget
from .flap_damping import FlapDamping
from .health import LocalHealth
from .roster import Roster
from .rumours import Rumours
from .signs import Signs
from .suspicion import Suspicion, begin_suspicion
from .swim_config import SwimConfig
from .view import Member

MOST_REFUTATIONS = 1 << 62
"""Limit of refutations: a greater number is invalid, and its successor would not fit into a frame."""


class Beliefs:
    """One peer's beliefs about all peers."""

    def __init__(self, me: Claim, known: tuple[Claim, ...], *, config: SwimConfig, now: float) -> None:
        self.me = me
        self.is_declared_gone = False
        self.health = LocalHealth(config.max_health if config.lifeguard else 0)
        self.rumours = Rumours()
        self._config = config
        self._flapping = FlapDamping(config)
        self._doubted: set[str] = set()
        self.roster = Roster(me, known, self._is_held)
        self._suspicions: dict[str, Suspicion] = {}
        self._suspected_until = Deadlines()
        self._remembered_until = Deadlines()
        self.pinned: frozenset[str] = frozenset()
        """Names that are never forgotten, whatever their state."""
        self.signs = Signs(config, now)
        self._unlinked: set[str] = set()
        self._orphans: dict[str, Member] = {}
        if not known:
            self.rumours.add(me.member.peer_id)

    @property
    def unconfirmed(self) -> tuple[Member, ...]:
        """Members that had a link before a long pause and have not been heard of since."""
        return tuple(self._orphans.values())

    def is_linked(self, member: Member) -> bool:
        return member.peer_id not in self._unlinked

    def is_lost(self, member: Member) -> bool:
        claim = self.latest(member.peer_id)
        if claim is None or claim.member != member:
            return False
        return claim.state is State.LOST or (claim.state < State.LOST and self._is_held(member.peer_id))

    def _is_held(self, peer_id: str) -> bool:
        return peer_id in self._flapping.holds or peer_id in self._doubted

    def latest(self, peer_id: str) -> Claim | None:
        """The latest claim about `peer_id`, or its tombstone."""
        return self.roster.get(peer_id) or self.roster.tombstone(peer_id)

    def silence_s(self, now: float, member: Member) -> float:
        return self.signs.silence_s(now, member.peer_id)

    def frame_received(self, now: float, member: Member) -> bool:
        """A frame of `member` has arrived. Returns whether that ends its hold-down."""
        if not self._is_known(member):
            return False
        self.signs.frame_received(now, member.peer_id)
        is_released = self._flapping.release(now, member.peer_id, self.signs.steady_since(member.peer_id))
        if is_released:
            self.roster.regroup()
        return is_released

    def link_answered(self, now: float, member: Member) -> bool:
        """The link to `member` is answered. Returns whether that counts as life: not for long without a frame of it."""
        return self._is_known(member) and self.signs.link_answered(now, member.peer_id)

    def _is_known(self, member: Member) -> bool:
        known = self.roster.get(member.peer_id)
        return known is not None and known.member == member

    def news(self) -> tuple[Claim, ...]:
        """Claims for one message, the least spread first."""
        limit = self._config.spread_mult * len(str(self.num_peers))  # ceil(log10(n + 1))
        names = self.rumours.take(self._config.claims_per_message, limit)
        return tuple(claim for name in names if (claim := self.roster.get(name)) is not None)

    @property
    def num_peers(self) -> int:
        return len(self.roster.alive()) + 1

    # Claims

    def apply_claim(self, now: float, claim: Claim, *, spread: bool = True) -> list[Effect]:
        """Take in a claim; only a newer one counts. `spread`: pass it on, even if the member was unknown."""
        name = claim.member.peer_id
        if name == self.me.member.peer_id:
            return self._hear_of_itself(claim)
        old = self.roster.get(name)
        if claim is old:
            return []
        if old is None:
            believed = self._believe_again(claim)
            if believed is None:
                return []
            if believed is not claim:
                self._doubted.add(name)
            return self._take(now, believed, None, spread)
        if overrides(claim, old):
            doubt = self._is_sudden(now, claim, old)
            return self._doubt_loss(now, claim, old) if doubt else self._take(now, claim, old, True)
        if claim.state is old.state is State.SUSPECT and _subject(claim) == _subject(old):
            self._confirm(now, replace(old, accuser=claim.accuser))
        return []

    def suspect(self, now: float, member: Member) -> list[Effect]:
        """Suspect `member`, which did not answer this peer."""
        known = self.roster.get(member.peer_id)
        if known is None or known.member != member or known.state > State.SUSPECT:
            return []
        state = State.SUSPECT if self._config.suspicion_mult else State.LOST
        return self.apply_claim(now, replace(known, state=state, accuser=self.me.member.peer_id))

    def say_of_itself(self, claim: Claim) -> None:
        """Replace this peer's claim about itself by the newer `claim`."""
        self.me = claim
        self.roster.put(claim)
        self.rumours.add(claim.member.peer_id)

    def _hear_of_itself(self, claim: Claim) -> list[Effect]:
        mine = self.me
        if claim.member != mine.member:
            if claim.member.incarnation < mine.member.incarnation:
                self.rumours.add(mine.member.peer_id)  # some peer has not heard of this process
            else:
                self.is_declared_gone = True
        elif claim.state >= State.LEFT:
            self.is_declared_gone = True
        elif claim.state >= State.SUSPECT and mine.refutation <= claim.refutation < MOST_REFUTATIONS:
            self.say_of_itself(replace(mine, refutation=claim.refutation + 1))
            self.health.worsen()
            return [
                Explain(f"{claim.accuser or 'another peer'} takes this peer for {claim.state.name.lower()}: denied")
            ]
        return []

    def _believe_again(self, claim: Claim) -> Claim | None:
        """The believable part of `claim`, about a member that is unknown, or was forgotten as lost or gone.

        Dead members stay dead. A lost member returns by a refutation of its own; until then, claims of others that it
        is alive may be older than its loss. It is suspect then, so that it is probed, and does not count as alive.
        """
        tombstone = self.roster.tombstone(claim.member.peer_id)
        if tombstone is None or claim.member.incarnation > tombstone.member.incarnation:
            return claim
        if claim.member != tombstone.member or tombstone.state >= State.LEFT:
            return None
        if tombstone.state is State.ALIVE or claim.state >= State.LEFT or claim.refutation > tombstone.refutation:
            return claim
        if claim.state is State.LOST or claim.refutation < tombstone.refutation:
            return None
        return replace(claim, state=State.SUSPECT, accuser=self.me.member.peer_id)

    def _is_sudden(self, now: float, claim: Claim, old: Claim) -> bool:
        """Whether others claim that a member is lost that has had too little time to refute: they may be unhealthy."""
        if claim.state is not State.LOST or _subject(claim) != _subject(old) or not self._config.lifeguard:
            return False
        if old.state is State.SUSPECT:
            suspicion = self._suspicions[claim.member.peer_id]
            return claim.accuser != self.me.member.peer_id and now < suspicion.started + suspicion.least_s
        return claim.accuser != self.me.member.peer_id and old.state is State.ALIVE

    def _doubt_loss(self, now: float, claim: Claim, old: Claim) -> list[Effect]:
        """Suspect the member for the least time to refute, and no longer."""
        name = claim.member.peer_id
        suspect = replace(claim, state=State.SUSPECT)
        effects = self._take(now, suspect, old, True) if old.state is State.ALIVE else []
        self._suspicions[name].wanted = 0
        self._suspected_until.set(name, self._suspicions[name].deadline)
        return effects

    def _confirm(self, now: float, claim: Claim) -> None:
        """Count one more accuser of a suspect member."""
        name = claim.member.peer_id
        self._flapping.note(now, claim, len(self.roster.neighbours()) + 1, is_refuted=False)
        if self._suspicions[name].confirm(claim.accuser):
            self.roster.put(claim)
            self.rumours.add(name)
            self._suspected_until.set(name, self._suspicions[name].deadline)

    # Consequences

    def _take(self, now: float, claim: Claim, old: Claim | None, spread: bool) -> list[Effect]:
        """Replace `old` by `claim`."""
        name = claim.member.peer_id
        before = old if old is not None and old.member == claim.member else None
        is_refuted = before is not None and claim.refutation > before.refutation
        was_held = self._is_held(name)
        if is_refuted or claim.state >= State.LOST or (before is None and old is not None):
            self._doubted.discard(name)
        self.roster.put(claim)
        if spread:
            self.rumours.add(name)
        if before is None:
            self.signs.frame_received(now, name)
        elif claim.state is before.state is not State.SUSPECT and claim.refutation == before.refutation:
            return []  # a newer status
        self._flapping.note(now, claim, len(self.roster.neighbours()) + 1, is_refuted=is_refuted)
        if self._is_held(name) != was_held:
            self.roster.regroup()
        self._follow_suspicion(now, claim, before)
        if claim.state >= State.LOST:
            self._remembered_until.set(name, now + self._config.tombstone_s)
        else:
            self._remembered_until.drop(name)
        return [*self._link(claim, old), *_explain(claim, before)]

    def _follow_suspicion(self, now: float, claim: Claim, before: Claim | None) -> None:
        name = claim.member.peer_id
        if claim.state is not State.SUSPECT:
            self._suspicions.pop(name, None)
            self._suspected_until.drop(name)
            return
        if before is not None and before.state is State.SUSPECT and before.refutation == claim.refutation:
            self._suspicions[name].confirm(claim.accuser)  # the accuser knows a newer status
        else:
            self._suspicions[name] = begin_suspicion(now, claim.accuser, self.num_peers, self._config)
        self._suspected_until.set(name, self._suspicions[name].deadline)

    def _link(self, claim: Claim, old: Claim | None) -> list[Effect]:
        """Link to the member if it is alive; close the link to the one that it replaces."""
        name = claim.member.peer_id
        linked = self._orphans.pop(name, None) if old is None else old.member
        if name in self._unlinked:
            linked = None
        effects: list[Effect] = []
        if linked is not None and linked != claim.member:
            effects.append(Forget(linked))
            linked = None
        if linked is None and claim.state <= State.SUSPECT:
            effects.append(Discovered(claim))
            linked = claim.member
        if linked is None:
            self._unlinked.add(name)
        else:
            self._unlinked.discard(name)
        return effects

    # Time

    def next_deadline(self) -> float:
        return min(self._suspected_until.next(), self._remembered_until.next(), self._flapping.holds.next())

    def tick(self, now: float) -> list[Effect]:
        if self._flapping.holds.pop(now):
            self.roster.regroup()
        effects: list[Effect] = []
        for name in self._suspected_until.pop(now):
            effects += self._expire_suspicion(now, name)
        for name in self._remembered_until.pop(now):
            if name in self.pinned:
                self._remembered_until.set(name, now + self._config.tombstone_s)
            else:
                effects += self._forget(name)
        return effects

    def excuse(self, now: float, by_s: float) -> None:
        """This peer was late itself: all suspicions last longer by as much."""
        self.signs.excuse(now)
        for suspicion in self._suspicions.values():
            suspicion.started += by_s
        self._suspected_until.shift(by_s)

    def resume(self, now: float, *, is_long: bool) -> None:
        """This peer was stopped: silence proves nothing, nor, after a long pause, do beliefs that may be outdated.

        Then only dead members stay dead; a member that had a link is an orphan, until a claim about it arrives.
        """
        self.signs.resume(now)
        for name, suspicion in self._suspicions.items():
            suspicion.started = now
            self._suspected_until.set(name, suspicion.deadline)
        if not is_long:
            return
        self._doubted.clear()
        self.rumours.clear()
        self.rumours.add(self.me.member.peer_id)
        for member in self.roster.drop_living():
            name = member.peer_id
            self._suspicions.pop(name, None)
            self._suspected_until.drop(name)
            self._remembered_until.drop(name)
            if name in self._unlinked:
                self._unlinked.discard(name)
                self._flapping.forget(name)
            else:
                self._orphans[name] = member
                self._remembered_until.set(name, now + self._config.tombstone_s)

    def _expire_suspicion(self, now: float, name: str) -> list[Effect]:
        """The suspicion was not refuted in time: `name` is lost, unless it was heard just now, whatever is claimed."""
        claim = self.roster.get(name)
        assert claim is not None
        window_s = self._config.probe_interval_s * self.health.multiplier
        if self._config.lifeguard and self.silence_s(now, claim.member) < window_s:
            self._suspected_until.set(name, now + window_s)
            return []
        return self.apply_claim(now, replace(claim, state=State.LOST, accuser=self.me.member.peer_id))

    def _forget(self, name: str) -> list[Effect]:
        self._flapping.forget(name)
        if name in self._orphans:
            return [Forget(self._orphans.pop(name))]
        claim = self.roster.get(name)
        assert claim is not None
        self.roster.forget(name)
        self.rumours.drop(name)
        self.signs.forget(name)
        if name in self._unlinked:
            self._unlinked.discard(name)
            return []
        return [Forget(claim.member)]


def _subject(claim: Claim) -> tuple[Member, int]:
    return claim.member, claim.refutation


def _explain(claim: Claim, before: Claim | None) -> list[Effect]:
    match claim.state:
        case State.SUSPECT if before is None or before.state is not State.SUSPECT:
            return [Explain(f"{claim.member} is suspect: {claim.accuser or 'another peer'} had no answer", claim)]
        case State.LOST:
            return [
                Explain(
                    f"{claim.member} is lost: it did not deny the suspicion, says {claim.accuser or 'another peer'}",
                    claim,
                )
            ]
        case State.ALIVE if before is not None and before.state is not State.ALIVE:
            return [Explain(f"{claim.member} denies that it is {before.state.name.lower()}", claim)]
        case _:
            return []

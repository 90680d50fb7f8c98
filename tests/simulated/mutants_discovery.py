"""Mutants of discovery: one rule about which peers exist and answer is removed."""

from collections.abc import Callable

import gossip.anti_entropy
import gossip.beliefs
import gossip.claim
import gossip.swim
from gossip import Claim, State
from gossip.beliefs import Beliefs
from gossip.claim import Order
from gossip.effects import Effect
from gossip.flap_damping import FlapDamping
from gossip.roster import Roster
from gossip.swim import Swim

from .mutant import Mutant, mutant


def _order_without_refutation(claim: Claim) -> Order:
    final = claim.state if claim.state >= State.LEFT else 0
    return claim.member.incarnation, final, 0, claim.state, claim.status.version


def _order_without_end(claim: Claim) -> Order:
    return claim.member.incarnation, 0, claim.refutation, 0 if claim.state >= State.LEFT else claim.state, 0


def _take_and_forget(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """Dead members and those that have left are forgotten soon, and permanently."""

    def take(self: Beliefs, now: float, claim: Claim, old: Claim | None, spread: bool) -> list[Effect]:
        effects = original(self, now, claim, old, spread)
        if claim.state >= State.LEFT:
            self._remembered_until.set(claim.member.peer_id, now + 1.0)
        return effects

    return take


def _hear_without_denying(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def hear(self: Beliefs, claim: Claim) -> list[Effect]:
        return [] if claim.member == self.me.member and claim.state < State.LEFT else original(self, claim)

    return hear


def _seek_nobody(self: Swim, now: float) -> list[Effect]:
    self._next_lost = now + self._config.lost_interval_s
    return []


DISCOVERY: dict[str, Mutant] = {
    "SWIM: a refutation does not count": mutant(
        (gossip.claim, "order", _order_without_refutation),
        (gossip.swim, "order", _order_without_refutation),
        (gossip.anti_entropy, "order", _order_without_refutation),
        breaks="L1 I15",
        seed=50,
    ),
    "SWIM: nobody denies that it is suspect": mutant(
        (Beliefs, "_hear_of_itself", _hear_without_denying(Beliefs._hear_of_itself)), breaks="L1 I15", seed=60
    ),
    "SWIM: the end of a member is not final": mutant(
        (gossip.claim, "order", _order_without_end),
        (gossip.swim, "order", _order_without_end),
        (gossip.anti_entropy, "order", _order_without_end),
        breaks="I16",
        seed=4,
    ),
    "SWIM: the dead are forgotten": mutant(
        (Beliefs, "_take", _take_and_forget(Beliefs._take)),
        (Roster, "tombstone", lambda self, peer_id: None),
        breaks="I16",
        seed=28,
    ),
    "G14: who was lost twice is held down, however quiet it is": mutant(
        (FlapDamping, "release", lambda self, now, name, steady_since: False),
        breaks="L1",
        scenario="G14: one of four is cut off twice within a minute, and its links stay whole",
    ),
    "SWIM: who is lost is not asked again": mutant((Swim, "_seek_the_lost", _seek_nobody), breaks="L1 I15", seed=311),
}

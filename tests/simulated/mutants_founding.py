"""Mutants of founding: one rule is removed (G15 of PROTOCOL.md)."""

import math
from collections.abc import Callable
from dataclasses import replace

from gossip import Claim, Core, Member
from gossip.effects import Effect
from gossip.founding import Founding, KnownLineages
from gossip.joining import Joining

from .mutant import Mutant, mutant
from .plan import FIRST_CALLED


def _claims_of_anybody(original: Callable[[Core], tuple[Claim, ...]]) -> Callable[[Core], tuple[Claim, ...]]:
    """A peer that was met once is not called any more."""
    return lambda self: tuple(replace(claim, state=self._swim.me.state) for claim in original(self))


def _hear_seeds_only(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def hear(self: Joining, now: float, source: Member, lineage: bytes) -> list[Effect]:
        claim = self._swim.claim_of(source)
        is_seed = self._founding is not None and claim is not None and claim.contact.seed in self._founding.seeds
        return original(self, now, source, lineage) if is_seed or not lineage else []

    return hear


def _find_for_ever(original: Callable[..., bytes]) -> Callable[..., bytes]:
    return lambda self, is_gone: original(self, lambda source, heard_at: False)


def _decide_at_once(original: Callable[..., tuple[bool, str]]) -> Callable[..., tuple[bool, str]]:
    return lambda self, now, alive, lineage, quiet_since, hosts: original(self, now, alive, lineage, -math.inf, hosts)


CALLED_LATE = "FOUNDING: the only seed is started again, and is called only after 0.9 s"

FOUNDING: dict[str, Mutant] = {
    "G15: the first seed founds before members can have called it": mutant(
        (Founding, "decide", _decide_at_once(Founding.decide)), breaks="S31", scenario=CALLED_LATE
    ),
    "G15: each seed founds": mutant((Founding, "founds", property(lambda self: True)), breaks="S31", seed=FIRST_CALLED),
    "G15: members that are no seeds have no say": mutant(
        (Joining, "hear_lineage", _hear_seeds_only(Joining.hear_lineage)),
        breaks="S31",
        scenario="FOUNDING: members that are no majority wait, and the only seed, started again, waits with them",
    ),
    "G15: a seed that is lost is not called": mutant(
        (Core, "claims", _claims_of_anybody(Core.claims)),
        breaks="S31",
        scenario="FOUNDING: a host is gone with the only seed, nothing proves that, and the seed starts elsewhere",
    ),
    "G15: who replaces a member takes the silence of the hosts of the others for none": mutant(
        (Founding, "_unheard", lambda self, alive, hosts: []),
        breaks="S31",
        scenario="FOUNDING: the first seed is killed and replaced while its host is cut off, and the others go on",
    ),
    "G15: who replaces a member founds nothing, whatever the hosts of the others say": mutant(
        (Founding, "_unheard", lambda self, alive, hosts: [*self.elsewhere.values()]),
        breaks="L1",
        scenario="FOUNDING: all peers of all hosts are killed at once and replaced, and the first founds",
    ),
    "G15: a lineage exists for ever": mutant(
        (KnownLineages, "find", _find_for_ever(KnownLineages.find)),
        breaks="L1",
        scenario="FOUNDING: the only seed comes back as the last member dies, and founds in the end",
    ),
}

"""Mutants of which members go when members differ: one rule is removed (R17 of PROTOCOL.md)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gossip.numerics
import gossip.parting
import p2p.step.mismatch
from gossip import Member, Seat
from gossip.commit import StepMachine
from gossip.effects import Diverged, Effect, Send
from gossip.given_up import GivenUp, GivingUp
from gossip.membership import Membership
from gossip.messages import Leave
from gossip.parting import Parting
from gossip.progress import Beat
from gossip.seniority import NOBODY, staying

from .mutant import Mutant, Patch, mutant

Said = Mapping[Member, Any]


def _by_number(seats: Sequence[Seat], founded_in: int, said: Said) -> frozenset[Member] | None:
    """A side with more than half of the seats stays, founders or not; otherwise none."""
    sides = {word: frozenset(member for member in said if said[member] == word) for word in said.values()}
    won = [side for side in sides.values() if 2 * len(side) > len(seats)]
    if not won and len(said) < len(seats):
        return None
    return won[0] if won else NOBODY


def _among_those_who_have_spoken(seats: Sequence[Seat], founded_in: int, said: Said) -> frozenset[Member] | None:
    return staying([seat for seat in seats if seat.member in said], founded_in, said)


def _everywhere(replacement: object) -> tuple[Patch, ...]:
    rooms = gossip.numerics, gossip.parting, p2p.step.mismatch
    return tuple((room, "staying", replacement) for room in rooms)


def _diverge_silently(self: StepMachine, step: int, reason: str) -> list[Effect]:
    self.parting.is_void = True
    return [Diverged(step, reason)]


def _leave_without_a_word(self: Membership) -> list[Effect]:
    return [Send(member, Leave()) for member in self.others()]


def _beat_without_calls(self: StepMachine) -> list[Effect]:
    return [] if self.view is None else self._tell_all(Beat(self._ready[self._me], self._own_progress()))


def _news_since_its_seat(original: Callable[..., GivenUp | None]) -> Callable[..., GivenUp | None]:
    def news(self: GivingUp, step: int, since: int, said: Iterable[GivenUp]) -> GivenUp | None:
        return original(self, step, since, [each for each in said if each.view_number >= since])

    return news


def _part_at_once(self: StepMachine, why: str) -> Sequence[Effect]:
    self.parting.damaged = why
    return self.parting.go_damaged(self.done + 1)


WHO_GOES: dict[str, Mutant] = {
    "R17: majority of those who have called": mutant(
        (p2p.step.mismatch, "staying", _among_those_who_have_spoken),
        breaks="S19",
        seed=49,
        scenario="CALLS: two of five joiners and founders call first, and not the same",
    ),
    "R17: the barrier commits the deviator's samples": mutant(
        (Parting, "part_from", lambda self, member, step: []),
        breaks="S14",
        seed=98,
        scenario="CALLS: one of three founders calls more than the others, who have finished the step",
    ),
    "R17: joiners outvote a founder by calls": mutant(
        *_everywhere(_by_number),
        breaks="S19",
        seed=3,
        scenario="CALLS: two joiners call something else than the founder",
    ),
    "R17: joiners outvote a founder by parameters": mutant(
        *_everywhere(_by_number), breaks="S19", seed=3, scenario="PARAMETERS: two joiners have others than the founder"
    ),
    "R17: one of two founders goes on": mutant(
        (StepMachine, "_diverge", _diverge_silently),
        (Membership, "say_goodbye", _leave_without_a_word),
        breaks="S19",
        scenario="PARAMETERS: one of two founders raises first, and the other has not heard what it has finished",
    ),
    "R17: a joiner is not told who the founders are": mutant(
        (StepMachine, "_learn_founded_in", lambda self: self.parting.founded_in), breaks="S19", seed=1
    ),
    "R17: who has gone with other parameters has no say": mutant(
        (Parting, "why_contradicted", lambda self, view, step, digest: ""),
        breaks="S19",
        scenario="PARAMETERS: one of two founders has finished with others, and is killed before the other one has",
    ),
    "R17: what was called is not repeated": mutant(
        (StepMachine, "beat", _beat_without_calls),
        breaks="L1",
        scenario="CALLS: what two founders say of their calls is lost once",
    ),
    "R17: what founders raise does not concern who has a seat afterwards": mutant(
        (GivingUp, "news", _news_since_its_seat(GivingUp.news)), breaks="S19", seed=1422
    ),
    "R28: a step that is finished where memory is damaged is void": mutant(
        (StepMachine, "damaged", _part_at_once),
        breaks="S14",
        scenario="DAMAGED: a member whose memory changes has finished the step, which another one has committed",
    ),
}

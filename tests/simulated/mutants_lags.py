"""Mutants of slow observers: one rule is removed (R9 of PROTOCOL.md)."""

import math
from collections.abc import Callable

import gossip.admission
import gossip.pace
from gossip import Member
from gossip.admission import Admission, _is_current
from gossip.core import Core
from gossip.core_queries import CoreQueries
from gossip.effects import Effect
from gossip.fed_steps import FedSteps
from gossip.observing import Observing
from gossip.pace import Pace, Patience

from .mutant import Mutant, mutant

FULL = "LAGS: an observer stands still until there is no room for what it is fed"
_candidates = Admission.candidates
SLOW = "LAGS: an observer takes fifteen times as long for a step as the members"
LONG_STATES = "LAGS: each state takes 4 s, and who is given it is no faster than the members"


def _ask_before_the_barrier(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def ask(self: Observing, now: float, donor: Member, step: int) -> list[Effect]:
        return [] if self._steps.view is not None else original(self, now, donor, step)

    return ask


def _beat_for_ever(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def beat(self: Observing, now: float) -> list[Effect]:
        self._late_at = math.inf
        return original(self, now)

    return beat


def _are_always_whole(self: Admission, now: float, done: int, unfed: object = (), **more: bool) -> list[Member]:
    self._whole = done
    return _candidates(self, now, done)


def _never_held(self: Pace, now: float, num_lacking: int, state_s: float, fits: object) -> bool:
    return False


def _keep_the_oldest(self: FedSteps, newcomer: object, needed: object) -> list[tuple[int, bytes]]:
    """New steps find no room."""
    return []


def _need_nothing(original: Callable[..., list[tuple[int, bytes]]]) -> Callable[..., list[tuple[int, bytes]]]:
    def add(self: FedSteps, *fed: object, is_own: bool, **here: object) -> list[tuple[int, bytes]]:
        return original(self, *fed, is_own=False, **here)

    return add


LAGS: dict[str, Mutant] = {
    "R9: who lags runs what it is fed": mutant((Pace, "waits", _never_held), breaks="L1", scenario=SLOW),
    "R9: who is slow is near by the members' steps": mutant(
        (Pace, "waits", _never_held),
        (Admission, "_most_lacking", lambda self, now, joiner: 10**9),
        breaks="S10",
        scenario="LAGS: an observer takes seven times as long for a step as the members",
    ),
    "R9: who lags asks for no state, in the barrier or because it falls behind": mutant(
        (Observing, "_ask", _ask_before_the_barrier(Observing._ask)),
        (Observing, "_falls_behind", lambda self, now, lag: False),
        breaks="L1 S10",
        scenario=SLOW,
    ),
    "R9: who falls behind asks for no state": mutant(
        (Observing, "_falls_behind", lambda self, now, lag: False),
        breaks="L1",
        scenario="OWN: a slow observer that waits for an operation of its own is offered a state",
    ),
    "R9: a script is held for ever": mutant(
        (gossip.pace, "MOST_HELD_S", math.inf),
        breaks="L1",
        scenario="LAGS: who lags has a seat after it was let go on",
    ),
    "R9: who lags is waited for": mutant(
        (Observing, "beat", _beat_for_ever(Observing.beat)),
        breaks="L1 S10",
        scenario="LAGS: who lags has a seat, and the state does not get through",
    ),
    "R9: who is near because its state takes long is so for ever": mutant(
        (Patience, "is_worth", lambda self, now, state_s: False), breaks="L1", scenario=LONG_STATES
    ),
    "R9: nobody waits for a state that takes long": mutant(
        (Patience, "limit_s", lambda self, now: self._config.load_timeout_s), breaks="L1", scenario=LONG_STATES
    ),
    "R9: who had no state in time is held again": mutant(
        (Core, "return_from", lambda self, former: None),
        breaks="L1",
        scenario="LAGS: no state gets through in time in a barrier",
    ),
    "R9: who was held when it was admitted, and is not any more, runs what it is fed": mutant(
        (Observing, "_look_back", lambda self, now, num_lacking: None),
        breaks="S10",
        scenario="LAGS: who lags has a seat after it was let go on",
    ),
    "R9: who lags has a seat where nobody can give it the state": mutant(
        (Admission, "candidates", _are_always_whole),
        breaks="S10 L1",
        scenario="LAGS: the members call operations of their own in a row",
    ),
    "R9: who is fed nothing has a seat where nobody can give it the state": mutant(
        (gossip.admission, "_is_current", lambda join, done, *, is_whole: _is_current(join, done, is_whole=True)),
        breaks="L1",
        scenario="LAGS: a peer without a model comes, and an operation follows each step of the members",
    ),
    "R9: the step in which who lags is proposed is finished as others are": mutant(
        (CoreQueries, "holds_step", lambda self, now: False),
        breaks="L1",
        scenario="LAGS: an operation of their own follows each step of the members, which is short",
    ),
    "R9: who lags is proposed where the step is finished already": mutant(
        (Admission, "candidates", lambda self, now, done, unfed=(), **more: _candidates(self, now, done, unfed)),
        breaks="L1",
        scenario="LAGS: who is to propose who lags has finished the step behind which nobody has a state",
    ),
    "R9: what there is no room for is the newest, also while no state is here": mutant(
        (FedSteps, "_make_room", _keep_the_oldest), breaks="L1", scenario=FULL
    ),
    "R9: what there is no room for begins with an operation of the script's own": mutant(
        (FedSteps, "add", _need_nothing(FedSteps.add)), breaks="S22", scenario=FULL
    ),
    "R9: who was stopped has forgotten who has asked": mutant(
        (Admission, "resume", lambda self, now: None),
        breaks="S22",
        scenario="LAGS: the only member is stopped for longer than a JOIN counts",
    ),
}

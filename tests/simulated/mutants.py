"""The protocol with one rule removed at a time: proof that the simulation can fail.

Those of research/step-commit.md, section 4, as far as this version of the protocol has the rule, and the bugs that the
simulation found, put back.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import gossip.agreement
import gossip.commit
import gossip.core
import gossip.view
from gossip import Core, Member, Phase, View, is_quorum
from gossip.agreement import Agreement, Decided, Round
from gossip.commit import StepMachine
from gossip.messages import Accept, Beat, Decide, Effect, Finish, Progress, Ready, Send, Vote
from gossip.swim import Swim

from .peer import Input, Peer

Patch = tuple[object, str, Any]


def _commit_at_own_finish(self: StepMachine) -> list[Effect]:
    return self._commit(self.finish) if self.phase is Phase.ACTIVE and self.finish is not None else []


def _commit_at_majority(self: StepMachine) -> list[Effect]:
    if self.view is None or self.phase is not Phase.ACTIVE or self.finish is None:
        return []
    told = [m for m, progress in self._progress.items() if gossip.commit._has_finished(progress, self.finish)]
    return self._commit(self.finish) if 2 * len({*told, self._me}) > len(self.view.members) else []


def _install_without_finish(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def install(self: StepMachine, view: View) -> list[Effect]:
        self.finish = None
        return original(self, view)

    return install


def _settle_and_keep(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def settle(self: StepMachine, done: int, digest: bytes, seated: dict[Member, Ready]) -> list[Effect]:
        kept = self.finish
        effects = original(self, done, digest, seated)
        if kept is not None and kept.step == self.done + 1:
            self.finish = replace(kept, view_number=self.view.number if self.view else 0)
        return effects

    return settle


def _beat_until_commit(self: StepMachine) -> list[Effect]:
    if self.view is None:
        return []
    said = Progress(self.done, self.digest, self.finish) if self.finish else Progress(-1, b"", None)
    return self._tell_all(Beat(self._ready[self._me], said))


def _half_is_enough(members: Collection[Member], view: View) -> bool:
    return 2 * len([member for member in view.members if member in members]) >= len(view.members)


def _install_whatever_since(self: Core, now: float, view: View) -> list[Effect]:
    mine = self.view
    if (mine is not None and view.number <= mine.number) or (mine is None and view.since(self.me) is None):
        return []
    return self._be_removed(view) if view.since(self.me) is None else self._install(now, view)


def _ask_for_own(self: Agreement, now: float) -> list[Send | Decided]:
    if not is_quorum(self._promises, self._view) or self._candidate is None:
        return []
    self._round, self._proposal = Round.ACCEPTING, self._candidate
    return self._tell_all(now, Accept(Vote(self._ballot, self._candidate)))


def _take_in_unfenced(self: Peer, frame: Input) -> None:
    arrived = self._arrived.setdefault(frame.step, [])
    if self.view is not None and frame.sender in self.view.members and frame.sender not in arrived:
        arrived.append(frame.sender)
        self._try_finish()


def _take_all(self: Core, now: float, results: list[Send | Decided]) -> list[Effect]:
    effects: list[Effect] = []
    for result in results:
        if isinstance(result, Send):
            effects.append(result)
            continue
        assert self.view is not None
        concerned = dict.fromkeys((*self.view.members, *result.view.members))
        effects += [Send(member, Decide(result.view)) for member in concerned if member != self.me]
        effects += self._consider_view(now, result.view)
    return effects


def _want_at_once(self: Agreement, now: float, candidate: View | None, delay_s: float) -> None:
    self._candidate = candidate
    if self._round is not Round.IDLE:
        return
    if candidate is not None:
        self._deadline = min(self._deadline, now + delay_s)
    elif self._vote is None:
        self._deadline = math.inf


def _has_finished_once(progress: Progress, mine: Finish) -> bool:
    theirs = progress.finish
    return progress.done >= mine.step or (theirs is not None and theirs.step == mine.step)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is missing.

    Attributes:
        patches: what is swapped: where, the name there, and the replacement.
        breaks: the invariants of which the first that breaks is one.
        seed: the first that shows it; None where 200 seeds do not.
    """

    patches: tuple[Patch, ...]
    breaks: frozenset[str]
    seed: int | None


def _mutant(*patches: Patch, breaks: str, seed: int | None) -> Mutant:
    return Mutant(patches, frozenset(breaks.split()), seed)


MUTANTS = {
    "R1: FINISHED is repeated until commit, not after": _mutant(
        (StepMachine, "beat", _beat_until_commit), breaks="L1", seed=6
    ),
    "R2: commit at one's own finish": _mutant((StepMachine, "_try_commit", _commit_at_own_finish), breaks="S8", seed=0),
    "R2: commit at a majority of finishes": _mutant(
        (StepMachine, "_try_commit", _commit_at_majority), breaks="S8", seed=0
    ),
    "R4: READY without the finished step": _mutant(
        (StepMachine, "install", _install_without_finish(StepMachine.install)), breaks="never S8", seed=0
    ),
    "R5: the highest level instead of the lowest": _mutant((gossip.commit, "min", max), breaks="S8 never", seed=0),
    "R5: what was finished survives the redo": _mutant(
        (StepMachine, "_settle", _settle_and_keep(StepMachine._settle)), breaks="AssertionError S8 never", seed=0
    ),
    "data is not fenced by view": _mutant((Peer, "take_in", _take_in_unfenced), breaks="never S2", seed=None),
    "R8: no since": _mutant((Core, "_consider_view", _install_whatever_since), breaks="S8", seed=None),
    "R8: an older incarnation ejects the newer": _mutant(
        (gossip.view, "_is_newer", lambda joiner, view: joiner not in view.members), breaks="L1", seed=None
    ),
    "R12: half counts without rank 0": _mutant(
        (gossip.view, "is_quorum", _half_is_enough),
        (gossip.agreement, "is_quorum", _half_is_enough),
        breaks="S1",
        seed=35,
    ),
    "R12: an accepted view is ignored": _mutant((Agreement, "_ask_to_accept", _ask_for_own), breaks="S1", seed=80),
    "bug: what leaves with a decision belongs to the next view": _mutant(
        (Core, "_take", _take_all), breaks="L1", seed=0
    ),
    "bug: what was finished in an older view counts as finished": _mutant(
        (gossip.commit, "_has_finished", _has_finished_once), breaks="never S8", seed=4
    ),
    "bug: who was outbid proposes again at once": _mutant((Agreement, "want", _want_at_once), breaks="L1", seed=0),
    "bug: a stranger is admitted, whose death nobody notices": _mutant(
        (Swim, "is_alive", lambda swim, member: not swim.is_gone(member)), breaks="L1", seed=None
    ),
    "bug: a joiner that others take for dead waits for ever": _mutant(
        (Core, "_hear_of_itself", lambda core, claims: []), breaks="L1", seed=71
    ),
    "bug: who never met a member does not notice its death": _mutant(
        (Peer, "_look_up", lambda peer, member: None), breaks="L1", seed=None
    ),
}

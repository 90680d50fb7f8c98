"""Mutants of steps that commit: one rule is removed (R1 to R11 and R15 of PROTOCOL.md)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gossip.commit
import gossip.levels
from gossip import Core, Envelope, Phase
from gossip.commit import StepMachine
from gossip.effects import Effect, Feed, ResultUnavailable
from gossip.levels import chain
from gossip.membership import Membership
from gossip.observing import Observing
from gossip.pace import Pace
from gossip.progress import NOTHING_DONE, Beat, Finish, Progress, Ready
from gossip.redo_requests import RedoRequests
from gossip.seniority import NOBODY
from gossip.view import feeder_of
from p2p.step import effects as sx
from p2p.step.submission import Submission

from .mutant import Mutant, mutant
from .peer import Peer
from .token_runner import Part, TokenRunner
from .training import NUM_OPERATIONS, Outcome, Training

# Finish and commit


def _commit_at_own_finish(self: StepMachine) -> list[Effect]:
    return self._commit(self.finish) if self.phase is Phase.ACTIVE and self.finish is not None else []


def _commit_at_majority(self: StepMachine) -> list[Effect]:
    if self.view is None or self.phase is not Phase.ACTIVE or self.finish is None:
        return []
    told = [m for m, progress in self._progress.items() if gossip.levels.has_finished(progress, self.finish)]
    return self._commit(self.finish) if 2 * len({*told, self._me}) > len(self.view.members) else []


def _beat_until_commit(self: StepMachine) -> list[Effect]:
    if self.view is None:
        return []
    said = Progress(self.done, self.digest, self.finish) if self.finish else Progress(-1, b"", None)
    return self._tell_all(Beat(self._ready[self._me], said))


def _has_finished_once(progress: Progress, mine: Finish) -> bool:
    theirs = progress.finish
    return progress.done >= mine.step or (theirs is not None and theirs.step == mine.step)


def _standing_of_anybody(self: StepMachine) -> Progress:
    return Progress(self.done, self.digest, self.finish, self.submitted)


def _receive_steps_unfenced(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def receive(self: Core, now: float, envelope: Envelope) -> list[Effect]:
        if self.view is not None and isinstance(envelope.body, Ready | Progress | Beat):
            envelope = replace(envelope, stamp=self.view.stamp)
        return original(self, now, envelope)

    return receive


# The barrier


def _install_without_finish(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def install(self: StepMachine, *view: Any, **more: Any) -> list[Effect]:
        self.finish = None
        return original(self, *view, **more)

    return install


def _settle_and_keep(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def settle(self: StepMachine, done: int, digest: bytes) -> list[Effect]:
        kept = self.finish
        effects = original(self, done, digest)
        if kept is not None and kept.step == self.done + 1:
            self.finish = replace(kept, view_number=self.view.number if self.view else 0)
        return effects

    return settle


def _beat_what_is_ready_now(self: StepMachine) -> list[Effect]:
    if self.view is None:
        return []
    now = Ready(self.seated, self.done, self.digest, self.finish, self.given_up)
    return self._tell_all(Beat(now, self._own_progress()))


def _load_in_silence(self: StepMachine, step: int, digest: bytes) -> list[Effect]:
    if self.takes(step, digest):
        self.done, self.digest = step, digest
    return []


def _wait_for_nobody(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """Once the barrier's level is known, members that are not seated yet count as ready."""

    def try_barrier(self: StepMachine) -> list[Effect]:
        effects = original(self)
        if self._target is None or self.phase is not Phase.INSTALLING:
            return effects
        done, digest = self._target
        there = {m: r if r.seated else replace(r, done=done, digest=digest) for m, r in self._ready.items()}
        self._ready = there
        return [*effects, *original(self)]

    return try_barrier


def _want_of_anybody(original: Callable[..., Any]) -> Callable[..., Any]:
    def wanted_state(self: StepMachine) -> Any:
        wanted = original(self)
        if wanted is None or self.view is None:
            return None
        return *wanted[:2], self.view.members[self.view.number % len(self.view.members)]

    return wanted_state


def _load_later_states_only(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def loaded(self: StepMachine, step: int, digest: bytes) -> list[Effect]:
        return [] if step <= self.done else original(self, step, digest)

    return loaded


def _miss_at_once(self: Observing, now: float, step: int, digest: bytes) -> list[Effect]:
    return [ResultUnavailable(self._steps.done + 1)]


def _decline_and_load_again(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """The step that the script waits for is fed, but does not run before the state that the script declines."""

    def declined(self: Observing, now: float, step: int, digest: bytes) -> list[Effect]:
        original(self, now, step, digest)
        self._needs = self._needs[0] - 1, now
        return self._load()

    return declined


# Duties of the host: the fence of data frames, lent memory, and the view in which a step is finished


def _feed_what_is_finished(original: Callable[[Peer, sx.Finish], None]) -> Callable[[Peer, sx.Finish], None]:
    def finish(self: Peer, effect: sx.Finish) -> None:
        view, before, done = self.view, self.core.digest, self.done
        original(self, effect)
        if view is None or self.done > done or not self.alive:
            return
        made = Finish(effect.step, effect.digest, effect.state_digest, view.number)
        self.training.results[effect.step] = Outcome(effect.digest)
        for member in self.core._view_change.admission.followers(self.now()):
            if feeder_of(member, view) == self.member:
                self.catch_up.feed(Feed(member, effect.step, before, gossip.levels.chain(before, made)))
        del self.training.results[effect.step]

    return finish


def _take_in_unfenced(original: Callable[[Peer, Part], None]) -> Callable[[Peer, Part], None]:
    def take_in(self: Peer, part: Part) -> None:
        if self.view is not None and part.sender in self.view.members:
            original(self, replace(part, stamp=self.view.stamp))

    return take_in


def _read_without_board(self: TokenRunner, rank: int, part: Part) -> None:
    self._add(part.region, rank, self._world.peers[part.sender].arena.read(part.region)[0])


def _free_at_the_end_of_an_operation(original: Callable[[Training], None]) -> Callable[[Training], None]:
    def finishes(self: Training) -> None:
        original(self)
        self.inputs = {}

    return finishes


def _clip_at_finish(original: Callable[[Peer, sx.Finish], None]) -> Callable[[Peer, sx.Finish], None]:
    """C6: the user gets the result when it is complete on this member, and writes into it."""

    def finish(self: Peer, effect: sx.Finish) -> None:
        original(self, effect)
        if self._world.plan.two_phase:
            for operation in range(NUM_OPERATIONS):
                self.arena.write(("result", operation), (f"clipped {effect.step}",))

    return finish


def _finish_on_the_board_first(self: Peer, effect: sx.Finish) -> None:
    """C9: the board shows others that a step is finished before the member's own core knows."""
    view, core, step = self.view, self.core, effect.step
    assert view is not None
    self.training.finishes()
    digests = effect.digest, effect.state_digest
    self._world.invariants.finished(self.member, view, step, digests)
    said = Progress(core.done, core.digest, Finish(step, *digests, view.number))
    for member in view.members:
        if member != self.member:
            other = self._world.peers[member]
            self._world.clock.after(0.0, other, "board", other.receive, Envelope(self.member, view.stamp, said))

    def tell() -> None:
        if self.alive and core.may_finish(step, view.number, digests[1]):
            self.perform(core.finished(self.now(), step, *digests))

    self._world.clock.after(0.02, self, "finish", tell)


def _chain_of_nothing(digest: bytes, finish: Finish) -> bytes:
    return chain(b"", Finish(finish.step, b"", b"", 0))


def _note_but_forget_nobody(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def note(self: Membership, now: float, effects: list[Effect]) -> list[Effect]:
        joiners = dict(self.view_change.admission._joiners)
        effects = original(self, now, effects)
        self.view_change.admission._joiners.update(joiners)
        return effects

    return note


STEPS: dict[str, Mutant] = {
    "R1: FINISHED is repeated until commit, not after": mutant(
        (StepMachine, "beat", _beat_until_commit), breaks="L1", seed=22
    ),
    "R2: commit at one's own finish": mutant((StepMachine, "_try_commit", _commit_at_own_finish), breaks="S8", seed=0),
    "R2: commit at a majority of finishes": mutant(
        (StepMachine, "_try_commit", _commit_at_majority), breaks="S8", seed=1
    ),
    "R2: results and parameters are not compared where nobody can be outvoted": mutant(
        (gossip.commit, "difference", lambda *said: ""),
        breaks="L1",
        scenario="PARAMETERS: one of two founders raises first, and the other has not heard what it has finished",
    ),
    "R2, R17: nobody looks whether all have finished the same": mutant(
        (gossip.commit, "difference", lambda *said: ""),
        (gossip.commit, "who_stays", lambda *said: NOBODY),
        breaks="S3",
        seed=3,
    ),
    "R4: READY without the finished step": mutant(
        (StepMachine, "install", _install_without_finish(StepMachine.install)), breaks="S4 S5 S8 never", seed=1
    ),
    "R4: READY says what is so now": mutant((StepMachine, "beat", _beat_what_is_ready_now), breaks="R4", seed=0),
    "R4: the board shows a finish before the core hears of it": mutant(
        (Peer, "_finish", _finish_on_the_board_first), breaks="S8 S4 S5 S19 never", seed=20
    ),
    "R5: the highest level instead of the lowest": mutant((gossip.levels, "min", max), breaks="S8 S4 S5 never", seed=4),
    "R5: what was finished survives the redo": mutant(
        (StepMachine, "_settle", _settle_and_keep(StepMachine._settle)), breaks="AssertionError S8 S9 never", seed=4
    ),
    "R6: who has been given the state does not say READY again": mutant(
        (StepMachine, "loaded", _load_in_silence), breaks="L1", seed=0
    ),
    "R6: nobody waits for who lacks steps": mutant(
        (StepMachine, "_try_barrier", _wait_for_nobody(StepMachine._try_barrier)), breaks="S4 S5 S12 never", seed=0
    ),
    "R6: nobody asks for the state in the barrier": mutant(
        (StepMachine, "wanted_state", lambda self: None), breaks="L1", seed=3
    ),
    "R6: who is asked for the state may lack it itself": mutant(
        (StepMachine, "wanted_state", _want_of_anybody(StepMachine.wanted_state)), breaks="L1", seed=4
    ),
    "R7: an input is freed at the end of its operation": mutant(
        (Training, "finishes", _free_at_the_end_of_an_operation(Training.finishes)), breaks="S6 KeyError", seed=3
    ),
    "R15: nobody is told that results were handed out": mutant(
        (StepMachine, "mark_in_use", lambda self: None), breaks="S13", seed=6
    ),
    "data of another view is taken": mutant(  # S13: the script got a sum with parts of the older view
        (Peer, "take_in", _take_in_unfenced(Peer.take_in)), breaks="S2 S7 S9 S13 KeyError", seed=68
    ),
    "what others say of steps in another view is taken": mutant(
        (Core, "receive", _receive_steps_unfenced(Core.receive)), breaks="S2 S3 S4 S5 S8 S12 never", seed=6
    ),
    "R9: an observer is fed with finished steps, and the chain does not say what they were": mutant(
        (Peer, "_finish", _feed_what_is_finished(Peer._finish)),
        (gossip.commit, "chain", _chain_of_nothing),
        (gossip.levels, "chain", _chain_of_nothing),
        breaks="S12",
        seed=9,
        scenario="C7: an observer is fed with a step that is then redone",
    ),
    "R9: who is gone is fed on": mutant(
        (Membership, "note", _note_but_forget_nobody(Membership.note)),
        breaks="S23",
        seed=21,
    ),
    "R9: an observer that lacks a step waits for it": mutant(
        (Observing, "_has_gap", lambda self: self._steps.done == NOTHING_DONE), breaks="L1", seed=6
    ),
    "R9: a state is asked for, and not taken": mutant(
        (Observing, "segment_arrived", lambda self, now, source, step: False), breaks="L1", seed=0
    ),
    "R9: an operation of the script's own is waited for, whatever was lost": mutant(
        (Observing, "_misses", lambda self, now: []), breaks="L1", seed=5_000_000
    ),
    "R9: a state that comes ends who waits for an operation of its own": mutant(
        (Observing, "declined", _miss_at_once),
        breaks="S22",
        seed=17,
        scenario="OWN: a slow observer that waits for an operation of its own is offered a state",
    ),
    "R9: who declines a state is offered it again at once": mutant(
        (Observing, "declined", _decline_and_load_again(Observing.declined)),
        breaks="L1",
        scenario="OWN: a slow observer that waits for an operation of its own is offered a state",
    ),
    "R10: the board is not looked at": mutant(
        (TokenRunner, "read", _read_without_board),
        breaks="S2 S7",
        scenario="C3: an excluded reader wakes when what it is about to read is used again",
    ),
    "R11: what is under way to who has lost its seat is written again": mutant(
        (Peer, "close_links", lambda self, gone: None), breaks="never S2", seed=73
    ),
    "R3: the result is the user's before commit": mutant(
        (Peer, "_finish", _clip_at_finish(Peer._finish)), breaks="S2 S7 S9", seed=5
    ),
    "R2: nobody is outvoted": mutant(
        (gossip.commit, "who_stays", lambda view, founded_in, me, mine, others: NOBODY),
        breaks="S19",
        scenario="DIVERGED: the parameters of one of three change in its memory",
    ),
    "no STALLED": mutant(
        (RedoRequests, "watch", lambda self, now: None),
        breaks="L1",
        scenario="STALLED: a data frame is lost, and nobody is dead",
    ),
    "R28: a state is given away that has changed since a step was computed with it": mutant(
        (Submission, "why_damaged", lambda self, state_digest: ""),
        breaks="L1",
        scenario="DAMAGED: a member whose memory changes while it waits for the others is asked for its state",
    ),
    "R28: what is here counts while the script loads a state of another swarm": mutant(
        (Observing, "install", lambda self, view: None),
        (Pace, "is_known", True),  # otherwise a joiner reports its progress a little later, which breaks the scenario
        breaks="AssertionError",
        seed=40_500_191,
    ),
    "bug: what was finished in an older view counts as finished": mutant(
        (gossip.commit, "has_finished", _has_finished_once), breaks="never S8", seed=45
    ),
    "bug: what is done counts of who has no seat yet": mutant(
        (StepMachine, "_own_progress", _standing_of_anybody),
        breaks="S8 never",
        seed=478,
        scenario="an observer whose swarm has died is further than the one that gives it a seat",
    ),
    "bug: a joiner with a later past waits for ever": mutant(
        (StepMachine, "loaded", _load_later_states_only(StepMachine.loaded)), breaks="L1", seed=0
    ),
}

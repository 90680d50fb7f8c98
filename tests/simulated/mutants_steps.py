"""Steps that commit, with one rule removed: R1 to R10 and R15 of PROTOCOL.md."""

from collections.abc import Callable
from dataclasses import replace

import gossip.commit
from gossip import Core, Envelope, Member, Phase, View
from gossip.commit import StepMachine, chain
from gossip.effects import Committed, Effect, Feed
from gossip.membership import Membership
from gossip.messages import Beat, Finish, Progress, Ready
from gossip.view import feeder_of

from .mutant import Mutant, mutant
from .peer import Peer
from .training import NUM_OPERATIONS, Part, Training, digest_of

# Finish and commit.


def _commit_at_own_finish(self: StepMachine) -> list[Effect]:
    return self._commit(self.finish) if self.phase is Phase.ACTIVE and self.finish is not None else []


def _commit_at_majority(self: StepMachine) -> list[Effect]:
    if self.view is None or self.phase is not Phase.ACTIVE or self.finish is None:
        return []
    told = [m for m, progress in self._progress.items() if gossip.commit._has_finished(progress, self.finish)]
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


# The barrier.


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


def _beat_what_is_ready_now(self: StepMachine) -> list[Effect]:
    if self.view is None:
        return []
    now = Ready(self.seated, self.done, self.digest, self.finish, *self._aborted)
    return self._tell_all(Beat(now, self._standing()))


def _load_later_states_only(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def loaded(self: StepMachine, step: int, digest: bytes) -> list[Effect]:
        return [] if step <= self.done else original(self, step, digest)

    return loaded


# Observers.


def _feed_what_is_finished(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def finished(self: Core, now: float, step: int, digest: bytes, state_digest: bytes) -> list[Effect]:
        before = self._steps.digest
        effects = original(self, now, step, digest, state_digest)
        view = self.view
        assert view is not None
        followers = [m for m in self._next.admission.followers(now) if feeder_of(m, view) == self.me]
        if not any(isinstance(effect, Committed) for effect in effects):
            finish = Finish(step, digest, state_digest, view.number)
            effects = [
                *effects,
                *(Feed(member, step, before, gossip.commit.chain(before, finish)) for member in followers),
            ]
        return effects

    return finished


def _feed_from_what_there_is(original: Callable[..., None]) -> Callable[..., None]:
    def feed(self: Peer, effect: Feed) -> None:
        training = self.training
        if effect.step in training.results:
            original(self, effect)
        elif training._was_finished:
            training.results[effect.step] = digest_of(training._was_finished)
            original(self, effect)
            del training.results[effect.step]

    return feed


# What the host sees to: the fence of data frames, and lent memory.


def _take_in_unfenced(self: Peer, part: Part) -> None:
    if self.view is not None and part.sender in self.view.members:
        self.training.receive(replace(part, stamp=self.view.stamp))


def _read_without_board(self: Training, part: Part) -> None:
    tokens, _ = self._world.peers[part.sender].arena.read(part.region)
    if part.stamp == self._peer.core.stamp:
        self.add(part, tokens)


def _free_at_the_end_of_an_operation(original: Callable[..., None]) -> Callable[..., None]:
    def restart(self: Training) -> None:
        if self._was_finished:
            self._inputs, self._computing = {}, None
        original(self)

    return restart


def _clip_at_finish(original: Callable[..., None]) -> Callable[..., None]:
    """C6: the user is given its result when it is complete here, and writes into it."""

    def try_finish(self: Training) -> None:
        before = self.finished
        original(self)
        if self.finished != before and self._world.plan.two_phase:
            for operation in range(NUM_OPERATIONS):
                self._arena.write(("result", operation), (f"clipped {self.done}",))

    return try_finish


def _finish_on_the_board_first(self: Training) -> None:
    """C9: others read on the board that a step is finished, and only then its own core hears of it."""
    peer, step = self._peer, self.done + 1
    if not peer.active or self.finished == step or self.halted == step or len(self._complete) < NUM_OPERATIONS:
        return
    assert peer.view is not None
    view, core = peer.view, peer.core
    self.finished = step
    self._was_finished = tuple(self._complete[operation] for operation in range(NUM_OPERATIONS))
    digest = digest_of(self._was_finished)
    self._world.invariants.finished(peer.member, view, step, (digest, self.state))
    said = Progress(core.done, core._steps.digest, Finish(step, digest, self.state, view.number))
    for member in view.members:
        if member != peer.member:
            other = self._world.peers[member]
            self._world.clock.after(0.0, other, "board", other.receive, Envelope(peer.member, view.stamp, said))

    def tell() -> None:
        if peer.alive and peer.view == view and peer.active and core.done + 1 == step:
            peer.perform(core.finished(peer.now(), step, digest, self.state))
        elif peer.alive:  # its finish is lost with the view
            self._was_finished = ()

    self._world.clock.after(0.02, peer, "finish", tell)


STEPS: dict[str, Mutant] = {
    "R1: FINISHED is repeated until commit, not after": mutant(
        (StepMachine, "beat", _beat_until_commit), breaks="L1", seed=8
    ),
    "R2: commit at one's own finish": mutant((StepMachine, "_try_commit", _commit_at_own_finish), breaks="S8", seed=0),
    "R2: commit at a majority of finishes": mutant(
        (StepMachine, "_try_commit", _commit_at_majority), breaks="S8", seed=1
    ),
    "R4: READY without the finished step": mutant(
        (StepMachine, "install", _install_without_finish(StepMachine.install)), breaks="S4 S5 S8 never", seed=1
    ),
    "R4: READY says what is so now": mutant((StepMachine, "beat", _beat_what_is_ready_now), breaks="R4", seed=0),
    "R4: the board shows a finish before the core hears of it": mutant(
        (Training, "_try_finish", _finish_on_the_board_first), breaks="S8 S4 S5 never", seed=3
    ),
    "R5: the highest level instead of the lowest": mutant((gossip.commit, "min", max), breaks="S8 S4 S5 never", seed=6),
    "R5: what was finished survives the redo": mutant(
        (StepMachine, "_settle", _settle_and_keep(StepMachine._settle)), breaks="AssertionError S8 S9 never", seed=6
    ),
    "R7: an input is freed at the end of its operation": mutant(
        (Training, "restart", _free_at_the_end_of_an_operation(Training.restart)), breaks="S6", seed=6
    ),
    "R15: nobody is told that results were handed out": mutant(
        (StepMachine, "handed_out", lambda self: None), breaks="S13", seed=3
    ),
    "data of another view is taken": mutant(  # S13: the script was handed a sum with parts of the older view in it
        (Peer, "take_in", _take_in_unfenced), breaks="S2 S7 S9 S13 KeyError", seed=8
    ),
    "what others say of steps in another view is taken": mutant(
        (Core, "receive", _receive_steps_unfenced(Core.receive)), breaks="S2 S3 S4 S5 S8 S12 never", seed=6
    ),
    "R9: an observer is fed with finished steps, and the chain does not say what they were": mutant(
        (Core, "finished", _feed_what_is_finished(Core.finished)),
        (Peer, "_feed", _feed_from_what_there_is(Peer._feed)),
        (gossip.commit, "chain", lambda digest, finish: chain(b"", Finish(finish.step, b"", b"", 0))),
        breaks="S12",
        seed=47,
        scenario="C7: an observer is fed with a step that is then redone",
    ),
    "R10: the board is not looked at": mutant(
        (Training, "_read", _read_without_board),
        breaks="S2 S7",
        scenario="C3: an excluded reader wakes when what it is about to read is used again",
    ),
    "R3: the result is the user's before commit": mutant(
        (Training, "_try_finish", _clip_at_finish(Training._try_finish)), breaks="S2 S7 S9", seed=5
    ),
    "R2: nobody is outvoted": mutant(
        (gossip.commit, "_outvoted", lambda me, mine, others: []),
        breaks="never",
        scenario="DIVERGED: the parameters of one of three change in its memory",
    ),
    "no STALLED": mutant(
        (Membership, "_watch_operations", lambda self, now: None),
        breaks="L1",
        scenario="STALLED: a data frame is lost, and nobody is dead",
    ),
    "bug: what was finished in an older view counts as finished": mutant(
        (gossip.commit, "_has_finished", _has_finished_once), breaks="never S8", seed=47
    ),
    "bug: what is done counts of who has no seat yet": mutant(
        (StepMachine, "_standing", _standing_of_anybody),
        breaks="S8 never",
        seed=350,
        scenario="an observer whose swarm has died is further than the one that gives it a seat",
    ),
    "bug: a joiner with a later past waits for ever": mutant(
        (StepMachine, "loaded", _load_later_states_only(StepMachine.loaded)), breaks="L1", seed=0
    ),
}

"""A simulated process: the production core and open step, and a host that carries out their effects like the loop."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from gossip import Claim, Contact, Core, Envelope, Foundation, Member, Phase, Run, RunDescription, State, Trait, View
from gossip import effects as fx
from gossip.given_up import Cause, GivenUp
from gossip.messages import AcceptorRecord, Head, Leave
from gossip.progress import NOTHING_DONE
from p2p.errors import OperationMismatch, ShoalError
from p2p.net.frames import Segment
from p2p.step import effects as sx
from p2p.step.notices import Notice
from p2p.step.transitions import Stage

from .catchup import CatchUp
from .divergence import cases
from .hosts import ProcessTraits
from .invariants import Violation
from .measuring import Measuring
from .memory import NO_TAG, tag_of
from .token_runner import Part, TokenRunner
from .training import Training

if TYPE_CHECKING:
    from tests.simulation import Simulation

Effect = fx.Effect | sx.StepEffect

RUN = Run(RunDescription(True, (Trait("model", b"layout"),)), {"model": b"two tensors"})
CHANGED = Run(RunDescription(True, (Trait("model", b"another"),)), {"model": b"three tensors"})
UNLIKE = Run(RunDescription(True, (Trait("model", b"unlike"),)), {"model": b"one tensor"})
LOOK_AGAIN_S = 2.0
BURY_S = 0.1


class Peer:
    """One incarnation of one process.

    `doomed`: it dies between two effects of the next list. `fuse`: number of further effects until it dies.
    """

    def __init__(self, world: "Simulation", member: Member, place: ProcessTraits) -> None:
        self.member = member
        self.label = f"{member.peer_id}/{member.incarnation}".encode()
        self.place = place
        self.host, self.arena = place.host, place.arena
        self.incarnations = (member, *place.former)
        self.alive = True
        self.began_at = world.clock.now
        self.ended_at: float | None = None
        self.unproven = self.came_back = self.knows_steps = False
        self.paused_until = 0.0
        self.leaving = self.active = self.doomed = False
        self.fuse: int | None = None
        self.waits = ""
        self.view: View | None = None
        self.watched: set[Member] = set()
        self.forgotten: set[Member] = set()
        self.closed: set[Member] = set()
        """Members to which no unsent frame is left."""
        self._world = world
        self._wake = math.inf
        self._local = -math.inf
        self._rng = Random(f"{world.seed}/{member.peer_id}/{member.incarnation}")
        self.training = Training(self, world, self._rng)
        self.measuring = Measuring(self, world)
        self.catch_up = CatchUp(self, world, self._rng)
        self._effects: deque[Effect] = deque()
        self._held: sx.Finish | None = None
        self._run = replace(UNLIKE if self.is_unlike else RUN, numerics=place.hardware)
        self._gave_up: tuple[View, int, int] | None = None
        self._heard_at = 0.0
        own_host = member.peer_id if world.plan.shares else str(place.host)
        has_remote = world.plan.restarts or world.plan.founding == "seeds"  # a peer that calls seeds can be called
        remote = member.peer_id if has_remote else ""
        contact = Contact(member.peer_id, member.peer_id, member.incarnation, 0, own_host, remote, remote)
        self.claim = Claim(member, State.ALIVE, contact)
        self.core = Core(self.claim, rng=self._rng, config=world.plan.config, now=self.now())

    def __str__(self) -> str:
        return self.label.decode()

    @property
    def is_unlike(self) -> bool:
        """Whether the peer trains another model than the others."""
        return self.member.peer_id in self._world.plan.unlike

    @property
    def done(self) -> int:
        return self.training.open_step.done

    def now(self) -> float:
        """The time by the peer's own clock, which never goes back."""
        local = self.place.offset_s + self.place.rate * self._world.clock.now
        self._local = max(local, self._local)
        return self._local

    # Events

    def meet(self, others: Iterable[Claim]) -> None:
        for claim in others:
            if self.alive and claim.member != self.member:
                self.perform(self.core.meet(self.now(), claim))

    def found(self, lineage: bytes) -> None:
        plan = self._world.plan
        self.perform(self.core.found(self.now(), lineage, plan.founding_size, self._run, plan.policy))

    def take_over(self, lineage: bytes) -> None:
        """The registry has no other peer that could found: this one founds, as in p2p/loop/seat_request.py."""
        if self.core.knows_steps:
            self._world.end(self, "its run is over")
        else:
            self.found(lineage)

    def found_from_seeds(self, seeds: tuple[str, ...], lineage: bytes) -> None:
        plan, elsewhere = self._world.plan, self._world.hosts.elsewhere(self)
        foundation = Foundation(seeds, lineage, plan.founding_size, plan.policy, elsewhere)
        self.core.found_from_seeds(self.now(), foundation)
        self.ask_for_seat()

    def ask_for_seat(self) -> None:
        self.catch_up.follows = self._rng.random() < self._world.plan.follows
        self.perform(self.core.ask_for_seat(self.now(), self._run, follows=self.catch_up.follows))
        self._world.clock.after(LOOK_AGAIN_S, self, "look again", self._look_again)
        if self._world.plan.restarts:
            self._world.clock.after(BURY_S, self, "bury", self._try_inherit)

    def _try_inherit(self) -> None:
        """Continue as the heir after the death of all members on several hosts, as p2p/loop/seat_request.py."""
        estate = self.core.election_status(self.now())
        if estate is not None and estate.heir == self.member:
            self._world.inherit(self, estate.view)
        elif estate is not None and (estate.is_lost or estate.waits_for):
            self._world.invariants.seen["gave up waiting"] += 1
            self._world.end(self, f"nothing is heard of {estate.waits_for or 'a state'}")
        elif self.view is None:
            self._world.clock.after(BURY_S, self, "bury", self._try_inherit)

    def _look_again(self) -> None:
        """Without a view: read the registry, and ask the seeds, again."""
        if self.view is None:
            self.meet(self._world.acquaintances_of(self))
            self._world.clock.after(LOOK_AGAIN_S, self, "look again", self._look_again)

    def receive(self, envelope: Envelope) -> None:
        self._world.membership.heard(self, envelope.body)
        if isinstance(envelope.body, Head) and envelope.body.step > NOTHING_DONE:
            self.knows_steps = True
        if isinstance(envelope.body, Leave) and self.view is not None:  # otherwise others do not know what it was told
            heard = self._world.invariants.heard_leaving
            heard[envelope.sender] = max(heard.get(envelope.sender, 0), envelope.stamp.number)
            if self.view.since(envelope.sender) is not None:
                self._world.invariants.who_goes.heard_leaving(self.member, self.view.lineage, envelope.sender)
        self.perform(self.core.receive(self.now(), envelope))

    def take_in(self, part: Part) -> None:
        """Receive a data frame; it counts only in the view that it names."""
        if self.view is not None and part.stamp == self.view.stamp:
            sender = self._world.peers[part.sender]
            if part.tokens is not None and sender.alive and self.member not in sender.closed:  # may be sent only now
                part = replace(part, tokens=sender.arena.read(part.region)[0])
            source = self.view.members.index(part.sender)
            segment = Segment(part.sequence, source, 0, 0, part.fingerprint, part)  # type: ignore[arg-type]
            self.perform(self.training.open_step.receive(segment))

    def wake(self, planned: float) -> None:
        if planned == self._wake:  # otherwise an earlier wake-up was planned meanwhile
            self._wake = math.inf
            self._local = max(self._local, planned)
            if (progress := self.training.open_step.progress()) is not None:
                self.core.submitted(*progress)
            self.perform(self.core.tick(self.now()))

    def declare_dead(self, member: Member, reason: str, record: AcceptorRecord | None) -> None:
        self._world.membership.proven(self, member)
        self.perform(self.core.declare_dead(self.now(), member, reason, record))

    def refuse(self, member: Member, reason: str) -> None:
        self._world.membership.accused(member)
        self.perform(self.core.link_refused(self.now(), member, reason))

    def leave(self, outvoted: int = NOTHING_DONE) -> None:
        self.leaving = True
        self._world.invariants.left.add(self.member)
        self._world.membership.accused(self.member)
        self.perform(self.core.leave(self.now(), outvoted))

    def give_up(self, withdraw: bool) -> None:
        """Let the script raise in the middle of the open step, or call other operations than the others."""
        if withdraw:
            self.training.withdraw()
        else:
            self.training.calls_wrong = self._rng.choice(("another", "fewer"))

    def may_give_up(self) -> bool:
        return self.core.phase is Phase.ACTIVE and self.training.is_open()

    # Effects of the core

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects, and those that follow from them, one after the other, as the loop of p2p does."""
        is_under_way = bool(self._effects)
        self._effects.extend(effects)
        if self.doomed and len(self._effects) > 1:
            self.doomed, self.fuse = False, self._rng.randrange(len(self._effects))
        if is_under_way:
            return
        while self._effects and self.alive:
            if self.fuse is not None:
                if self.fuse == 0:
                    self._world.end(self, "dies between two effects")
                    break
                self.fuse -= 1
            self._perform(self._effects[0])
            self._effects.popleft()
        self._effects.clear()
        if not self.alive:
            return
        if (held := self._held) is not None and not self.core.holds_step(self.now()):
            self._held = None
            self.perform([held])
            return
        deadline = self.core.next_deadline()
        if deadline < self._wake:
            self._wake = deadline
            time = (deadline - self.place.offset_s) / self.place.rate
            self._world.clock.at(time, self, "timer", self.wake, deadline)

    def _perform(self, effect: Effect) -> None:
        checks = self._world.invariants
        match effect:
            case fx.Send():
                self._send(effect)
                return
            case sx.SendSegment():
                self._send_segment(effect)
                return
            case fx.Explain() | fx.Proposed() | sx.Note():
                return
            case sx.Tell(notice):
                self._tell(notice)
            case sx.Finish():
                self._finish(effect)
            case sx.DeliverEarly(index, view_number):
                if self.core.mark_in_use(view_number):
                    self.training.hand_out(index)
                    self.perform(self.training.open_step.deliver_early(index))
            case sx.GiveUp(step, cause, reason, is_told):
                if cause is Cause.MISMATCH:
                    assert self.core.view is not None and self.view is not None
                    checks.who_stays(checks.who_goes.gives_up(self.member, self.view, step))
                    self._gave_up = self.core.view, step, self.core.view.number
                    self._world.invariants.seen["steps given up"] += 1
                self.perform(self.core.give_up(self.now(), step, cause, reason, is_told=is_told))
            case sx.Disagree(abort):
                assert self.view is not None
                checks.who_goes.calls(self.member, self.view, abort)
                self.perform(self.core.send_abort(abort))
            case sx.Leave(outvoted):
                self._go(outvoted)
            case _:
                self._perform_for_core(effect)
        self._world.note(self, effect)

    def _go(self, step: int) -> None:
        """Go: the peer calls other operations in `step` than the members that stay, or differs while it observes."""
        checks = self._world.invariants
        if step != NOTHING_DONE:
            assert self.view is not None
            checks.seen["outvoted by calls"] += 1
            checks.who_stays(checks.who_goes.goes(self.member, self.view, step))
            checks.raised(self.member, self.view, step, self.view.number, self._world.clock.now, is_alone=True)
        self.leave(step)

    def _diverge(self, step: int) -> None:
        """No side can stay: tell the script, and leave."""
        checks, view = self._world.invariants, self.view
        assert view is not None
        if not checks.damaged:
            raise Violation("never", f"step {step} diverges at {self.member}")
        checks.seen["diverged"] += 1
        checks.who_stays(checks.who_goes.diverged(self.member, view, step))
        checks.raised(self.member, view, step, view.number, self._world.clock.now, is_alone=self.active)
        checks.told(self.member, step)
        self.training.open_step.stop()
        self.training.num_told += 1
        self.leave()

    def _be_outvoted(self, effect: fx.Outvoted) -> None:
        """Go: the peer has other parameters than the members that stay (R17), or than it computed with (R28)."""
        checks, step = self._world.invariants, effect.step
        assert self.view is not None
        if not effect.is_damaged:
            checks.seen["outvoted by parameters"] += 1
            if not checks.damaged:
                raise Violation("never", f"{self.member} is outvoted by parameters in step {step}")
            said = checks.parameters(self.view, step)
            checks.who_stays(checks.who_goes.goes(self.member, self.view, step, cases(self.view, said)))
        self.training.open_step.stop()
        self.leave(step)

    def go_damaged(self, why: str) -> None:
        """Go: the peer would give a state with other parameters than those with which it computed the open step."""
        if self.member not in self._world.invariants.damaged:
            raise Violation("never", f"{self.member}: {why}")
        self._world.invariants.seen["damages found"] += 1
        self.perform(self.core.damaged(self.now(), why))

    def _perform_for_core(self, effect: fx.Effect) -> None:
        world, seen = self._world, self._world.invariants.seen
        match effect:
            case fx.WriteRecord(record):
                world.hosts.write(self.member, record)
                world.membership.wrote(self.member, record)
            case fx.Installed(view, gone):
                self.close_links([member for member, _ in gone])
                self._install(view)
            case fx.Activated():
                self._activate(effect)
            case fx.Committed():
                self._commit(effect)
            case fx.Aborted(given_up):
                self._abort(given_up)
            case fx.AbortReceived(source, abort):
                self.perform(self.training.open_step.receive_abort(source, abort))
            case fx.Provide(member, step):
                self.catch_up.ask(member, step)
            case fx.Apply() | fx.Load() | fx.DropState() | fx.DropStep():
                self.catch_up.perform(effect)
            case fx.ResultUnavailable(step):
                self.catch_up.miss(step)
            case fx.Discovered(claim):
                world.membership.discovered(self, effect)
                self.forgotten.discard(claim.member)
                self._watch(claim.member)
            case fx.Forget(member):
                self.watched.discard(member)
                self.catch_up.shares.forget(member)
                self.forgotten.add(member)
            case fx.Refused():
                world.invariants.refused(self.member, is_unlike=self.is_unlike)
                world.end(self, "is refused")
            case fx.Removed(reason):
                seen["removed"] += 1
                self.arena.tag = NO_TAG
                world.come_back(self, reason)
            case fx.Outvoted():
                self._be_outvoted(effect)
            case fx.Left(reason):
                seen["left"] += 1
                self.arena.tag = NO_TAG
                for told in self.training.open_step.notify_if_given_up():
                    assert isinstance(told, sx.Tell)
                    self._tell(told.notice)
                world.end(self, reason)
            case fx.Diverged(step):
                self._diverge(step)
            case fx.Paused(is_final=True) if world.plan.restarts:
                world.end(self, "nobody is left with whom it could go on")
            case fx.Paused(reason=reason):
                seen["paused"] += 1
                self.waits = reason
            case fx.Resumed():
                self.waits = ""
            case fx.OtherSwarmFound(reason):
                world.strangers(self, reason)
            case _:
                raise Violation("never", f"{effect} at {self.member}")
        world.faults.on(effect, self)

    def _send(self, effect: fx.Send) -> None:
        world, stamp, other = self._world, effect.stamp, self._world.peers[effect.target]
        assert stamp is not None
        world.membership.sends(self.member, stamp, effect.body)
        world.network.send(self, other, other.receive, Envelope(self.member, stamp, effect.body))

    def _send_segment(self, effect: sx.SendSegment) -> None:
        """Send a segment; a peer that can map this peer's memory gets a reference."""
        part, view, world = effect.outgoing.payload, self.view, self._world
        assert isinstance(part, Part) and view is not None
        if effect.view_number == view.number:
            other = world.peers[view.members[effect.outgoing.peer]]
            tokens = None if world.plan.lends and other.host == self.host else part.tokens
            part = replace(part, tokens=tokens, sequence=effect.sequence, fingerprint=effect.fingerprint)
            world.network.send_data(self, other, other.take_in, part)

    def _watch(self, member: Member) -> None:
        self.watched.add(member)
        other = self._world.peers[member]
        if other.ended_at is not None:
            self._world.hosts.schedule_proof(self, other)

    def _look_up(self, member: Member) -> None:
        """Look a member up in the registry, which lists all living peers."""
        other = self._world.peers[member]
        if other.alive:
            self.meet((other.claim,))
        else:
            self._watch(member)

    # Views and steps

    def _tell(self, notice: Notice) -> None:
        """Tell the training thread, one notice after another."""
        now, checks = self._world.clock.now, self._world.invariants
        if isinstance(notice, OperationMismatch) and self._gave_up is not None:
            view, step, given_up_in = self._gave_up
            checks.raised(self.member, self.view or view, step, given_up_in, now)
            self._gave_up = None
        if isinstance(notice, ShoalError):
            checks.seen["told alone"] += isinstance(notice, OperationMismatch) and notice.is_alone
            checks.told(self.member, self.training.open_step.done + 1)
        self._heard_at = max(now + self._rng.choice((0.0, 0.0, 0.0, 0.02)), self._heard_at)
        self._world.clock.at(self._heard_at, self, "hears", self.training.hear, notice)

    def close_links(self, gone: Iterable[Member]) -> None:
        """Close the links to these members: frames to them have left this peer's memory, or never will (R11)."""
        self.closed.update(gone)

    def _install(self, view: View) -> None:
        world = self._world
        self.arena.tag = tag_of(view)
        world.membership.installed(self.member, self.view, view)
        if view.number == 1 and self.knows_steps:
            raise Violation("S15", f"{self.member} founds {view.lineage!r}, and was told of committed steps of a run")
        if view.number == 1:
            world.founded(self, view.lineage)
        self.view, self.active, self.waits = view, False, ""
        self.catch_up.install()
        self.perform(self.training.open_step.installed(view))
        for member in view.members:
            if member not in self.watched and member != self.member:
                world.clock.after(0.0, self, "look up", self._look_up, member)

    def changes_model(self, step: int) -> None:
        """Change the model, if the plan changes it by this step, which the peer has committed, run, or loaded."""
        changes_in = self._world.plan.changes_in
        if 0 < changes_in <= step and self._run.description == RUN.description:
            self._run = replace(CHANGED, numerics=self.place.hardware)
            self.core.replace_run(self._run)

    def _activate(self, effect: fx.Activated) -> None:
        view, done, checks = effect.view, effect.done, self._world.invariants
        if done != self.done:
            raise Violation("S5", f"{self.member} is at {self.done} and starts view {view.number} at {done}")
        checks.activated(self.member, view, done, self.training.state)
        checks.trains(self.member, view, self._run.description)
        checks.who_stays(checks.who_goes.activated(self.member, view, done, effect.founded_in))
        self._world.activated(self, view)
        self.active = True
        self._world.invariants.seen["dropped and redone"] += self.training.open_step.stage is Stage.FINISHED
        runner = TokenRunner(self, self._world, self._rng, view)
        self.perform(self.training.open_step.activated(view, done, runner, effect.founded_in))

    def _finish(self, effect: sx.Finish) -> None:
        """Finish a step, unless another view is installed, whose READY is fixed by then. The core may hold it."""
        if self.core.holds_step(self.now()):
            self._world.invariants.seen["steps held"] += 1
            self._held = effect
            return
        step, digests, checks = effect.step, (effect.digest, effect.state_digest), self._world.invariants
        if not self.core.may_finish(step, effect.view_number, effect.state_digest):
            checks.who_goes.would_finish(self.member, step, effect.state_digest)
            self.perform(self.core.contradiction(step, effect.view_number, effect.state_digest))
            return
        assert self.view is not None
        self.training.finishes()
        self._world.invariants.who_goes.ends(self.member, self.view, step, effect.num_operations)
        self._world.invariants.finished(self.member, self.view, step, digests)
        self._world.faults.on_finish(self)
        if self.alive:
            self.core.submitted(step, effect.num_operations, effect.num_operations)
            self.perform(self.core.finished(self.now(), step, *digests))

    def _abort(self, given_up: GivenUp) -> None:
        """All members' scripts are told that the step was given up."""
        checks, view = self._world.invariants, self.view
        assert view is not None
        checks.seen["aborted"] += 1
        checks.seen["interrupted"] += bool(self.training.handed_out)
        checks.raised(self.member, view, given_up.step, given_up.void_until, self._world.clock.now)
        self.perform(self.training.open_step.aborted(given_up))

    def _commit(self, effect: fx.Committed) -> None:
        assert self.view is not None
        finish, checks = effect.finish, self._world.invariants
        checks.committed(self.member, finish, effect.view, self.view, self._world.clock.now)
        checks.seen["commits"] += 1
        checks.seen["commits at a barrier"] += not self.active
        self.training.commit(finish, effect.view)
        self.perform([sx.Tell(self.training.open_step.committed(finish, effect.view))])
        self.changes_model(finish.step)
        self.measuring.look()
        self.catch_up.serve()
        for feed in effect.feeds:
            checks.fed(self.member, feed, self.forgotten)
            self.catch_up.feed(feed)

"""A simulated process: the core that ships, and a host that does with its effects what the loop of p2p does."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from gossip import Claim, Contact, Core, Envelope, Member, Phase, State, View
from gossip.effects import (
    Aborted,
    Activated,
    Apply,
    Committed,
    Discovered,
    Diverged,
    Effect,
    Explain,
    Feed,
    Forget,
    Installed,
    Left,
    Overheard,
    Paused,
    Provide,
    Refused,
    Removed,
    Resumed,
    Send,
    Strangers,
    WriteRecord,
)
from gossip.messages import AcceptorRecord

from .invariants import Violation
from .memory import NO_TAG, Arena, tag_of
from .training import Fed, Part, Snapshot, Training

if TYPE_CHECKING:
    from tests.simulation import Simulation

LAYOUT = ("layout", b"two tensors")
LOOK_AGAIN_S = 2.0
MOST_FED = 4
FED_LOST = 0.03


@dataclass(frozen=True, slots=True)
class Place:
    """What stays the same for a process when it comes back as another member.

    Attributes:
        offset_s: of its clock; `rate`: of the same.
        former: incarnations of this process that were removed.
    """

    host: int
    arena: Arena
    offset_s: float = 0.0
    rate: float = 1.0
    former: tuple[Member, ...] = ()


class Peer:
    """One incarnation of one process.

    `doomed`: it dies between two effects of the next list. `fuse`: it dies after so many further effects.
    """

    def __init__(self, world: "Simulation", member: Member, place: Place) -> None:
        self.member = member
        self.label = f"{member.peer_id}/{member.incarnation}".encode()
        self.place = place
        self.host, self.arena = place.host, place.arena
        self.incarnations = (member, *place.former)
        self.alive = True
        self.ended_at: float | None = None
        self.unproven = self.came_back = False
        self.paused_until = 0.0
        self.doomed = False
        self.fuse: int | None = None
        self.leaving = False
        self.active = False
        self.waits = ""
        self.view: View | None = None
        self.watched: set[Member] = set()
        self._world = world
        self._asked: dict[tuple[Member, int], bool] = {}
        self._num_fed: dict[Member, int] = {}
        self._wake = math.inf
        self._local = -math.inf
        self._rng = Random(f"{world.seed}/{member.peer_id}/{member.incarnation}")
        self.training = Training(self, world, self._rng, place.arena)
        self.claim = Claim(member, State.ALIVE, Contact(member.peer_id, member.peer_id, member.incarnation, 0))
        self.core = Core(self.claim, rng=self._rng, config=world.plan.config, now=self.now())

    def __str__(self) -> str:
        return self.label.decode()

    @property
    def done(self) -> int:
        return self.training.done

    def now(self) -> float:
        """Its own clock, which never goes back."""
        local = self.place.offset_s + self.place.rate * self._world.clock.now
        self._local = max(local, self._local)
        return self._local

    # What happens to it.

    def meet(self, others: Iterable[Claim]) -> None:
        for claim in others:
            if self.alive and claim.member != self.member:
                self.perform(self.core.meet(self.now(), claim))

    def found(self, lineage: bytes) -> None:
        plan = self._world.plan
        self.perform(self.core.found(self.now(), lineage, plan.founding_size, LAYOUT, plan.policy))

    def found_from_seeds(self, seeds: tuple[str, ...], lineage: bytes) -> None:
        plan = self._world.plan
        self.core.found_from_seeds(self.now(), seeds, lineage, plan.founding_size, plan.policy)
        self.ask_for_seat()

    def ask_for_seat(self) -> None:
        follows = self._rng.random() < self._world.plan.follows
        self.perform(self.core.ask_for_seat(self.now(), LAYOUT, follows=follows))
        self._world.clock.after(LOOK_AGAIN_S, self, "look again", self._look_again)

    def _look_again(self) -> None:
        """Who has no view reads the registry, and asks its seeds, again."""
        if self.view is None:
            self.meet(self._world.acquaintances_of(self))
            self._world.clock.after(LOOK_AGAIN_S, self, "look again", self._look_again)

    def receive(self, envelope: Envelope) -> None:
        self._world.membership.heard(self, envelope.body)
        self.perform(self.core.receive(self.now(), envelope))

    def take_in(self, part: Part) -> None:
        """A data frame, which counts in the view that it names only."""
        if part.stamp == self.core.stamp:
            self.training.receive(part)

    def wake(self, planned: float) -> None:
        if planned == self._wake:  # or an earlier one was planned later
            self._wake = math.inf
            self._local = max(self._local, planned)
            self.perform(self.core.tick(self.now()))

    def bury(self, member: Member, reason: str, record: AcceptorRecord | None) -> None:
        self._world.membership.proven(self, member)
        self.perform(self.core.bury(self.now(), member, reason, record))

    def refuse(self, member: Member, reason: str) -> None:
        self._world.membership.accused(member)
        self.perform(self.core.refused(self.now(), member, reason))

    def leave(self) -> None:
        self.leaving = True
        self._world.membership.accused(self.member)
        self.perform(self.core.leave(self.now()))

    def give_up(self, withdraw: bool) -> None:
        """The script raises in the middle of the open step: it starts over, or ends it for all."""
        step = self.training.done + 1
        self.training.halted, self.training.handed_out = step, ()
        if withdraw:
            self.training.weightless = step
            self.perform(self.core.withdraw(self.now(), step, interrupts=step % 2 == 1))
        else:
            self.perform(self.core.abort(self.now(), step, f"{self.member} gives up"))

    def may_give_up(self) -> bool:
        return self.core.phase is Phase.ACTIVE and self.training.is_open()

    # What its core asks for.

    def perform(self, effects: list[Effect]) -> None:
        if self.doomed and len(effects) > 1:
            self.doomed, self.fuse = False, self._rng.randrange(len(effects))
        for effect in effects:
            if self.fuse is not None:
                if self.fuse == 0 and self.alive:
                    self._world.end(self, "dies between two effects")
                self.fuse -= 1
            if not self.alive:
                return
            self._perform(effect)
        if not self.alive:
            return
        deadline = self.core.next_deadline()
        if deadline < self._wake:
            self._wake = deadline
            time = (deadline - self.place.offset_s) / self.place.rate
            self._world.clock.at(time, self, "timer", self.wake, deadline)

    def _perform(self, effect: Effect) -> None:
        if type(effect) is Send:
            self._send(effect)
            return
        world = self._world
        seen = world.invariants.seen
        match effect:
            case Explain():
                return
            case WriteRecord(record):
                world.hosts.write(self.member, record)
                world.membership.wrote(self.member, record)
            case Installed(view):
                self._install(view)
            case Activated(view, done):
                self._activate(view, done)
            case Committed():
                self._commit(effect)
            case Provide(member, step):
                self._asked[member, step] = False
                self._serve()
            case Feed():
                self._feed(effect)
            case Apply(step, digest):
                self.training.apply(step, digest)
            case Discovered(claim):
                world.membership.discovered(self, effect)
                self._watch(claim.member)
            case Forget(member):
                self.watched.discard(member)
            case Removed(reason):
                seen["removed"] += 1
                self.arena.tag = NO_TAG
                world.come_back(self, reason)
            case Left(reason):
                seen["left"] += 1
                self.arena.tag = NO_TAG
                world.end(self, reason)
            case Paused(reason=reason):
                seen["paused"] += 1
                self.waits = reason
            case Resumed():
                self.waits = ""
            case Strangers(reason):
                world.strangers(self, reason)
            case Aborted():
                seen["aborted"] += 1
                seen["interrupted"] += bool(self.training.handed_out)
                self.training.handed_out = ()
            case Diverged() | Refused() | Overheard():
                raise Violation("never", f"{effect} at {self.member}")
        world.note(self, effect)
        world.faults.on(effect, self)

    def _send(self, effect: Send) -> None:
        world = self._world
        body, stamp = effect.body, self.core.stamp
        world.membership.sends(self.member, stamp, body)
        other = world.peers[effect.target]
        world.network.send(self, other, other.receive, Envelope(self.member, stamp, body))

    def _watch(self, member: Member) -> None:
        self.watched.add(member)
        other = self._world.peers[member]
        if other.ended_at is not None:
            self._world.hosts.owe(self, other)

    def _look_up(self, member: Member) -> None:
        """In the registry, which everybody alive is in."""
        other = self._world.peers[member]
        if other.alive:
            self.meet((other.claim,))
        else:
            self._watch(member)

    # Views and steps.

    def _install(self, view: View) -> None:
        world = self._world
        self.arena.tag = tag_of(view)
        world.membership.installed(self.member, self.view, view)
        self.view, self.active, self.waits = view, False, ""
        self._asked = {}
        self.training.forget_view()
        for member in view.members:
            if member not in self.watched and member != self.member:
                world.clock.after(0.0, self, "look up", self._look_up, member)

    def _activate(self, view: View, done: int) -> None:
        if done != self.done:
            raise Violation("S5", f"{self.member} is at {self.done} and starts view {view.number} at {done}")
        self._world.invariants.activated(self.member, view, done, self.training.state)
        self._world.activated(self, view)
        self.active = True
        self._world.clock.after(0.0, self, "step", self.training.restart)

    def _commit(self, effect: Committed) -> None:
        assert self.view is not None
        finish, checks = effect.finish, self._world.invariants
        checks.committed(self.member, finish, effect.view, self.view, self._world.clock.now)
        checks.seen["commits"] += 1
        checks.seen["commits at a barrier"] += not self.active
        self.training.commit(finish, effect.view)
        self._serve()
        if self.active:
            self._world.clock.after(0.0, self, "step", self.training.begin)

    def _serve(self) -> None:
        """Give the state to who has asked, once it is that of the step, or of a later one for observers."""
        for (member, step), served in self._asked.items():
            has_seat = self.view is not None and self.view.since(member) is not None
            if not served and (step == self.done or (step < self.done and not has_seat)):
                self._asked[member, step] = True
                snapshot = Snapshot(self.core.stamp, self.done, self.core.digest, self.training.state)
                self._world.clock.after(self._rng.uniform(0.0, 0.2), self, "copied", self._give, member, snapshot)

    def _give(self, member: Member, snapshot: Snapshot) -> None:
        other = self._world.peers[member]
        self._world.network.send_data(self, other, other.load, snapshot)

    def load(self, snapshot: Snapshot) -> None:
        if self.view is None or snapshot.stamp == self.view.stamp:
            self.training.load(snapshot)

    def _feed(self, feed: Feed) -> None:
        """The queue to each observer is short: what does not fit is dropped, and asked for again."""
        if self._num_fed.get(feed.member, 0) >= MOST_FED or self._rng.random() < FED_LOST:
            self._world.invariants.seen["feeds dropped"] += 1
            return
        self._num_fed[feed.member] = self._num_fed.get(feed.member, 0) + 1
        fed = Fed(feed.step, feed.previous, feed.digest, self.training.results[feed.step])
        self._world.clock.after(self._rng.uniform(0.0, 0.1), self, "fed", self._feed_on, feed.member, fed)

    def _feed_on(self, member: Member, fed: Fed) -> None:
        self._num_fed[member] -= 1
        other = self._world.peers[member]
        self._world.network.send_data(self, other, other.training.take_fed, fed)

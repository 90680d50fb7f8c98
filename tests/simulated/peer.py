"""A simulated process: the core that ships, and a host that does with its effects what p2p/loop.py does."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING

from gossip import Claim, Contact, Core, CoreConfig, Envelope, Member, Stamp, State, View
from gossip.messages import (
    Activated,
    Beat,
    Committed,
    Decide,
    Discovered,
    Diverged,
    Effect,
    Explain,
    Finish,
    Forget,
    Installed,
    Left,
    Overheard,
    Progress,
    Provide,
    QuorumGone,
    Ready,
    Refused,
    Removed,
    Send,
)

from .invariants import Violation

if TYPE_CHECKING:
    from tests.simulation import Simulation

LAYOUT = ("layout", b"two tensors")
LEAVE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Input:
    """A data frame: what one member adds to a step."""

    sender: Member
    stamp: Stamp
    step: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A data frame: the state after `step`, which is the history of all steps up to it."""

    stamp: Stamp
    step: int
    history: tuple[Finish, ...]
    state: bytes


class Peer:
    """One process from start to end. `doomed`: it dies between two effects of the next list."""

    def __init__(self, world: "Simulation", member: Member) -> None:
        self.member = member
        self.alive = True
        self.paused_until = 0.0
        self.doomed = False
        self.leaving = False
        self.active = False
        self.view: View | None = None
        self.history: tuple[Finish, ...] | list[Finish] = []
        self.inputs: set[int] = set()
        self.aborted: int | None = None
        self.watched: set[Member] = set()
        self._world = world
        self._state = b""
        self._computing: int | None = None
        self._contributed: int | None = None
        self._finished: int | None = None
        self._arrived: dict[int, list[Member]] = {}
        self._counted: list[Member] = []
        self._asked: dict[tuple[Member, int], bool] = {}
        self._wake = float("inf")
        self._rng = Random(f"{world.seed}/{member.peer_id}/{member.incarnation}")
        self.claim = Claim(member, State.ALIVE, Contact(member.peer_id, member.peer_id, member.incarnation, 0))
        self.core = Core(self.claim, rng=self._rng, config=CoreConfig(), now=world.clock.now)

    @property
    def done(self) -> int:
        return len(self.history) - 1

    # What happens to it.

    def start(self, others: Iterable["Peer"], founding_size: int | None) -> None:
        now = self._world.clock.now
        for other in others:
            self.perform(self.core.meet(other.claim))
        if founding_size is not None:
            self.perform(self.core.found(now, b"lineage of a run", founding_size, LAYOUT))
        else:
            self.perform(self.core.ask_for_seat(now, LAYOUT))

    def receive(self, envelope: Envelope) -> None:
        self.perform(self.core.receive(self._world.clock.now, envelope))

    def wake(self, planned: float) -> None:
        if planned == self._wake:  # or an earlier one was planned later
            self._wake = float("inf")
            self.perform(self.core.tick(self._world.clock.now))

    def bury(self, member: Member, reason: str) -> None:
        self.perform(self.core.bury(self._world.clock.now, member, reason))

    def leave(self) -> None:
        self.leaving = True
        self._world.clock.after(LEAVE_PATIENCE_S, self, "exit", self._world.end, self, "leaves without an answer")
        self.perform(self.core.leave(self._world.clock.now))

    def abort(self) -> None:
        self.aborted = self.done + 1
        self.perform(self.core.abort(self._world.clock.now, self.aborted, f"{self.member} gives up"))

    # What its core asks for.

    def perform(self, effects: list[Effect]) -> None:
        if self.doomed and len(effects) > 1:
            for effect in effects[: self._rng.randrange(len(effects))]:
                self._perform(effect)
            self._world.end(self, "dies between two effects")
            return
        for effect in effects:
            if self.alive:
                self._perform(effect)
        deadline = self.core.next_deadline()
        if self.alive and deadline < self._wake:
            self._wake = deadline
            self._world.clock.at(deadline, self, "timer", self.wake, deadline)

    def _perform(self, effect: Effect) -> None:
        world, checks = self._world, self._world.invariants
        match effect:
            case Send(target, body):
                stamp = self.core.stamp
                if isinstance(body, Ready | Beat):
                    checks.said_ready(self.member, stamp, body if isinstance(body, Ready) else body.ready)
                elif isinstance(body, Decide):
                    checks.decided(self.member, body.view)
                elif isinstance(body, Progress) and body.finish is not None and body.finish.step == 0:
                    self._finish_nothing()
                other = world.peers[target]
                world.network.send(other, other.receive, Envelope(self.member, stamp, body))
                return
            case Explain():
                pass
            case Installed(view):
                checks.decided(self.member, view)
                self.view, self.active = view, False
                self._arrived, self._asked, self._contributed, self._finished = {}, {}, None, None
                for member in view.members:
                    if member not in self.watched and member != self.member:
                        world.clock.after(0.0, self, "look up", self._look_up, member)
            case Activated(view, done):
                if done != self.done:
                    raise Violation("S5", f"{self.member} is at {self.done} and starts view {view.number} at {done}")
                checks.activated(self.member, view, done, self._state)
                if self._counted:
                    checks.seen["dropped and redone"] += 1
                self._counted, self.aborted, self.active = [], None, True
                world.clock.after(0.0, self, "step", self._step)
            case Committed(finish, view):
                self._commit(finish, view)
            case Provide(member, step):
                self._asked.setdefault((member, step), False)
                self._serve()
            case Discovered(claim):
                self.watched.add(claim.member)
                if not world.peers[claim.member].alive:
                    world.announce(self, claim.member, "refused")
            case Removed(reason):
                checks.seen["removed"] += 1
                world.end(self, reason, restart=True)
            case Left(reason):
                checks.seen["left"] += 1
                world.end(self, reason)
            case QuorumGone():
                checks.seen["quorum gone"] += 1
            case Diverged() | Refused() | Overheard():
                raise Violation("never", f"{effect} at {self.member}")
            case Forget():
                pass
            case _:
                checks.seen[type(effect).__name__.lower()] += 1
        world.note(self, effect)
        world.faults.on(effect, self)

    def _look_up(self, member: Member) -> None:
        """In the registry, which everybody alive is in."""
        if self._world.peers[member].alive:
            self.perform(self.core.meet(self._world.peers[member].claim))
        else:
            self.bury(member, "not in the registry")

    def _finish_nothing(self) -> None:
        """Step 0 is empty, so its core finishes it by itself."""
        if self.view is not None and self._finished != 0:
            self._finished, self._counted = 0, list(self.view.members)
            self._world.invariants.finished(self.member, self.view, 0, (b"", b""))

    def _commit(self, finish: Finish, view: View) -> None:
        assert self.view is not None
        checks = self._world.invariants
        if finish.step == 0 and len(view.members) == 1:
            self._finish_nothing()
        checks.committed(self.member, finish, view, self.view, self._counted)
        checks.seen["commits"] += 1
        checks.seen["commits at a barrier"] += not self.active
        self.history = [*self.history, finish]
        self._state = blake2b(self._state + finish.digest, digest_size=8).digest()
        self._counted = []
        self.inputs.discard(finish.step)
        self._arrived.pop(finish.step, None)
        self._serve()
        if self.active:
            self._world.clock.after(0.0, self, "step", self._step)

    def _serve(self) -> None:
        for (member, step), served in self._asked.items():
            if step == self.done and not served:
                self._asked[member, step] = True
                snapshot = Snapshot(self.core.stamp, step, tuple(self.history), self._state)
                other = self._world.peers[member]
                self._world.network.send_data(self, other, other.load, snapshot)

    # Its training, which the data links carry.

    def load(self, snapshot: Snapshot) -> None:
        wanted = self.core.wanted_state()
        if snapshot.stamp != self.core.stamp or wanted is None or wanted[0] != snapshot.step:
            return
        self.history, self._state = snapshot.history, snapshot.state
        self._world.invariants.loaded(self.member, snapshot.step)
        self._world.invariants.seen["states loaded"] += 1
        self.perform(self.core.loaded(self._world.clock.now, snapshot.step, wanted[1]))

    def _step(self) -> None:
        """Begin the step after the last committed one, from the input held or from a new one."""
        step = self.done + 1
        if not self.active or self.leaving or step == 0:
            return
        if step in self.inputs:
            self._contribute(step)
        elif self._computing != step:
            self._computing = step
            self._world.clock.after(self._world.compute_s(self._rng), self, "computed", self._computed, step)

    def _computed(self, step: int) -> None:
        self._world.invariants.computed(self.member, step)
        self._computing = None
        self.inputs.add(step)
        if self.active and step == self.done + 1:
            self._contribute(step)

    def _contribute(self, step: int) -> None:
        if self._contributed == step:
            return
        assert self.view is not None
        self._contributed = step
        frame = Input(self.member, self.core.stamp, step)
        for member in self.view.members:
            other = self._world.peers[member]
            if other is not self:
                self._world.network.send_data(self, other, other.take_in, frame)
        self.take_in(frame)

    def take_in(self, frame: Input) -> None:
        if frame.stamp != self.core.stamp:
            return
        self._arrived.setdefault(frame.step, []).append(frame.sender)
        self._try_finish()

    def _try_finish(self) -> None:
        step = self.done + 1
        arrived = self._arrived.get(step, ())
        assert self.view is not None
        if not self.active or self._finished == step or self.aborted == step or len(arrived) < len(self.view.members):
            return
        self._finished = step
        self._counted = sorted(arrived)
        text = "".join(f"{member.peer_id}/{member.incarnation}:{step} " for member in self._counted)
        digest = blake2b(text.encode(), digest_size=8).digest()
        self._world.invariants.finished(self.member, self.view, step, (digest, self._state))
        self._world.faults.on_finish(self)
        if self.alive:
            self.perform(self.core.finished(self._world.clock.now, step, digest, self._state))

    def may_abort(self) -> bool:
        step = self.done + 1
        return step > 0 and self._finished != step and self.aborted != step

"""Carries out the effects of the core and of the open step, one after the other, in the order in which they are issued.

Effects that result from an effect are queued after those already pending, as in the simulation.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from collectives.programs import MOST_CHUNKS
from gossip import Claim, Core, Member, State, View
from gossip import effects as fx
from gossip import messages as m
from gossip.progress import Finish, Progress

from ..catchup.donor import Donor
from ..catchup.observer import Observer
from ..catchup.replica import Replica
from ..catchup.shares import donors_of
from ..errors import RegistryError, RemovedFromView
from ..host.registry import Registry
from ..memory.shared_runner import SharedRunner
from ..net.frames import Frames
from ..net.headers import NO_DIGEST
from ..net.parcels import ShareRequest, StateRecord
from ..step import effects as sx
from ..step.notices import Commit, Notice
from ..step.open_step import OpenStep
from ..step.runner import MessageRunner, Runner
from ..telemetry.records import How, Kind, Note, Why, peer_number
from .inbox import Inbox, error_of
from .neighbours import Neighbours
from .resources import Resources
from .seat_request import SeatRequest

logger = logging.getLogger("p2p")

BELIEFS: Final = {State.ALIVE: Kind.CLEARED, State.SUSPECT: Kind.SUSPECTED, State.LOST: Kind.LOST}
PARTED: Final = {
    State.LEFT: (How.LEAVE, Why.LEFT),
    State.DEAD: (How.DEATH, Why.DIED),
    State.LOST: (How.SILENCE, Why.SILENT),
}

FINISHED, COMMITTED = Kind.FINISHED, Kind.COMMITTED
"""Used in each step: access to enum members is slow."""

Effect = fx.Effect | sx.StepEffect

_ENDS = {
    fx.Refused: Kind.REMOVED,
    fx.Removed: Kind.REMOVED,
    fx.Paused: Kind.PAUSED,
    fx.Diverged: Kind.DIVERGED,
}
"""Effects that end this peer."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a running peer. `note`: of the flight recorder; `ended`: set when all may be closed."""

    core: Core
    open_step: OpenStep
    resources: Resources
    registry: Registry
    frames: Frames
    neighbours: Neighbours
    donor: Donor
    observer: Observer
    seat: SeatRequest
    inbox: Inbox
    note: Note
    ended: threading.Event
    segment_bytes: int


class Executor:
    """Effects of one peer."""

    now = staticmethod(time.monotonic)

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._effects: deque[Effect] = deque()
        self._members: tuple[Member, ...] = ()
        self._why = Why(0)
        self._held: sx.Finish | None = None

    def shared(self) -> SharedRunner | None:
        """The runner over shared memory, if the step has one."""
        run = self.parts.open_step.run
        return run.runner if run is not None and isinstance(run.runner, SharedRunner) else None

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order, and those that result from them last. An error discards all effects after it."""
        is_under_way = bool(self._effects)
        self._effects.extend(effects)
        if is_under_way:
            return
        try:
            while self._effects:
                self._do(self._effects[0])
                self._effects.popleft()
        except BaseException:
            self._effects.clear()
            raise
        if (held := self._held) is not None and not self.parts.core.holds_step(self.now()):
            self._held = None
            self.carry_out([held])

    def _do(self, effect: Effect) -> None:
        match effect:
            case sx.SendSegment():
                self.parts.frames.send_segment(*effect)
            case sx.Tell(notice):
                self._tell(notice)
            case sx.Finish():
                self._finish(effect)
            case sx.DeliverEarly(index, view_number):
                if self.parts.core.mark_in_use(view_number):
                    self.carry_out(self.parts.open_step.deliver_early(index))
            case sx.GiveUp(step, cause, reason, is_told):
                self.carry_out(self.parts.core.give_up(self.now(), step, cause, reason, is_told=is_told))
            case sx.Disagree(abort):
                self.carry_out(self.parts.core.send_abort(abort))
            case sx.Leave(outvoted):
                self.carry_out(self.parts.core.leave(self.now(), outvoted))
            case sx.Note(kind, detail, size, value):
                self.parts.note(kind, detail, size=size, value=value)
            case _:
                self._do_for_core(effect)

    def _do_for_core(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self.parts.frames.send(effect)
            case fx.Committed():
                self._commit(effect)
            case fx.WriteRecord(record):
                self.parts.resources.record_page.write(record)
            case fx.Explain(reason) | fx.Resumed(reason):
                logger.info("%s", reason)
                self.parts.inbox.explain(reason)
                if isinstance(effect, fx.Resumed):
                    self.parts.note(Kind.RESUMED)
                elif effect.claim is not None:
                    self._note_belief(effect.claim)
            case fx.OtherSwarmFound(reason):
                logger.warning("%s", reason)
            case fx.Discovered(claim):
                self._link(claim)
            case fx.Forget(member):
                self._forget(member)
            case fx.Installed():
                self._install(effect)
            case fx.Proposed(view):
                self.parts.note(Kind.PROPOSED, self.parts.core.done, view.number, size=len(view.members))
            case fx.Activated():
                self._activate(effect)
            case fx.Aborted(given_up):
                self.parts.note(Kind.GIVEN_UP, given_up.step)
                self.carry_out(self.parts.open_step.aborted(given_up))
            case fx.AbortReceived(source, abort):
                self.carry_out(self.parts.open_step.receive_abort(source, abort))
            case fx.Apply() | fx.Load() | fx.DropState() | fx.DropStep():
                self._do_for_observer(effect)
            case fx.ResultUnavailable(step):
                reason = f"operation {step} was committed without this peer, its result is unknown"
                self.parts.inbox.tell(RemovedFromView(reason))
            case fx.Provide(member, step, frozen):
                self._provide(member, step, frozen)
            case fx.Left(reason):
                self._leave(reason)
            case fx.Paused(reason=reason, is_final=False):
                logger.warning("%s", reason)
                self.parts.inbox.explain(reason)
                self.parts.note(Kind.PAUSED)
            case fx.Outvoted(step):
                self.parts.open_step.stop()
                self.carry_out(self.parts.core.leave(self.now(), step))
            case fx.Refused() | fx.Removed() | fx.Paused() | fx.Diverged():
                self.parts.resources.host_memory.install(None)
                self.parts.note(_ENDS[type(effect)], self.parts.core.done)
                has_stalled = self.parts.neighbours.stalls.has_stalled(self.parts.core.done + 1)
                self.parts.inbox.tell(error_of(effect, has_stalled=has_stalled))
                if isinstance(effect, fx.Diverged):  # and repeats that until the others know
                    self.parts.open_step.stop()
                    self.carry_out(self.parts.core.leave(self.now()))
            case _:
                assert_never(effect)

    def _do_for_observer(self, effect: fx.Apply | fx.Load | fx.DropState | fx.DropStep) -> None:
        match effect:
            case fx.Apply():
                self.carry_out(self.parts.observer.advance(self.now()))
            case fx.Load(step, digest):
                self.carry_out(self.parts.observer.load(self.now(), step, digest))
            case fx.DropState(step, digest):
                self.parts.observer.drop(step, digest)
            case fx.DropStep(step, digest):
                self.parts.observer.discard(step, digest)

    def _provide(self, member: Member, step: int, frozen: bytes) -> None:
        """Send `member` the state after `step`, or, while it has no seat, after a later step."""
        self.parts.note(Kind.GIVES, step, peer=peer_number(member.peer_id))
        has_seat = self.parts.core.view is not None and self.parts.core.view.since(member) is not None
        self.parts.donor.ask(member, step, has_seat=has_seat, frozen=frozen)
        self.serve_state()

    def _leave(self, reason: str) -> None:
        """Leave: the others can continue without this peer."""
        logger.info("left: %s", reason)
        self.parts.note(Kind.LEFT)
        self.parts.resources.host_memory.install(None)
        self.carry_out(self.parts.open_step.notify_if_given_up())
        self.parts.ended.set()

    def _tell(self, notice: Notice) -> None:
        if isinstance(notice, Commit):  # received as an observer
            self.parts.note(Kind.FOLLOWED, notice.receipt.step)
        self.parts.inbox.tell(notice)

    # Steps.

    def _finish(self, effect: sx.Finish) -> None:
        """Announce that a step is finished here, unless another view is installed, whose READY is already fixed.

        Deferred while a view is about to be installed that would be of no use after this step.
        """
        if self.parts.core.holds_step(self.now()):
            self._held = effect
            return
        step, digest, state_digest, chain = effect.step, effect.digest, effect.state_digest, self.parts.core.digest
        if not self.parts.core.may_finish(step, effect.view_number, state_digest):
            self.carry_out(self.parts.core.contradiction(step, effect.view_number, state_digest))
            return
        self.parts.note(FINISHED, step)
        if (runner := self.shared()) is not None:
            runner.announce(step, b"".join([digest or NO_DIGEST, state_digest or NO_DIGEST, chain or NO_DIGEST]))
        self.parts.core.submitted(step, effect.num_operations, effect.num_operations)
        self.carry_out(self.parts.core.finished(self.now(), step, digest, state_digest, is_shown=runner is not None))

    def see(self, mine: bytes, shown: list[tuple[int, bytes]]) -> list[fx.Effect]:
        """Process `shown`: the digests with which ranks show the open step as finished; `mine`: those of this peer."""
        view, step, now = self.parts.core.view, self.parts.core.done + 1, self.now()
        assert view is not None
        if [digests for _, digests in shown] == [mine] * (len(view.members) - 1):
            return self.parts.core.all_finished(now)
        told = []
        for rank, digests in shown:
            digest, state_digest, chain = (b"" if each == NO_DIGEST else each for each in in_three(digests))
            finish = Finish(step, digest, state_digest, view.number, view.is_mixed)
            told.append((view.members[rank], Progress(step - 1, chain, finish)))
        return self.parts.core.saw(now, told)

    def _commit(self, effect: fx.Committed) -> None:
        self.parts.donor.end_exchange()
        commit = self.parts.open_step.committed(effect.finish, effect.view)
        self.parts.note(COMMITTED, effect.finish.step, value=commit.receipt.samples_of(self.parts.core.me.peer_id))
        if effect.feeds:
            self.parts.donor.feed(self.now(), effect.feeds, effect.finish, commit, self.parts.core.numerics)
        self.parts.inbox.tell(commit)

    # Views and members.

    def _install(self, effect: fx.Installed) -> None:
        view = effect.view
        self.parts.resources.host_memory.install(view)  # before messages are sent in it
        logger.info("view %d: %s", view.number, ", ".join(map(str, view.members)))
        came = [member for member in view.members if member not in self._members]
        why = Why.FIRST if not self._members else Why.CAME if came else Why(0)
        for _, state in effect.gone:
            why |= PARTED[state][1]
        why = why or Why.AGAIN
        self._why |= why
        self.parts.note(Kind.INSTALLED, self.parts.core.done, view.number, how=why, size=len(view.members))
        for member in came:
            self.parts.note(Kind.IN, view=view.number, peer=peer_number(member.peer_id))
        for member, state in effect.gone:
            self._note_out(view, member, state)
        self._members = view.members
        self.parts.neighbours.part(member for member, _ in effect.gone)
        self.parts.frames.install(view)
        if effect.has_stalled:
            stayed = [member for member in view.members if member not in came]  # others may still receive their state
            self.parts.neighbours.stalls.redone(self.parts.core.done + 1, stayed)
        self.carry_out(self.parts.open_step.installed(view))
        self.parts.donor.install()
        self.parts.donor.end_exchange()
        try:
            self.parts.registry.mark_member()
        except RegistryError as error:  # a later peer would take it for one that waits, and found another run
            self.parts.inbox.tell(error)
            self.carry_out(self.parts.core.leave(self.now()))
        self.parts.neighbours.open_records(view.members)

    def _note_out(self, view: View, member: Member, state: State) -> None:
        silent_s = self.parts.core.member_progress(self.now(), member)[1] if state is State.LOST else 0.0
        if state is not State.LEFT:
            self.parts.inbox.explain_out(member, silent_s, is_dead=state is State.DEAD)
        how = PARTED[state][0]
        self.parts.note(Kind.OUT, view=view.number, peer=peer_number(member.peer_id), how=how, value=silent_s)

    def _activate(self, effect: fx.Activated) -> None:
        view, done, maps_all = effect.view, effect.done, effect.maps_all
        self.parts.note(Kind.ACTIVE, done, view.number)
        if self.parts.open_step.submission is not None:
            self.parts.note(Kind.REDO, done + 1, view.number, how=self._why)
        self._why = Why(0)
        self.parts.donor.seated(view)
        self.parts.observer.seated()
        runner: Runner = MessageRunner(self.parts.segment_bytes)
        if maps_all and 1 < len(view.members) <= MOST_CHUNKS and self.parts.inbox.failure is None:
            runner = self.parts.resources.host_memory.runner(view, self.parts.core.me)
        self.carry_out(self.parts.open_step.activated(view, effect.done, runner, effect.founded_in))

    def _note_belief(self, claim: Claim) -> None:
        """Record this peer's new belief about another."""
        how = How.OWN_PROBE if claim.accuser == self.parts.core.me.peer_id else How.HEARSAY
        self.parts.note(BELIEFS[claim.state], peer=peer_number(claim.member.peer_id), how=how)

    def _link(self, claim: Claim) -> None:
        if reason := self.parts.neighbours.link(claim):
            self.declare_dead(claim.member, reason)
        elif self.parts.neighbours.is_watched(claim.member):
            is_so = self.parts.resources.host_memory.map(claim.member, claim.contact.pid)
            self.carry_out(self.parts.core.set_readable(self.now(), claim.member, is_so=is_so))

    def _forget(self, member: Member) -> None:
        self.parts.neighbours.unlink(member)
        self.parts.resources.host_memory.forget(member)
        self.parts.donor.forget(member)
        self.parts.observer.forget(member)
        self.carry_out(self.parts.core.set_readable(self.now(), member, is_so=False))

    def declare_dead(
        self, member: Member, reason: str, record: m.AcceptorRecord | None = None, how: How = How.KERNEL
    ) -> None:
        self.parts.seat.look_soon()
        if effects := self.parts.core.declare_dead(self.now(), member, reason, record):
            self.parts.note(Kind.GONE, peer=peer_number(member.peer_id), how=how)
            self.carry_out(effects)

    def begin_exchange(self) -> None:
        """Called when the first operation of a step is submitted."""
        if self.parts.core.seated:
            self.parts.donor.begin_exchange()

    def expect(self) -> None:
        """Prepare for a state: this peer has asked for a seat."""
        self.parts.note(Kind.ASKED, self.parts.core.done)
        self.parts.observer.expect()

    def use(self, replica: Replica) -> None:
        """Send and receive the states of `replica`."""
        self.parts.donor.use(replica)
        self.parts.observer.use(replica)

    def take_share_request(self, wish: ShareRequest) -> None:
        """Process the request of another donor for a share of a state; ignored unless that is a member of this view."""
        core = self.parts.core
        if core.seated and core.view is not None and core.view.since(wish.first) is not None:
            self.parts.note(Kind.GIVES, wish.step, peer=peer_number(wish.observer.peer_id))
            self.parts.donor.request_share(wish)
            self.serve_state()

    def go_on_giving(self) -> None:
        """Continue after a copy of the state was completed or has failed."""
        self.parts.donor.resume_streams(self.now())
        self.serve_state()

    def serve_state(self) -> None:
        """Send the state to the peers that wait for it, if it may be copied now."""
        core = self.parts.core
        if self.parts.donor.is_asked and core.seated and not core.has_to_go and (view := core.view) is not None:
            is_due = self.parts.open_step.agreed.is_due
            if why := self.parts.donor.why_damaged(self.now(), core.done, self.parts.open_step.why_damaged):
                self.carry_out(core.damaged(self.now(), why))
                return
            record = StateRecord(core.digest, view, core.numerics, is_due)
            for member, reason in self.parts.donor.serve(self.now(), core.done, record, self._donors_for):
                self.carry_out([core.no_state_for(member, reason)])
                self.declare_dead(member, reason, how=How.UNKNOWN)  # no other peer can send it either

    def _donors_for(self, member: Member) -> tuple[Member, ...]:
        """The donors that send `member` the state that this peer was asked for."""
        core = self.parts.core
        assert core.view is not None
        return donors_of(core.view, core.me, core.host_of(member), core.has_state)


def in_three(digests: bytes) -> tuple[bytes, bytes, bytes]:
    """Split digests from the board: of results, of parameters, and of the chain of steps."""
    return digests[:16], digests[16:32], digests[32:]

"""The loop: owns a peer's sockets, its clock and its protocol state, and is driven by one thread at a time.

It brings what arrives to the core (gossip) and to the open step (step/), and carries out what they ask for: one effect
after the other, in the order in which they were asked for, whichever it was. What an effect entails stands behind
those that are still waiting, as in the simulation. Whoever holds the drive lock (ownership.py) drives, so nothing else
needs a lock: finishing a step and installing a view can never interleave.
"""

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import assert_never

from collectives.programs import MOST_CHUNKS
from gossip import Claim, Core, Envelope, Member, View
from gossip import effects as fx
from gossip import messages as m

from ..catchup.donor import Donor
from ..catchup.observer import Observer
from ..config import LoopConfig
from ..errors import RegistryError, RemoteProtocolError, ShoalError, error_of
from ..host.registry import Registry, Role
from ..memory.shared_runner import RunState, SharedRunner
from ..net.frames import Delivery, Frames, Segment, Taken
from ..net.headers import NO_DIGEST
from ..net.parcels import Packer, StateRecord
from ..net.transport import Polled
from ..step import effects as sx
from ..step.notices import Commit, Notice, StateOffer
from ..step.open_step import OpenStep
from ..step.operation import Operation
from ..step.runner import MessageRunner, Runner
from ..step.waiting import explain_waiting
from .inbox import Inbox
from .neighbours import Neighbours, claim_of
from .reactor import Reactor
from .resources import Resources, acquire
from .seat_request import SeatRequest
from .seeds import Seeds

logger = logging.getLogger("p2p")

Effect = fx.Effect | sx.StepEffect


class Loop:
    """The running protocol of one peer. `explain`, `now`: any thread; what is said to be posted: whoever drives.

    Attributes:
        core: its part in the protocol.
        open_step: the step that is under way.
        inbox: what the training thread should hear.
        reactor: the thread that drives this.
        seeds: the addresses that it calls.
        resources: what it has opened.
    """

    def __init__(self, registry: Registry, config: LoopConfig, former: "Loop | None" = None) -> None:
        """Enter the registry and bind the sockets; `reactor.start` begins to use them.

        Args:
            registry: of the swarm.
            config: settings.
            former: was removed, and has stopped: this one goes on as the same peer, in another incarnation.
        """
        before: Resources | None = None if former is None else former.resources
        self.resources: Resources = acquire(registry, config, time.time_ns(), before)
        own, transport = self.resources.own, self.resources.transport
        me = claim_of(own)
        self.core = Core(me, rng=random.Random(own.incarnation), config=config.core, now=time.monotonic())
        self._acquaintances = [claim_of(entry) for entry in self.resources.others]
        if former is not None:
            self._acquaintances += former.core.acquaintances()
        self.inbox = Inbox(keep_moments=config.keep_moments)
        self.reactor = Reactor(self, self.inbox.notices, transport.wake)
        self._registry = registry
        self._config = config
        self._frames = Frames(me.member, transport)
        self._neighbours = Neighbours(transport, registry)
        self.seeds = Seeds.of(config, self.resources, self._frames)
        self._seat = SeatRequest(registry, config, own.role, is_back=former is not None)
        self.open_step = OpenStep(me.member, segment_bytes=config.segment_bytes)
        self._donor = Donor(self._frames.send_parcel, segment_bytes=config.segment_bytes)
        self._observer = Observer(self.core, self.open_step, self._frames.send_taken)
        self._effects: deque[Effect] = deque()
        self._next_link_check = self._tick_at = 0.0
        self._keeps_memory = False

    @property
    def peer_id(self) -> str:
        return self.resources.own.peer_id

    now = staticmethod(time.monotonic)
    """The clock of this peer, in seconds."""

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was in the registry when this peer entered."""
        return self._seat.role is Role.FOUNDER

    @property
    def dropped_frames(self) -> dict[str, int]:
        """How many arrived and changed nothing, by reason."""
        return dict(self.resources.transport.dropped + Counter(invalid=self.open_step.num_refused))

    def explain(self) -> str:
        """What the open step waits for; a snapshot."""
        return f"{self.core.phase.name}, {explain_waiting(self.core, self.open_step, self.now())}"

    def end_incarnation(self) -> None:
        """Stop, but keep the arena, for the next incarnation of this peer."""
        self._keeps_memory = True
        self.reactor.stop()

    # Commands of the training thread; to be posted.

    def ask_for_seat(self, founding_size: int, layout: tuple[str, bytes]) -> None:
        """Found the swarm, or ask its members for a seat."""
        self._seek(lambda: self._seat.ask(self.now(), self.core, self.seeds, layout, founding_size))

    def submit(self, step: int, attempt: int, operation: Operation) -> None:
        """As `OpenStep.submit`, unless this peer cannot go on."""
        if self.inbox.failure is None and (effects := self.open_step.submit(step, attempt, operation)):
            self._carry_out(effects)

    def close_step(self, attempt: int, state_digest: bytes) -> None:
        """As `OpenStep.close`, unless this peer cannot go on."""
        if self.inbox.failure is None and (effects := self.open_step.close(attempt, state_digest)):
            self._carry_out(effects)

    def withdraw(self, step: int, attempt: int) -> None:
        """As `OpenStep.withdraw`, unless this peer cannot go on."""
        if self.inbox.failure is None:
            self._carry_out(self.open_step.withdraw(step, attempt))

    def void(self, step: int, reason: str) -> None:
        """As `OpenStep.void`, unless this peer cannot go on."""
        if self.inbox.failure is None:
            self._carry_out(self.open_step.void(step, reason))

    def state_complete(self, step: int, packer: Packer) -> None:
        """The state after `step` may be copied with `packer`, until the next commit."""
        self._donor.complete(step, packer)
        self._serve_state()

    def state_withheld(self, step: int) -> None:
        """The training thread waits in an operation, maybe before `optimizer.step`: nobody may wait for its state."""
        self._donor.withhold(step)
        self._serve_state()

    def loaded(self, offer: StateOffer, contributors: tuple[str, ...], state_digest: bytes | None) -> None:
        """The state that was offered is loaded. Arguments as of `OpenStep.loaded`."""
        self.open_step.loaded(offer.step, contributors, state_digest)
        self.inbox.note("loaded", offer.step)
        self._carry_out(self._observer.loaded(self.now(), offer))

    def leave(self) -> None:
        """Say so; `reactor.ended` is set when the others can do without this peer."""
        self._carry_out(self.core.leave(self.now()))

    # What the reactor drives.

    def begin(self) -> None:
        """Meet who is there."""
        if (doorbell := self.resources.host_memory.doorbell) is not None:
            self.resources.transport.watch(doorbell.fd)
        for claim in self._acquaintances:
            self._carry_out(self.core.meet(self.now(), claim))

    def next_deadline(self) -> float:
        """Of the core, and of the look at the links."""
        self._tick_at = self.core.next_deadline()
        return min(self._tick_at, self._next_link_check)

    def poll(self, timeout_s: float) -> Polled:
        """Wait for the sockets."""
        return self.resources.transport.poll(timeout_s)

    def shared(self) -> SharedRunner | None:
        """What runs over the memory of others."""
        runner = self.open_step.runner
        return runner if isinstance(runner, SharedRunner) else None

    def advance(self) -> RunState:
        """Go on with what runs, and see what the others have finished."""
        try:
            state, effects = self.open_step.advance()
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)
            return RunState.IDLE
        if effects:
            self._carry_out(effects)
        runner = self.shared() if self.core.has_finished else None
        if runner is not None and (seen := runner.all_finished()) is not None:
            self._carry_out(self._see(*seen))
        return state

    def take_deaths(self, polled: Polled) -> None:
        """The kernel says whose processes have ended."""
        if not polled.fds:
            return
        doorbell = self.resources.host_memory.doorbell
        if doorbell is not None and doorbell.fd in polled.fds:
            doorbell.clear()
        for member in self._neighbours.ended(polled.fds):
            self._declare_dead(member, "its process has ended", self._neighbours.record_of(member))

    def take(self, polled: Polled) -> None:
        """Frames, links, and what is due."""
        transport = self.resources.transport
        if polled.data:
            for header, payload in transport.receive_data():
                self._take_data(header, payload)
        if polled.control:
            for frame in transport.receive_control():
                self._take_control(frame)
        now = self.now()
        if now >= self._next_link_check:
            self._next_link_check = now + self._config.link_check_s
            self._carry_out(self._neighbours.check_links(now, self.core))
            self._donor.expire(now)
            self.seeds.call(now, self.core)
            if self.inbox.failure is None:
                self._seek(lambda: self._seat.look_again(now, self.core, self.seeds))
        if now >= self._tick_at:  # what has become due meanwhile is dealt with at the next look
            if (progress := self.open_step.progress()) is not None:
                self.core.submitted(*progress)
            self._carry_out(self.core.tick(now))
        if effects := self._observer.go_on(now):
            self._carry_out(effects)

    def crash(self, error: BaseException) -> None:
        """Nothing can be driven any more."""
        logger.error("the loop of peer %s failed", self.core.me, exc_info=error)
        self.inbox.tell(ShoalError(f"the loop of this peer failed: {error!r}; see the log"))

    def close(self) -> None:
        """Let go of everything, apart from the arena of a peer that comes back."""
        self._neighbours.close()
        self.open_step.stop()  # what ran over the memory of others lets go of it
        self.resources.release(self._registry, keeps_memory=self._keeps_memory)

    # What arrives.

    def _take_control(self, frame: bytes) -> None:
        try:
            envelope = self._frames.read_control(frame)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)
            return
        effects = self.core.receive(self.now(), envelope)
        if effects and isinstance(envelope.body, m.Died):
            self.inbox.note("gone", envelope.sender.peer_id)
        self._carry_out(effects)

    def _take_data(self, frame: memoryview, payload: memoryview) -> None:
        try:
            match self._frames.read_data(frame, payload):
                case Segment() as segment:
                    self._carry_out(self.open_step.receive(segment))
                case Envelope() as envelope:
                    self._carry_out(self.core.receive(self.now(), envelope))
                case Delivery() as delivery:
                    self._carry_out(self._observer.receive(self.now(), delivery))
                case Taken() as taken:
                    self._donor.taken(self.now(), taken)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)

    # Effects.

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what is asked for, in order; what that entails, last. After an error nothing that stands behind it."""
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

    def _do(self, effect: Effect) -> None:
        match effect:
            case fx.Send():
                self._frames.send(effect)
            case sx.SendSegment(sequence, fingerprint, outgoing):
                self._frames.send_segment(sequence, fingerprint, outgoing)
            case sx.Tell(notice):
                self._tell(notice)
            case sx.Finish():
                self._finish(effect)
            case fx.Committed():
                self._commit(effect)
            case sx.HandOut(index, view_number):
                if self.core.handed_out(view_number):
                    self._carry_out(self.open_step.hand_out(index))
            case fx.WriteRecord(record):
                self.resources.page.write(record)
            case fx.Explain(reason) | fx.Resumed(reason):
                logger.info("%s", reason)
            case fx.Strangers(reason):
                logger.warning("%s", reason)
            case fx.Discovered(claim):
                self._link(claim)
            case fx.Forget(member):
                self._forget(member)
            case fx.Installed(view):
                self._install(view)
            case fx.Activated(view, done, maps_all):
                self._activate(view, done, maps_all=maps_all)
            case fx.Aborted(given_up):
                self._carry_out(self.open_step.aborted(given_up))
            case fx.Overheard(source, abort):
                self._carry_out(self.open_step.overhear(source, abort))
            case sx.Withdraw(step, interrupts):
                self.core.submitted(step, 0, 0)
                self._carry_out(self.core.withdraw(self.now(), step, interrupts=interrupts))
            case sx.GiveUp(step, reason):
                self._carry_out(self.core.abort(self.now(), step, reason))
            case sx.Void(step, reason):
                self._carry_out(self.core.void(self.now(), step, reason))
            case sx.Leave():
                self.leave()
            case sx.Note(event, detail):
                self.inbox.note(event, detail)
            case fx.Apply(step, digest):
                self._observer.apply(step, digest)
                self._carry_out(self._observer.go_on(self.now()))
            case fx.AskForState():
                self._carry_out(self._observer.ask(self.now(), effect))
            case fx.Provide(member, step):
                has_seat = self.core.view is not None and self.core.view.since(member) is not None
                self._donor.ask(member, step, has_seat=has_seat)
                self._serve_state()
            case fx.Left(reason):
                logger.info("left: %s", reason)
                self.resources.host_memory.install(None)
                self.reactor.ended.set()
            case fx.Paused(reason=reason, is_final=False):
                logger.warning("%s", reason)
            case fx.Refused() | fx.Removed() | fx.Paused() | fx.Diverged():
                self.resources.host_memory.install(None)
                self.inbox.tell(error_of(effect))
            case _:
                assert_never(effect)

    def _tell(self, notice: Notice) -> None:
        if isinstance(notice, Commit):  # an observer was fed with it
            self.inbox.note("followed", notice.receipt.step)
        self.inbox.tell(notice)

    # Steps.

    def _finish(self, effect: sx.Finish) -> None:
        """Show that a step is finished here, unless another view has come: what READY says of it is fixed by then."""
        step, digest, state_digest, chain = effect.step, effect.digest, effect.state_digest, self.core.digest
        if not self.core.may_finish(step, effect.view_number):
            return
        self.inbox.note("finished", step)
        if (runner := self.shared()) is not None:
            runner.announce(step, b"".join([digest or NO_DIGEST, state_digest or NO_DIGEST, chain or NO_DIGEST]))
        self.core.submitted(step, effect.num_operations, effect.num_operations)
        self._carry_out(self.core.finished(self.now(), step, digest, state_digest, is_shown=runner is not None))

    def _see(self, mine: bytes, shown: list[tuple[int, bytes]]) -> list[fx.Effect]:
        """These ranks show the open step as finished, with these digests; `mine` are what this peer shows."""
        view, step, now = self.core.view, self.core.done + 1, self.now()
        assert view is not None
        if [digests for _, digests in shown] == [mine] * (len(view.members) - 1):
            return self.core.all_finished(now)
        told = []
        for rank, digests in shown:
            digest, state_digest, chain = (b"" if each == NO_DIGEST else each for each in in_three(digests))
            finish = m.Finish(step, digest, state_digest, view.number)
            told.append((view.members[rank], m.Progress(step - 1, chain, finish)))
        return self.core.saw(now, told)

    def _commit(self, effect: fx.Committed) -> None:
        commit = self.open_step.committed(effect.finish, effect.view)
        self.inbox.note("committed", effect.finish.step)
        if effect.feeds:
            self._donor.feed(self.now(), effect.feeds, effect.finish, commit)
        self.inbox.tell(commit)

    # Views, and who is in them.

    def _install(self, view: View) -> None:
        self.resources.host_memory.install(view)  # before anything is said in it
        logger.info("view %d: %s", view.number, ", ".join(map(str, view.members)))
        self.inbox.note("installed", view.number)
        self._frames.install(view)
        self._carry_out(self.open_step.installed(view))
        self._donor.install(view)
        self._registry.mark_member()
        self._neighbours.open_records(view.members)

    def _activate(self, view: View, done: int, *, maps_all: bool) -> None:
        self.inbox.note("active", view.number)
        self._donor.seated(view)
        self._observer.seated()
        runner: Runner = MessageRunner(self._config.segment_bytes)
        if maps_all and 1 < len(view.members) <= MOST_CHUNKS:
            runner = self.resources.host_memory.runner(view, self.core.me)
        self._carry_out(self.open_step.activated(view, done, runner))

    def _link(self, claim: Claim) -> None:
        if reason := self._neighbours.link(claim):
            self._declare_dead(claim.member, reason)
        elif self._neighbours.is_watched(claim.member):
            is_so = self.resources.host_memory.map(claim.member, claim.contact.pid)
            self._carry_out(self.core.can_read(self.now(), claim.member, is_so=is_so))

    def _forget(self, member: Member) -> None:
        self._neighbours.unlink(member)
        self.resources.host_memory.forget(member)
        self._donor.forget(member)
        self._observer.forget(member)
        self._carry_out(self.core.can_read(self.now(), member, is_so=False))

    def _declare_dead(self, member: Member, reason: str, record: m.AcceptorRecord | None = None) -> None:
        self._seat.look_soon()
        if effects := self.core.bury(self.now(), member, reason, record):
            self.inbox.note("gone", member.peer_id)
            self._carry_out(effects)

    def _seek(self, request: Callable[[], list[fx.Effect]]) -> None:
        """Go on towards a seat, or tell the training thread why there will be none."""
        try:
            effects = request()
        except RegistryError as error:
            self.inbox.tell(error)
            return
        if effects and self._seat.role is Role.JOINER:
            self.inbox.note("asked", self.core.done)
        self._carry_out(effects)

    def _serve_state(self) -> None:
        """Send the state to whoever waits for it, if this is the time at which it may be copied."""
        if self.core.seated and (view := self.core.view) is not None:
            record = StateRecord(self.core.digest, view)
            for member, reason in self._donor.serve(self.now(), self.core.done, record):
                self._declare_dead(member, reason)  # nobody else can send it either: go on without the joiner


def in_three(digests: bytes) -> tuple[bytes, bytes, bytes]:
    """Of results, of parameters, and of the chain of steps, as the board has them."""
    return digests[:16], digests[16:32], digests[32:]

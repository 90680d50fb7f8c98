"""The loop: owns a peer's sockets, its clock and its protocol state, and is driven by one thread at a time.

It brings what arrives to the core (gossip) and to the open step (step/), and has carried out what they ask for
(carrier.py). Whoever holds the drive lock (ownership.py) drives, so nothing else needs a lock: finishing a step and
installing a view can never interleave.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from gossip import Core, Envelope, Run, View
from gossip import effects as fx
from gossip import messages as m

from ..catchup.donor import Donor
from ..catchup.observer import Observer
from ..catchup.replica import Packer, Replica
from ..config import LoopConfig
from ..errors import DeviceLost, JoinRefused, RegistryError, RemoteProtocolError, RemovedFromView, RunEnded
from ..host.entry import Role
from ..host.ready_memory import ReadyMemory
from ..host.registry import Registry
from ..memory.shared_runner import IDLE, WAITING, RunState
from ..net.frames import ANSWER_CODEC, ChunkQuery, Delivery, Frames, Segment, StatusAnswer, StatusQuery, Taken
from ..net.parcels import Wish
from ..net.transport import Polled
from ..step.notices import StateOffer
from ..step.open_step import OpenStep
from ..step.operation import Operation
from ..step.place import Place
from ..step.waiting import explain_waiting
from ..telemetry.records import How, Kind, peer_number
from .carrier import Carrier, Parts
from .exit_looks import ExitLooks
from .inbox import Inbox
from .listening import Listening
from .measuring import Measuring
from .neighbours import Neighbours, claim_of
from .own_entry import OwnEntry
from .reactor import Reactor
from .resources import Resources, acquire
from .seat_request import SeatRequest
from .seeds import Seeds

logger = logging.getLogger("p2p")

MUCH_BYTES: Final = 256 << 10
"""Who waits for an operation of more than this sleeps at once: whoever sends it needs the core."""


class Loop:
    """The running protocol of one peer. `explain`, `now`: any thread; what is said to be posted: whoever drives.

    Attributes:
        core: its part in the protocol.
        open_step: the step that is under way.
        inbox: what the training thread should hear.
        note: writes into the flight recorder, `records.Half.note`; for whoever drives.
        measuring: of its links.
        reactor: the thread that drives this.
        seeds: the addresses that it calls.
        resources: what it has opened.
    """

    def __init__(
        self,
        registry: Registry,
        config: LoopConfig,
        former: "Loop | None" = None,
        wait_s: float = 0.0,
        *,
        founds_anew: bool = False,
    ) -> None:
        """Enter the registry and bind the sockets; `reactor.start` begins to use them.

        Args:
            registry: of the swarm.
            config: settings.
            former: was removed, and has stopped: this one goes on as the same peer, in another incarnation.
            wait_s: it asks for no seat before.
            founds_anew: all members that `former` knew are dead, and this one founds another lineage.
        """
        before: Resources | None = None if former is None else former.resources
        self.resources: Resources = acquire(registry, config, time.time_ns(), time.monotonic_ns, before)
        own, transport = self.resources.own, self.resources.transport
        me = claim_of(own)
        self.core = Core(me, rng=random.Random(own.incarnation), config=config.core, now=time.monotonic())
        self._acquaintances = [claim_of(entry) for entry in self.resources.others]
        if former is not None:
            self.core.return_from(former.core)
            if config.tcp is not None or not founds_anew:
                self._acquaintances += former.core.acquaintances()
        self.inbox = Inbox()
        self.note = self.resources.seen.loop.note
        self.reactor = Reactor(self, self.inbox.notices, transport.wake)
        self._link_check_s = config.link_check_s
        self._frames = Frames(me.member, transport)
        self._neighbours, self._own_entry = Neighbours(transport, registry), OwnEntry(registry, transport)
        self.seeds = Seeds.of(config, self.resources, self._frames)
        back = None if former is None or founds_anew else former._seat
        self._seat: SeatRequest = SeatRequest(registry, config, own, back, not_before=self.now() + wait_s)
        self.open_step = OpenStep(me.member, segment_bytes=config.operation_segment_bytes, medium=config.medium)
        self.measuring = Measuring(me.member, transport, self._frames, self.open_step.agreed, config, self.now)
        self.use_wait = self.measuring.use_wait
        gives, least_bytes = (self._frames.send_parcel, self._frames.send_wish), config.least_shared_bytes
        self._donor = Donor(
            *gives, segment_bytes=config.segment_bytes, least_shared_bytes=least_bytes, make_room=ReadyMemory
        )
        send = self._frames.send_taken, self._frames.send_chunk_query
        self._observer = Observer(self.core, self.open_step, *send, ReadyMemory)
        self._carrier = Carrier(
            Parts(
                core=self.core,
                open_step=self.open_step,
                resources=self.resources,
                registry=registry,
                frames=self._frames,
                neighbours=self._neighbours,
                donor=self._donor,
                observer=self._observer,
                seat=self._seat,
                inbox=self.inbox,
                note=self.note,
                ended=self.reactor.ended,
                segment_bytes=config.operation_segment_bytes,
            )
        )
        self.shared, self.state_copied = self._carrier.shared, self._carrier.go_on_giving
        self._listening = Listening(transport.has_data)
        self._next_link_check = self._tick_at = 0.0
        self._exit_looks, self._keeps_memory = ExitLooks(), False

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
        dropped = dict(self.resources.transport.dropped)  # a copy at one go: the loop's thread goes on counting
        num_invalid = dropped.pop("invalid", 0) + self.open_step.num_refused
        return {**dropped, "invalid": num_invalid} if num_invalid else dropped

    @property
    def num_sent_bytes(self) -> int:
        """Of operations, by frames."""
        return self._frames.num_sent_bytes

    def explain(self) -> str:
        """What the open step waits for; a snapshot."""
        return f"{self.core.phase.name}, {explain_waiting(self.core, self.open_step, self.now())}"

    def end_incarnation(self) -> bool:
        """Stop, but keep the arena, for the next incarnation of this peer. Returns what `Reactor.stop` does."""
        self._keeps_memory = True
        return self.reactor.stop()

    # Commands of the training thread; to be posted.

    def ask_for_seat(self, founding_size: int, run: Run, replica: Replica) -> None:
        """Found the swarm, or ask its members for a seat."""
        self._carrier.use(replica)
        self._seek(lambda: self._seat.ask(self.now(), self.core, self.seeds, run, founding_size))

    def describe(self, run: Run) -> None:
        """This peer runs another model from the last step on, and so do all members."""
        self.core.replace_run(run)

    def submit(self, step: int, attempt: int, operation: Operation) -> None:
        """As `OpenStep.submit`, unless this peer cannot go on."""
        if step != self._exit_looks.step:
            self._carrier.begin_exchange()
            self._exit_looks.begin(self.now(), step)
        if self.inbox.failure is None and (effects := self.open_step.submit(step, attempt, operation)):
            self.measuring.watch(self.open_step)
            self._carrier.carry_out(effects)

    def close_step(self, attempt: int, state_digest: bytes, took_us: int = 0, place: Place | None = None) -> None:
        """As `OpenStep.close`, unless this peer cannot go on."""
        if self.inbox.failure is None and (effects := self.open_step.close(attempt, state_digest, took_us, place)):
            self._carrier.carry_out(effects)

    def withdraw(self, step: int, attempt: int) -> None:
        """As `OpenStep.withdraw`, unless this peer cannot go on."""
        if self.inbox.failure is None:
            self._carrier.carry_out(self.open_step.withdraw(step, attempt))

    def void(self, step: int, reason: str) -> None:
        """As `OpenStep.void`, unless this peer cannot go on."""
        if self.inbox.failure is None:
            self._carrier.carry_out(self.open_step.void(step, reason))

    @property
    def is_asked_for_state(self) -> bool:
        """Whether somebody waits for the state, or a share of it, or lags, as any thread may ask."""
        return self._donor.is_asked or self.core.is_lagged(self.now())

    def state_complete(self, step: int, packer: Packer, view: View | None = None) -> None:
        """The state after `step`, committed in `view`, may be copied with `packer`, until the next commit."""
        self._donor.complete(step, packer, view)
        self._carrier.carry_out(self.core.is_whole(self.now(), step))
        self._carrier.serve_state()

    def state_withheld(self, step: int, patience_s: float = 0.0) -> None:
        """The training thread waits in an operation, maybe before `optimizer.step`: nobody may wait for its state.

        But for `patience_s`, who may be given in another way what it lacks.
        """
        self._donor.withhold(step, patience_s)
        self._carrier.serve_state()

    def loaded(
        self, offer: StateOffer, state_digest: bytes | None, operations: Sequence[Operation] | None = None
    ) -> None:
        """The state that was offered is loaded. Arguments as of `OpenStep.loaded`."""
        self.open_step.loaded(offer.step, state_digest, operations, is_due=offer.is_due)
        self.note(Kind.LOADED, offer.step)
        self._carrier.carry_out(self._observer.loaded(self.now(), offer.step, offer.chain))

    def not_loaded(self, offer: StateOffer, refusal: JoinRefused | None) -> None:
        self._carrier.carry_out(self._observer.not_loaded(self.now(), offer.step, offer.chain, refusal))

    def leave(self) -> None:
        """Say so; `reactor.ended` is set when the others can do without this peer."""
        self.note(Kind.LEAVES, self.core.done)
        self._carrier.carry_out(self.core.leave(self.now()))

    def interrupt(self) -> None:
        """As `leave`; behind this nothing that was submitted is read or sent, so that the script may write it."""
        self.resources.host_memory.install(None)
        self.open_step.stop()
        self.resources.transport.stop_data()
        self.leave()

    # What the reactor drives.

    def begin(self) -> None:
        """Meet who is there."""
        if (doorbell := self.resources.host_memory.doorbell) is not None:
            self.resources.transport.watch(doorbell.fd)
        for claim in self._acquaintances:
            self._carrier.carry_out(self.core.meet(self.now(), claim))

    def next_deadline(self) -> float:
        """Of the core, and of the looks at links and processes."""
        self._tick_at = self.core.next_deadline()
        own = self._tick_at, self._next_link_check, self._exit_looks.at, self.measuring.next_at
        return min(*own, self.resources.transport.pacer.next_at)

    def poll(self, timeout_s: float) -> Polled:
        return self.resources.transport.poll(timeout_s)

    def advance(self) -> RunState:
        try:
            state, effects = self.open_step.advance()
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)
            return IDLE
        except DeviceLost as error:  # nothing of the sum is published
            self.inbox.tell(error)
            self.open_step.stop()
            self.leave()
            return IDLE
        if effects:
            self._carrier.carry_out(effects)
        if state is WAITING or not self.core.has_finished or (runner := self.shared()) is None:
            return state  # nobody else has finished the step, or whoever has says so in a frame
        if (seen := runner.all_finished()) is not None:
            self._carrier.carry_out(self._carrier.see(*seen))
        return WAITING if runner.announced is not None else state

    def take_deaths(self, polled: Polled) -> None:
        if not polled.fds:
            return
        doorbell = self.resources.host_memory.doorbell
        if doorbell is not None and doorbell.fd in polled.fds:
            doorbell.clear()
        for member in self._neighbours.ended(polled.fds):
            self._carrier.declare_dead(member, "its process has ended", self._neighbours.record_of(member))

    def take(self, polled: Polled) -> None:
        """Frames, links, and what is due."""
        transport = self.resources.transport
        if polled.data:
            self.take_data()
        if polled.control:
            for frame in transport.receive_control():
                self._take_control(frame)
        now = self.now()
        transport.pacer.go_on()
        if now >= self._next_link_check:
            self._next_link_check = now + self._link_check_s
            self._carrier.carry_out(self._neighbours.check_links(now, self.core))
            if self._donor.expire(now):
                self._carrier.serve_state()
            self.seeds.call(now, self.core)
            self._own_entry.look(now)
            if self.inbox.failure is None:
                self._seek(lambda: self._seat.look_again(now, self.core, self.seeds))
        if now >= self.measuring.next_at:
            self.measuring.look(self.core.view)
        if now >= self._exit_looks.at and self._exit_looks.is_wanted(now, self.open_step.done):
            members = () if self.core.view is None else self.core.view.members  # does one of this host run no code?
            for member in self._neighbours.exiting(members):
                self._carrier.declare_dead(member, "all its threads are exiting", self._neighbours.record_of(member))
        if now >= self._tick_at:  # what has become due meanwhile is dealt with at the next look
            if (progress := self.open_step.progress()) is not None:
                self.core.submitted(*progress)
            self._carrier.carry_out(self.core.tick(now))
        if effects := self._observer.go_on(now):
            self._carrier.carry_out(effects)

    def listening(self) -> Listening | None:
        """For data frames, if a step is open that goes on with these."""
        run, submission = self.open_step.run, self.open_step.submission
        if run is None or submission is None or self.shared() is not None:
            return None
        self._listening.is_for_much = run.awaited_bytes(submission) > MUCH_BYTES
        return self._listening

    def wait_for_data(self, timeout_s: float) -> bool:
        return self.resources.transport.wait_for_data(timeout_s)

    def take_data(self) -> None:
        self.resources.transport.pacer.go_on()
        for header, payload in self.measuring.timed(self.resources.transport.receive_data()):
            self._take_data(header, payload)

    def crash(self, error: BaseException) -> None:
        logger.error("the loop of peer %s failed", self.core.me, exc_info=error)
        self.inbox.tell_crash(error)

    def close(self) -> None:
        """Let go of everything, apart from the arena of a peer that comes back."""
        try:
            self._neighbours.close()
            self.open_step.stop()  # what ran over the memory of others lets go of it
        finally:
            self.resources.release(keeps_memory=self._keeps_memory)

    # What arrives.

    def _take_control(self, frame: bytes) -> None:
        try:
            envelope = self._frames.read_control(frame)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)
            self.seeds.hear_invalid(self.now(), self.core, error)
            return
        if isinstance(envelope, StatusQuery):
            answer = StatusAnswer(time.monotonic_ns(), self.resources.seen.shown)
            self.resources.transport.answer(ANSWER_CODEC.encode(answer))
            return
        effects = self.core.receive(self.now(), envelope)
        if effects and isinstance(envelope.body, m.Died):
            self.note(Kind.GONE, peer=peer_number(envelope.sender.peer_id), how=How.LAUNCHER)
        self._carrier.carry_out(effects)

    def _take_data(self, frame: memoryview, payload: memoryview) -> None:
        try:
            match self._frames.read_data(frame, payload):
                case Segment() as segment:
                    effects = self.open_step.receive(segment)
                    self.measuring.watch(self.open_step)
                    self._carrier.carry_out(effects)
                case Envelope() as envelope:
                    self._carrier.carry_out(self.core.receive(self.now(), envelope))
                case Delivery() as delivery:
                    self._carrier.carry_out(self._observer.receive(self.now(), delivery))
                case Taken() as taken:
                    self._donor.taken(self.now(), taken)
                case Wish() as wish:
                    self._carrier.take_wish(wish)
                case ChunkQuery(source, step, chunks):
                    self._donor.ask_for_chunks(self.now(), source, step, chunks)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)

    def _seek(self, request: Callable[[], list[fx.Effect]]) -> None:
        """Go on towards a seat, or tell the training thread why there will be none."""
        try:
            effects = request()
        except (RegistryError, RemovedFromView, RunEnded) as error:
            self.inbox.tell(error)
            return
        if effects and self._seat.role is Role.JOINER:
            self._carrier.expect()
        self._carrier.carry_out(effects)

"""The loop: owns a peer's sockets, its clock and its protocol state, and is driven by one thread at a time.

It passes received messages to the core (gossip) and to the open step (step/), and has their effects carried out
(executor.py). The thread that holds the drive lock (ownership.py) drives, so no other lock is needed: finishing a step
and installing a view never interleave.
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
from ..host.prefaulted_memory import PrefaultedMemory
from ..host.registry import Registry
from ..memory.shared_runner import IDLE, WAITING, RunState
from ..net.frames import ANSWER_CODEC, ChunkQuery, Delivery, Frames, Segment, StatusAnswer, StatusQuery, Taken
from ..net.parcels import ShareRequest
from ..net.transport import Polled
from ..step.call_path import CallPath
from ..step.notices import StateOffer
from ..step.open_step import OpenStep
from ..step.operation import Operation
from ..step.waiting import explain_waiting
from ..telemetry.records import How, Kind, peer_number
from .busy_poll import BusyPoll
from .executor import Executor, Parts
from .exit_looks import ExitLooks
from .inbox import Inbox
from .measuring import Measuring
from .neighbours import Neighbours, claim_of
from .own_entry import OwnEntry
from .reactor import Reactor
from .resources import Resources, acquire
from .seat_request import SeatRequest
from .seeds import Seeds

logger = logging.getLogger("p2p")

MUCH_BYTES: Final = 256 << 10
"""A wait for an operation larger than this sleeps at once: the sender needs the core."""


class Loop:
    """The running protocol of one peer. `explain`, `now`: for any thread; posted commands: for the driving thread.

    Attributes:
        core: its part in the protocol.
        open_step: the step in progress.
        inbox: notices for the training thread.
        note: writes into the flight recorder, `records.Half.note`; for the driving thread.
        measuring: measurements of its links.
        reactor: the thread that drives this.
        seeds: the addresses that it calls.
        resources: its open resources.
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
            former: the loop of a removed peer, stopped: this one continues as the same peer, in another incarnation.
            wait_s: delay before it asks for a seat.
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
                self._acquaintances += former.core.bootstrap_claims()
        self.inbox = Inbox()
        self.note = self.resources.telemetry_page.loop.note
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
        gives, least_bytes = (self._frames.send_parcel, self._frames.send_share_request), config.least_shared_bytes
        self._donor = Donor(
            *gives, segment_bytes=config.segment_bytes, least_shared_bytes=least_bytes, make_room=PrefaultedMemory
        )
        send = self._frames.send_taken, self._frames.send_chunk_query
        self._observer = Observer(self.core, self.open_step, *send, PrefaultedMemory)
        self._carrier = Executor(
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
        self._listening = BusyPoll(transport.has_data)
        self._next_link_check = self._tick_at = 0.0
        self._exit_looks, self._keeps_memory = ExitLooks(), False

    @property
    def peer_id(self) -> str:
        return self.resources.own.peer_id

    now = staticmethod(time.monotonic)
    """The clock of this peer, in seconds."""

    @property
    def is_alone(self) -> bool:
        """Whether no other peer was in the registry when this peer entered."""
        return self._seat.role is Role.FOUNDER

    @property
    def dropped_frames(self) -> dict[str, int]:
        """Numbers of received frames that were dropped, by reason."""
        dropped = dict(self.resources.transport.dropped)  # copied in one go: the loop's thread continues to count
        num_invalid = dropped.pop("invalid", 0) + self.open_step.num_refused
        return {**dropped, "invalid": num_invalid} if num_invalid else dropped

    @property
    def num_sent_bytes(self) -> int:
        """Bytes of operations sent in frames."""
        return self._frames.num_sent_bytes

    def explain(self) -> str:
        """Snapshot of what the open step waits for."""
        return explain_waiting(self.core, self.open_step, self.now())

    def end_incarnation(self) -> bool:
        """Stop, but keep the arena for the next incarnation of this peer. Returns the result of `Reactor.stop`."""
        self._keeps_memory = True
        return self.reactor.stop()

    # Commands of the training thread; to be posted.

    def ask_for_seat(self, founding_size: int, run: Run, replica: Replica) -> None:
        """Found the swarm, or ask its members for a seat."""
        self._carrier.use(replica)
        self._seek(lambda: self._seat.ask(self.now(), self.core, self.seeds, run, founding_size))

    def replace_run(self, run: Run) -> None:
        """Switch to another model after the last step, as do all members."""
        self.core.replace_run(run)

    def submit(self, step: int, attempt: int, operation: Operation) -> None:
        """As `OpenStep.submit`, unless this peer has failed."""
        if step != self._exit_looks.step:
            self._carrier.begin_exchange()
            self._exit_looks.begin(self.now(), step)
        if self.inbox.failure is None and (effects := self.open_step.submit(step, attempt, operation)):
            self.measuring.watch(self.open_step)
            self._carrier.carry_out(effects)

    def close_step(self, attempt: int, state_digest: bytes, took_us: int = 0, place: CallPath | None = None) -> None:
        """As `OpenStep.close`, unless this peer has failed."""
        if self.inbox.failure is None and (effects := self.open_step.close(attempt, state_digest, took_us, place)):
            self._carrier.carry_out(effects)

    def withdraw(self, step: int, attempt: int) -> None:
        """As `OpenStep.withdraw`, unless this peer has failed."""
        if self.inbox.failure is None:
            self._carrier.carry_out(self.open_step.withdraw(step, attempt))

    def void(self, step: int, reason: str) -> None:
        """As `OpenStep.void`, unless this peer has failed."""
        if self.inbox.failure is None:
            self._carrier.carry_out(self.open_step.void(step, reason))

    @property
    def is_asked_for_state(self) -> bool:
        """Whether a peer waits for the state or a share of it, or lags. For any thread."""
        return self._donor.is_asked or self.core.has_joiner_in_need(self.now())

    def state_complete(self, step: int, packer: Packer, view: View | None = None) -> None:
        """The state after `step`, committed in `view`, may be copied with `packer`, until the next commit."""
        self._donor.complete(step, packer, view)
        self._carrier.carry_out(self.core.state_available(self.now(), step))
        self._carrier.serve_state()

    def state_withheld(self, step: int, patience_s: float = 0.0) -> None:
        """The training thread waits in an operation, perhaps before `optimizer.step`: no peer may wait for its state.

        Exception: for `patience_s`, peers that may get what they lack in another way.
        """
        self._donor.withhold(step, patience_s)
        self._carrier.serve_state()

    def loaded(
        self, offer: StateOffer, state_digest: bytes | None, operations: Sequence[Operation] | None = None
    ) -> None:
        """The offered state is loaded. Arguments as of `OpenStep.loaded`."""
        self.open_step.loaded(offer.step, state_digest, operations, is_due=offer.is_due)
        self.note(Kind.LOADED, offer.step)
        self._carrier.carry_out(self._observer.loaded(self.now(), offer.step, offer.chain))

    def not_loaded(self, offer: StateOffer, refusal: JoinRefused | None) -> None:
        self._carrier.carry_out(self._observer.not_loaded(self.now(), offer.step, offer.chain, refusal))

    def leave(self) -> None:
        """Announce that this peer leaves; `reactor.ended` is set when the others can continue without it."""
        self.note(Kind.LEAVES, self.core.done)
        self._carrier.carry_out(self.core.leave(self.now()))

    def interrupt(self) -> None:
        """As `leave`; after that no submitted tensors are read or sent, so that the script may write to them."""
        self.resources.host_memory.install(None)
        self.open_step.stop()
        self.resources.transport.stop_data()
        self.leave()

    # Driven by the reactor.

    def begin(self) -> None:
        """Contact the known peers."""
        if (doorbell := self.resources.host_memory.doorbell) is not None:
            self.resources.transport.watch(doorbell.fd)
        for claim in self._acquaintances:
            self._carrier.carry_out(self.core.meet(self.now(), claim))

    def next_deadline(self) -> float:
        """The next deadline: of the core, the checks of links and processes, the measurements, or the pacer."""
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
        except DeviceLost as error:  # the sum is not published
            self.inbox.tell(error)
            self.open_step.stop()
            self.leave()
            return IDLE
        if effects:
            self._carrier.carry_out(effects)
        if state is WAITING or not self.core.has_finished or (runner := self.shared()) is None:
            return state  # no other member has finished the step, or those that have announce it in frames
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
        """Process received frames, links, and due work."""
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
            members = () if self.core.view is None else self.core.view.members  # is one of this host exiting?
            for member in self._neighbours.exiting(members):
                self._carrier.declare_dead(member, "all its threads are exiting", self._neighbours.record_of(member))
        if now >= self._tick_at:  # work that became due meanwhile is done next time
            if (progress := self.open_step.progress()) is not None:
                self.core.submitted(*progress)
            self._carrier.carry_out(self.core.tick(now))
        if effects := self._observer.advance(now):
            self._carrier.carry_out(effects)

    def busy_poll(self) -> BusyPoll | None:
        """Polling for data frames, if the open step waits for these."""
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
        """Release all resources, except the arena of a peer that returns."""
        try:
            self._neighbours.close()
            self.open_step.stop()  # releases the memory of others
        finally:
            self.resources.release(keeps_memory=self._keeps_memory)

    # Received frames.

    def _take_control(self, frame: bytes) -> None:
        try:
            envelope = self._frames.read_control(frame)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)
            self.seeds.hear_invalid(self.now(), self.core, error)
            return
        if isinstance(envelope, StatusQuery):
            answer = StatusAnswer(time.monotonic_ns(), self.resources.telemetry_page.shown)
            self.resources.transport.answer(ANSWER_CODEC.encode(answer))
            return
        self.seeds.hear(envelope.sender, self.core)
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
                    self._donor.acked(self.now(), taken)
                case ShareRequest() as wish:
                    self._carrier.take_share_request(wish)
                case ChunkQuery(source, step, chunks):
                    self._donor.ask_for_chunks(self.now(), source, step, chunks)
        except RemoteProtocolError as error:
            self.resources.transport.count_invalid(error)

    def _seek(self, request: Callable[[], list[fx.Effect]]) -> None:
        """Continue the request for a seat, or tell the training thread why it cannot succeed."""
        try:
            effects = request()
        except (RegistryError, RemovedFromView, RunEnded) as error:
            self.inbox.tell(error)
            return
        if effects and self._seat.role is Role.JOINER:
            self._carrier.expect()
        self._carrier.carry_out(effects)

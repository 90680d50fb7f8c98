"""The loop: owns a peer's sockets, its clock and its protocol state, and is driven by one thread at a time.

It carries out what `gossip.Core` asks for, feeds arriving segments to the operations of the open step, and tells the
training thread what came of it through `inbox`. Whoever holds the drive lock (ownership.py) drives, so nothing else
needs a lock: finishing a step and installing a view can never interleave.
"""

import logging
import math
import os
import random
import time
from collections import Counter
from queue import SimpleQueue

from gossip import Claim, Core, Envelope, Member, View
from gossip import effects as fx
from gossip import messages as m

from ..catchup.donor import Donor
from ..catchup.observer import Observer
from ..config import LoopConfig
from ..errors import RegistryError, RemoteProtocolError, ShoalError, error_of
from ..host.registry import Registry, Role
from ..memory.shared_runner import RunState, Sharing
from ..net.frames import Delivery, Frames, Segment, Taken
from ..net.parcels import Packer, StateRecord
from ..step.notices import Notice, StateOffer
from ..step.operations import Operation
from ..step.receipts import Moment
from ..step.steps import Steps
from .driver import Driver
from .neighbours import Neighbours, claim_of
from .resources import Resources, enter
from .seeds import Seeds

logger = logging.getLogger("p2p")

RUN_IS_OVER = (
    "nobody of the swarm is left: its run has ended, and this peer, which has a state of it, had no seat; "
    "start all peers again to go on from a checkpoint"
)


class Loop(Driver):
    """The running protocol of one peer. `explain`: any thread; the rest: the training thread."""

    def __init__(self, registry: Registry, config: LoopConfig, former: "Loop | None" = None) -> None:
        """Enter the registry and bind the sockets; `start` begins to use them.

        Args:
            registry: of the swarm.
            config: settings.
            former: was removed, and has stopped: this one goes on as the same peer, in another incarnation.
        """
        resources: Resources = enter(registry, config, time.time_ns(), None if former is None else former.resources)
        super().__init__(resources.transport.wake)
        self.resources: Resources = resources
        own, self.host_memory = resources.own, resources.host_memory
        self._doorbell = self.host_memory.doorbell
        self._acquaintances = [claim_of(entry) for entry in resources.others]
        if former is not None:
            self._acquaintances += former.core.acquaintances()
        self.peer_id: str = own.peer_id
        self._is_back = former is not None
        self.now = time.monotonic
        self.moments: SimpleQueue[Moment] = SimpleQueue()
        self._registry = registry
        self._config = config
        self.core: Core = Core(
            claim_of(own), rng=random.Random(own.incarnation), config=config.core, now=time.monotonic()
        )
        self._page, self._transport = resources.page, resources.transport
        self._frames = Frames(self.core.me, self._transport)
        self._neighbours = Neighbours(self._transport, registry)
        self.seeds = Seeds.of(config, resources, self._frames)
        self._steps = Steps(
            self.core,
            self._frames,
            segment_bytes=config.segment_bytes,
            now=self.now,
            carry_out=self._carry_out,
            tell=self._tell,
            note=self._note,
            share=lambda view: self.host_memory.share(view, self.core.me),
        )
        self._donor = Donor(self._frames.send_parcel, segment_bytes=config.segment_bytes)
        self._observer = Observer(
            self.core,
            self._frames.send_taken,
            self._steps,
            now=self.now,
            carry_out=self._carry_out,
            tell=self._tell,
            note=self._note,
        )
        self._role = own.role
        self._layout: tuple[str, bytes] | None = None
        self._next_link_check = 0.0
        self._failure: ShoalError | None = None
        self._next_look = 0.0
        self._keeps_memory = False

    def end_incarnation(self) -> None:
        """As `stop`, but keep the arena, for the next incarnation of this peer."""
        self._keeps_memory = True
        self.stop()

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was in the registry when this peer entered."""
        return self._role is Role.FOUNDER

    # Commands of the training thread; to be posted.

    def ask_for_seat(self, founding_size: int, layout: tuple[str, bytes]) -> None:
        """Found the swarm, or ask its members for a seat."""
        if self._layout is None:
            self._layout, self._founding_size = layout, founding_size
            self._take_part(layout)

    def _take_part(self, layout: tuple[str, bytes]) -> None:
        now = time.monotonic()
        if self._role is Role.JOINER:
            self._note("asked", self.core.done)
            if not self._is_back:
                self.seeds.may_found(now, self.core, self._founding_size, self._config.policy)
            self._carry_out(self.core.ask_for_seat(now, layout, follows=bool(layout[0])))
        elif self._is_back or self.core.digest:
            self._tell(RegistryError(RUN_IS_OVER))
        else:
            self._carry_out(self.core.found(now, os.urandom(16), self._founding_size, layout, self._config.policy))

    def submit(self, step: int, attempt: int, operation: Operation) -> None:
        """As `Steps.submit`, unless this peer cannot go on."""
        if self._failure is None:
            self._steps.submit(step, attempt, operation)

    def close(self, step: int, attempt: int, state_digest: bytes) -> None:
        """As `Steps.close`, unless this peer cannot go on."""
        if self._failure is None:
            self._steps.close(step, attempt, state_digest)

    def withdraw(self, step: int, attempt: int) -> None:
        """As `Steps.withdraw`, unless this peer cannot go on."""
        if self._failure is None:
            self._steps.withdraw(step, attempt)

    def state_complete(self, step: int, packer: Packer) -> None:
        """The state after `step` may be copied with `packer`, until the next commit."""
        self._donor.complete(step, packer)
        self._serve_state()

    def state_withheld(self, step: int) -> None:
        """The training thread waits in an operation, maybe before `optimizer.step`: nobody may wait for its state."""
        self._donor.withhold(step)
        self._serve_state()

    def loaded(self, offer: StateOffer, contributors: tuple[str, ...], state_digest: bytes | None) -> None:
        """The state that was offered is loaded. Arguments as of `Steps.loaded`."""
        self._steps.loaded(offer.step, contributors, state_digest)
        self._observer.loaded(offer.step, offer.chain)

    def leave(self) -> None:
        """Say so, and set `ended` when the others can do without this peer."""
        self._carry_out(self.core.leave(time.monotonic()))

    # What the thread drives.

    def _begin(self) -> None:
        if self._doorbell is not None:
            self._transport.watch(self._doorbell.fd)
        for claim in self._acquaintances:
            self._carry_out(self.core.meet(time.monotonic(), claim))

    @property
    def _sharing(self) -> Sharing | None:
        return self._steps.sharing

    def _advance(self) -> RunState:
        try:
            return self._steps.advance()
        except RemoteProtocolError as error:
            self._transport.count_invalid(error)
            return RunState.IDLE

    def _close(self) -> None:
        self._neighbours.close()
        self._transport.close()
        self._registry.leave()
        self._page.close()
        self._page.remove()
        self._steps.install()  # what ran over the memory of others lets go of it
        self.host_memory.vacate()
        if not self._keeps_memory:
            self.host_memory.close()

    def _crash(self, error: BaseException) -> None:
        logger.error("the loop of peer %s failed", self.core.me, exc_info=error)
        self._tell(ShoalError(f"the loop of this peer failed: {error!r}; see the log"))
        self._stopping.set()

    def _look(self, standing: RunState, limit: float = math.inf) -> None:
        deadline = self.core.next_deadline()
        timeout_s = self._sleep(standing, min(deadline, self._next_link_check, limit))
        self.drive_lock.begin_wait()
        ready = self._transport.poll(timeout_s)
        self.drive_lock.end_wait()
        self.drive_lock.seen()
        self._awake()
        if self._doorbell is not None and self._doorbell.fd in ready.fds:
            self._doorbell.clear()
        for member in self._neighbours.ended(ready.fds):
            self._bury(member, "its process has ended", self._neighbours.record_of(member))
        self._run_commands()
        if ready.data:
            for header, payload in self._transport.receive_data():
                self._take_data(header, payload)
            self._steps.try_finish()
        if ready.control:
            for frame in self._transport.receive_control():
                self._take_control(frame)
        now = time.monotonic()
        if now >= self._next_link_check:
            self._next_link_check = now + self._config.link_check_s
            self._carry_out(self._neighbours.check_links(now, self.core))
            self._donor.expire(now)
            self.seeds.call(now, self.core)
            self._try_take_over(now)
        if now >= deadline:  # what has become due meanwhile is dealt with at the next look
            self._steps.report()
            self._carry_out(self.core.tick(now))
        self._observer.go_on()

    # Frames.

    def _take_control(self, frame: bytes) -> None:
        try:
            envelope = self._frames.read_control(frame)
            if isinstance(envelope.body, m.Died):  # as good as the word of our own kernel
                self._bury(envelope.sender, "its launcher says that its process has ended", envelope.body.record)
            else:
                self._carry_out(self.core.receive(time.monotonic(), envelope))
        except RemoteProtocolError as error:
            self._transport.count_invalid(error)

    def _take_data(self, frame: memoryview, payload: memoryview) -> None:
        try:
            match self._frames.read_data(frame, payload):
                case Segment() as segment:
                    self._steps.receive(segment)
                case Envelope() as envelope:
                    self._carry_out(self.core.receive(time.monotonic(), envelope))
                case Delivery() as delivery:
                    self._observer.receive(delivery)
                case Taken() as taken:
                    self._donor.taken(time.monotonic(), taken)
        except RemoteProtocolError as error:
            self._transport.count_invalid(error)

    # Effects of the core.

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send(target, body):
                    if not isinstance(body, m.StateQuery) or self._observer.may_ask(target):
                        self._frames.send(target, body)
                case fx.WriteRecord(record):
                    self._page.write(record)
                case fx.Explain(reason) | fx.Resumed(reason):
                    logger.info("%s", reason)
                case fx.Strangers(reason) | fx.Paused(reason=reason, is_final=False):
                    logger.warning("%s", reason)
                case fx.Discovered(claim):
                    self._link(claim)
                case fx.Forget(member):
                    self._neighbours.unlink(member)
                    self.host_memory.forget(member)
                    self._carry_out(self.core.can_read(time.monotonic(), member, is_so=False))
                    self._donor.forget(member)
                    self._observer.forget(member)
                case fx.Installed(view):
                    self._install(view)
                case fx.Activated(view, done, shares):
                    self._donor.seated(view)
                    self._observer.seated()
                    self._steps.activate(view, done, shares=shares)
                case fx.Committed(finish, view):
                    commit = self._steps.commit(finish, view)
                    feeds = [effect for effect in effects if isinstance(effect, fx.Feed)]
                    self._donor.feed(time.monotonic(), feeds, finish, commit)
                    self._tell(commit)
                case fx.Apply(step, digest):
                    self._observer.apply(step, digest)
                case fx.Aborted(step, reason):
                    self._steps.give_up(step, reason)
                case fx.Provide(member, step):
                    has_seat = self.core.view is not None and self.core.view.since(member) is not None
                    self._donor.ask(member, step, has_seat=has_seat)
                    self._serve_state()
                case fx.Overheard(source, abort):
                    self._steps.overhear(source, abort)
                case fx.Left(reason):
                    logger.info("left: %s", reason)
                    self.host_memory.install(None)
                    self.ended.set()
                case fx.Refused() | fx.Removed() | fx.Paused() | fx.Diverged():
                    self.host_memory.install(None)
                    self._tell(error_of(effect))

    def _link(self, claim: Claim) -> None:
        if reason := self._neighbours.link(claim):
            self._bury(claim.member, reason)
        elif self._neighbours.is_watched(claim.member):
            is_so = self.host_memory.map(claim.member, claim.contact.pid)
            self._carry_out(self.core.can_read(time.monotonic(), claim.member, is_so=is_so))

    def _install(self, view: View) -> None:
        self.host_memory.install(view)  # before anything is said in it
        logger.info("view %d: %s", view.number, ", ".join(map(str, view.members)))
        self._note("installed", view.number)
        self._frames.install(view)
        self._steps.install()
        self._donor.install(view)
        self._registry.mark_member()
        self._neighbours.open_records(view.members)

    # State for joiners.

    def _serve_state(self) -> None:
        """Send the state to whoever waits for it, if this is the time at which it may be copied."""
        if self.core.seated and (view := self.core.view) is not None:
            record = StateRecord(self.core.digest, view)
            for member, reason in self._donor.serve(time.monotonic(), self.core.done, record):
                self._bury(member, reason)  # nobody else can send it either: go on without the joiner

    # Life and death.

    def _bury(self, member: Member, reason: str, record: m.AcceptorRecord | None = None) -> None:
        self._next_look = 0.0
        if effects := self.core.bury(time.monotonic(), member, reason, record):
            self._note("gone", member.peer_id)
            self._carry_out(effects)

    def _try_take_over(self, now: float) -> None:
        """If nobody whom this peer could join is alive, found the swarm, or hear that its state is lost."""
        is_waiting = self._role is Role.JOINER and self.core.view is None and self._failure is None
        if self._layout is None or not is_waiting or now < self._next_look:
            return
        self._next_look = now + self._config.look_s
        try:
            self._role = self._registry.take_over().own.role
        except RegistryError as error:
            self._tell(error)
        if self._role is Role.FOUNDER:
            self._take_part(self._layout)

    def explain(self) -> str:
        """What the open step waits for; a snapshot, from any thread."""
        return f"{self.core.phase.name}, {self._steps.explain()}"

    @property
    def dropped_frames(self) -> dict[str, int]:
        return dict(self._transport.dropped + Counter(invalid=self._steps.num_refused))

    def _tell(self, arrival: Notice) -> None:
        """Let the training thread know. After an error that ends this peer there is no further one."""
        if isinstance(arrival, ShoalError) and not arrival.goes_on:
            if self._failure is not None:
                return
            self._failure = arrival
        self.inbox.put(arrival)

    def _note(self, event: str, detail: str | int) -> None:
        if self._config.keep_moments:
            self.moments.put(Moment(time.monotonic(), event, detail))

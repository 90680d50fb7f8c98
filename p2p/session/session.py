"""The training thread's side of a peer: the steps that it opens and waits for as a member of its swarm.

Used by one thread at a time (callers.py).
"""

from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty
from typing import Any, TypeVar

import numpy as np

from collectives import Array
from gossip import View

from ..catchup.replica import Replica
from ..config import PeerConfig
from ..device import Device
from ..errors import RemovedFromView, ShoalError, StepTimeout
from ..loop.loop import Loop
from ..loop.seat_request import AllMembersDead
from ..step.notices import Commit, Complete, Notice, StateOffer, Uncommitted, Withdrawn
from ..step.operation import Operation, Outcome
from ..telemetry.logged import Logged
from ..telemetry.records import Kind
from .attempt import Attempt, OpenedBy
from .callers import BACKWARD_CALL, Callers
from .membership import Membership, StateDigest
from .own_operations import OwnOperations
from .step_deadline import StepDeadline

BEGUN, SUBMITTED, RECEIVED, BUCKET = Kind.BEGUN, Kind.SUBMITTED, Kind.RECEIVED, Kind.BUCKET
"""Used in each step: access to enum members is slow."""

Awaited = TypeVar("Awaited", bound=Notice)

FED_WITHIN_S = 1.0
"""How long a joiner in a barrier may ask for a state between two updates of a batch; after that it is no longer fed."""


class Session:
    """The base of `Peer` and `DataParallel`.

    Attributes:
        membership: in the swarm.
        history: what is committed.
        share: of the samples.
        callers: check which thread may call now.
        note: writes to the flight recorder, in the half of the training thread.
        logged: values that the script logs.
        device_of: returns the device of a tensor.
        used_device: device of the model, or of the first tensor on a device, and its name.
        mixed: treatment of peers of several numerics classes, as in `PeerConfig`.
        round_edge: called when the script asks for a batch, if steps are rounds.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the registry; `take_seat` asks for a seat."""
        self.membership = Membership(config)
        self.history = self.membership.history
        self.share = self.membership.share
        self._limit_s, self._join_limit_s, self._seat_s = config.step_timeout_s, config.join_timeout_s, 0.0
        self.note = self.loop.resources.telemetry_page.training.note  # in all incarnations
        self._attempt = Attempt()
        self.callers = Callers(self._attempt, self.membership.interrupt)
        self.logged = Logged()
        self.mixed, self.device_of = config.mixed, config.loop.device_of
        self.used_device: tuple[Device, str] | None = None
        self._skipped = ""
        self._committed_s = self.loop.now()
        self.round_edge: Callable[[], None] = lambda: None
        self._offer: StateOffer | None = None
        self._own = OwnOperations(self.history)

    @property
    def loop(self) -> Loop:
        """The loop of the present incarnation of this peer."""
        return self.membership.loop

    @property
    def done(self) -> int:
        """The last committed step; -1 before step 0."""
        return self.history.done

    @property
    def num_submitted(self) -> int:
        """Number of operations of the open step so far."""
        return len(self._attempt.operations)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A one-dimensional array of undefined elements, in the arena if there is room."""
        host_memory = self.membership.loop.resources.host_memory  # of the current loop: a peer may return
        return host_memory.empty(count, dtype)

    def take_seat(self, replica: Replica | None = None, *, loads: bool = False) -> View:
        """As `Membership.take_seat`."""
        with self.callers.call("p2p.DataParallel"):
            return self.membership.take_seat(replica, loads=loads)

    def wait_view(self, timeout_s: float | None = None) -> View:
        """As `Membership.wait_view`."""
        with self.callers.call("peer.wait_view"):
            return self.membership.wait_view(timeout_s)

    def state_is_complete(self, *, is_over: bool = True) -> None:
        """As `StateCompletion.pass_begins`."""
        with self.callers.call("a forward pass"):
            self.membership.edge.pass_begins(is_over=is_over)

    def leave(self) -> None:
        """As `Membership.leave`, from any thread: a call of another thread ends with an error."""
        self.callers.check_process("peer.leave")
        self.membership.leave(is_aside=self.callers.other is not None)

    # Steps.

    def open_step(self, by: OpenedBy) -> None:
        """Open step done + 1; until it is committed or withdrawn, opening another raises an error that names it.

        Raises:
            ShoalError: a step is open already; this peer cannot continue; or a timed round is in progress, which this
                step does not end.
        """
        with self.callers.call(BACKWARD_CALL):
            self.membership.check_usable()
            self._open_step(by, is_given=self.membership.edge.is_given or not self.membership.trains_model)

    def _open_step(self, by: OpenedBy, *, is_given: bool = True) -> None:
        """As `open_step`, within a call, for a usable peer."""
        if by is not OpenedBy.EXCHANGE:
            self.share.check_is_not_timed()
        self.callers.num_acts += 1
        self._attempt.begin(by)
        if self._offer is not None and (by is OpenedBy.BACKWARD or not self.history.lacks_state):
            self.membership.loop.inbox.notices.put(self._offer)  # the script has not asked for a batch
            self._offer = None
        self.callers.open_step()
        self.note(BEGUN, self.history.done + 1)
        if self.share.is_amid_batch or not is_given:  # the state before this step, for observers fed too little
            self.membership.post(partial(self.membership.loop.state_withheld, self.history.done, FED_WITHIN_S))
        if self._skipped:
            self.membership.post(partial(self.membership.loop.void, self.history.done + 1, self._skipped))
            self._skipped = ""

    def submit(self, operation: Operation, *, is_urgent: bool = True) -> None:
        """Add an operation to the open step; the loop's thread runs it.

        `is_urgent` is False if more of the step follows, which it may wait for.
        """
        with self.callers.call(BACKWARD_CALL):
            self.membership.check_usable()
            self.callers.num_acts += 1
            self._attempt.add(operation)
            self.membership.post(self._submission(operation), is_urgent=is_urgent)

    def commit(self, state_digest: StateDigest | None = None, *, is_round: bool = False) -> bool:
        """Close the open step, and wait until all have finished it.

        The caller then hands out the results, and calls `announce`.

        Args:
            state_digest: of the parameters for step done + 1; computed again if a member's state was loaded meanwhile.
                None: the step is not one of the trained model, so its result cannot be taken over from others.
            is_round: no state can be loaded within the step.

        Returns:
            Whether it is committed. If not, a member's state was offered that cannot be loaded within this step, which
            is withdrawn: call `load_offer` next.
        """
        with self.callers.call(BACKWARD_CALL):
            self.membership.check_usable()
            self.callers.num_acts += 1
            buckets = self._attempt.new_buckets()
            for num_bytes in buckets:
                self.note(BUCKET, self.history.done + 1, size=len(buckets), value=num_bytes)
            self.note(SUBMITTED, self.history.done + 1)
            self.membership.post(self._closing(state_digest))
            awaited = (Commit,) if state_digest is None else (Commit, StateOffer)
            arrival = self._await(awaited, state_digest, is_round=is_round)
            if isinstance(arrival, StateOffer):
                if self._await_withdrawn(self._attempt.number - 1):  # the last attempt
                    self._offer = arrival
                self._own.took_step_back()
        return isinstance(arrival, Commit)

    def advance(self, num_inner_steps: int) -> None:
        """Report the local steps made in the current round to the members that wait for its end."""
        self.membership.post(
            partial(self.membership.loop.core.advanced, self.history.done + 1, num_inner_steps), is_urgent=False
        )

    def load_offer(self) -> bool:
        """Load the state that `commit` has kept, before a round or a batch begins. Returns whether there was one."""
        offer, self._offer = self._offer, None
        if offer is not None:
            with self.callers.call("a batch of a loader"):
                self.membership.check_usable()
                self.callers.num_acts += 1
                self.share.give_up_step()  # the previous batch is over
                self.membership.load(offer, None)
        return offer is not None

    def withdraw(self, skipped: str = "") -> None:
        """Withdraw the operations of the open step, if one is open. The others wait for the next submission.

        Args:
            skipped: why the script skips this step. It is then void for the others, too, when the script continues; if
                the script leaves instead, they redo it without this peer.
        """
        with self.callers.call("a forward pass"):
            self.callers.check_pass("a forward pass")
            if self._attempt.opened_by is not None:
                is_told = any(operation.is_uncommitted for operation in self._attempt.operations)
                self.membership.check_usable()
                is_here = self._await_withdrawn(self._attempt.number)
                self._skipped = skipped if is_here and not is_told else ""

    def _await_withdrawn(self, attempt: int) -> bool:
        """Withdraw that attempt. False if the others have continued without this peer, which has returned since."""
        self.callers.num_acts += 1
        self.membership.post(partial(self.membership.loop.withdraw, self.history.done + 1, attempt))
        try:
            self._await((Withdrawn,))
        except RemovedFromView as error:
            self._return_after(error)
            return False
        return True

    def _return_after(self, removed: RemovedFromView) -> None:
        self.membership.return_after(removed)
        self.history.lacks_state = True
        self._offer, self._seat_s = None, self._join_limit_s  # its next step may also wait this long for a seat

    def run_alone(self, operation: Operation) -> None:
        """Run the only operation of a step, or the last after early ones, in the calling thread; commit it."""
        self.membership.take_seat()
        self._open_step(OpenedBy.ALONE)
        self._attempt.add(operation)
        self.note(SUBMITTED, self.history.done + 1)
        commands = self.membership.offer_or_withhold_state(), self._submission(operation), self._closing(None)
        self._await((Commit,), None, commands)

    def replace_replica(self, replica: Replica, operation: Operation) -> None:
        """Agree with all members on another model, in a step of its own; joiners must match that from then on."""
        with self.callers.call("DataParallel.refresh"):
            self.membership.edge.withhold()
            self.run_alone(operation)
            self.membership.describe(replica)
            self.history.announce()

    def may_run_early(self, operation: Operation) -> bool:
        """Whether `run_early` may be called; the answer is the same on every member.

        False if a model is trained, since observers are fed whole steps; and if the open step has enough operations.
        """
        return not self.membership.trains_model and self._attempt.takes(operation)

    def run_early(self, operation: Operation) -> Outcome:
        """Run an operation of the next committed step, and return its outcome once that is complete here."""
        self.membership.take_seat()
        self._open_step(OpenedBy.EARLY)
        self._attempt.add(operation)
        try:
            commands = self.membership.offer_or_withhold_state(), self._submission(operation)
            early = self._await((Uncommitted,), None, commands)
        except BaseException:
            self._attempt.end()
            raise
        assert early.operation is operation
        return early.outcome

    def begin_batch(self) -> int:
        """Called when the script asks for its next batch, so its state is complete. Returns the last committed step."""
        with self.callers.call("a batch of a loader"):
            self.membership.check_usable()
            self.share.is_after_batch = False
            self.round_edge()
            self.load_offer()
            if self._attempt.opened_by is OpenedBy.BACKWARD or self.share.parts.is_given_up:  # it raised
                self.withdraw()
                self.share.void()
            self.share.change_model()
            self.membership.asks_for_batch()
            return self.history.done

    def _submission(self, operation: Operation) -> Callable[[], None]:
        return partial(self.membership.loop.submit, self.history.done + 1, self._attempt.number, operation)

    def _closing(self, state_digest: StateDigest | None) -> Callable[[], None]:
        """The command that closes the step. None: of the script's own operations."""
        took_us = round((self.membership.loop.now() - self._committed_s) * 1e6)
        close = partial(self.membership.loop.close_step, self._attempt.number)
        if state_digest is not None:
            return partial(close, state_digest(), took_us)
        return partial(close, b"", took_us, self._own.place() if self.membership.trains_model else None)

    def _await(
        self,
        awaited: tuple[type[Awaited], ...],
        state_digest: StateDigest | None = None,
        commands: Sequence[Callable[[], None]] | None = None,
        *,
        is_round: bool = False,
    ) -> Awaited:
        """Process notices of the loop until an `awaited` one arrives; all but early results end this attempt.

        `step_timeout_s` starts again when this peer restarts the step, and as long as missing members make local steps
        of a round. With `commands`, which run first, the calling thread drives the loop meanwhile.
        """
        submitted = [] if Uncommitted in awaited else self._attempt.end()
        patience = StepDeadline(self.membership, self._limit_s + self._seat_s)
        arrival: Notice | None = None
        offer: StateOffer | None = None
        try:
            while not isinstance(arrival, awaited):
                arrival = self._next_notice(patience, commands)
                commands = None if commands is None else ()
                if isinstance(arrival, StateOffer) and Withdrawn in awaited:
                    offer = arrival  # a running backward pass may need its parameters
                    continue
                if Commit in awaited and self._begins_anew(arrival, submitted, state_digest, is_round=is_round):
                    arrival = None
                    patience.begin(self._limit_s + self._seat_s)
                    continue
                if isinstance(arrival, StateOffer) and state_digest is None and self.history.lacks_state:
                    self._offer = arrival
                elif isinstance(arrival, Commit) and self._own.ended(arrival.operations):
                    self.history.show(arrival)
                    self.membership.edge.pass_request()
                else:
                    self.membership.handle_notice(arrival)
                if isinstance(arrival, Complete) and Commit in awaited and arrival.attempt == self._attempt.number - 1:
                    assert arrival.operation.on_complete is not None
                    arrival.operation.on_complete(arrival.view.hash)
            self.membership.replica.copies.order_after_copies()
        except ShoalError as error:
            self.membership.unusable = None if error.is_recoverable else error
            raise
        except BaseException as error:  # tensors must not be written while they may still be sent
            why = f"step {self.history.done + 1} did not commit {patience.explain()}"
            self.membership.interrupt()
            if isinstance(error, Empty):
                raise (self.membership.unusable if self.membership.has_left else None) or StepTimeout(why) from None
            raise
        if isinstance(arrival, Commit):
            self._committed(arrival)
        if offer is not None:
            self.membership.loop.inbox.notices.put(offer)  # for the next commit
        return arrival

    def _next_notice(self, patience: StepDeadline, commands: Sequence[Callable[[], None]] | None) -> Notice:
        """The next notice of the current loop: a peer may return meanwhile. Raises Empty when patience is over."""
        while True:
            try:
                if commands is None:
                    return self.membership.loop.inbox.next(patience.left_s)
                given, commands = commands, ()
                return self.membership.loop.reactor.call(*given, timeout_s=patience.left_s)
            except Empty:
                if not patience.extend_if_progress():
                    raise

    def _committed(self, commit: Commit) -> None:
        self.note(RECEIVED, self.history.done, size=self.history.num_steps, value=self.history.num_samples)
        for operation in commit.operations:
            if operation.on_complete is not None:
                operation.on_complete(commit.view.hash)
        self._committed_s, self._seat_s = self.membership.loop.now(), 0.0

    def _begins_anew(
        self, arrival: Notice, operations: list[Operation], state_digest: StateDigest | None, *, is_round: bool
    ) -> bool:
        """Whether `arrival` moves this peer to another step, with these `operations`; `is_round`: a state does not.

        A state past this step is loaded after this attempt, which ends. Without `state_digest` the operations are the
        script's own: no state contains their results, but members may provide them later.
        """
        if isinstance(arrival, StateOffer):
            self.membership.same_run.check(self.membership.replica, arrival)
        if isinstance(arrival, RemovedFromView):
            is_found = self.membership.trains_model and self._own.may_be_found(operations)
            if arrival.is_final or (state_digest is None and not is_found):
                return False
            self._return_after(arrival)
        elif state_digest is None:
            return False
        elif isinstance(arrival, AllMembersDead) and not is_round:
            self.membership.continue_as_founder(arrival, operations)
        elif isinstance(arrival, StateOffer) and not is_round and not self.membership.must_load_later(arrival.state):
            self.history.follow()
            self.membership.load(arrival, state_digest, operations)
            self._seat_s = 0.0
            return True
        else:
            return False
        for operation in operations:  # the loop of this incarnation has no open step
            self.membership.post(self._submission(operation))
        self.membership.post(self._closing(state_digest))
        self._attempt.end()
        return True

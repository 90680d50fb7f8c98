"""Membership of a peer as the training thread manages it: its seat is requested, taken, lost, regained, and left."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty

from gossip import Member, Run, View

from ..catchup.frozen import FrozenDiffer
from ..catchup.replica import Replica
from ..config import PeerConfig
from ..data.sample_tracker import SampleTracker
from ..errors import JoinRefused, JoinTimeout, RemovedFromView, ShoalError, TooSlow
from ..loop.loop import Loop
from ..loop.reactor import END_S
from ..loop.seat_request import AllMembersDead
from ..net.parcels import PackedState
from ..step.notices import Admitted, Commit, Notice, StateOffer
from ..step.operation import Operation
from ..step.receipts import NO_SAMPLES, NUM_COUNTED, Ledger
from ..step.stragglers import StragglerDetector
from .checkpointer import Checkpointer
from .description import (
    AMID_BATCH,
    INTERRUPTED,
    LEFT,
    describe_run,
    explain_late,
    explain_refusal,
    explain_unread,
    without_model,
)
from .history import History
from .incarnations import Incarnations
from .leaving import Leaving, ends_well
from .lineage import continued
from .no_seat import why_no_seat
from .same_run import SameRun
from .state_completion import StateCompletion
from .status import too_slow

logger = logging.getLogger("p2p")

REMIND_S = 5.0
"""Interval of the log messages while the script waits for a seat."""

StateDigest = Callable[[], bytes]
"""Computes the digest of the parameters for step done + 1."""


class Membership:
    """Membership of one peer, with the state that it brings and may receive.

    Attributes:
        share, history, replica: the samples, what is committed, and the state that it brings.
        edge: when the state after the last committed step is complete.
        unusable, too_slow: why this peer cannot continue, and whether that is because it is slow; None: it can.
        leaving: stage of leaving.
        keeper, same_run: of checkpoints, if there is one; tells which run a state belongs to.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the registry and start the loop, without a request for a seat."""
        self._config = config
        self._incarnations = Incarnations(config)
        self.unusable: ShoalError | None = None
        self.too_slow: TooSlow | None = None
        self.keeper: Checkpointer | None = None
        self._unrecorded: ShoalError | None = None
        try:
            page = None if config.is_traced else self.loop.resources.telemetry_page.path
            ledger = Ledger.open(config.receipts, self.loop.peer_id, self._cannot_record, page)
            self.check_usable()
        except ShoalError:
            self.loop.reactor.start()
            self.loop.reactor.stop()
            raise
        self.share = SampleTracker()
        self.history = History(self.share, ledger, StragglerDetector(config.slow_factor))
        self.same_run = SameRun(config.swarm, self.history, self.share, self._give_up, lambda: self.keeper is not None)
        self.replica = without_model(self.share)
        self.edge = StateCompletion(
            self.share,
            lambda: self.history.done,
            keep=lambda: self.replica.keep(),
            give=lambda: self.post(self._completion(), is_urgent=self.loop.is_asked_for_state),  # or a request wakes it
            write=self._write,
        )
        self._has_asked = self._was_interrupted = self._has_announced = False
        self.leaving = Leaving.NOT_YET
        self._deferred: BaseException | None = None
        self.loop.reactor.start()

    @property
    def loop(self) -> Loop:
        """The loop of the present incarnation of this peer."""
        return self._incarnations.loop

    @property
    def me(self) -> Member:
        """This peer, in its present incarnation."""
        return self.loop.core.me

    @property
    def trains_model(self) -> bool:
        return self.replica.trains_model

    @property
    def has_left(self) -> bool:
        """Whether leaving has begun."""
        return self.leaving is not Leaving.NOT_YET

    def check_usable(self) -> None:
        """Raise the error that keeps this peer from continuing, if there is one."""
        self.unusable = self.unusable or self.loop.inbox.crash
        if self.unusable is not None:
            raise self.unusable

    def post(self, command: Callable[[], None], *, is_urgent: bool = True) -> None:
        """As `Reactor.post`."""
        self.loop.reactor.post(command, is_urgent=is_urgent)

    def _cannot_record(self, why: str) -> None:
        """Called by the ledger when it cannot record receipts any more."""
        if self._config.receipts_full == "warn":
            logger.warning("%s; this peer continues without receipts, since receipts_full is `warn`", why)
            return
        self._unrecorded = ShoalError(
            f"{why}; this peer leaves, since receipts_full is `stop`: make room and join again"
        )
        self._give_up(self._unrecorded)

    def _give_up(self, why: ShoalError) -> None:
        self.unusable = self.unusable or why
        self.post(self.loop.leave)

    # Seat.

    def take_seat(self, replica: Replica | None = None, timeout_s: float | None = None, *, loads: bool = False) -> View:
        """Wait until this peer has a seat and step 0 is committed; the state of `replica` may be replaced.

        A peer that trains a model and joins a run in progress waits only for the state; the seat follows later.

        Raises:
            ShoalError: there is a checkpoint to resume from, and this call does not load it (`loads`).
            JoinRefused: the swarm runs or trains something else.
            RunEnded: this peer only joins, and the run has ended.
            JoinTimeout: there were too few peers, or no swarm, within `timeout_s` (default: join_timeout_s).
        """
        self.check_usable()
        replica = replica or self.replica
        if self._has_asked and replica is not self.replica:
            raise ShoalError(explain_late(self.replica))
        history = self.history
        if history.view is not None:
            return history.view
        if self._config.resume is not None and not loads:
            raise ShoalError(explain_unread(self._config.resume))
        self.replica, self._has_asked = replica, True
        limit_s = self._config.join_timeout_s if timeout_s is None else timeout_s
        deadline = self.loop.now() + limit_s
        self._ask()
        self.edge.mark_complete()
        while history.view is None:
            left_s = max(0.0, deadline - self.loop.now())
            try:
                arrival = self.loop.inbox.next(min(left_s, REMIND_S))
                self.handle_notice(arrival)
            except Empty:
                if left_s <= REMIND_S:
                    raise JoinTimeout(why_no_seat(self.loop, self._config, limit_s)) from None
                logger.info("%s", why_no_seat(self.loop, self._config, limit_s - left_s + REMIND_S))
                continue
            except RemovedFromView as error:
                self.return_after(error, is_asked=True)  # its script has missed no step
                continue
            except ShoalError as error:
                is_refusal = isinstance(error, JoinRefused)
                self.unusable = JoinRefused(explain_refusal(replica, self._run, error.args[0])) if is_refusal else error
                raise self.unusable from None
            match arrival:
                case StateOffer():
                    self.load(arrival, None)
                    self.edge.mark_complete()
                case Admitted(view, done) if done >= 0:
                    history.done, history.view = done, view
        history.begin()
        return history.view

    def _ask(self) -> None:
        run = replace(self._run, frozen=self.replica.frozen())
        given = replace(self.replica, is_of_other_run=partial(self.same_run.is_other, self.replica))
        self.post(partial(self.loop.ask_for_seat, self._config.min_peers, run, given))

    @property
    def _run(self) -> Run:
        return describe_run(self.replica, self._config.program, self._config.may_differ, self._config.policies())

    def wait_view(self, timeout_s: float | None = None) -> View:
        """As `take_seat`, also after a removal: the script does not need the steps that it has missed."""
        if isinstance(self.unusable, RemovedFromView):
            self.return_after(self.unusable, is_asked=True)
            self.history.view = None
            if not self.trains_model:
                self.share.give_up_batch()
        return self.take_seat(timeout_s=timeout_s)

    def return_after(self, removed: RemovedFromView, *, is_asked: bool = False) -> None:
        """Return as another incarnation, with the model as it is, and ask for a seat again.

        Raises:
            RemovedFromView: `removed`, if this peer has no model to return with and was not asked to, has returned too
                often, or must not return; or if no member is left.
        """
        self.unusable = removed  # unless it has returned
        self._incarnations.begin_another(removed, is_wanted=is_asked or self.trains_model)
        self.edge.give_again()
        self.unusable = None
        self._ask()

    def continue_as_founder(self, dead: AllMembersDead, open_step: list[Operation]) -> None:
        """All members have died: continue with this peer's state, as the founder of another lineage.

        Args:
            dead: the notice of the loop.
            open_step: submitted operations; they become the first step, which counts no samples of this peer.

        Raises:
            AllMembersDead: `dead`, if a checkpoint is newer.
            JoinTimeout: the lineage does not begin in time.
        """
        if self.keeper is not None:
            self.keeper.check_is_newest(dead)
        former, history = self.loop, self.history
        lost = continued(former.resources.registry, history.known_view().lineage.hex(), history.done)
        logger.warning("all members have died; this peer, %s, continues the run: %s", former.peer_id, lost)
        self._incarnations.begin_lineage()
        history.begin_lineage(lost)
        self.edge.give_again()
        self.post(partial(self.loop.ask_for_seat, 1, self._run, self.replica))
        deadline = self.loop.now() + self._config.join_timeout_s
        while history.done < 0:
            try:
                self.handle_notice(self.loop.inbox.next(max(0.0, deadline - self.loop.now())))
            except Empty:
                raise JoinTimeout(why_no_seat(self.loop, self._config, self._config.join_timeout_s)) from None
        self._renew(open_step)

    def interrupt(self, why: ShoalError | None = None) -> None:
        """Leave without waiting: the script has left in the middle of a call, or because of `why`.

        After that submitted tensors are not read any more: the script continues, and may write to them. Idempotent.
        """
        if self._was_interrupted:
            return
        self._was_interrupted = True
        self.unusable = self.unusable if self.has_left else why or ShoalError(INTERRUPTED)
        (self.post if why else self.loop.reactor.run)(self.loop.interrupt)
        if why is None:
            self.replica.copies.order_after_copies()

    def leave(self, *, is_aside: bool) -> None:
        """Tell the others, wait until they can continue without this peer, and close. Idempotent.

        In a signal handler, while this thread drives the loop, it only begins: the waiting operation raises, and the
        next call, by the `with` block or at exit, does the rest. `is_aside`: another thread is in a call, and is told.
        """
        reactor = self.loop.reactor
        drives = reactor.drive_lock.is_mine
        if not self._has_announced:  # also after a handler has raised amid it
            self._begin_leaving(is_aside=is_aside, is_told=is_aside or drives)
        if drives or self.leaving is not Leaving.BEGUN:
            return
        self.leaving = Leaving.CLOSING
        try:
            reactor.ended.wait(self._config.leave_timeout_s)
        finally:
            has_ended, self.leaving = reactor.stop(is_aside=is_aside), Leaving.OVER
            if not has_ended:
                logger.warning("the loop of this peer has not ended within %g s, and runs beside the script", END_S)
            self.history.close()
            if self._unrecorded is not None and self._unrecorded.__traceback__ is None:
                logger.error("%s", self._unrecorded)  # not raised by any call
        if self.keeper is not None:
            self.keeper.end_leaving()
        if self._deferred is not None:
            raise self._deferred

    def _begin_leaving(self, *, is_aside: bool, is_told: bool) -> None:
        if self.keeper is not None and not is_aside and not self.has_left:
            self.keeper.begin_leaving()
        self.leaving, self.unusable = Leaving.BEGUN, ShoalError(LEFT)
        self.loop.resources.registry.ends_well = ends_well()
        self.replica.copies.end()
        self.loop.resources.host_memory.unpin()
        if is_told:
            self.loop.inbox.tell(self.unusable)
        self.loop.reactor.post(self.loop.leave, is_aside=is_aside)
        self._has_announced = True

    def defer(self, interruption: BaseException) -> bool:
        """For a signal handler: whether this peer will raise `interruption` itself, once it can be interrupted."""
        if self.leaving is Leaving.CLOSING:
            self._deferred = interruption
            return True
        if self.keeper is not None and self.keeper.defer(interruption):
            return True
        return self.loop.reactor.drive_lock.defer(interruption)

    # Notices of the loop.

    def handle_notice(self, arrival: Notice) -> None:
        """Process a notice of the loop: steps and views become visible to the script; an error is raised."""
        self.history.follow()
        if isinstance(arrival, ShoalError):
            self.replica.copies.order_after_copies()  # a caller that catches it may change the state
            raise arrival
        if isinstance(arrival, Commit):
            self.history.add(arrival, self.loop.core.me)
            self.too_slow = self.too_slow or too_slow(self.history.speeds.slowest, self.me, self._config.slow_peers)
            self.unusable = self.unusable or self.too_slow

    # State.

    def load(
        self, offer: StateOffer, state_digest: StateDigest | None, open_step: list[Operation] | None = None
    ) -> None:
        """Take over a member's state.

        Args:
            offer: of the state.
            state_digest: given within a step, whose samples of this peer then do not count.
            open_step: operations submitted for it; recomputed for the loaded state.

        Raises:
            RunEnded: the state belongs to another run than that of this peer.
            JoinRefused: within a batch, between steps. Within a step the loop is told instead.
        """
        self.same_run.check(self.replica, offer)
        if self.share.is_amid_batch and state_digest is None:
            raise JoinRefused(AMID_BATCH)
        if self.share.is_amid_batch:
            self.post(partial(self.loop.not_loaded, offer, JoinRefused(AMID_BATCH)))
            return
        try:
            self.replica.load(offer.state)
        except FrozenDiffer:
            self.post(partial(self.loop.not_loaded, offer, None))
            return
        self.history.loaded(offer.step)
        if self.trains_model and offer.step >= 0:
            self.history.view = offer.view
        if state_digest is None:
            self.post(partial(self.loop.loaded, offer, None))
            return
        operations = [] if open_step is None else open_step
        self._renew(operations)
        self.post(partial(self.loop.loaded, offer, state_digest(), tuple(operations)))

    def _renew(self, operations: list[Operation]) -> None:
        """Convert submitted operations to the step after the last one, without samples of this peer."""
        for operation in operations:
            if operation.collective.is_counts:
                operation.input[:NUM_COUNTED] = NO_SAMPLES
                operation.collective = self.share.collective
        operations[:] = self.replica.renew(operations, self.history.done + 1, self.history.view)

    def must_load_later(self, state: PackedState) -> bool:
        """Whether `state` must be loaded after the open step: it is past the batch of that step, or of another model.

        Or the script has called an operation since it asked for that batch, and the donor has not.
        """
        is_over = self.share.is_of_loader and self.share.is_past(self.replica.samples(state))
        is_over |= self.edge.is_past_request or self.replica.is_of_other_model(state)
        return is_over and not self.share.is_amid_batch

    def describe(self, replica: Replica) -> None:
        """Replace the replica: joiners must match the new one from now on."""
        self.replica = replica
        self.post(partial(self.loop.replace_run, self._run))

    def asks_for_batch(self) -> None:
        """The script asks for its next batch, so it is done with the last step."""
        self.edge.settle()
        if not self.trains_model:
            self.edge.mark_complete()

    def offer_or_withhold_state(self) -> Callable[[], None]:
        """A command that offers or withholds the state: scripts may call operations before `optimizer.step`."""
        is_certain = self.edge.is_certain if self.trains_model else not self.edge.is_past_request
        return self._completion() if is_certain else partial(self.loop.state_withheld, self.history.done)

    def _write(self) -> None:
        if self.keeper is not None:
            self.keeper.on_state_complete()

    def _completion(self) -> Callable[[], None]:
        return partial(self.loop.state_complete, self.history.done, self.replica.packer(), self.history.view)

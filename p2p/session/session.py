"""The training thread's side of a peer: its seat, its open step, and what it takes in of what the loop says.

What is seen here of views and steps changes only when a step commits. Made and used by one thread.
"""

import logging
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, TypeVar

import numpy as np

from collectives import Array
from gossip import Member, View

from ..config import PeerConfig
from ..errors import JoinRefused, JoinTimeout, RemovedFromView, ShoalError, StepTimeout
from ..loop.loop import Loop
from ..net.parcels import Replica, compare_with_nothing
from ..step.notices import Admitted, Commit, Notice, StateOffer, Uncommitted, Withdrawn
from ..step.operation import Operation
from ..step.receipts import Ledger, Receipt
from ..step.waiting import explain_no_seat
from .attempt import EARLY, Attempt
from .incarnations import Incarnations
from .samples import Share

logger = logging.getLogger("p2p")

REMIND_S = 10.0
"""Who waits for a seat is told this often what for."""

StateDigest = Callable[[], bytes]
"""Of the parameters that step done + 1 is computed with."""

Awaited = TypeVar("Awaited", Commit, Uncommitted, Withdrawn)

BACKWARD = "a backward pass has begun a step: call no other operation before it ends"
"""What is said to who calls an operation in a step that `DataParallel` has opened."""

LEFT = "this peer has left its swarm: call `p2p.join` to be another one"
INTERRUPTED = "the step before was interrupted, so this peer leaves the others to it: join again"


class Session:
    """What `Peer` and `DataParallel` do their work with.

    Attributes:
        loop: of the present incarnation of this peer.
        view: of the last committed step; None until this peer has a seat or, if it observes, a state.
        done: the last committed step; -1 before step 0.
        receipt: of the last committed step, if this peer has seen it committed.
        share: of the samples.
        listeners: called with each new view, after the commit that shows it.
    """

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self._incarnations = Incarnations(config)
        self.loop = self._incarnations.loop
        try:
            self._ledger = Ledger.open(config.receipts, self.loop.peer_id)
        except ShoalError:
            self.loop.reactor.start()
            self.loop.reactor.stop()
            raise
        self.view: View | None = None
        self.done = -1
        self.receipt: Receipt | None = None
        self.share = Share(self.loop.peer_id)
        self.listeners: list[Callable[[View], None]] = []
        self._replica = Replica(("", b""), self.share.pack, self.share.load, compare_with_nothing)
        self._announced: View | None = None
        self._has_asked, self._complete = False, -2
        self._attempt = Attempt()
        self._skipped = ""
        self._unusable: ShoalError | None = None
        self._left = self._is_closed = False
        self.loop.reactor.start()

    @property
    def me(self) -> Member:
        """This peer, in its present incarnation."""
        return self.loop.core.me

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A one-dimensional array of undefined elements, in the arena if there is room."""
        return self.loop.resources.host_memory.empty(count, dtype)  # of the loop that there is: a peer may come back

    # A seat, and no seat any more.

    def take_seat(self, replica: Replica | None = None, timeout_s: float | None = None) -> View:
        """Wait until this peer has a seat and step 0 is committed; the state of `replica` may be replaced.

        Who trains a model and joins a run under way only waits for the state: it gets its seat while it runs its loop.

        Raises:
            JoinRefused: the swarm trains something else.
            JoinTimeout: there were too few peers, or no swarm, within `timeout_s` (default: join_timeout_s).
        """
        replica = replica or self._replica
        if self._has_asked and replica is not self._replica:
            raise ShoalError(
                "this peer asked for its seat without this model: construct one p2p.DataParallel, before anything else"
            )
        if self.view is not None:
            return self.view
        self._check_usable()
        self._replica, self._has_asked = replica, True
        limit_s = self._config.join_timeout_s if timeout_s is None else timeout_s
        deadline = self.loop.now() + limit_s
        self._ask()
        self.state_is_complete()
        while self.view is None:
            left_s = max(0.0, deadline - self.loop.now())
            try:
                arrival = self.loop.inbox.notices.get(timeout=min(left_s, REMIND_S))
                self._take_in(arrival)
            except Empty:
                if left_s <= REMIND_S:
                    raise JoinTimeout(self._why_no_seat(limit_s)) from None
                logger.info("%s", self._why_no_seat(limit_s - left_s + REMIND_S))
                continue
            except RemovedFromView as error:
                self._return(error, is_asked=True)  # nothing was missed: its script has seen no step
                continue
            except ShoalError as error:
                is_refusal = isinstance(error, JoinRefused)
                self._unusable = JoinRefused(replica.compare(error.args[0])) if is_refusal else error
                raise self._unusable from None
            match arrival:
                case StateOffer():
                    self._load(arrival, None)
                    self.state_is_complete()
                case Admitted(view, done) if done >= 0:
                    self.done, self.view = done, view
        self._announced = self.view
        return self.view

    def _ask(self) -> None:
        self.loop.reactor.post(partial(self.loop.ask_for_seat, self._config.min_peers, self._replica.layout))

    def _load(self, offer: StateOffer, state_digest: StateDigest | None) -> None:
        """Take over a member's state. `state_digest`: in the middle of a step, which then counts for nothing."""
        self._replica.load(offer.state)
        self.done = offer.step
        if self._replica.layout[0] and offer.step >= 0:
            self.view = offer.view
        digest = None if state_digest is None else state_digest()
        self.loop.reactor.post(partial(self.loop.loaded, offer, self.share.state.contributors, digest))

    def come_back(self) -> None:
        """If this peer was removed, as its script knows, which can do without what it has missed: as `_return`."""
        if isinstance(self._unusable, RemovedFromView):
            self._return(self._unusable, is_asked=True)
            self.view = None

    def _return(self, removed: RemovedFromView, *, is_asked: bool = False) -> None:
        """Come back as another incarnation, with the model as it is, and ask for a seat again.

        Raises:
            RemovedFromView: `removed`, if this peer has no model to come back with and was not asked to, returned too
                often, or must not; or if nobody is left.
        """
        self._unusable = removed  # unless it is back
        former = self.loop
        try:
            self._incarnations.begin_another(removed, is_wanted=is_asked or bool(self._replica.layout[0]))
        finally:
            self.loop = self._incarnations.loop
            self._write_moments(former)
        self._complete, self._unusable = -2, None
        self._ask()

    def leave(self) -> None:
        """Tell the others, wait until they can do without this peer, and close. Idempotent."""
        if self._left:
            return
        self._left, self._unusable = True, ShoalError(LEFT)
        self.loop.reactor.post(self.loop.leave)
        try:
            self.loop.reactor.ended.wait(self._config.leave_timeout_s)
        finally:
            self.loop.reactor.stop()
            self._write_moments()
            if self._ledger is not None:
                self._ledger.close()
            self._is_closed = True

    def defer(self, interruption: BaseException) -> bool:
        """For a signal's handler: whether to let this peer raise `interruption`, as soon as it can be interrupted."""
        return (self._left and not self._is_closed) or self.loop.reactor.drive_lock.defer(interruption)

    # Steps.

    def state_is_complete(self) -> None:
        """The state after step `done` may be copied from now on, until the next commit."""
        if self._complete != self.done:
            self._complete = self.done
            self.loop.reactor.post(self._completion())

    def open_step(self, what: str) -> None:
        """Open step done + 1; until it is committed or withdrawn, who opens another is told `what` is open.

        Raises:
            ShoalError: one is open already, or this peer cannot go on.
        """
        self._check_usable()
        self._attempt.begin(what)
        if self._skipped:
            self.loop.reactor.post(partial(self.loop.void, self.done + 1, self._skipped))
            self._skipped = ""

    def submit(self, operation: Operation) -> None:
        """Add an operation to the step that is open; the loop's thread runs it."""
        self._check_usable()
        self._attempt.add(operation)
        self.loop.reactor.post(self._submission(operation))

    def commit(self, state_digest: StateDigest | None = None) -> None:
        """Nothing more belongs to the open step: wait until all have finished it.

        The results are then the caller's, who calls `announce` once they are handed out.

        Args:
            state_digest: of the parameters for step done + 1; asked again if a member's state was loaded meanwhile.
                None: it is no step of the model that this peer trains, so it cannot be taken over from others.
        """
        self._check_usable()
        self.loop.reactor.post(self._closing(b"" if state_digest is None else state_digest()))
        self._await(Commit, self._next_notice, state_digest)

    def _next_notice(self, timeout: float) -> Notice:
        """Of the loop that there is then: a peer may come back meanwhile."""
        return self.loop.inbox.notices.get(timeout=timeout)

    def withdraw(self, skipped: str = "") -> None:
        """Take back what was submitted for the open step, if one is. The others wait for what is submitted next.

        Args:
            skipped: why that will not be the same step, but the next of the script. It is then void for the others,
                too, when the script goes on; if it leaves instead, they do it over without this peer.
        """
        if self._attempt.what:
            is_told = any(operation.is_uncommitted for operation in self._attempt.operations)
            self._check_usable()
            self.loop.reactor.post(partial(self.loop.withdraw, self.done + 1, self._attempt.number))
            try:
                self._await(Withdrawn, self._next_notice)
            except RemovedFromView as error:
                self._return(error)
                self._unusable, skipped = None, ""  # the others have gone on without it
            self._skipped = "" if is_told else skipped

    def show_state(self) -> None:
        """An operation waits for all members, and one of them may wait for this peer's state."""
        self.loop.reactor.post(self._standing_of_state())

    def run_alone(self, operation: Operation) -> None:
        """End a step with this operation, run by the calling thread: the only one in it, or behind those run early."""
        self.take_seat()
        self.open_step("an operation waits for the others")
        self._await(Commit, self._driven(operation, self._closing(b"")))

    def may_run_early(self, operation: Operation) -> bool:
        """Whether `run_early` may be called; the answer is the same on every member.

        Not where a model is trained, since observers are fed whole steps; and not where the open step holds enough.
        """
        return not self._replica.layout[0] and self._attempt.takes(operation)

    def run_early(self, operation: Operation) -> Array:
        """Return the result when it is complete here; the operation belongs to the step that is committed next."""
        self.take_seat()
        self.open_step(EARLY)
        self._attempt.add(operation)
        try:
            early = self._await(Uncommitted, self._driven(operation))
        except BaseException:
            self._attempt.end()
            raise
        assert early.operation is operation
        return early.result

    def _driven(self, operation: Operation, *further: Callable[[], None]) -> Callable[..., Notice]:
        """Takes what the loop says while the calling thread drives it, from the submission of `operation` on."""
        commands = [self._standing_of_state(), self._submission(operation), *further]

        def take(timeout: float) -> Notice:
            arrival = self.loop.reactor.call(*commands, timeout_s=timeout)
            commands.clear()
            return arrival

        return take

    def begin_batch(self) -> int:
        """The script asks for its next batch, so its state is complete. Returns the last committed step."""
        if self._attempt.what is BACKWARD:  # it raised, and the script goes on: with zeros, and 0 samples
            self.withdraw()
            self.share.void()
        self.state_is_complete()
        return self.done

    def _completion(self) -> Callable[[], None]:
        return partial(self.loop.state_complete, self.done, self._replica.pack)

    def _standing_of_state(self) -> Callable[[], None]:
        """Who trains a model may call an operation between backward and `optimizer.step`."""
        is_certain = not self._replica.layout[0] or self._complete == self.done
        return self._completion() if is_certain else partial(self.loop.state_withheld, self.done)

    def _submission(self, operation: Operation) -> Callable[[], None]:
        return partial(self.loop.submit, self.done + 1, self._attempt.number, operation)

    def _closing(self, state_digest: bytes) -> Callable[[], None]:
        return partial(self.loop.close_step, self._attempt.number, state_digest)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise self._unusable

    def _await(
        self, awaited: type[Awaited], take: Callable[..., Notice], state_digest: StateDigest | None = None
    ) -> Awaited:
        """Take what the loop says until `awaited` comes; all but an early result end this attempt at step done + 1."""
        step = self.done + 1
        submitted = [] if awaited is Uncommitted else self._attempt.end()
        deadline = self.loop.now() + self._config.step_timeout_s
        arrival: Notice | None = None
        offer: StateOffer | None = None
        try:
            while not isinstance(arrival, awaited):
                arrival = take(timeout=max(0.0, deadline - self.loop.now()))
                if isinstance(arrival, StateOffer) and awaited is Withdrawn:
                    offer = arrival  # a backward pass may be under way, which needs its parameters
                    continue
                if isinstance(arrival, RemovedFromView) and state_digest is not None:
                    self._return(arrival)
                    self._submit_again(submitted, state_digest)
                    continue
                self._take_in(arrival)
                if isinstance(arrival, StateOffer):
                    if state_digest is None:
                        raise RemovedFromView(
                            f"operation {step} was committed without this peer, its result is unknown"
                        )
                    self._load(arrival, state_digest)
                    step = self.done + 1
        except ShoalError as error:
            self._unusable = None if error.goes_on else error
            raise
        except BaseException as error:  # nobody may write what was submitted while it may still be sent
            why = f"step {step} did not commit in {self._config.step_timeout_s:g} s: {self.loop.explain()}"
            self._unusable = ShoalError(INTERRUPTED)
            self.loop.reactor.post(self.loop.leave)
            if isinstance(error, Empty):
                raise StepTimeout(why) from None
            raise
        if offer is not None:
            self.loop.inbox.notices.put(offer)  # for the commit that comes next
        return arrival

    def _submit_again(self, operations: list[Operation], state_digest: StateDigest) -> None:
        """To the loop of this incarnation, which knows of no step."""
        for operation in operations:
            self.loop.reactor.post(self._submission(operation))
        self.loop.reactor.post(self._closing(state_digest()))
        self._attempt.end()

    def _take_in(self, arrival: Notice) -> None:
        """What the loop says of steps and views becomes what the script sees; an error is raised."""
        self._write_moments()
        if isinstance(arrival, ShoalError):
            raise arrival
        if isinstance(arrival, Commit):
            self._take(arrival)

    def _take(self, commit: Commit) -> None:
        receipt = commit.receipt
        self.done, self.view, self.receipt = receipt.step, commit.view, receipt
        self.share.count(receipt)
        if self._ledger is not None and commit.view.since(self.loop.core.me) is not None:  # not if it was only fed
            self._ledger.record(receipt)

    def announce(self) -> None:
        """Tell the listeners of a view that they have not heard of. Results have been handed out before."""
        view, before = self.view, self._announced
        self._announced = view
        if view is not None and before is not None and view != before:
            for listener in self.listeners:
                listener(view)

    def _write_moments(self, loop: Loop | None = None) -> None:
        moments = (loop or self.loop).inbox.moments
        while not moments.empty():
            moment = moments.get_nowait()
            if self._ledger is not None:
                self._ledger.note(moment)

    def _why_no_seat(self, waited_s: float) -> str:
        advice = self.loop.seeds.explain() or f"is another peer of swarm {self._config.swarm!r} stuck?"
        return explain_no_seat(self.loop.core, waited_s, advice)

"""Rounds of local steps: their start and end, the exchange, and the loading of states.

A round is one step of the swarm: samples, running statistics and payloads are its operations, and it is committed on
every survivor or on none. The results of inner steps are local until then, so no state is loaded in the middle of a
round, only before the next one begins.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import torch

from collectives.elements import Array

from ...errors import NonFiniteGradient, ShoalError
from ...session.attempt import OpenedBy
from ...session.history import NEVER
from ...session.session import Session
from ...step.collective import AllGather
from ...step.operation import Operation
from ...telemetry.records import Kind
from ..checks.copies_of_parameters import check_keeps_no_copies
from ..checks.other_optimizers import OtherOptimizers
from ..checks.rates import Rates
from ..checks.same_samples import SameDeltas
from ..side_operations import SideOperations
from ..state.changes import Watch
from .exchange import check_own, check_room
from .iterations import Iterations
from .outer import OuterOptimizer

logger = logging.getLogger("p2p")

OTHER: Final = (
    "{0} updates this model but was not passed to p2p.DiLoCo, so no round would end after its update: pass the "
    "optimizer of the model, and all others in extra=. To reset moments or rates in the middle of a run, keep the "
    "same optimizer: call `optimizer.state.clear()` and set its param_groups, on every peer"
)
TORN: Final = "this peer was interrupted while it applied round %d, so its parameters are of no round: do not save them"
NUM_TURNS: Final = 16
"""Number of rounds in which the whole anchor is compared, if each compares a part."""
FEW_ELEMENTS: Final = 1 << 20
"""An anchor of at most this size is compared as a whole: that takes a millisecond, and its runs are short."""


class Rounds:
    """The rounds of one model.

    Attributes:
        length_s: duration of a round; None: it ends after a number of inner steps.
    """

    def __init__(
        self,
        session: Session,
        outer: OuterOptimizer,
        watch: Watch,
        beside: Sequence[SideOperations],
        parts: Mapping[str, object],
        freeze: Callable[[], None],
        put_buffers: Callable[[], object],
        *,
        inner_steps: int | None,
        round_s: float | None,
        nonfinite: Literal["raise", "skip"],
        is_digested_whole: bool,
    ) -> None:
        """Follow each `optimizer.step` from now on.

        Args:
            session: of the peer.
            outer: of the model.
            watch: checks that `outer` has all trained parameters of the model.
            beside: side operations of each round.
            parts: the optimizer whose steps are counted, and the other parts that a joiner needs, by name.
            freeze: copies the current state for joiners.
            put_buffers: resets buffers to that copy.
            inner_steps: of a round without `peer.loader`.
            round_s: duration of a round without `peer.loader`.
            nonfinite: as in `DiLoCo`.
            is_digested_whole: compare the whole anchor in each round, not a sixteenth.
        """
        self._committed_at: int | None = None
        self._session, self._share = session, session.share
        self._outer, self._watch, self._beside = outer, watch, beside
        self._freeze, self._put_buffers = freeze, put_buffers
        self._inner_steps, self._round_s = inner_steps, round_s
        self._nonfinite = nonfinite
        self._num_turns = 1 if is_digested_whole or len(outer.anchor) <= FEW_ELEMENTS else NUM_TURNS
        self._frozen_after = NEVER
        self._began_s: float | None = None
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        self._iterations = Iterations(optimizers)
        self._rates = Rates(parts, "and train differently")
        self._is_within_update = False
        self._same_deltas = SameDeltas()
        self._others = OtherOptimizers(
            optimizers,
            lambda each: each in watch.summed,
            lambda: self._is_within_update,
            lambda: session.membership.has_left,
            self._refuse_other,
            watch.check_other,
        )
        self._hooks = [each.register_step_pre_hook(self._before) for each in optimizers]
        self._hooks += [each.register_step_post_hook(self._after) for each in optimizers]
        self._due: set[torch.optim.Optimizer] = set()  # their updates with the last dense gradients are still to come
        self._unseen: Sequence[torch.optim.Optimizer] = optimizers
        self._is_ahead = False  # an update has begun that belongs to the round
        self._exchanges = NEVER  # the training step of the exchange under way
        self._share.rounds, self._share.check_model = self, watch.check
        session.round_edge = self.begin
        session.history.end_listeners.append(self._drop_rest)

    def is_in_use(self) -> bool:
        """Whether optimizer steps are followed. Stops following them if the peer has left."""
        if self._session.membership.has_left:
            self.end_use()
        return bool(self._hooks)

    def end_use(self) -> None:
        """Stop following optimizer steps."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._others.end()

    def _drop_rest(self) -> None:
        """After this peer left: undo updates that were not exchanged, so that a script does not save them."""
        if ratio := self._outer.residual_ratio():
            self._session.note(Kind.RESIDUAL_LOST, self._session.done, value=ratio)
        if self.is_torn:
            logger.warning(TORN, self._share.num_trained)
        elif self.is_amid or (self._is_within_update and not self._share.is_dense):
            logger.warning(
                "this peer left %d inner steps after the last round: they were not exchanged, and the parameters are "
                "reset to the end of that round",
                self._iterations.num_steps,
            )
            self._undo()

    def _undo(self) -> None:
        """Reset parameters and buffers to the start of the round, and end it."""
        self._outer.restore()
        self._put_buffers()
        self._end_round()

    @property
    def has_committed(self) -> bool:
        """Whether a round has ended since the last update; with a loader, before or in the last request for a batch.

        So at the top of a loop over batches the value is the same on all peers, however their rounds have ended.
        """
        return self._committed_at is not None and self._share.num_batches <= self._committed_at + 1

    @property
    def is_amid(self) -> bool:
        """Whether updates were made since the last round, so that the parameters differ from the anchor."""
        return self._iterations.num_updates > 0

    @property
    def is_torn(self) -> bool:
        """Whether the last round is committed, but not, or only in part, applied to the anchor."""
        return self._exchanges == self._share.num_trained

    def _end_round(self) -> None:
        self._iterations.end_round()
        self._is_ahead, self._exchanges = False, NEVER
        self._share.is_amid_round = False

    # Start and end of a round.

    def begin(self) -> None:
        """Before a forward pass, an update, or a batch: complete the state after the last round.

        The state includes what the script has done since the end of that round, as a step of a schedule.
        """
        if self.is_amid or self._share.is_round_open:
            return
        if self._session.load_offer():
            self._frozen_after = NEVER
            self._drop_gradients()
        self._due.clear()
        if self._share.is_dense:
            return  # its passes complete the state
        if self._frozen_after != self._session.done:
            self._follow()
            self._freeze()
            self._frozen_after = self._session.done
            self._rates.forget()
        if self._began_s is None:
            self._began_s = self._session.loop.now()
        self._session.state_is_complete()

    def begin_forward(self, *, is_training: bool) -> None:
        """Before a forward pass: begin, unless it may be an evaluation; then the next update or batch decides."""
        if is_training and not self._share.is_after_batch:
            self.begin()
        elif not (self.is_amid or self._share.is_round_open or self._share.is_dense):
            self._session.membership.edge.keep()

    def _follow(self) -> None:
        """Copy parameters that the script has set between two rounds, such as loaded weights, to the anchor.

        As a delta, `outer_lr` and momentum would carry the anchor past the values that were set. If one peer alone sets
        parameters, its anchor differs from now on, which the digest of its next round shows.
        """
        if not self._is_ahead and self._outer.copy_changes_to_anchor():
            logger.info("the script changed parameters since the last round: the anchor takes their new values")

    def _drop_gradients(self) -> None:
        """Drop gradients of the parameters before the load, if the script calls no method between pass and update."""
        for optimizer in self._iterations.optimizers:
            optimizer.zero_grad()

    def end_if_open(self) -> None:
        """End the round if the script asks for a further batch; it may have skipped the update on the last one."""
        if self._share.is_round_open:
            self.end()

    def reset_anchor(self) -> None:
        """Take the anchor after the last dense step; the update with its gradients, still to come, is no inner step."""
        self._outer.reset_anchor()
        self._due = {*self._iterations.optimizers}
        self._committed_at = self._share.num_batches

    def loaded(self) -> None:
        """Note that a state was loaded: this peer is now where the members were at the start of their next round."""
        self._committed_at = self._share.num_batches if self._share.num_trained else None

    def refresh_snapshot(self) -> None:
        """Between two rounds: refresh the copy for joiners, so that it is the state after the last round."""
        if not (self.is_amid or self._share.is_round_open or self._share.is_dense):
            self._freeze()

    def _refuse_other(self, name: str) -> None:
        raise ShoalError(OTHER.format(name))

    def _before(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._is_within_update = True
        if self._share.is_dense:
            return
        if optimizer in self._due:
            self._is_ahead = True
            return
        self._share.is_after_batch = False
        if not self.is_amid:  # an evaluation may come before the round is ended
            self._watch.note_modes()
            for each in self._beside:
                each.note_modes()
        self.begin()
        self._follow()
        self._is_ahead = True
        (self._rates.check if self.length_s is None else self._rates.check_in_round)(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._is_within_update = False
        if self._share.is_dense or optimizer in self._due:
            self._due.discard(optimizer)
            return
        self._committed_at = None
        is_of_loader = self._share.is_of_loader
        is_done = self._iterations.count_update(optimizer, self._share.num_batches if is_of_loader else None)
        self._session.advance(self._iterations.num_steps)
        self._share.is_amid_round = self._share.parts.is_used = True
        if not is_of_loader and optimizer is self._iterations.optimizers[0]:
            self._share.accumulate()
        if is_done and self._is_over():
            self.end()

    def _is_over(self) -> bool:
        if self._share.is_of_loader:
            return self._share.is_round_open and (self._share.parts.is_last or self.is_time_over())
        if self._inner_steps is None and self._round_s is None:
            raise ShoalError(
                "a round has no end: pass inner_steps= or round_s= to `peer.loader`, or to p2p.DiLoCo if you use a "
                "loader of your own"
            )
        return self.is_time_over() if self._inner_steps is None else self._iterations.num_steps >= self._inner_steps

    def is_time_over(self) -> bool:
        """Whether the time of the round is over, `length_s` after this peer's last commit, and after an inner step.

        So work of a script between two rounds, such as an evaluation, delays no other peer.
        """
        length_s = self.length_s
        return length_s is not None and self.is_amid and self._lasted_s() > length_s

    @property
    def length_s(self) -> float | None:
        return self._share.round_s if self._share.is_of_loader else self._round_s

    def _lasted_s(self) -> float:
        return 0.0 if self._began_s is None else self._session.loop.now() - self._began_s

    # The exchange.

    def end(self) -> None:
        """Exchange the deltas of the round, and wait until they are committed.

        Raises:
            ShoalError: the model has other parameters than when it was wrapped; or an optimizer has copies of them.
            ValueError: this host has no memory for the payloads of all members.
        """
        self._watch.check()
        check_keeps_no_copies(self._unseen)
        self._unseen = ()
        self._share.how = self._watch.in_words()
        step, loop = self._session.done + 1, self._session.loop
        check_room(self._session, self._outer.config.codec, len(self._outer.anchor))
        num_sent_bytes = loop.num_sent_bytes
        operations = [self._gather(*pair) for pair in enumerate(self._payloads())]
        self._session.open_step(OpenedBy.EXCHANGE)
        self._session.submit(self._share.operation(), is_urgent=False)
        for each in self._beside:
            for operation in each.operations(self._share.training_step):
                self._session.submit(operation, is_urgent=False)
        for operation in operations:
            self._session.submit(operation, is_urgent=False)
        with self._session.callers.call("optimizer.step"):
            self._exchanges = self._share.training_step
            is_committed = self._session.commit(self._digest, is_round=True)
            with self._session.loop.reactor.drive_lock.shielded():  # else parameters would be those of no round
                if is_committed:
                    self._apply(operations)
                    self._committed_at = self._share.num_batches
                    if loop is self._session.loop and loop.num_sent_bytes > num_sent_bytes:
                        self._session.note(Kind.SENT, step, value=loop.num_sent_bytes - num_sent_bytes)
                else:
                    self._committed_at = None
                    self._share.give_up_step()
                    self._forget_moments()
                    self._undo()  # in case the script ends before the state is loaded
                self._end_round()
        self._began_s = self._session.loop.now()
        self._session.history.announce()

    def _payloads(self) -> list[Array]:
        """The payloads of this peer; zeros if it adds no samples.

        Raises:
            NonFiniteGradient: a parameter is not finite, and the policy is `raise`. The round is undone.
            ShoalError: the payloads cannot be decoded.
        """
        if not self._share.weight:
            return self._outer.zero_payloads()
        try:
            payloads = self._outer.payloads()
            check_own(self._outer.codec, payloads, self._session.done + 1)
            return payloads
        except NonFiniteGradient as error:
            if self._nonfinite == "raise":
                self._undo()
                self._forget_moments()
                if self._share.is_of_loader:
                    self._share.void()  # up to the end of the round, further batches included
                else:
                    self._share.drop()
                raise NonFiniteGradient(
                    f"{error}; nothing of it was sent, and the parameters are reset to the start of the round. Catch "
                    "this to continue with other samples, or pass nonfinite='skip' to p2p.DiLoCo"
                ) from None
            logger.warning("%s, so this peer adds nothing to round %d", error, self._session.done + 1)
            self._put_buffers()
            self._share.skip()
            return self._outer.zero_payloads()

    def _gather(self, index: int, payload: Array) -> Operation:
        outer = self._outer
        count = outer.cuts[index].stop - outer.cuts[index].start
        what = f"deltas {index + 1} of {len(outer.cuts)}, {outer.config}, of {count} parameters,"
        return Operation(AllGather(label=what, codec=outer.config.codec), payload, payload, payload.shape, "one-shot")

    def _digest(self) -> bytes:
        """Digest of the anchor and the momentum at the start of the round."""
        return self._outer.digest(self._share.training_step % self._num_turns, self._num_turns)

    def _apply(self, operations: Sequence[Operation]) -> None:
        is_of_loader = self._share.is_of_loader
        self._share.spend()
        receipt = self._session.history.receipt
        assert receipt is not None
        for each in self._beside:
            each.on_commit(receipt)
        gathered = [each.result.reshape(-1, each.input.size) for each in operations]
        if not is_of_loader:
            self._same_deltas.check(gathered, receipt)
        weights, who = zip(*((each.weight, each.peer_id) for each in receipt.contributions), strict=True)
        rank = who.index(self._session.loop.peer_id) if self._session.loop.peer_id in who else None
        self._outer.apply(gathered, weights, rank)
        if rank is None or not weights[rank]:
            self._forget_moments()

    def _forget_moments(self) -> None:
        """Clear the states of all optimizers after a round without samples of this peer, as for a new joiner."""
        for optimizer in self._iterations.optimizers:
            optimizer.state.clear()

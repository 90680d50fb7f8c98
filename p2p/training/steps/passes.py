"""Backward passes and the steps that they form: from the first gradient of a pass to the committed gradients."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import xxhash

from gossip import View

from ...device import HOST
from ...errors import OperationMismatch, ShoalError
from ...session.attempt import OpenedBy
from ...session.callers import EXPECTED
from ...session.history import NEVER
from ...session.session import Session
from ...step.operation import Operation
from ..checks.by_hand import add_to_grad
from ..side_operations import SideOperations
from ..state.changes import is_training
from ..state.forward_state import ForwardState
from ..state.model_changes import ModelChanges
from .forwards import Forwards
from .hooks import follow, weakly
from .interrupted_pass import withdraw_pass
from .reducer import GradientReducer
from .updates import Updates

AMID_STEP: Final = "`refresh` was called in the middle of a step: call it after `optimizer.step`"
PLANNED: Final = (
    "`refresh` was called for a model with `changes=`: a joiner would start with the model as it is now and make "
    "those changes again. Plan this change there, too, instead of calling `refresh`"
)


class Passes:
    """The passes of one wrapper.

    Attributes:
        has_committed: whether the last pass ended a step.
        is_under_way: whether a pass has begun and not ended; true also after one that raised.
        has_summed: whether passes under `no_sync` have begun a step that has not ended.
        updates: the updates of optimizers that use the gradients.
    """

    def __init__(
        self,
        session: Session,
        gradients: GradientReducer,
        beside: Callable[[], Sequence[SideOperations]],
        updates: Callable[["Passes"], Updates],
        state_digest: Callable[[], bytes],
        edge: ForwardState,
        *,
        commit: Callable[[Callable[[], bytes]], bool] | None = None,
        noted: Callable[[torch.Tensor | None], None] = lambda gradient: None,
        changes: ModelChanges | None = None,
    ) -> None:
        """Follow each backward pass from now on.

        Args:
            session: of the peer.
            gradients: of the model.
            beside: creates the sources of side operations, in the same order on every peer.
            updates: creates the object that observes the optimizers.
            state_digest: digest of the parameters that a step was computed with.
            edge: of the model.
            commit: commits the open step, and returns whether that succeeded; if not, a member's state has come, which
                is loaded before the next step. None: it is loaded within the step, unless its batch is over in that.
            noted: is called with each gradient of a pass.
            changes: planned changes of the model.
        """
        self._commit, self._noted = commit or session.commit, noted
        self.has_committed = self.is_under_way = self.has_summed = False
        self._session = session
        self._share = session.share
        self._gradients = gradients
        self._make_beside = beside
        self._beside = beside()
        self._state_digest = state_digest
        self._edge, self._changes = edge, changes
        self._forwards = Forwards(session.share)
        self._under_no_sync = False
        self._checked = NEVER
        self._ends_step = True
        self.updates = updates(self)
        self._take = weakly(self._take_gradient)
        self._hooks = [follow(each, self._take) for each in gradients.parameters]
        session.share.check_model = lambda: gradients.watch.check()
        session.share.parts.drop, session.share.parts.is_amid_pass = gradients.begin_step, lambda: self.is_under_way
        session.share.change_model = self._make_changes
        session.history.kept.add(self)
        self._has_begun = False

    def is_in_use(self) -> bool:
        """Whether passes are followed. Stops following them if the peer has left."""
        if self._session.membership.has_left:
            self.end()
        return bool(self._hooks)

    def end(self) -> None:
        """Stop following passes and updates."""
        self.end_following()
        self._session.history.kept.discard(self)
        self.updates.end()

    def end_following(self) -> None:
        """Stop following passes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def check_may_refresh(self) -> None:
        """Raise ShoalError if `refresh` is not allowed: an update is still to come, or changes are planned."""
        self._session.membership.check_usable()
        if self._changes is not None and self._changes.traits:
            raise ShoalError(PLANNED)
        if self._gradients.are_finite and not self.updates.are_made:  # else a GradScaler may have skipped it
            raise ShoalError(AMID_STEP)

    def refresh(self) -> None:
        """Take up the module as it is now, and follow its passes.

        Raises:
            ShoalError: a step has begun; end it first.
            ValueError: as `GradientReducer.begin`.
        """
        self.withdraw_interrupted()
        if self.has_summed or self._gradients.are_summed or torch._C._current_graph_task_id() >= 0:
            raise ShoalError(AMID_STEP)
        self._gradients.build_buckets()
        self._beside = self._make_beside()
        self.end_following()
        self._hooks = [follow(each, self._take) for each in self._gradients.parameters]
        self._has_begun = False

    def withdraw_interrupted(self, first: torch.nn.Parameter | None = None) -> None:
        """Withdraw a pass that has raised, if there is one; `first`: the next one has reached it."""
        if self.is_under_way:
            withdraw_pass(self._session, self._gradients, first)
            self._reset()

    def forward(self, model: str, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass of the wrapper, or of one of its models."""
        self._begin_forward(is_training=is_training(module))
        output = module(*args, **kwargs)
        if module.training:
            self._forwards.follow(model, output)
        return output

    def _begin_forward(self, *, is_training: bool) -> None:
        if torch._C._current_graph_task_id() < 0:  # outside a backward pass
            self.withdraw_interrupted()
            if torch.is_grad_enabled() and not self._share.is_of_loader and not self.has_summed:
                self._session.load_offer()
                if self.updates.are_made:  # else it observes, or is inside a phase of its loop
                    self._make_changes()
        if torch.is_grad_enabled():
            self.begin(is_training=is_training)

    def _make_changes(self) -> None:
        """Make the due changes of the model, if the script is between two steps."""
        if self._changes is not None and not self.has_summed:
            self._changes.make_due()

    def begin(self, *, is_training: bool) -> None:
        """Begin a forward pass. Before the first one, move our hooks behind those that the script has added.

        `is_training`: the model is in training mode. Otherwise the pass may be an evaluation without `no_grad`; if a
        backward pass follows, that one begins the step.
        """
        self._gradients.device.check()
        if self._hooks and not self._has_begun:
            self._has_begun = True
            for index, parameter in enumerate(self._gradients.parameters):
                if parameter.requires_grad:  # a loaded state may have frozen it; then it allows no hook
                    self._hooks[index].remove()
                    self._hooks[index] = follow(parameter, self._take)
        if is_training:
            self.open_window()
        else:
            self._session.membership.edge.keep()  # a forward pass may set the mode of a layer itself

    def open_window(self, *, is_over: bool = False) -> None:
        """At the start of a forward or backward pass: the state is complete, unless an update is still to come.

        Args:
            is_over: the step has no further forward pass.

        Raises:
            ShoalError: the model has other parameters than when it was wrapped. This is checked once per step.
        """
        if self._checked != self._session.done:
            self._gradients.watch.check()
            self._checked = self._session.done
        self.updates.scaled.restore()  # in case an update has raised
        self._edge.is_over = is_over
        is_amid = self.updates.is_amid_update and not self._share.is_of_loader
        if not (self.updates.is_due or is_amid):  # an evaluation or a schedule may come before it
            is_over |= not self._edge.changes
            self._session.state_is_complete(
                is_over=is_over and self._may_be_given and not self._session.membership.edge.is_past_request
            )

    @property
    def _may_be_given(self) -> bool:
        """Whether a joiner may receive this state and start its loop with it.

        With several models, and without `peer.loader`, a loop has phases, and a joiner finds the right one by trial
        (comparison.py). Since its requests come at nearly regular intervals, a pseudo-random half of the states is left
        out, so that it does not meet the same phase each time.
        """
        if self._share.is_of_loader or self._gradients.num_models == 1:
            return True
        return bool(xxhash.xxh3_64_intdigest(b"%d" % self._session.done) & 1)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As `DataParallel.no_sync`."""
        before, self._under_no_sync = self._under_no_sync, True
        try:
            yield
        finally:
            self._under_no_sync = before

    # Kinds of passes.

    def skip(self, models: Sequence[str]) -> None:
        """As `DataParallel.skip_step`."""
        if self._under_no_sync:
            raise ShoalError("`skip_step` skips the whole step: call it outside `no_sync`")
        with self._session.callers.call("DataParallel.skip_step"):
            self._reach(models)
            self._gradients.drop()
            self._share.skip()
            self._begin_pass()
            self._end_pass()
        if self.has_committed:
            self.updates.skipped()

    def take(self, models: Sequence[str], given: Iterable[tuple[torch.nn.Parameter, torch.Tensor | None]]) -> None:
        """Make a pass with gradients that the script has computed, for these models."""
        with self._session.callers.call("DataParallel.reduce_gradients"):
            self._reach(models)
            if not self.has_summed:
                self._gradients.drop()
            self._begin_pass()
            for parameter, gradient in given:
                if gradient is not None:
                    add_to_grad(parameter, gradient, is_kept=self._under_no_sync)
                    self._put(parameter)
            self._end_pass()

    def _reach(self, models: Sequence[str]) -> None:
        """Prepare a pass of these models that is not made by autograd."""
        self._gradients.device.check()
        self.withdraw_interrupted()
        self.updates.check_is_wanted()
        self._gradients.reach(*models)
        self._forwards.use(self._gradients.reached)

    def _take_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Copy a finished gradient into its bucket, and submit the buckets whose turn has come."""
        callers = self._session.callers
        try:
            callers.check_pass()
        except ShoalError:
            self._gradients.drop_refused_grad(parameter)
            raise
        if self.is_under_way and callers.is_pass_over:
            self.withdraw_interrupted(parameter)
        if not self.is_under_way:
            self._check_device()
            self.updates.check_is_wanted(parameter)
            if self.has_summed and self._gradients.are_dropped(parameter):
                self._share.drop()
                self.has_summed = False
            self._begin_pass()
            end = callers.follow_pass(self._end_pass, torch._C._current_graph_task_id)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        self._put(parameter)

    def _check_device(self) -> None:
        """Check the device, before any data of a pass is sent."""
        if self._gradients.device is HOST:
            return
        try:
            self._gradients.device.check()
            if torch._C._is_multithreading_enabled():
                raise ShoalError(
                    f"backward was called in thread {threading.current_thread().name!r} and would continue in threads "
                    "of autograd, where an error would end the process and no signal is handled: call "
                    "`torch.autograd.set_multithreading_enabled(False)` in the thread that calls backward. "
                    "p2p.DataParallel has called it in the thread that constructed it: leave it so there"
                )
        except ShoalError:
            self._gradients.drop()
            raise

    # One pass.

    def renew(self, operations: Sequence[Operation], step: int, view: View | None) -> list[Operation]:
        """The operations of the open step, now `step`, after the state that `view` has committed was loaded."""
        for each in self._beside:
            operations = each.rebuild_operations(operations, self._share.training_step, view)
        return [*operations]

    def _put(self, parameter: torch.nn.Parameter) -> None:
        self._noted(parameter.grad)
        if self._under_no_sync:
            self._gradients.keep(parameter)
        else:
            bucket = self._gradients.add(parameter)
            if self._ends_step and not bucket.missing:
                self._gradients.submit_full()

    def _begin_pass(self) -> None:
        self.has_committed = self._share.is_after_batch = False
        if self._changes is not None and not self._share.is_of_loader:
            self._changes.check_is_called(has_been=self._has_begun)
        self.open_window()
        if self.updates.num_stale:
            self._share.void()  # the graph may be from before the state was loaded
        self._ends_step = self._share.parts.is_last and not self._under_no_sync
        if self._ends_step:
            self.open_window(is_over=True)
            self._share.end()
            self._share.how = self._gradients.watch.in_words(is_skipped=self._share.is_skipped)
            counts = self._share.operation()
            self._session.open_step(OpenedBy.BACKWARD)
            self.is_under_way = True
            self._session.submit(counts, is_urgent=False)
            self._gradients.begin_digest()
        else:
            self.is_under_way = True
            self._share.accumulate(is_joined=not self._under_no_sync)

    def _end_pass(self) -> None:
        """End a pass, and the step if it is the last one."""
        if self._under_no_sync:
            self.has_summed, self.is_under_way = True, False
            return
        if self.has_summed:
            self._gradients.add_summed()
        if self._ends_step:
            self._end_step()
        else:
            self._gradients.drop()
            self._gradients.begin_pass()
            self.has_summed = self.is_under_way = False

    def _reset(self) -> None:
        self.is_under_way = self.has_summed = False
        self._gradients.begin_step()
        self._gradients.cancel_digest()

    # One step.

    def _end_step(self) -> None:
        """Submit the remaining operations, wait for the commit, and set `grad` to the committed gradients."""
        number = self._share.training_step
        for each in self._beside:
            each.begin(number)
        self._gradients.submit_all()
        for each in self._beside:  # the last of a step, on every peer
            for operation in each.operations(number):
                self._session.submit(operation, is_urgent=False)
        try:
            if self._commit(self._state_digest):
                self._hand_out()
            else:
                self._gradients.set_zero_grads()  # their update is overwritten by the state that is loaded next
                self.updates.committed(self._gradients.reached, None)
                self._share.give_up_step()
        except BaseException as error:
            if isinstance(error, OperationMismatch) and (models := " and ".join(self._gradients.reached)):
                error.args = (f"the backward pass of this peer reached {models}: {error}",)
            self._gradients.drop()  # local gradients must not update the replica
            if not isinstance(error, EXPECTED):
                self.updates.is_lost = self._share.num_trained >= number
                self._session.membership.interrupt()
            raise
        finally:
            self._reset()
        self._session.history.announce()

    def _hand_out(self) -> None:
        self._share.spend()
        self._forwards.end_step()
        receipt = self._session.history.receipt
        assert receipt is not None
        for each in self._beside:
            each.on_commit(receipt)
        self._gradients.set_grads()
        self.updates.committed(self._gradients.reached, receipt.weight)
        self.has_committed = True

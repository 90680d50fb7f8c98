"""Data-parallel training whose steps commit: averages gradients over the samples of all members of the view.

Gradients are copied into buckets as backward produces them, and each bucket is summed while backward goes on; `grad` is
None from the copy to the commit. The end of backward waits until the step is committed, so optimizers see committed
gradients only, and a member's death before that costs no more than summing again what is in the buckets.

What is committed: the mean of the gradients that the members computed, each weighted by its number of samples. If each
loss is a mean over samples, that is the gradient of one process with all these samples in one batch. A step may have
several backward passes, of which the last ends it:

- micro-batches of `peer.loader(max_local_batch=n)` are averaged, weighted by their samples, as one larger batch;
- passes under `no_sync` are summed in `grad`, and the script's to scale; sums are averaged, weighted by their samples.

`grad` is None where no member that counts had a gradient, so that optimizers leave the parameter alone: frozen in the
middle of a run, used by nobody in this step. (Also after `zero_grad(set_to_none=False)`, where one process has zeros.)
After a commit it lies in the arena, which other peers of the host can read and forked children cannot.

Leaves out: devices other than the CPU; buffers other than running statistics; optimizers that call backward several
times in a step (LBFGS).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch

from collectives import ALGORITHMS

from ..checkpoint import Checkpoint, Keeper
from ..errors import ShoalError
from ..net.parcels import PackedState, Replica
from ..net.wire import MAX_BYTES_LEN
from ..peer import Peer
from ..session.session import BACKWARD
from .gradients import Given, Gradients, NonFinite, add_to_grad, policy
from .replica_state import Stateful, compare, describe, pack, unpack_into
from .statistics import RunningStatistics
from .updates import Updates

BUCKET_BYTES = 12 << 20
"""An operation costs up to a millisecond beside the sum; the last one, which overlaps with nothing, the time of it."""


class DataParallel(torch.nn.Module):
    """Wraps a model whose replicas train together.

    Construction asks for a seat; the replica of a peer that joins a swarm under way is replaced by the swarm's.
    Running statistics (BatchNorm) are averaged at each commit. A backward pass that raises may be caught: the peer
    then adds nothing to the step, which its next forward and backward pass, on other samples, take part in. The end of
    `loss.backward()` waits until the step is committed, `step_timeout_s` at most.

    Memory: twice the gradients' bytes, `grad` included, in the arena while there is room (`arena_bytes`), where other
    peers of the host read them; once more where messages need it. A member that feeds an observer holds a copy of the
    state while it sends it, and up to 256 MiB of results, or of 4 steps; the observer up to 1 GiB, or 8 steps. Each
    member sends per step what an `all_reduce` of all gradients does, and 24 bytes for the samples.

    Raises:
        From `loss.backward()`; the last one also from `optimizer.step`, if it is called between the passes of a step.
        `grad` is then None, or what this process has summed alone.

        NonFiniteGradient: this peer has computed NaN or infinity, and has sent none of it.
        TypeError: a gradient is sparse.
        OperationMismatch: another member has called something else; raised on every member.
        QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot go on.
        RemoteProtocolError: a state was received that does not fit this replica.
        ShoalError: backward was called again for one batch, or one `optimizer.step`; or this peer has left.

    Attributes:
        has_committed: whether the last backward pass ended a step. After one that did not, a micro-batch of
            `peer.loader`, `grad` is None, so `optimizer.step` does nothing; whatever else counts steps (a schedule, a
            GradScaler) has to be called only where this is true.
    """

    def __init__(
        self,
        peer: Peer,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        extra: Sequence[Stateful] = (),
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str | None = None,
        state_digest: Literal["part", "all"] = "part",
        nonfinite: NonFinite | None = None,
        allow_local: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Take a seat in the swarm of `peer`, and wait for it as `Peer.wait_view` does.

        The order matters: first the model, on its device and in its types, the optimizer and all of `extra`, then this,
        then `peer.loader` or any operation. A peer has one model, which asks for the seat. Parameters, buffers, and
        the states of the optimizer and `extra` are then the swarm's, so what was derived from them before is stale.

        Args:
            peer: as `p2p.join` made it; nothing has been called on it that needs a seat.
            module: its parameters that need a gradient are float32, float64, float16 or bfloat16 and on the CPU. Names,
                shapes, strides and types in `module.state_dict()`, and their order, are the same on every peer.
                Gradients have the strides of their parameters.
            optimizer: of these parameters.
            extra: what else a joiner must have: schedules, scalers; the same, in the same order, on every peer.
            bucket_bytes: gradients are summed in operations of about so many bytes, each of one type.
            algorithm: of `collectives.ALGORITHMS`; None: by size.
            state_digest: how much of the parameters every member shows per step to be the same: a sixteenth (`part`),
                or `all`. It is read once more for that; 16 bytes are sent.
            nonfinite: what happens to a peer whose own gradients have NaN or infinity. `raise`: `NonFiniteGradient` in
                its backward pass, before anything of it is sent. `skip`: it adds nothing to the step, and 0 samples
                to the receipt; the step is started over without them, which takes some milliseconds, and if nobody
                adds anything `grad` is None. `allow`: they are averaged as they are. None: `raise`, or
                `allow` if there is a GradScaler in `extra`, which has to see them.
            allow_local: `optimizer.step` may use gradients that came from no commit, which updates this replica alone.
            checkpoint: where the state is written, and what a run that was stopped goes on from; the same everywhere.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a tensor whose
                elements share memory (`expand`); a state that cannot be sent; no such `algorithm`, `state_digest` or
                `nonfinite`.
            JoinRefused: the swarm trains another model.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: there is no seat for this peer, as `wait_view`.
            RemoteProtocolError: a state was received that does not fit this replica.
            ShoalError: this peer asked for its seat without this model, or has left; or `checkpoint` cannot be used.
        """
        super().__init__()
        if algorithm is not None and algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")
        if state_digest not in ("part", "all"):
            raise ValueError(f"state_digest must be part or all, is {state_digest!r}")
        self.module = module
        self.has_committed = False
        self._session = peer._session
        self._share = self._session.share
        keeper = None if checkpoint is None else Keeper(checkpoint, peer, lambda: not self._updates.is_due)
        self._parts: tuple[Stateful, ...] = (optimizer, *extra, *([] if keeper is None else [keeper]))
        self._state_digest = state_digest
        self._gradients = Gradients(module, self._session, policy(nonfinite, extra), bucket_bytes, algorithm)
        self._statistics = RunningStatistics(module, algorithm)
        self._in_pass = self._under_no_sync = self._has_summed = False
        self._ends_step = True
        tensors = dict(module.state_dict())
        layout = describe(tensors)
        if len(layout[1]) > MAX_BYTES_LEN:
            raise ValueError(f"{len(tensors)} tensors cannot be described to a joiner in {MAX_BYTES_LEN} bytes")
        self._pack()  # raises here, not in a member that a joiner asks
        take_seat = self._session.take_seat if keeper is None else keeper.take_seat
        take_seat(Replica(layout, self._pack, self._load, partial(compare, layout[1])))
        for parameter in self._gradients.parameters:
            parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]
        standing = (lambda: self._in_pass), (lambda: self._has_summed)
        self._updates = Updates(self._parts, self._gradients, *standing, allow_local=allow_local)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass.

        Args:
            args: of the module.
            kwargs: of the module.

        Returns:
            What the module returns.

        Raises:
            OperationMismatch, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: the last backward
                pass raised, and the step that it had begun cannot be taken back.
        """
        if self._in_pass and torch._C._current_graph_task_id() < 0:  # it raised: no backward is under way
            self._begin_anew()
        if torch.is_grad_enabled() and not self._updates.is_due:  # an evaluation may come before it, or a schedule
            self._session.state_is_complete()
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        """This peer adds `number` samples in each further backward pass.

        For scripts without `peer.loader`; and for a loss that is a mean over something else (tokens): the current
        batch of a loader, or each of its micro-batches, weighs so much. The next weighs its samples, unless said.

        Args:
            number: of what the loss is a mean of. With 0 this peer's gradients count for nothing.

        Raises:
            ShoalError: the batch has had a backward pass before.
            ValueError: `number` is negative.
        """
        self._share.set_number(number)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in the block add to `grad`, and to this peer's samples of the step, and do not end it.

        The first pass after the block does. Parts of one batch of `peer.loader` add no samples: all of it counts.
        Sends nothing and waits for nobody in the block. `grad` takes memory of its own there.

        Returns:
            A context manager.
        """
        before, self._under_no_sync = self._under_no_sync, True
        try:
            yield
        finally:
            self._under_no_sync = before

    def skip_step(self) -> None:
        """End the step without adding to it: `loss.backward() if loss.isfinite() else model.skip_step()`.

        The script goes on as after `loss.backward()`, with clipping, `optimizer.step` and schedules, *not* with
        `continue`: the others' gradients are in `grad`. This peer's samples of the step are used up and left out, those
        of its other micro-batches, too.

        Raises:
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout,
                RemoteProtocolError, ShoalError: as `loss.backward()`; or it was called under `no_sync`.
        """
        if self._under_no_sync:
            raise ShoalError("`skip_step` leaves out the whole step: call it outside `no_sync`")
        with self._session.callers.call("DataParallel.skip_step"):
            if self._in_pass:
                self._begin_anew()
            self._updates.check_is_wanted(was_added=False)
            self._gradients.drop()
            self._share.skip()
            self._begin_pass()
            self._end_pass()
        if self.has_committed:
            self._updates.skipped()

    def reduce_gradients(self, gradients: Given) -> Given:
        """Average gradients that the script has computed itself, with `torch.autograd.grad` or `torch.func`.

        In place of `loss.backward()`, also under `no_sync` and in micro-batches. What was in `grad` is forgotten,
        except between the passes of a step.

        Args:
            gradients: in the order of `module.parameters()`, of all or of those that need a gradient; or by name. None
                where there is none.

        Returns:
            The committed gradients, in the same form, which are the parameters' `grad`, too. None where nobody had one,
            and everywhere if the step has not ended.

        Raises:
            ValueError: a gradient is of no parameter, or of another shape.
            NonFiniteGradient, TypeError, OperationMismatch, QuorumLost, RegistryError, RemovedFromView,
                ReplicasDiverged, StepTimeout, RemoteProtocolError, ShoalError: as `loss.backward()`.
        """
        matched = self._gradients.match(gradients)
        with self._session.callers.call("DataParallel.reduce_gradients"):
            if self._in_pass:
                self._begin_anew()
            self._updates.check_is_wanted(was_added=False)
            if not self._has_summed:
                self._gradients.drop()
            self._begin_pass()
            for parameter, gradient in matched.values():
                if gradient is not None:
                    add_to_grad(parameter, gradient, is_kept=self._under_no_sync)
                    self._put(parameter)
            self._end_pass()
        means = {name: each.grad if self.has_committed else None for name, (each, _) in matched.items()}
        return means if isinstance(gradients, Mapping) else tuple(means.values())

    # State.

    def _pack(self) -> PackedState:
        return pack(dict(self.module.state_dict()), self._parts, self._share.pack())

    def _load(self, state: PackedState) -> None:
        self._share.load(unpack_into(state, dict(self.module.state_dict()), self._parts))

    def _digest_state(self) -> bytes:
        """Of the parameters that this step was computed with."""
        if self._state_digest == "all":
            return self._gradients.digest()
        return self._gradients.digest((self._session.done + 1) % 16, 16)

    # Passes.

    def _take_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Copy a finished gradient into its bucket, and submit the buckets whose turn has come."""
        self._session.callers.check_pass()
        if not self._in_pass:
            self._updates.check_is_wanted(self._gradients.was_added_to(parameter))
            self._begin_pass()
            end = self._session.callers.follow_pass(self._end_pass, torch._C._current_graph_task_id)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        self._put(parameter)

    def _put(self, parameter: torch.nn.Parameter) -> None:
        if not self._under_no_sync:
            bucket = self._gradients.add(parameter)
            if self._ends_step and not bucket.missing:
                self._gradients.submit_full()

    def _begin_pass(self) -> None:
        self.has_committed = False
        self._ends_step = self._share.is_last and not self._under_no_sync
        if self._ends_step:
            self._share.end()
            counts = self._share.operation()
            self._session.open_step(BACKWARD)
            self._in_pass = True
            self._session.submit(counts)
        else:
            self._in_pass = True
            self._share.accumulate(is_joined=not self._under_no_sync)

    def _end_pass(self) -> None:
        """Nothing more comes in this pass: end the step, or get ready for the next pass."""
        if self._under_no_sync:
            self._has_summed, self._in_pass = True, False
            return
        if self._has_summed:
            self._gradients.add_summed()
        if self._ends_step:
            self._end_step()
        else:
            self._gradients.drop()
            self._gradients.begin_pass()
            self._has_summed = self._in_pass = False

    def _begin_anew(self) -> None:
        """A pass was interrupted: this peer adds nothing to the step, which the next pass may end."""
        self._session.withdraw()
        self._share.void()
        self._reset()

    def _reset(self) -> None:
        self._in_pass = self._has_summed = False
        self._gradients.begin_step()

    # Steps.

    def _end_step(self) -> None:
        """Submit what is left, wait for the commit, and hand the committed gradients out."""
        self._gradients.submit_all()
        for operation in self._statistics.operations():  # the last of a step, on every peer
            self._session.submit(operation)
        try:
            self._session.commit(self._digest_state)
            self._hand_out()
        except BaseException:
            self._gradients.drop()  # what only this peer has computed must not update its replica
            raise
        finally:
            self._reset()
        self._session.announce()

    def _hand_out(self) -> None:
        self._share.spend()
        receipt = self._session.receipt
        assert receipt is not None
        self._statistics.hand_out(has_mean=receipt.weight > 0)
        self._gradients.hand_out()
        self._updates.committed()
        self.has_committed = True

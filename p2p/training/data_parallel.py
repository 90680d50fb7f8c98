"""Data-parallel training whose steps commit: averages gradients over the samples of all members of the view.

Gradients are copied into buckets as backward produces them, and each bucket is summed while backward goes on; `grad` is
None from the copy to the commit. The end of backward waits until the step is committed, so clipping, schedules and any
optimizer see committed gradients only, and a member's death before that costs no more than summing again what backward
has left in the buckets.

What is committed: the mean of the gradients that the members computed, each weighted by its number of samples. If each
loss is a mean over samples, that is the gradient of one process with all these samples in one batch. A step may have
several backward passes, of which the last ends it:

- micro-batches of `peer.loader(max_local_batch=n)` are averaged, weighted by their samples, as one larger batch;
- passes under `no_sync` are summed in `grad`, as in one process, and the script's to scale; these sums are averaged,
  weighted by the samples of all passes of a member.

After a commit `grad` lies in the arena, which other peers of the host can read and forked children cannot.

Leaves out: devices other than the CPU; buffers other than running statistics; optimizers that call backward several
times in a step (LBFGS).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
import xxhash

from collectives import ALGORITHMS

from ..errors import NonFiniteGradient, ShoalError
from ..net.parcels import PackedState, Replica
from ..net.wire import MAX_BYTES_LEN
from ..peer import Peer
from ..session.session import BACKWARD
from ..step.receipts import WEIGHT
from .buckets import DTYPES, Bucket, make_buckets
from .replica_state import Stateful, compare, describe, pack, raw_bytes, unpack_into
from .statistics import RunningStatistics

BUCKET_BYTES = 12 << 20
"""An operation costs up to a millisecond beside the sum; the last one, which overlaps with nothing, the time of it."""

TWICE = (
    "backward was called twice for one `optimizer.step`: call all but the last under `with model.no_sync():`, "
    "checkpoint with use_reentrant=False, and use no optimizer that evaluates the model several times (LBFGS)"
)

NonFinite = Literal["raise", "skip", "allow"]


class DataParallel(torch.nn.Module):
    """Wraps a model whose replicas train together.

    Construction asks for a seat; the replica of a peer that joins a swarm under way is replaced by the swarm's.
    Running statistics (BatchNorm) are averaged at each commit. A backward pass that raises may be caught: the peer
    then adds nothing to the step, which its next forward and backward pass, on other samples, take part in.

    The end of `loss.backward()` waits until the step is committed, `step_timeout_s` at most.

    Memory: three times the gradients' bytes, `grad` included; two of them in the arena while there is room
    (`arena_bytes`), where other peers of the host read them. A member that feeds an observer holds a copy of the state
    while it sends it, and up to 256 MiB of results, or of 4 steps; the observer up to 1 GiB, or 8 steps. Each member
    sends per step what an `all_reduce` of all gradients does, and 16 bytes for the samples.

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
    ) -> None:
        """Take a seat in the swarm of `peer`, and wait for it as `Peer.wait_view` does.

        The order matters: first the model, on its device and in its types, the optimizer and all of `extra`, then this,
        then `peer.loader` or any operation. A peer has one model, which asks for the seat. Parameters, buffers, and
        the states of the optimizer and `extra` are then the swarm's, so what was derived from them before is stale.

        Args:
            peer: as `p2p.join` made it; nothing has been called on it that needs a seat.
            module: its parameters that need a gradient are float32, float64, float16 or bfloat16 and on the CPU. Names,
                shapes and types in `module.state_dict()`, and their order, are the same on every peer.
            optimizer: of these parameters.
            extra: what else a joiner must have: schedules, scalers; the same, in the same order, on every peer.
            bucket_bytes: gradients are summed in operations of about so many bytes, each of one type.
            algorithm: of `collectives.ALGORITHMS`; None: by size.
            state_digest: how much of the parameters every member shows per step to be the same: a sixteenth (`part`),
                or `all`. It is read once more for that; 16 bytes are sent.
            nonfinite: what happens to a peer whose own gradients have NaN or infinity. `raise`: `NonFiniteGradient` in
                its backward pass, before anything of it is sent. `skip`: it adds nothing to the step, and 0 samples
                to the receipt; the step is started over without them, which takes some milliseconds, and if nobody
                adds anything the gradients are zeros. `allow`: they are averaged as they are. None: `raise`, or
                `allow` if there is a GradScaler in `extra`, which has to see them.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a state that cannot
                be sent; no such `algorithm`, `state_digest` or `nonfinite`.
            JoinRefused: the swarm trains another model.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: there is no seat for this peer, as `wait_view`.
            RemoteProtocolError: a state was received that does not fit this replica.
            ShoalError: this peer has asked for its seat without this model, or has left.
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
        self._parts = (optimizer, *extra)
        self._state_digest = state_digest
        self._nonfinite = _policy(nonfinite, extra)
        self._summed = _summable(module)
        self._buckets = make_buckets(self._summed, bucket_bytes, algorithm, self._session.empty)
        self._statistics = RunningStatistics(module, algorithm)
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.tensors)}
        self._num_submitted = 0
        self._in_pass = self._under_no_sync = self._has_summed = False
        self._ends_step = True
        self._is_due = self._is_updating = False  # committed gradients wait for an update; it is under way
        tensors = dict(module.state_dict())
        layout = describe(tensors)
        if len(layout[1]) > MAX_BYTES_LEN:
            raise ValueError(f"{len(tensors)} tensors cannot be described to a joiner in {MAX_BYTES_LEN} bytes")
        self._pack()  # raises here, not in a member that a joiner asks
        self._session.take_seat(Replica(layout, self._pack, self._load, partial(compare, layout[1])))
        for parameter in self._summed:
            parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]
        optimizer.register_step_pre_hook(self._before_update)
        optimizer.register_step_post_hook(self._after_update)

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
        if torch.is_grad_enabled() and not self._is_due:  # an evaluation may come before the update, or a schedule's
            self._session.state_is_complete()
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        """This peer adds `number` samples in each further backward pass; for scripts that do not use `peer.loader`.

        Args:
            number: samples, of which the loss is the mean. With 0 this peer's gradients count for nothing.

        Raises:
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

    # State.

    def _pack(self) -> PackedState:
        return pack(dict(self.module.state_dict()), self._parts, self._share.pack())

    def _load(self, state: PackedState) -> None:
        tensors = dict(self.module.state_dict())
        self._share.load(unpack_into(state, tensors, self._parts))

    def _digest_state(self) -> bytes:
        """Of the parameters that this step was computed with."""
        chosen = self._summed
        if self._state_digest == "part":
            chosen = chosen[(self._session.done + 1) % 16 :: 16]
        digest = xxhash.xxh3_128()
        for parameter in chosen:
            digest.update(raw_bytes(parameter.detach()))
        return digest.digest()

    # Passes.

    def _take_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Copy a finished gradient into its bucket, and submit the buckets whose turn has come."""
        if not self._in_pass:
            self._begin_pass(parameter)
        if not self._under_no_sync:
            bucket = self._add(parameter)
            if self._ends_step and not bucket.missing:
                self._submit_full_buckets()

    def _begin_pass(self, parameter: torch.nn.Parameter) -> None:
        self._check_is_wanted(parameter)
        self.has_committed = False
        self._ends_step = self._share.is_last and not self._under_no_sync
        if self._ends_step:
            counts = self._share.operation()
            self._session.open_step(BACKWARD)
            self._in_pass = True
            self._session.submit(counts)
        else:
            self._in_pass = True
            self._share.accumulate()
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _add(self, parameter: torch.Tensor) -> Bucket:
        bucket, index = self._place[parameter]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            name = self._name_of(parameter)
            raise TypeError(f"the gradient of {name} is {gradient.layout}: construct its layer with sparse=False")
        bucket.add(index, gradient.detach(), self._share.fraction)
        if self._nonfinite != "allow":
            bucket.check(index)
        parameter.grad = None  # the next gradient takes its memory, which is still in the cache
        return bucket

    def _end_pass(self) -> None:
        """Nothing more comes in this pass: end the step, or get ready for the next pass."""
        if self._under_no_sync:
            self._has_summed, self._in_pass = True, False
            return
        for bucket in self._buckets if self._has_summed else ():
            for index in tuple(bucket.missing):
                if bucket.tensors[index].grad is not None:
                    self._add(bucket.tensors[index])
        if self._ends_step:
            self._end_step()
        else:
            self._drop_gradients()
            for bucket in self._buckets:
                bucket.begin_pass()
            self._has_summed = self._in_pass = False

    def _name_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, each in self.module.named_parameters() if each is parameter)

    def _begin_anew(self) -> None:
        """A pass was interrupted: this peer adds nothing to the step, which the next pass may end."""
        self._session.withdraw()
        self._share.void()
        self._reset()

    def _reset(self) -> None:
        self._num_submitted, self._in_pass, self._has_summed = 0, False, False
        for bucket in self._buckets:
            bucket.begin_step()

    # Steps.

    def _submit_full_buckets(self) -> None:
        while self._num_submitted < len(self._buckets) and not self._buckets[self._num_submitted].missing:
            bucket = self._buckets[self._num_submitted]
            counts = self._share.counts[WEIGHT] > 0
            if counts and self._nonfinite != "allow" and not bucket.is_finite():
                self._refuse(bucket)
            else:
                self._session.submit(bucket.operation)
                self._num_submitted += 1

    def _refuse(self, bucket: Bucket) -> None:
        """This peer's gradients are not finite: raise, or add nothing to the step, which starts over."""
        if self._nonfinite == "raise":
            what = f"the gradient of {self._name_of(bucket.first_not_finite())} in step {self._session.done + 1}"
            raise NonFiniteGradient(
                f"{what} is not finite on this peer; nothing of it was sent: catch this to go on with other samples, "
                "or pass nonfinite='skip' to p2p.DataParallel"
            )
        self._session.withdraw()
        self._share.void()
        self._session.open_step(BACKWARD)
        self._session.submit(self._share.operation())
        self._num_submitted = 0

    def _end_step(self) -> None:
        """Submit what is left, wait for the commit, and hand the committed gradients out."""
        for bucket in self._buckets:
            bucket.zero_empty()
        self._submit_full_buckets()
        for operation in self._statistics.operations():  # the last of a step, on every peer
            self._session.submit(operation)
        try:
            self._session.commit(self._digest_state)
            self._hand_out()
        except BaseException:
            self._drop_gradients()  # what only this peer has computed must not update its replica
            raise
        finally:
            self._reset()
        self._session.announce()

    def _drop_gradients(self) -> None:
        for parameter in self._summed:
            parameter.grad = None

    def _hand_out(self) -> None:
        self._share.spend()
        receipt = self._session.receipt
        assert receipt is not None
        self._statistics.hand_out(receipt.weight)
        for bucket in self._buckets:
            for parameter, result in zip(bucket.tensors, bucket.results, strict=True):
                parameter.grad = result
            bucket.hand_out()
        self.has_committed = self._is_due = True

    # One step per update.

    def _check_is_wanted(self, parameter: torch.nn.Parameter) -> None:
        """A pass begins with `parameter`, whose gradient was just added to whatever was there."""
        bucket, index = self._place[parameter]
        is_added = parameter.grad is bucket.results[index] and bucket.num_writes() == 1
        if self._is_due and (self._is_updating or is_added):
            raise ShoalError(TWICE)

    def _before_update(self, _: object, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        """`optimizer.step` begins; with a closure, the last pass of the step may be in it."""
        has_closure = arguments[1:] or named.get("closure")
        if self._in_pass:  # it raised, and the script goes on
            self._drop_gradients()
        elif self._has_summed and not has_closure:
            raise ShoalError(
                "`optimizer.step` was called between the passes of a step: end it, outside `no_sync`, first"
            )
        self._is_updating = True

    def _after_update(self, *_: object) -> None:
        self._is_due = self._is_updating = False


def _policy(nonfinite: NonFinite | None, extra: Sequence[Stateful]) -> NonFinite:
    scales = any(isinstance(part, torch.amp.GradScaler) and part.is_enabled() for part in extra)
    chosen = nonfinite or ("allow" if scales else "raise")
    if chosen not in get_args(NonFinite):
        raise ValueError(f"nonfinite must be one of {', '.join(get_args(NonFinite))}, is {chosen!r}")
    if scales and chosen != "allow":
        raise ValueError(f"a GradScaler has to see what is not finite: leave nonfinite={chosen!r} out")
    return chosen


def _summable(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters whose gradients are averaged, in about the order in which backward reaches them."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError(f"{type(module).__name__} has no parameter that needs a gradient")
    for name, parameter in named:
        if parameter.dtype not in DTYPES or parameter.device.type != "cpu":
            needed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(f"parameter {name} is {parameter.dtype} on {parameter.device}; need {needed} on the CPU")
    return [parameter for _, parameter in reversed(named)]

"""The gradients of the models of one wrapper in a step: from backward into buckets, and from the commit to `grad`."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, get_args

import torch
import xxhash

from ...catchup.replica import BUCKETS
from ...device import HOST, Device, MemoryShort
from ...errors import NonFiniteGradient, ShoalError
from ...session.attempt import OpenedBy
from ...session.device_memory import pin, single_device_of, staged_by
from ...session.session import Session
from ...step.collective import AllReduce
from ..checks.by_hand import Given, match
from ..checks.graphs import CUT, is_cut
from ..state.changes import Watch
from ..state.mirrors import Mirror
from ..tensors.buckets import Bucket, layout_of, make_bucket, make_buckets
from ..tensors.sparse_buckets import SparseBucket, tables_of
from ..tensors.staged_buckets import make_staged_bucket
from ..tensors.summable import check_one_device, summable_of
from .models import Models
from .no_sync_passes import NoSyncPasses, has_values

logger = logging.getLogger("p2p")

NonFinite = Literal["raise", "skip", "allow"]


NUM_TURNS: Final = 16


class GradientReducer:
    """Collects gradients in buckets, submits these in the same order on every peer, and sets `grad` to the means.

    Attributes:
        device: of all parameters.
        parameters: those whose gradients are averaged, in about the order in which backward reaches them.
        watch: checks that these are all parameters of the model that need a gradient.
        reached: the models that belong to the open step, so far.
        num_turns: the number of steps in which all parameters are compared once; fewer with fewer parameters.
    """

    num_turns = NUM_TURNS

    def __init__(
        self,
        models: Models,
        session: Session,
        nonfinite: NonFinite,
        bucket_bytes: int,
        algorithm: str | None,
    ) -> None:
        """See `DataParallel`."""
        self._module, self._models = models.module, models.named
        self._session = session
        self._share = session.share
        self._nonfinite = nonfinite
        self._bucket_bytes, self._algorithm = bucket_bytes, algorithm
        self._kept = NoSyncPasses()
        self.build_buckets()

    def build_buckets(self) -> None:
        """Make buckets for the module as it is now.

        Raises:
            ValueError: a gradient cannot be averaged; the state is unchanged.
            ShoalError: the device has no memory for the buckets; the state is unchanged.
        """
        summable = {name: summable_of(name, model) for name, model in reversed([*self._models.items()])}
        parameters = [parameter for each in summable.values() for parameter in each]
        check_one_device(dict(self._module.named_parameters()))
        device = single_device_of(self._session, parameters[0], "the model")
        try:
            made = {name: self._make(name, each, device) for name, each in summable.items()}
        except MemoryShort as short:
            wanted = sum(each.nbytes for each in parameters)
            raise ShoalError(
                f"the buckets of gradients, {wanted} bytes in all, do not fit on {parameters[0].device}, where {short}"
                ": they take as much memory as the gradients, and beside them. Train a smaller model, or fewer of its "
                "parameters"
            ) from None
        self.parameters, self.device, self._of_models = parameters, device, made
        self.watch = Watch(self._module, self.parameters)
        self._mirror, self._resting = Mirror(self._session, device), -1
        self._buckets = [bucket for each in self._of_models.values() for bucket in each]
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.parameters)}
        pin(self._session, self.device, [array for bucket in self._buckets for array in bucket.on_host])
        self._begin_reaching()

    def _make(self, name: str, parameters: Sequence[torch.nn.Parameter], device: Device) -> list[Bucket]:
        """Make the buckets of one model; their operations carry its name, so that models are never mixed up."""
        tables, algorithm, empty = tables_of(self._models[name]), self._algorithm, self._session.empty

        def make(parameters: Sequence[torch.Tensor]) -> Bucket | None:
            is_table = id(parameters[0]) in tables
            return make_bucket(parameters, algorithm, empty, SparseBucket, len(parameters[0])) if is_table else None

        staged = partial(make_staged_bucket, make_staged=partial(staged_by, self._session, device))
        make_other = make_bucket if device is HOST else staged
        buckets = make_buckets(parameters, self._bucket_bytes, algorithm, empty, make, make_other)
        for bucket in buckets:
            bucket.model = name
            bucket.operation.collective = AllReduce("mean", is_weighted=True, label=name and f"gradients of {name}")
        return buckets

    @property
    def num_models(self) -> int:
        return len(self._models)

    @property
    def are_summed(self) -> bool:
        """Whether buckets have gradients of passes that have not ended their step."""
        return any(len(bucket.unused) < len(bucket.parameters) for bucket in self._buckets)

    def traits(self, state_digest: str) -> dict[str, bytes]:
        """How the model is trained, in words, by name; `state_digest`: as in `DataParallel`. Equal on all peers."""
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self._module.named_parameters()}
        rows = [[names[parameter] for parameter in bucket.parameters] for bucket in self._buckets]
        digest = xxhash.xxh3_64_hexdigest(repr(rows).encode())
        sizes = f"{len(rows)} buckets of {self._bucket_bytes} bytes"
        return {
            BUCKETS: f"gradients of {len(self.parameters)} parameters in {sizes} (digest {digest})".encode(),
            "codec": b"codec none",
            "strategy": f"data parallel in each step, {state_digest} of the parameters compared".encode(),
        }

    # From backward into buckets.

    def _begin_reaching(self) -> None:
        """Start a step: of several models, those that a pass reaches belong to it; a single one always does."""
        self._num_fetched = self._num_submitted = 0
        self.reached: list[str] = []
        self._turns: list[Bucket] = []
        if len(self._of_models) == 1:
            self.reach(*self._of_models)

    def reach(self, *models: str) -> None:
        """Add models to the open step. Buckets are submitted in the order in which models were reached."""
        for name in models:
            if name not in self.reached:
                self.reached.append(name)
                self._turns += self._of_models[name]

    def keep(self, parameter: torch.Tensor) -> None:
        """Leave the gradient of a pass under `no_sync` in `grad`. Its model belongs to the open step."""
        self.reach(self._place[parameter][0].model)
        self._kept.added(parameter)

    def model_of(self, parameter: torch.Tensor) -> str | None:
        """Name of the model for which `parameter` is summed; None: it is not."""
        bucket, _ = self._place.get(parameter, (None, 0))
        return None if bucket is None else bucket.model

    def begin_step(self) -> None:
        """Empty the buckets."""
        self._begin_reaching()
        self._kept.begin_step()
        for bucket in self._buckets:
            bucket.begin_step()

    def begin_pass(self) -> None:
        """End a pass, after which the step may have a further one."""
        for bucket in self._buckets:
            bucket.end_pass(self._share.parts.keep)
            bucket.begin_pass()

    def add(self, parameter: torch.Tensor) -> Bucket:
        """Move `grad` into its bucket."""
        bucket, index = self._place[parameter]
        self.reach(bucket.model)
        gradient = parameter.grad
        if gradient is None:
            raise ShoalError(
                f"a hook of parameter {self._name_of(parameter)} set its gradient to None before it was averaged: "
                "update and call zero_grad after `loss.backward()`, not within it"
            )
        if gradient.layout is not torch.strided and not (gradient.is_sparse and isinstance(bucket, SparseBucket)):
            name = self._name_of(parameter)
            raise TypeError(
                f"the gradient of {name} is {gradient.layout}, which is averaged only for embeddings: use "
                "nn.Embedding or nn.EmbeddingBag with sparse=True, or dense gradients"
            )
        if is_cut(gradient):
            raise ShoalError(CUT.format(self._name_of(parameter)))
        if layout_of(parameter) != bucket.layouts[index]:
            ours, before = (
                f"{dtype} {list(shape)} with strides {list(strides)}"
                for dtype, shape, strides in (layout_of(parameter), bucket.layouts[index])
            )
            raise ShoalError(
                f"parameter {self._name_of(parameter)} is {ours}, but was {before} when it was wrapped: change the "
                "model on every peer before you construct p2p.DataParallel"
            )
        bucket.add(index, gradient.detach(), self._share.parts.fraction, self._share.parts.keep)
        if self._nonfinite != "allow":
            bucket.check(index)
        parameter.grad = None  # the next gradient reuses its memory, still in the cache
        return bucket

    def add_summed(self) -> None:
        """Add gradients that earlier passes have summed in `grad`, and the last pass did not reach."""
        for bucket in self._turns:
            for index in tuple(bucket.missing):
                if bucket.parameters[index].grad is not None:
                    self.add(bucket.parameters[index])

    def is_of_one_pass(self, first: torch.nn.Parameter) -> bool:
        """Whether `grad` is that of a single pass, which has begun after one that has raised."""
        bucket, index = self._place[first]
        return index not in bucket.missing or (first.grad is not None and not first.grad._version)

    def are_dropped(self, first: torch.nn.Parameter) -> bool:
        """Whether `zero_grad` has dropped the gradients of passes under `no_sync`; `first`: the first of this pass."""
        return self._kept.are_dropped(first, (each for bucket in self._turns for each in bucket.parameters))

    def drop(self) -> None:
        """Set `grad` to None for the models of the step."""
        for bucket in self._turns:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _name_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, each in self._module.named_parameters() if each is parameter)

    # From buckets to operations.

    def drop_refused_grad(self, parameter: torch.Tensor) -> None:
        """Drop a `grad` that a refused pass has set, if the current pass had already taken one."""
        bucket, index = self._place.get(parameter, (None, 0))
        if bucket is not None and index not in bucket.missing:
            parameter.grad = None

    def submit_full(self, *, is_last: bool = False) -> None:
        """Fetch full buckets, and submit fetched ones, in order; `is_last`: the step is over, so wait for the fetch."""
        while self._num_fetched < len(self._turns) and not self._turns[self._num_fetched].missing:
            self._turns[self._num_fetched].set_used_flags()
            self._turns[self._num_fetched].fetch()
            self._num_fetched += 1
        while self._num_submitted < self._num_fetched:
            bucket = self._turns[self._num_submitted]
            if is_last:
                bucket.wait()
            elif not bucket.is_ready():
                break
            if self._share.weight and self._nonfinite != "allow" and not bucket.is_finite():
                self._refuse(bucket)
            else:
                bucket.reclaim_result()
                self._num_submitted += 1
                # The end of the step follows the last one.
                self._session.submit(bucket.operation, is_urgent=self._num_submitted < len(self._turns))

    def submit_all(self) -> None:
        """Submit all buckets after the last pass; parameters that no pass has reached add zeros."""
        for bucket in self._turns:
            bucket.end_pass(self._share.parts.keep)
            bucket.zero_empty()
            for index in bucket.unused:
                bucket.parameters[index].grad = None  # left from the step before
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    raise ShoalError(
                        f"a hook of parameter {self._name_of(parameter)} set its gradient after it was taken to be "
                        "averaged, so the new one would be lost: add such hooks before the first forward pass, or "
                        "change `grad` after `loss.backward()`"
                    )
        self.submit_full(is_last=True)

    def _refuse(self, bucket: Bucket) -> None:
        """Handle gradients that are not finite: raise, or withdraw from the step and open it again without samples."""
        name, step = self._name_of(bucket.first_not_finite()), self._session.done + 1
        what = f"the gradient of {name} in step {step} is not finite on this peer"
        if self._nonfinite == "raise":
            raise NonFiniteGradient(
                f"{what}; nothing of it was sent. Catch this to continue with other samples, or pass nonfinite='skip' "
                "to p2p.DataParallel. If you use a GradScaler, pass extra=[scaler]: it skips such updates itself"
            )
        lost = self._share.indices
        which = f"; its samples are left out: {', '.join(map(str, lost))}" if lost else ""
        logger.warning("%s, so this peer adds nothing to the step%s", what, which)
        self._session.withdraw()
        self._share.skip()
        self._session.open_step(OpenedBy.BACKWARD)
        self._session.submit(self._share.operation(), is_urgent=False)
        self._num_submitted = 0

    # From the commit to `grad`.

    def set_grads(self) -> None:
        """Set `grad` to the committed results; None if no counted member had a gradient."""
        for bucket in self._turns:
            for parameter, gradient in zip(bucket.parameters, bucket.result_views(), strict=True):
                parameter.grad = gradient

    def set_zero_grads(self) -> None:
        """Set `grad` to zeros after a step that was withdrawn, for the code of the script after its backward pass."""
        for bucket in self._turns:
            for index, parameter in enumerate(bucket.parameters):
                parameter.grad = None if index in bucket.unused else torch.zeros_like(parameter)

    @property
    def are_finite(self) -> bool:
        """Whether committed gradients are certainly finite, apart from overflow."""
        return self._nonfinite != "allow"

    def begin_digest(self) -> None:
        """Begin to read the parameters that the open step compares. They must not change before `cancel_digest`."""
        num_turns = min(self.num_turns, len(self.parameters))  # so that each step compares at least one
        self._mirror.begin(self.parameters[self._session.share.training_step % num_turns :: num_turns])
        self._resting = self._session.done + 1

    def cancel_digest(self) -> None:
        """Stop reading the parameters, which are about to change."""
        self._mirror.forget()
        self._resting = -1

    def digest_of_step(self) -> bytes:
        """Digest of the parameters that the open step compares, with the values that it was computed with."""
        if self._resting != self._session.done + 1:
            self.begin_digest()
        return self._read()

    def digest(self) -> bytes:
        """Digest of all parameters. Waits for the device."""
        self._resting = -1
        self._mirror.begin(self.parameters)
        return self._read()

    def _read(self) -> bytes:
        digest = xxhash.xxh3_128()
        for raw in self._mirror.read():
            digest.update(raw.data)
        return digest.digest()

    def was_added_to(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the committed gradient was changed since, by one addition of autograd."""
        bucket, index = self._place[parameter]
        return bucket.was_added_to(index)

    def kept(self, first: torch.nn.Parameter) -> Iterator[torch.Tensor]:
        """Parameters that still have the committed gradients, not dropped or zeroed; a pass reached `first` alone."""
        for parameter, (bucket, index) in self._place.items():
            if parameter is first:
                is_kept = bucket.was_added_to(index)
            else:
                is_kept = bucket.has_committed_grad(index) and has_values(parameter.grad)
            if is_kept:
                yield parameter

    def has_added(self, parameter: torch.Tensor) -> bool:
        """Whether this peer had a gradient for it in the step that was just handed out."""
        bucket, index = self._place[parameter]
        return index not in bucket.unused

    def check_are_committed(self, parameters: Iterable[torch.Tensor]) -> None:
        """Raise ShoalError if the `grad` of a parameter was not committed, or the model has changed."""
        for parameter in parameters:
            bucket, index = self._place.get(parameter, (None, 0))
            if bucket is None and parameter.grad is not None:
                self.watch.check()
            if bucket is not None and parameter.grad is not None and not bucket.has_committed_grad(index):
                raise ShoalError(
                    f"`optimizer.step` was called with a gradient of {self._name_of(parameter)} that no step "
                    "committed, so only this peer has it: average it with `DataParallel.reduce_gradients`, or pass "
                    "allow_local=True to p2p.DataParallel"
                )

    def are_left(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether a committed gradient of `parameters` is still to be used: neither dropped nor all zeros."""
        for parameter in parameters:
            bucket, index = self._place.get(parameter, (None, 0))
            if bucket is not None and bucket.has_committed_grad(index) and has_values(parameter.grad):
                return True
        return False

    def match(self, given: Given, model: str = "") -> dict[str, tuple[torch.nn.Parameter, torch.Tensor | None]]:
        """As `by_hand.match`, for one of the models."""
        if model not in self._models:
            raise ValueError(f"got gradients for {model!r}, which is not one of the models {', '.join(self._models)}")
        return match(dict(self._models[model].named_parameters()), self._place, given)


def policy(nonfinite: NonFinite | None, extra: Iterable[object]) -> NonFinite:
    """The policy for gradients that are not finite; see `DataParallel`."""
    scales = any(isinstance(part, torch.amp.GradScaler) and part.is_enabled() for part in extra)
    chosen = nonfinite or ("allow" if scales else "raise")
    if chosen not in get_args(NonFinite):
        raise ValueError(f"nonfinite must be one of {', '.join(get_args(NonFinite))}, is {chosen!r}")
    if scales and chosen != "allow":
        raise ValueError(f"a GradScaler must see gradients that are not finite: remove nonfinite={chosen!r}")
    return chosen

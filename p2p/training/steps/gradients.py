"""The gradients of one model in one step: from backward into buckets, through the commit, and out again."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal, get_args

import torch
import xxhash

from ...catchup.replica import BUCKETS
from ...device import HOST, Device, MemoryShort
from ...errors import NonFiniteGradient, ShoalError
from ...session.attempt import OpenedBy
from ...session.device_memory import pin, staged_by, the_device_of
from ...session.session import Session
from ...step.collective import AllReduce
from ..checks.by_hand import Given, match
from ..state.changes import Watch
from ..state.mirrors import Mirror
from ..tensors.buckets import Bucket, layout_of, make_bucket, make_buckets
from ..tensors.rows import RowBucket, tables_of
from ..tensors.staged_buckets import make_staged_bucket
from ..tensors.summable import check_one_device, summable_of
from .models import Models

logger = logging.getLogger("p2p")

NonFinite = Literal["raise", "skip", "allow"]


NUM_TURNS: Final = 16


class Gradients:
    """Sums gradients in buckets, submits these in one order on every peer, and hands the means out.

    Attributes:
        device: of all parameters.
        parameters: whose gradients are averaged, in about the order in which backward reaches them.
        watch: of the model, that these are all.
        reached: the models that belong to the open step, so far.
        num_turns: in so many steps, or fewer, all parameters are shown to be the same.
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
        self.begin()

    def begin(self) -> None:
        """With the module as it is now.

        Raises:
            ValueError: a gradient of it cannot be averaged; nothing has changed.
            ShoalError: the device has no room for the buckets; likewise.
        """
        summable = {name: summable_of(name, model) for name, model in reversed([*self._models.items()])}
        parameters = [parameter for each in summable.values() for parameter in each]
        check_one_device(dict(self._module.named_parameters()))
        device = the_device_of(self._session, parameters[0], "the model")
        try:
            made = {name: self._make(name, each, device) for name, each in summable.items()}
        except MemoryShort as short:
            wanted = sum(each.nbytes for each in parameters)
            raise ShoalError(
                f"the buckets of gradients, {wanted} bytes in all, do not fit on {parameters[0].device}: of it {short}"
                "; they take as much as the gradients, beside these: train a smaller model, or fewer of its parameters"
            ) from None
        self.parameters, self.device, self._of_models = parameters, device, made
        self.watch = Watch(self._module, self.parameters)
        self._mirror, self._resting = Mirror(self._session, device), -1
        self._buckets = [bucket for each in self._of_models.values() for bucket in each]
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.parameters)}
        pin(self._session, self.device, [array for bucket in self._buckets for array in bucket.on_host])
        self._begin_reaching()

    def _make(self, name: str, parameters: Sequence[torch.nn.Parameter], device: Device) -> list[Bucket]:
        """Buckets of one model, whose operations have its name, so that no other one is summed with it."""
        tables, algorithm, empty = tables_of(self._models[name]), self._algorithm, self._session.empty

        def make(parameters: Sequence[torch.Tensor]) -> Bucket | None:
            is_table = id(parameters[0]) in tables
            return make_bucket(parameters, algorithm, empty, RowBucket, len(parameters[0])) if is_table else None

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
        """Whether some are in the buckets, of passes that have not ended their step."""
        return any(len(bucket.empty) < len(bucket.parameters) for bucket in self._buckets)

    def traits(self, state_digest: str) -> dict[str, bytes]:
        """How it is trained, for people, by name; `state_digest`: as of `DataParallel`. Equal on all peers."""
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self._module.named_parameters()}
        rows = [[names[parameter] for parameter in bucket.parameters] for bucket in self._buckets]
        digest = xxhash.xxh3_64_hexdigest(repr(rows).encode())
        sizes = f"{len(rows)} buckets of {self._bucket_bytes} bytes"
        return {
            BUCKETS: f"gradients of {len(self.parameters)} parameters in {sizes} (digest {digest})".encode(),
            "codec": b"codec none",
            "strategy": f"data parallel in each step, {state_digest} of the parameters compared".encode(),
        }

    # In.

    def _begin_reaching(self) -> None:
        """Of several models, those that a pass reaches belong to the step; one alone always does."""
        self._num_fetched = self._num_submitted = 0
        self.reached: list[str] = []
        self._turns: list[Bucket] = []
        if len(self._of_models) == 1:
            self.reach(*self._of_models)

    def reach(self, *models: str) -> None:
        """These belong to the open step. Their buckets are submitted in the order in which they were reached."""
        for name in models:
            if name not in self.reached:
                self.reached.append(name)
                self._turns += self._of_models[name]

    def reach_with(self, parameter: torch.Tensor) -> None:
        """A pass has reached it."""
        self.reach(self._place[parameter][0].model)

    def model_of(self, parameter: torch.Tensor) -> str | None:
        """The name of the one that it is summed for, if it is."""
        bucket, _ = self._place.get(parameter, (None, 0))
        return None if bucket is None else bucket.model

    def begin_step(self) -> None:
        """Nothing is in the buckets."""
        self._begin_reaching()
        for bucket in self._buckets:
            bucket.begin_step()

    def begin_pass(self) -> None:
        """The pass is over, and a further one of the step may come."""
        for bucket in self._buckets:
            bucket.end_pass(self._share.keep)
            bucket.begin_pass()

    def add(self, parameter: torch.Tensor) -> Bucket:
        """Take `grad` away, into its bucket."""
        bucket, index = self._place[parameter]
        self.reach(bucket.model)
        gradient = parameter.grad
        if gradient is None:
            raise ShoalError(
                f"a hook of parameter {self._name_of(parameter)} has set its gradient to None before it was averaged: "
                "update and call zero_grad after `loss.backward()`, not within it"
            )
        if gradient.layout is not torch.strided and not (gradient.is_sparse and isinstance(bucket, RowBucket)):
            name = self._name_of(parameter)
            raise TypeError(
                f"the gradient of {name} is {gradient.layout}, which is averaged for layers only: use nn.Embedding or "
                "nn.EmbeddingBag with sparse=True, or no sparse gradients"
            )
        if layout_of(parameter) != bucket.layouts[index]:
            ours, before = (
                f"{dtype} {list(shape)} with strides {list(strides)}"
                for dtype, shape, strides in (layout_of(parameter), bucket.layouts[index])
            )
            raise ShoalError(
                f"parameter {self._name_of(parameter)} is {ours}, and was {before} when it was wrapped: change the "
                "model first, on every peer, and construct p2p.DataParallel then"
            )
        bucket.add(index, gradient.detach(), self._share.fraction, self._share.keep)
        if self._nonfinite != "allow":
            bucket.check(index)
        parameter.grad = None  # the next gradient takes its memory, which is still in the cache
        return bucket

    def add_summed(self) -> None:
        """Take what earlier passes have summed in `grad`, and this one did not reach."""
        for bucket in self._turns:
            for index in tuple(bucket.missing):
                if bucket.parameters[index].grad is not None:
                    self.add(bucket.parameters[index])

    def are_dropped(self, first: torch.nn.Parameter) -> bool:
        """Whether `zero_grad` has set all to None since earlier passes; `first` is the first that this pass has set.

        What a pass adds to a gradient counts in its `_version`. Zeros say nothing, since gradients may be zeros.
        """
        if first.grad is None or first.grad._version or first.grad.requires_grad:  # `create_graph` adds out of place
            return False
        return all(each.grad is None for each in self.parameters if each is not first)

    def drop(self) -> None:
        """Set `grad` to None, of the models that belong to the step."""
        for bucket in self._turns:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _name_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, each in self._module.named_parameters() if each is parameter)

    # Through.

    def put_back(self, parameter: torch.Tensor) -> None:
        """A pass that is refused has set `grad`, which this pass had taken already."""
        bucket, index = self._place.get(parameter, (None, 0))
        if bucket is not None and index not in bucket.missing:
            parameter.grad = None

    def submit_full(self, *, is_last: bool = False) -> None:
        """Fetch what is full, and submit what was fetched, in turn; `is_last`: nothing more comes, so wait for it."""
        while self._num_fetched < len(self._turns) and not self._turns[self._num_fetched].missing:
            self._turns[self._num_fetched].mark()
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
                bucket.take_back()
                self._num_submitted += 1
                # Behind the last one comes the end of the step.
                self._session.submit(bucket.operation, is_urgent=self._num_submitted < len(self._turns))

    def submit_all(self) -> None:
        """The last pass is over: what no pass has reached adds nothing."""
        for bucket in self._turns:
            bucket.end_pass(self._share.keep)
            bucket.zero_empty()
            for index in bucket.empty:
                bucket.parameters[index].grad = None  # of the step before
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    raise ShoalError(
                        f"a hook of parameter {self._name_of(parameter)} has set its gradient after that was taken to "
                        "be averaged, so it would be lost: add such hooks before the first forward pass, or change "
                        "`grad` after `loss.backward()`"
                    )
        self.submit_full(is_last=True)

    def _refuse(self, bucket: Bucket) -> None:
        """This peer's gradients are not finite: raise, or add nothing to the step, which starts over."""
        name, step = self._name_of(bucket.first_not_finite()), self._session.done + 1
        what = f"the gradient of {name} in step {step} is not finite on this peer"
        if self._nonfinite == "raise":
            raise NonFiniteGradient(
                f"{what}; nothing of it was sent: catch this to go on with other samples, or pass nonfinite='skip' to "
                "p2p.DataParallel; or extra=[scaler], if a GradScaler is used, which leaves the update out by itself"
            )
        lost = self._share.indices
        which = f"; its samples are left out: {', '.join(map(str, lost))}" if lost else ""
        logger.warning("%s, which adds nothing to it%s", what, which)
        self._session.withdraw()
        self._share.skip()
        self._session.open_step(OpenedBy.BACKWARD)
        self._session.submit(self._share.operation(), is_urgent=False)
        self._num_submitted = 0

    # Out.

    def hand_out(self) -> None:
        """The results are committed, and the script's; `grad` is None where nobody had any."""
        for bucket in self._turns:
            for parameter, gradient in zip(bucket.parameters, bucket.hand_out(), strict=True):
                parameter.grad = gradient

    def hand_out_zeros(self) -> None:
        """The step is taken back, and its script goes on with what stands behind a backward pass."""
        for bucket in self._turns:
            for index, parameter in enumerate(bucket.parameters):
                parameter.grad = None if index in bucket.empty else torch.zeros_like(parameter)

    @property
    def are_finite(self) -> bool:
        """Whether what is committed is sure to be finite, if it is not too large."""
        return self._nonfinite != "allow"

    def rest(self) -> None:
        """The parameters stay as they are until `stir`: begin to read those whose digest the open step shows."""
        num_turns = min(self.num_turns, len(self.parameters))  # so that each step shows something
        self._mirror.begin(self.parameters[self._session.share.training_step % num_turns :: num_turns])
        self._resting = self._session.done + 1

    def stir(self) -> None:
        """The parameters are about to change; nobody reads them any more."""
        self._mirror.forget()
        self._resting = -1

    def digest_of_step(self) -> bytes:
        """Of those parameters that the open step shows, which it was computed with."""
        if self._resting != self._session.done + 1:
            self.rest()
        return self._read()

    def digest(self) -> bytes:
        """Of the parameters. Waits for the device."""
        self._resting = -1
        self._mirror.begin(self.parameters)
        return self._read()

    def _read(self) -> bytes:
        digest = xxhash.xxh3_128()
        for raw in self._mirror.read():
            digest.update(raw.data)
        return digest.digest()

    def was_added_to(self, parameter: torch.nn.Parameter) -> bool:
        """Whether autograd, and nobody else, has added to the gradient that was handed out."""
        bucket, index = self._place[parameter]
        return bucket.was_added_to(index)

    def check_are_committed(self, parameters: Iterable[torch.Tensor]) -> None:
        """Raise ShoalError if the `grad` of one of `parameters` was not handed out, or the model is another one."""
        for parameter in parameters:
            bucket, index = self._place.get(parameter, (None, 0))
            if bucket is None and parameter.grad is not None:
                self.watch.check()
            if bucket is not None and parameter.grad is not None and not bucket.is_handed_out(index):
                raise ShoalError(
                    f"`optimizer.step` was called with a gradient of {self._name_of(parameter)} that came from no "
                    "committed step, so only this peer has it: average it with `DataParallel.reduce_gradients`, or "
                    "pass allow_local=True to p2p.DataParallel"
                )

    def are_left(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether some of what was handed out for `parameters` is to be used still: not dropped, nor all zeros."""
        for parameter in parameters:
            bucket, index = self._place.get(parameter, (None, 0))
            if bucket is not None and bucket.is_handed_out(index):
                assert parameter.grad is not None
                if parameter.grad.is_sparse or bool(parameter.grad.any()):
                    return True
        return False

    def match(self, given: Given, model: str = "") -> dict[str, tuple[torch.nn.Parameter, torch.Tensor | None]]:
        """As `by_hand.match`, of one of the models."""
        if model not in self._models:
            raise ValueError(f"gradients were given for {model!r}, which is none of {', '.join(self._models)}")
        return match(dict(self._models[model].named_parameters()), self._place, given)


def policy(nonfinite: NonFinite | None, extra: Iterable[object]) -> NonFinite:
    """What happens to gradients that are not finite; see `DataParallel`."""
    scales = any(isinstance(part, torch.amp.GradScaler) and part.is_enabled() for part in extra)
    chosen = nonfinite or ("allow" if scales else "raise")
    if chosen not in get_args(NonFinite):
        raise ValueError(f"nonfinite must be one of {', '.join(get_args(NonFinite))}, is {chosen!r}")
    if scales and chosen != "allow":
        raise ValueError(f"a GradScaler has to see what is not finite: leave nonfinite={chosen!r} out")
    return chosen

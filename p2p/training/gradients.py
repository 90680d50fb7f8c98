"""The gradients of one model in one step: from backward into buckets, through the commit, and out again."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
import xxhash

from ..errors import NonFiniteGradient, ShoalError
from ..session.session import BACKWARD, Session
from .buckets import DTYPES, Bucket, layout_of, make_bucket, make_buckets
from .changes import Watch
from .replica_state import raw_bytes
from .rows import RowBucket, tables_of

logger = logging.getLogger("p2p")

NonFinite = Literal["raise", "skip", "allow"]
Given = Sequence[torch.Tensor | None] | Mapping[str, torch.Tensor | None]
"""Gradients in the order of the parameters, or by their names."""


class Gradients:
    """Sums gradients in buckets, submits these in one order on every peer, and hands the means out.

    Attributes:
        parameters: whose gradients are averaged, in about the order in which backward reaches them.
        watch: of the model, that these are all.
    """

    def __init__(
        self, module: torch.nn.Module, session: Session, nonfinite: NonFinite, bucket_bytes: int, algorithm: str | None
    ) -> None:
        """See `DataParallel`."""
        self._module = module
        self._session = session
        self._share = session.share
        self._nonfinite = nonfinite
        self._bucket_bytes, self._algorithm = bucket_bytes, algorithm
        self.begin()

    def begin(self) -> None:
        """With the module as it is now.

        Raises:
            ValueError: a gradient of it cannot be averaged; nothing has changed.
        """
        self.parameters = _summable(self._module)
        self.watch = Watch(self._module, self.parameters)
        tables, algorithm, empty = tables_of(self._module), self._algorithm, self._session.empty

        def make(parameters: Sequence[torch.Tensor]) -> Bucket | None:
            if id(parameters[0]) not in tables:
                return None
            return make_bucket(parameters, algorithm, empty, RowBucket, len(parameters[0]))

        self._buckets = make_buckets(self.parameters, self._bucket_bytes, algorithm, empty, make)
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.parameters)}
        self._num_submitted = 0

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
            "buckets": f"gradients of {len(self.parameters)} parameters in {sizes} (digest {digest})".encode(),
            "codec": b"codec none",
            "strategy": f"data parallel in each step, {state_digest} of the parameters compared".encode(),
        }

    # In.

    def begin_step(self) -> None:
        """Nothing is in the buckets."""
        self._num_submitted = 0
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
        for bucket in self._buckets:
            for index in tuple(bucket.missing):
                if bucket.parameters[index].grad is not None:
                    self.add(bucket.parameters[index])

    def drop(self) -> None:
        """Set `grad` to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def _name_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, each in self._module.named_parameters() if each is parameter)

    # Through.

    def submit_full(self) -> None:
        """Submit the buckets whose turn has come."""
        while self._num_submitted < len(self._buckets) and not self._buckets[self._num_submitted].missing:
            bucket = self._buckets[self._num_submitted]
            bucket.mark()
            if self._share.weight and self._nonfinite != "allow" and not bucket.is_finite():
                self._refuse(bucket)
            else:
                bucket.take_back()
                self._session.submit(bucket.operation)
                self._num_submitted += 1

    def submit_all(self) -> None:
        """The last pass is over: what no pass has reached adds nothing."""
        for bucket in self._buckets:
            bucket.end_pass(self._share.keep)
            bucket.zero_empty()
            for index in bucket.empty:
                bucket.parameters[index].grad = None  # of the step before
        self.submit_full()

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
        self._session.open_step(BACKWARD)
        self._session.submit(self._share.operation())
        self._num_submitted = 0

    # Out.

    def hand_out(self) -> None:
        """The results are committed, and the script's; `grad` is None where nobody had any."""
        for bucket in self._buckets:
            for parameter, gradient in zip(bucket.parameters, bucket.hand_out(), strict=True):
                parameter.grad = gradient

    @property
    def are_finite(self) -> bool:
        """Whether what is committed is sure to be finite, if it is not too large."""
        return self._nonfinite != "allow"

    def digest(self, start: int = 0, step: int = 1) -> bytes:
        """Of the parameters, or of some of them."""
        digest = xxhash.xxh3_128()
        for parameter in self.parameters[start::step]:
            digest.update(raw_bytes(parameter.detach()))
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

    # By hand.

    def match(self, given: Given) -> dict[str, tuple[torch.nn.Parameter, torch.Tensor | None]]:
        """By name, each parameter and the gradient that the script has computed for it.

        Raises:
            TypeError: a gradient is sparse.
            ValueError: a gradient is of no parameter, or of another shape.
        """
        named = dict(self._module.named_parameters())
        if not isinstance(given, Mapping):
            needed = [name for name, each in named.items() if each.requires_grad or len(given) == len(named)]
            if len(given) != len(needed):
                raise ValueError(
                    f"{len(given)} gradients were given for {len(needed)} parameters: pass one, or None, for each that "
                    "needs a gradient, in the order of `module.parameters()`, or a dict by name"
                )
            given = dict(zip(needed, given, strict=True))
        for name, gradient in given.items():
            parameter = named.get(name)
            if parameter is None or (gradient is not None and parameter not in self._place):
                raise ValueError(f"a gradient was given for {name}, which is no parameter that needed one at the start")
            if gradient is not None and (gradient.shape, gradient.dtype) != (parameter.shape, parameter.dtype):
                ours, theirs = (f"{each.dtype} {list(each.shape)}" for each in (gradient, parameter))
                raise ValueError(f"the gradient of {name} is {ours}, and the parameter {theirs}")
        return {name: (named[name], gradient) for name, gradient in given.items()}


def add_to_grad(parameter: torch.nn.Parameter, gradient: torch.Tensor, *, is_kept: bool) -> None:
    """As autograd does it; `is_kept`: `grad` stays for further passes, so that it needs memory of its own."""
    found = gradient.detach().clone() if is_kept else gradient.detach()
    parameter.grad = found if parameter.grad is None else parameter.grad + found


def policy(nonfinite: NonFinite | None, extra: Iterable[object]) -> NonFinite:
    """What happens to gradients that are not finite; see `DataParallel`."""
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

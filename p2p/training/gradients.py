"""The gradients of one model in one step: from backward into buckets, through the commit, and out again."""

from typing import Literal

import torch

from ..errors import NonFiniteGradient
from ..session.calls import count_samples
from ..session.session import BACKWARD, Session
from .buckets import DTYPES, Bucket, make_buckets

NonFinite = Literal["raise", "skip", "allow"]


class Gradients:
    """Sums gradients in buckets, submits these in one order on every peer, and hands the means out.

    Attributes:
        parameters: whose gradients are averaged, in about the order in which backward reaches them.
    """

    def __init__(
        self, module: torch.nn.Module, session: Session, nonfinite: NonFinite, bucket_bytes: int, algorithm: str | None
    ) -> None:
        """See `DataParallel`."""
        self.parameters = _summable(module)
        self._module = module
        self._session = session
        self._share = session.share
        self._nonfinite = nonfinite
        self._buckets = make_buckets(self.parameters, bucket_bytes, algorithm, session.empty)
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.parameters)}
        self._num_submitted = 0

    # In.

    def begin_step(self) -> None:
        """Nothing is in the buckets."""
        self._num_submitted = 0
        for bucket in self._buckets:
            bucket.begin_step()

    def begin_pass(self) -> None:
        """A further backward pass of the step may come."""
        for bucket in self._buckets:
            bucket.begin_pass()

    def add(self, parameter: torch.Tensor) -> Bucket:
        """Take `grad` away, into its bucket."""
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
            counts = self._share.slice[1] > 0
            if counts and self._nonfinite != "allow" and not bucket.is_finite():
                self._refuse(bucket)
            else:
                bucket.take_back()
                self._session.submit(bucket.operation)
                self._num_submitted += 1

    def submit_all(self) -> None:
        """The last pass is over: what no pass has reached adds nothing."""
        for bucket in self._buckets:
            bucket.zero_empty()
            for index in bucket.empty:
                bucket.parameters[index].grad = None  # of the step before
        self.submit_full()

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
        self._session.submit(count_samples(self._share.slice))
        self._num_submitted = 0

    # Out.

    def hand_out(self) -> None:
        """The results are committed, and the script's; `grad` is None where nobody had any."""
        for bucket in self._buckets:
            for parameter, gradient in zip(bucket.parameters, bucket.hand_out(), strict=True):
                parameter.grad = gradient

    def was_added_to(self, parameter: torch.nn.Parameter) -> bool:
        """Whether autograd, and nobody else, has added to the gradient that was handed out."""
        bucket, index = self._place[parameter]
        return bucket.was_added_to(index)


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

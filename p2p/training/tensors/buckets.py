"""Buckets of gradients: a few operations of about equal size, each of one type, instead of one per parameter."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from collectives import Array

from ...session.operation_call import ArrayAllocator
from ...session.tensors import as_array, empty_tensor
from ...step.collective import AllReduce
from ...step.operation import Operation
from .layouts import dense_strides, laid_out

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types of parameters whose gradients can be averaged."""

BUCKET_BYTES: Final = 12 << 20
"""A trade-off: an operation has an overhead of up to 1 ms, and the last one does not overlap with backward."""

Layout = tuple[torch.dtype, torch.Size, tuple[int, ...]]
"""Type, shape and strides of a parameter."""


def layout_of(tensor: Tensor) -> Layout:
    return tensor.dtype, tensor.shape, tensor.stride()


@dataclass(slots=True, eq=False)
class Bucket:
    """Gradients of parameters of one type, which are averaged over the samples in one operation.

    After the values the operation has a mark for each parameter: 1 if this peer has a gradient. A mean of marks other
    than 0 means that a counted member has one.

    The result stays in the same memory from step to step, unless the script still refers to the last one.

    Attributes:
        parameters: in the order of their values.
        flat: this peer's values and marks; the operation's input.
        inputs: parts of `flat` in the shapes and strides of `parameters`.
        used_flags: the end of `flat`.
        operation: a weighted mean.
        make_memory: allocates another result.
        layouts: of `parameters`, when the bucket was created.
        model: name of the model of `parameters`, if there are several.
        missing: indices of parameters that this backward pass has not reached.
        unused: indices of parameters without a gradient in this step.
        is_suspect: whether `flat` may have values that are not finite: a sum of some of them was not.
    """

    parameters: Sequence[Tensor]
    flat: Tensor
    inputs: Sequence[Tensor]
    used_flags: Tensor
    operation: Operation
    make_memory: Callable[[], Tensor]
    layouts: Sequence[Layout]
    model: str = ""
    missing: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    is_suspect: bool = False
    _unmarked: set[int] | None = None
    _handed_out: Sequence[Tensor | None] = ()
    _result: Tensor | None = None
    _lent: weakref.ref[Any] | None = None
    _version: int = 0

    @property
    def on_host(self) -> Sequence[Array]:
        """Host memory that takes part in copies from and to a device."""
        return self.operation.input, self.operation.result

    def begin_pass(self) -> None:
        """Prepare for a backward pass."""
        self.missing = set(range(len(self.parameters)))

    def begin_step(self) -> None:
        """Empty the bucket."""
        self.begin_pass()
        self.unused = set(range(len(self.parameters)))
        self.is_suspect = False

    def add(self, index: int, gradient: Tensor, fraction: float, keep: float = 1.0) -> None:
        """Add `fraction` times a parameter's gradient to `keep` times the present value."""
        values = self.inputs[index]
        if index not in self.unused:
            if keep != 1.0:
                values.mul_(keep)
            values.add_(gradient, alpha=fraction)
        elif fraction == 1.0:
            values.copy_(gradient)
        else:
            torch.mul(gradient, fraction, out=values)
        self.unused.discard(index)
        self.missing.discard(index)

    def end_pass(self, keep: float) -> None:
        """At the end of a pass, multiply values of parameters that it has not reached by `keep`."""
        if keep != 1.0:
            for index in self.missing - self.unused:
                self.inputs[index].mul_(keep)

    def check(self, index: int) -> None:
        """Check the gradient that was just added for values that are not finite, while it is in the cache."""
        values = self.inputs[index]
        total = values.sum() if values.itemsize > 2 else values.sum(dtype=torch.float32)
        if not math.isfinite(total.item()):
            self.is_suspect = True

    def zero_empty(self) -> None:
        """After the last pass of the step: set values of parameters that no pass has reached to zero."""
        for index in self.unused:
            self.inputs[index].zero_()
        self.missing.clear()

    def set_used_flags(self) -> None:
        """Set the marks of a full bucket. Nearly always they equal those of the step before."""
        if self._unmarked != self.unused:
            self.used_flags.fill_(1)
            self.used_flags[list(self.unused)] = 0
            self._unmarked = set(self.unused)

    def fetch(self) -> None:
        """Begin to copy a full bucket to the operation's input; here it already lies there."""

    def is_ready(self) -> bool:
        """Whether the operation can be submitted."""
        return True

    def wait(self) -> None:
        """Wait until the operation can be submitted."""

    def result_views(self) -> Sequence[Tensor | None]:
        """Parts of the result for the script, in the order of `parameters`; None if no counted member had a gradient.

        As long as the script refers to one, or to a tensor that shares its memory, the result is not overwritten.
        """
        lent = self.operation.result.view(f"i{self.flat.itemsize}")
        self._lent = weakref.ref(lent)
        self._result = torch.from_numpy(lent).view(self.flat.dtype)  # holds `lent`, and so does each view of it
        self._version = self._result._version
        num_values = len(self.flat) - len(self.used_flags)
        pairs = zip(views(self._result[:num_values], self.parameters), self._result[num_values:].tolist(), strict=True)
        self._handed_out = [part if mark else None for part, mark in pairs]
        return self._handed_out

    def reclaim_result(self) -> None:
        """Prepare the result for writing; allocate another one if the script still refers to the last one."""
        self._handed_out, self._result = (), None
        if self._lent is not None and self._lent() is not None:
            self.operation.result = as_array(self.make_memory())
        self._lent = None

    def was_added_to(self, index: int) -> bool:
        """Whether the `grad` of a parameter is the committed one, changed since by one addition of autograd."""
        if self._result is None or self._result._version != self._version + 1:
            return False
        return self.has_committed_grad(index)

    def has_committed_grad(self, index: int) -> bool:
        """Whether the `grad` of a parameter is the committed one, perhaps changed in place."""
        return bool(self._handed_out) and self.parameters[index].grad is self._handed_out[index] is not None

    def is_finite(self) -> bool:
        """Whether all of `flat` is finite; reads it only if a check was suspicious."""
        return not self.is_suspect or bool(self.flat.isfinite().all())

    def first_not_finite(self) -> Tensor:
        """The first parameter whose gradient here has NaN or infinity; one must exist."""
        pairs = zip(self.parameters, self.inputs, strict=True)
        return next(parameter for parameter, values in pairs if not values.isfinite().all())


def make_bucket(
    parameters: Sequence[Tensor],
    algorithm: str | None,
    empty: ArrayAllocator = np.empty,
    kind: type[Bucket] = Bucket,
    num_marks: int = 0,
) -> Bucket:
    """Create a bucket for `parameters` of one type; `unused` allocates its input and result."""
    num_values = sum(parameter.numel() for parameter in parameters)
    shape, dtype = (num_values + (num_marks or len(parameters)),), parameters[0].dtype
    make_memory = partial(empty_tensor, shape, dtype, empty)
    flat = make_memory().zero_()
    operation = Operation(
        AllReduce("mean", is_weighted=True), as_array(flat), as_array(make_memory()), shape, algorithm
    )
    inputs, marks = views(flat[:num_values], parameters), flat[num_values:]
    bucket = kind(parameters, flat, inputs, marks, operation, make_memory, [*map(layout_of, parameters)])
    bucket.begin_step()
    return bucket


def make_buckets(
    parameters: Iterable[nn.Parameter],
    bucket_bytes: int,
    algorithm: str | None,
    empty: ArrayAllocator = np.empty,
    make: Callable[[Sequence[Tensor]], Bucket | None] = lambda parameters: None,
    make_other: Callable[..., Bucket] = make_bucket,
) -> list[Bucket]:
    """Create buckets of at most `bucket_bytes`, more only for a single larger parameter; marks are not counted.

    Args:
        parameters: in about the order in which backward reaches them.
        bucket_bytes: of one bucket.
        algorithm: of every operation.
        empty: allocates memory for inputs and results.
        make: creates a bucket for one parameter that needs a separate one; else returns None.
        make_other: creates each other bucket, as `make_bucket`.

    Returns:
        The buckets in the order in which backward should fill them, which is the same on every peer.
    """
    found: list[tuple[int, Bucket]] = []
    groups: list[list[tuple[int, nn.Parameter]]] = []
    current: dict[torch.dtype, list[tuple[int, nn.Parameter]]] = {}
    num_bytes: Counter[torch.dtype] = Counter()
    for place, parameter in enumerate(parameters):
        if (own := make([parameter])) is not None:
            found.append((place, own))
            continue
        group = current.get(parameter.dtype)
        if group is None or num_bytes[parameter.dtype] + parameter.nbytes > bucket_bytes:
            group = current[parameter.dtype] = []
            groups.append(group)
            num_bytes[parameter.dtype] = 0
        group.append((place, parameter))
        num_bytes[parameter.dtype] += parameter.nbytes
    for group in groups:
        found.append((group[-1][0], make_other([parameter for _, parameter in group], algorithm, empty)))
    return [bucket for _, bucket in sorted(found, key=lambda pair: pair[0])]


def views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parts of `flat` in the shapes and memory orders of `tensors`."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [laid_out(part, tensor.shape, dense_strides(tensor)) for part, tensor in zip(parts, tensors, strict=True)]

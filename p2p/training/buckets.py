"""Gradients in buckets: a few operations of about equal size, each of one type, instead of one per parameter."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from collectives import Array

from ..session.tensors import as_array, empty_tensor
from ..step.collective import AllReduce
from ..step.operation import Operation
from .layouts import dense_strides, laid_out

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Of parameters whose gradients can be averaged."""

Empty = Callable[[int, np.dtype[Any]], Array]
"""Makes memory for so many elements of a type."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Tensors of one type that are averaged over the samples in one operation.

    Behind the values of gradients the operation has a mark for each parameter: 1 where this peer has a gradient. A mean
    that is not 0 says that somebody who counts has one.

    Attributes:
        tensors: parameters, or the buffers of layers.
        flat: this peer's values, in the order of `tensors`, and its marks; the operation's input.
        inputs: parts of `flat` in the shapes and strides of `tensors`.
        results: parts of the operation's result, alike.
        marks: of `flat`; there are none for buffers.
        means_of_marks: of the result.
        operation: a weighted mean.
        missing: indices of parameters that this backward pass has not reached.
        empty: indices of parameters without a gradient in this step.
        is_suspect: some of `flat` is not finite, or so large that a sum of it is not.
    """

    tensors: Sequence[Tensor]
    flat: Tensor
    inputs: Sequence[Tensor]
    results: Sequence[Tensor]
    marks: Tensor
    means_of_marks: Tensor
    operation: Operation
    missing: set[int] = field(default_factory=set)
    empty: set[int] = field(default_factory=set)
    is_suspect: bool = False
    _unmarked: set[int] | None = None
    _version: int = 0

    def begin_pass(self) -> None:
        """A backward pass may fill this bucket."""
        self.missing = set(range(len(self.tensors)))

    def begin_step(self) -> None:
        """Nothing is in it."""
        self.begin_pass()
        self.empty = set(range(len(self.tensors)))
        self.is_suspect = False

    def add(self, index: int, gradient: Tensor, fraction: float) -> None:
        """The pass has reached a parameter: add `fraction` of its gradient."""
        values = self.inputs[index]
        if index not in self.empty:
            values.add_(gradient, alpha=fraction)
        elif fraction == 1.0:
            values.copy_(gradient)
        else:
            torch.mul(gradient, fraction, out=values)
        self.empty.discard(index)
        self.missing.discard(index)

    def check(self, index: int) -> None:
        """Look for what is not finite where something was just added: it is in the cache still."""
        values = self.inputs[index]
        total = values.sum() if values.itemsize > 2 else values.sum(dtype=torch.float32)
        if not math.isfinite(total.item()):
            self.is_suspect = True

    def zero_empty(self) -> None:
        """The last pass of the step is over: what it and those before it did not reach adds nothing."""
        for index in self.empty:
            self.inputs[index].zero_()
        self.missing.clear()

    def mark(self) -> None:
        """It is full: say where this peer has gradients. Nearly always that is where it had some in the step before."""
        if self._unmarked != self.empty:
            self.marks.fill_(1)
            self.marks[list(self.empty)] = 0
            self._unmarked = set(self.empty)

    def gradients(self) -> list[Tensor | None]:
        """The results, in the order of `tensors`; None where nobody who counts had a gradient."""
        marks = self.means_of_marks.tolist()
        return [result if mark else None for result, mark in zip(self.results, marks, strict=True)]

    def hand_out(self) -> None:
        """The results are the script's, from now on."""
        self._version = self.results[0]._version

    def num_writes(self) -> int:
        """How often the script, or autograd for it, has written results in place since they were handed out."""
        return self.results[0]._version - self._version

    def is_finite(self) -> bool:
        """Whether all of `flat` is, which was looked at wherever something was added."""
        return not self.is_suspect or bool(self.flat.isfinite().all())

    def first_not_finite(self) -> Tensor:
        """The first of `tensors` for which this peer has NaN or infinity; there is one."""
        pairs = zip(self.tensors, self.inputs, strict=True)
        return next(tensor for tensor, values in pairs if not values.isfinite().all())


def make_bucket(
    tensors: Sequence[Tensor], algorithm: str | None, empty: Empty = np.empty, *, num_marks: int = 0
) -> Bucket:
    """A bucket for `tensors`, which are of one type; its input and its result lie in memory that `empty` makes."""
    num_values = sum(tensor.numel() for tensor in tensors)
    shape, dtype = (num_values + num_marks,), tensors[0].dtype
    flat, result = (empty_tensor(shape, dtype, empty) for _ in range(2))
    input = as_array(flat)
    operation = Operation(AllReduce("mean", is_weighted=True), input, as_array(result), input.shape, algorithm)
    (inputs, marks), (results, means) = ((views(all[:num_values], tensors), all[num_values:]) for all in (flat, result))
    bucket = Bucket(tensors, flat, inputs, results, marks, means, operation)
    bucket.begin_step()
    return bucket


def make_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int, algorithm: str | None, empty: Empty = np.empty
) -> list[Bucket]:
    """Buckets of `bucket_bytes`, more only where one parameter is larger; their marks are not counted.

    Args:
        parameters: in about the order in which backward reaches them.
        bucket_bytes: of one bucket.
        algorithm: of every operation.
        empty: makes memory for inputs and results.

    Returns:
        In the order in which they should be full, which is the same on every peer.
    """
    groups: list[list[tuple[int, nn.Parameter]]] = []
    current: dict[torch.dtype, list[tuple[int, nn.Parameter]]] = {}
    for place, parameter in enumerate(parameters):
        group = current.get(parameter.dtype)
        if group is None or sum(each.nbytes for _, each in group) + parameter.nbytes > bucket_bytes:
            group = current[parameter.dtype] = []
            groups.append(group)
        group.append((place, parameter))
    groups.sort(key=lambda group: group[-1][0])
    tensors = [[parameter for _, parameter in group] for group in groups]
    return [make_bucket(each, algorithm, empty, num_marks=len(each)) for each in tensors]


def views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parts of `flat` in the shapes of `tensors`, whose elements lie in memory as theirs do."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [laid_out(part, tensor.shape, dense_strides(tensor)) for part, tensor in zip(parts, tensors, strict=True)]

"""An all_reduce that a script has called, from its tensor to the operation and back."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import ALGORITHMS, Array, carried, check_reduction

from ..staging import Staged, flat_of
from ..step.collective import AllReduce
from ..step.operation import Operation
from .tensors import as_array, as_result, result_of, type_of

Empty = Callable[[int, np.dtype[Any]], Array]
"""Makes memory for so many elements of a type."""


def check_call(op: str, algorithm: str | None, dtype: np.dtype[Any]) -> None:
    """Raise TypeError or ValueError where there is no such reduction of elements of this type, or no such algorithm."""
    check_reduction(op, dtype)
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")


class AllReduceCall:
    """An all_reduce of a script's tensor."""

    def __init__(self, tensor: Any, op: str, algorithm: str | None, out: Any, like: Callable[[Array], Array]) -> None:
        """See `Peer.all_reduce`. `like` makes memory for the result."""
        self._array = as_array(tensor)
        check_call(op, algorithm, self._array.dtype)
        flat = np.ascontiguousarray(self._array).reshape(-1)  # a copy, where the strides ask for one
        self._into = self._array if out is None else None
        result = like(flat) if out is None else as_result(out, self._array)
        self.operation = Operation(AllReduce(op), flat, result, self._array.shape, algorithm)

    def is_ready(self) -> bool:
        """Whether the operation can be submitted."""
        return True

    def wait(self) -> None:
        """Return when it is ready."""

    def keep_apart(self) -> None:
        """Let the script have its tensors back before the commit: until then others may read what they held."""
        operation = self.operation
        if self._into is None:
            self._into = operation.result.reshape(self._array.shape)
        operation.input, operation.is_uncommitted = operation.input.copy(), True

    def hand_out(self, result: Array | None = None) -> None:
        """The result is there for the script, that of the operation or an early one: write it into the tensor."""
        if self._into is not None:
            result = self.operation.result if result is None else result
            carried(self._into)[...] = carried(result).reshape(self._array.shape)


class StagedAllReduceCall(AllReduceCall):
    """An all_reduce of a tensor of a device. Input and result are memory of this host, which is this peer's."""

    def __init__(
        self, tensor: Any, op: str, algorithm: str | None, out: Any, staged: Staged, empty: tuple[Empty, Empty]
    ) -> None:
        """As `AllReduceCall`. Begins to fetch the tensor.

        `empty` makes memory for the input, and for the result: perhaps that of the call before, if `staged` is, too.
        """
        dtype = type_of(tensor)
        check_call(op, algorithm, dtype)
        self._target = tensor.detach() if out is None else result_of(out, tensor)
        source = flat_of(tensor.detach().contiguous())
        shape = tuple(tensor.shape)
        input, result = (make(math.prod(shape), dtype) for make in empty)
        self.operation = Operation(AllReduce(op), input, result, shape, algorithm)
        self._staged = staged
        staged.fetch((source, input))

    def is_ready(self) -> bool:
        """As `AllReduceCall`."""
        return self._staged.is_ready()

    def wait(self) -> None:
        """As `AllReduceCall`."""
        self._staged.wait()

    def keep_apart(self) -> None:
        """As `AllReduceCall`; memory of this host is used again by the next call."""
        self.operation.input, self.operation.is_uncommitted = self.operation.input.copy(), True

    def hand_out(self, result: Array | None = None) -> None:
        """As `AllReduceCall`: what the current stream is given from now on sees the result."""
        result = self.operation.result if result is None else result
        target = self._target
        flat = flat_of(target) if target.is_contiguous() else target.new_empty(target.numel())
        self._staged.store(result, flat)
        self._staged.hold()
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))

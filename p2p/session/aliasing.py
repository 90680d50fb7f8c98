"""Alias checks: the memory that the calls of one open step read and write, so that results are never ambiguous.

Operations of a step read their tensors when they are called, and write results when the step commits. A user of
`torch.distributed` expects an operation to see the result of the previous one. A call for which these differ is
refused; so is a step whose input the script has written in the meantime. Leaves out writes that bypass torch's version
counter (`.data`, numpy).
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Any, Final

import numpy as np

from collectives import Array

from ..errors import ShoalError

MOST_WORK: Final = 100_000
"""Limit of work to decide whether two strided tensors share an element; beyond it, they are assumed not to."""

TWICE: Final = (
    "an operation of this step, which is not committed yet, writes its result into memory of this tensor, and this "
    "one would not see it: operations of a step read what tensors held when they were called. Call `peer.wait()` in "
    "between, or end the `peer.step` block, or pass another tensor as `out`"
)
WRITTEN: Final = (
    "the tensor of operation {0} of this step ({1}) was written between its call and the end of the step, so its sum "
    "would be random, and this step is given up: write it after `wait`, or after the `peer.step` block (clipping, "
    "zero_grad and optimizers write `grad`), or pass a copy"
)


class AddressArray:
    """A torch tensor as an array of its addresses, perhaps on a device: its elements must not be read."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


def addresses_of(tensor: Any) -> Array:
    """An array of the addresses of a tensor, on any device."""
    return np.asarray(AddressArray(tensor)) if tensor.numel() else np.empty(0)


def first_byte(array: Array) -> int:
    """The address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def extent(array: Array) -> tuple[int, int]:
    """Start and end of the addresses of all elements."""
    start = stop = first_byte(array)
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    for size, stride in zip(array.shape, array.strides, strict=True):
        if not size:
            return start, start
        start, stop = start + min(0, (size - 1) * stride), stop + max(0, (size - 1) * stride)
    return start, stop + array.itemsize


class Accesses:
    """Memory that the calls of one step write at commit. A call costs a few comparisons, whatever their number."""

    def __init__(self) -> None:
        self._written: list[tuple[int, int, int]] = []
        """First address, end address, and index of the call; ascending."""
        self._longest = 0
        self._calls: list[tuple[Array, Hashable]] = []

    def add(self, reads: Array, writes: Array | None, kind: Hashable) -> None:
        """Add a call that reads one array, and writes the other when the step commits.

        Args:
            reads: the input.
            writes: receives the result; None: new memory does.
            kind: calls of the same kind may share a tensor (tied weights in a loop over a state_dict, say), since
                repeating them is idempotent. None: no such calls.

        Raises:
            ValueError: an earlier call writes memory that this one reads or writes.
        """
        again = None if kind is None else (kind, _identity(reads), writes is not None and _identity(writes))
        for array in (reads,) if writes is None or _identity(writes) == _identity(reads) else (reads, writes):
            self._check(array, again)
        if writes is not None and writes.nbytes:
            start, stop = extent(writes)
            insort(self._written, (start, stop, len(self._calls)))
            self._longest = max(self._longest, stop - start)
            self._calls.append((writes, again))

    def _check(self, array: Array, again: Hashable) -> None:
        start, stop = extent(array)
        first = bisect_left(self._written, (start - self._longest,))
        for other_start, other_stop, index in self._written[first : bisect_left(self._written, (stop,))]:
            if other_start < stop and start < other_stop:
                other, before = self._calls[index]
                if (again is None or again != before) and _share_an_element(array, other):
                    raise ValueError(TWICE)


def _identity(array: Array) -> Hashable:
    return first_byte(array), array.shape, array.strides, array.dtype


def _share_an_element(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=MOST_WORK)  # type: ignore[arg-type]  # its stub knows two numbers
    except np.exceptions.TooHardError:
        return False


class Unwritten:
    """Check that a tensor is unchanged, by torch's version counter.

    Views of one tensor share a counter, so only tensors that cover their whole storage are checked.
    """

    def __init__(self, tensor: Any) -> None:
        """Start now; `tensor` may be an array, which has no counter and is not checked."""
        self._tensor: Any = None
        if isinstance(tensor, np.ndarray) or tensor.is_inference():
            return
        if tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self._tensor, self._version = tensor, tensor._version

    def check(self, number: int, what: str) -> None:
        """Raise ShoalError if the tensor, of operation `number` of a step, was written."""
        if self._tensor is not None and self._tensor._version != self._version:
            raise ShoalError(WRITTEN.format(number, what))

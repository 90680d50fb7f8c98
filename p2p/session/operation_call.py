"""A script's call of an operation, from its tensor to its return value."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from collectives import ALGORITHMS, Array, as_bits, check_reduction, even_chunks, split_by_weight
from collectives.goals import COLLECTIVES

from ..errors import RootLost
from ..staging import Staged, flat_of
from ..step.collective import AllGather, AllReduce, GenericCollective
from ..step.operation import Operation, Outcome, parts_of
from .aliasing import Accesses, Unwritten, addresses_of
from .tensors import as_array, as_input, as_result, check_places, like_script, note_written, result_of, type_of

ArrayAllocator = Callable[[int, np.dtype[Any]], Array]
"""Allocates memory for a number of elements of a type."""


class OperationArgs(NamedTuple):
    """Arguments of a script's call, apart from its tensor.

    Attributes:
        collective: the operation.
        algorithm: as given by the script; None: left open.
        out: receives the result; None: the tensor does.
    """

    collective: AllReduce | AllGather | GenericCollective
    algorithm: str | None = None
    out: Any = None

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raise TypeError or ValueError if there is no such algorithm, or no such reduction of this type."""
        kind = self.collective.kind
        if not isinstance(self.collective, AllGather) and "reduce" in kind:
            check_reduction(self.collective.op, dtype)
        there_are = [*(ALGORITHMS if kind == "all-reduce" else COLLECTIVES[kind])]
        if self.algorithm is not None and self.algorithm not in there_are:  # even if it is not hashable
            raise ValueError(f"algorithm must be one of {', '.join(there_are)}, is {self.algorithm!r}")


def part_of(
    asked: OperationArgs, shape: tuple[int, ...], outcome: Outcome | Operation
) -> tuple[Array, tuple[int, ...], slice | None]:
    """This peer's part of a result, flat; its shape; and, for a reduce-scatter, its slice of the tensor."""
    result = outcome.result
    if asked.collective.kind != "reduce-scatter":
        return result, (outcome.num_ranks, *shape), None
    if outcome.rank is None:
        return result[:0], (0,), slice(0, 0)
    where = split_by_weight(result.size, even_chunks(outcome.num_ranks))[outcome.rank]
    return result[where], (where.stop - where.start,), where


def operations_of(asked: OperationArgs, input: Array, result: Array, shape: tuple[int, ...]) -> list[Operation]:
    """The operations of a call: one, or several in a row for a long tensor that is replaced as a whole."""
    parts = [slice(0, input.size)] if asked.collective.is_new else parts_of(input.nbytes, input.itemsize)
    if len(parts) == 1:
        return [Operation(asked.collective, input, result, shape, asked.algorithm)]
    return [
        Operation(
            asked.collective, input[each], result[each], shape, asked.algorithm, part=f", part {number} of {len(parts)}"
        )
        for number, each in enumerate(parts, 1)
    ]


class OperationCall:
    """A call with a tensor or array of this host.

    Attributes:
        operations: to submit, in order.
    """

    operations: list[Operation]

    def __init__(self, tensor: Any, asked: OperationArgs, empty: ArrayAllocator) -> None:
        """See `Peer`. `empty` allocates memory for the result."""
        is_written = asked.out is None and not asked.collective.is_new
        self._array, self._tensor, self._asked = (as_array if is_written else as_input)(tensor), tensor, asked
        asked.check(self._array.dtype)
        flat = np.ascontiguousarray(self._array).reshape(-1)  # a copy if the strides require one
        self._into = self._array if asked.out is None else None
        if isinstance(asked.collective, AllGather):
            result = flat  # allocated in each view
        else:
            result = empty(flat.size, flat.dtype) if asked.out is None else as_result(asked.out, self._array)
        self._result = result
        self.operations = operations_of(asked, flat, result, self._array.shape)
        self._value: Any = None
        self._lost: RootLost | None = None
        self._input: Unwritten | None = None

    @property
    def operation(self) -> Operation:
        """The operation of a call with only one."""
        (operation,) = self.operations
        return operation

    def note_access(self, accesses: Accesses) -> None:
        """Add this call to those of a step; from now on the script must not write its tensor.

        Raises:
            ValueError: an earlier call writes memory that this one reads or writes.
        """
        writes = None if self._asked.collective.is_new else self._array if self._asked.out is None else self._result
        self._note_access(accesses, self._array, writes)

    def _note_access(self, accesses: Accesses, reads: Array, writes: Array | None) -> None:
        collective = self._asked.collective
        may_come_again = not (isinstance(collective, AllReduce) and collective.op == "sum")
        accesses.add(reads, writes, (collective, self._asked.algorithm) if may_come_again else None)
        self._input = Unwritten(self._tensor)

    def check(self) -> None:
        """Raise ShoalError if the device cannot be called now."""

    def check_input(self, number: int) -> None:
        """Raise ShoalError if the script has written the tensor since. `number`: of the call in its step."""
        if self._input is not None:
            self._input.check(number, self.operations[0].describe())

    def is_ready(self, index: int) -> bool:
        """Whether operation `index` can be submitted."""
        return True

    def wait(self, index: int) -> None:
        """Wait until operation `index` is ready."""

    def follow(self) -> None:
        """Make the result, which was handed out, visible to later work on the current stream."""

    def copy_input(self) -> None:
        """Copy the input, so that the script may use its tensors before the commit, while others may still read it."""
        operation = self.operation
        if self._into is None:
            self._into = operation.result.reshape(self._array.shape)
        operation.input, operation.is_uncommitted = operation.input.copy(), True

    def value(self) -> Any:
        """The return value for the script, after `deliver_result`.

        Raises:
            RootLost: there is no result.
        """
        if self._lost is not None:
            raise self._lost
        return self._value

    def deliver_result(self, step: int, outcome: Outcome | Operation | None = None) -> None:
        """Hand out the result to the script: of the operation in `step`, or an early `outcome`."""
        first = self.operations[0]
        outcome = first if outcome is None else outcome
        if outcome.is_root_missing:  # as are further parts: a step commits in one view
            self._lost = RootLost(step, first.describe())
        elif self._asked.collective.is_new:
            part, shape, where = part_of(self._asked, first.shape, outcome)
            made = self._make(part, shape)
            self._value = made if where is None else (made, where)
        else:
            self._write([outcome.result] if len(self.operations) == 1 else [each.result for each in self.operations])

    def _make(self, part: Array, shape: tuple[int, ...]) -> Any:
        """A new tensor for the script."""
        is_lent = self.operation.is_uncommitted or part.base is not None  # is sent from or reused
        return like_script(self._tensor, (part.copy() if is_lent else part).reshape(shape))

    def _write(self, results: Sequence[Array]) -> None:
        """Write the results into the tensor."""
        if self._into is not None:
            result = results[0] if len(results) == 1 else self._result  # they are its parts
            as_bits(self._into)[...] = as_bits(result).reshape(self._array.shape)
        note_written(self._tensor if self._asked.out is None else self._asked.out)


class StagedCall(OperationCall):
    """A call with a tensor on a device. Input and result are in this peer's host memory."""

    def __init__(
        self,
        tensor: Any,
        asked: OperationArgs,
        staged: Callable[[int], Staged],
        empty: tuple[ArrayAllocator, ArrayAllocator],
    ) -> None:
        """As `OperationCall`. Starts to fetch the tensor.

        `empty` allocates memory for the input and for the result: it may be that of the previous call, if the results
        of `staged` are, too.
        """
        dtype = type_of(tensor)
        asked.check(dtype)
        if asked.out is None and not asked.collective.is_new:
            check_places(tensor.shape, tensor.stride(), 1)
        self._tensor, self._asked = tensor.detach(), asked
        self._target = self._tensor if asked.out is None else result_of(asked.out, tensor)
        shape = tuple(tensor.shape)
        input = empty[0](math.prod(shape), dtype)
        result = input if isinstance(asked.collective, AllGather) else empty[1](math.prod(shape), dtype)
        self.operations = operations_of(asked, input, result, shape)
        self._staged = [staged(index) for index in range(len(self.operations))]
        self._value, self._lost, self._input = None, None, None
        self._stream: Hashable = None
        flat, start = flat_of(self._tensor.contiguous()), 0
        for each, operation in zip(self._staged, self.operations, strict=True):
            each.fetch((flat[start : start + operation.input.size], operation.input))
            start += operation.input.size

    def note_access(self, accesses: Accesses) -> None:
        """As `OperationCall`."""
        writes = None if self._asked.collective.is_new else addresses_of(self._target)
        self._note_access(accesses, addresses_of(self._tensor), writes)

    def check(self) -> None:
        """As `OperationCall`."""
        self._staged[0].check()

    def is_ready(self, index: int) -> bool:
        """As `OperationCall`."""
        return self._staged[index].is_ready()

    def wait(self, index: int) -> None:
        """As `OperationCall`."""
        self._staged[index].wait()

    def follow(self) -> None:
        """As `OperationCall`; `deliver_result` has done so for one stream."""
        self._staged[0].order_after_stream(self._stream)

    def copy_input(self) -> None:
        """As `OperationCall`; the next call reuses host memory."""
        self.operation.input, self.operation.is_uncommitted = self.operation.input.copy(), True

    def _make(self, part: Array, shape: tuple[int, ...]) -> Any:
        """As `OperationCall`; visible to later work on the current stream."""
        made = self._tensor.new_empty(shape)
        self._store([part], flat_of(made))
        return made

    def _write(self, results: Sequence[Array]) -> None:
        """As `OperationCall`; visible likewise."""
        target = self._target
        flat = flat_of(target) if target.is_contiguous() else target.new_empty(target.numel())
        self._store(results, flat)
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))

    def _store(self, sources: Sequence[Array], into: Any) -> None:
        start = 0
        for staged, source in zip(self._staged, sources, strict=True):
            staged.store(source, into[start : start + source.size])
            start += source.size
        for staged in self._staged:
            staged.order_after_stores()
        self._stream = self._staged[0].current_stream()

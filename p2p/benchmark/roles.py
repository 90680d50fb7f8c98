"""Roles of ranks in each collective: the input, the result that a rank must end with, the busbw factor. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from collectives import ALGORITHMS, even_chunks, split_by_weight
from collectives.goals import COLLECTIVES, GOALS, SUM

from .arrays import Array, contribution, element_type, numbers, total

ALL_REDUCE: Final = "all-reduce"
BARRIER: Final = "barrier"
BARRIER_BYTES: Final = 8

OPERATIONS: Final = (*COLLECTIVES, BARRIER)
CALLED: Final = (ALL_REDUCE, "all-gather", "reduce-scatter", "broadcast", BARRIER)
"""Operations with a method of `Peer`; for the others, only the benchmark creates operations."""
SAME_EVERYWHERE: Final = (ALL_REDUCE, "all-gather", "broadcast")
"""Operations whose result is the same on all ranks: its bits are compared."""
IN_PLACE: Final = (ALL_REDUCE, "broadcast")
CUT: Final = ("all-gather", "reduce-scatter", "gather", "scatter", "all-to-all")
"""Operations on equal parts of whole elements, one for each rank."""

BUSBW_FACTORS: Final[Mapping[str, Callable[[int], float]]] = MappingProxyType(
    {
        ALL_REDUCE: lambda n: 2 * (n - 1) / n,
        **{name: lambda n: (n - 1) / n for name in CUT},
        "broadcast": lambda n: 1.0,
        "reduce": lambda n: 1.0,
        BARRIER: lambda n: 0.0,
    }
)
"""As in nccl-tests: bytes that the busiest link of an optimal algorithm carries, over the size."""


def algorithms_of(operation: str) -> tuple[str, ...]:
    """The algorithms that an operation can be called with."""
    if operation == BARRIER:
        return ("one-shot",)
    return tuple(ALGORITHMS if operation == ALL_REDUCE else COLLECTIVES[operation])


def has_root(operation: str) -> bool:
    return operation in GOALS and GOALS[operation].has_root


def what_of(operation: str, root: int) -> str:
    """The operation as it is printed."""
    return f"{operation}, root {root}" if has_root(operation) else operation


@dataclass(frozen=True)
class Role:
    """One rank's input and expected result in an operation.

    Attributes:
        operation: one of `OPERATIONS`.
        root: a rank, if the operation has one.
        count: elements of a rank's input; for all-gather and gather, whose inputs are parts, of the whole result.
    """

    operation: str
    rank: int
    world_size: int
    root: int
    count: int
    dtype: str

    @property
    def num_chunks(self) -> int:
        power = 0 if self.operation == BARRIER else GOALS[self.operation].chunks_per_rank
        return int(self.world_size ** (power or 0))

    @property
    def length(self) -> int:
        """Elements of all chunks: for all-to-all, of all ranks' inputs."""
        return self.count * (self.world_size if self.operation == "all-to-all" else 1)

    @cached_property
    def own(self) -> slice:
        """The position of this rank's input among all chunks."""
        if self.operation in ("all-gather", "gather"):
            return self.bounds[self.rank]
        if self.operation == "all-to-all":
            return slice(self.rank * self.count, (self.rank + 1) * self.count)
        return slice(0, self.count)

    @cached_property
    def bounds(self) -> list[slice]:
        """The position of each chunk."""
        return split_by_weight(self.length, even_chunks(self.num_chunks))

    @cached_property
    def input(self) -> Array:
        """The input of this rank, unshifted."""
        return contribution(self.rank, self.own.stop - self.own.start, self.dtype, self.own.start)

    def needed(self) -> Iterator[tuple[slice, int]]:
        """The chunks of this rank's result, each with its source rank or `SUM`; none for a barrier."""
        if self.operation == BARRIER:
            return
        for chunk, where in enumerate(self.bounds):
            source = GOALS[self.operation].needed(self.rank, chunk, self.world_size, self.root)
            if source is not None:
                yield where, source

    def pick(self, whole: Array) -> Array:
        """Select the chunks of this rank's result from all chunks."""
        return np.concatenate([whole[:0], *(whole[where] for where, _ in self.needed())])

    @cached_property
    def expected(self) -> Array:
        """The result that this rank must end with, unshifted."""
        parts = [np.zeros(0, element_type(self.dtype))]
        for where, source in self.needed():
            size = where.stop - where.start
            if source == SUM:
                parts.append(total(self.world_size, size, self.dtype, where.start))
            else:
                parts.append(contribution(source, size, self.dtype, where.start))
        return np.concatenate(parts)

    @cached_property
    def adds(self) -> bool:
        """Whether the result is a sum."""
        return any(source == SUM for _, source in self.needed())

    def num_wrong(self, result: Array, shift: int) -> int:
        """Number of wrong elements, if the inputs were shifted by `shift`; all of them, if the length is wrong."""
        if len(result) != len(self.expected):
            return max(len(result), len(self.expected))
        moved = shift * (self.world_size if self.adds else 1)
        found, expected = numbers(result), numbers(self.expected)
        return int(np.count_nonzero(found - found.dtype.type(moved) != expected))

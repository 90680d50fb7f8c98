"""One collective as a script calls it, and what it becomes in a view."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from collectives import Array, Reduction, Schedule, type_name
from collectives.algorithms import distinct_name
from collectives.price_table import ROUND_ONCE
from collectives.program import Program

from .collective import Collective
from .receipts import WEIGHT


@dataclass(slots=True, eq=False)
class Operation:
    """One collective as this peer calls it.

    Attributes:
        collective: what is called.
        input: 1-D, contiguous; not written, and not to be written before the step commits.
        result: 1-D, contiguous, separate memory; written here, the caller's after the commit. That of a gather, and of
            an uncommitted operation, is made anew for each view.
        shape: of the caller's tensor; part of the fingerprint.
        algorithm: of `collectives.ALGORITHMS`; None: by size, and by the number of members of each view.
        is_uncommitted: its result is wanted as soon as it is complete here, before its step is committed.
        ran: the algorithm that was taken in the last view.
        completed: called by the training thread, before the commit, where the result is complete in a view, of which it
            gets the hash; and at the commit, with that of the view in which it was finished.
        is_far: whether the result is further from the input than what other hardware rounds otherwise; of a `Resync`.
    """

    collective: Collective
    input: Array
    result: Array
    shape: tuple[int, ...]
    algorithm: str | None = None
    is_uncommitted: bool = False
    ran: str = ""
    completed: Callable[[bytes], None] | None = None
    is_far: Callable[[], bool] | None = None

    def describe(self) -> str:
        """What all ranks must have in common, in words."""
        return _describe(self.collective, self.input.dtype, self.shape, self.algorithm, self.is_uncommitted)

    def fingerprint(self, segment_bytes: int, index: int, step: int) -> bytes:
        """What all ranks must have in common, in 16 bytes."""
        return xxhash.xxh3_128_digest(f"{self.describe()}, {segment_bytes}, {index} of {step}".encode())

    def overwrite(self, result: bytes | memoryview) -> None:
        """Put the bytes that others have in the place of the result here.

        Raises:
            ValueError: they are too many, or too few.
        """
        theirs = np.frombuffer(result, np.uint8)
        if self.collective.gathers:
            self.result = theirs.copy().view(self.input.dtype)
        elif theirs.size != self.result.nbytes:
            raise ValueError(f"a result of {self.describe()} has {theirs.size} bytes")
        else:
            self.result.view(np.uint8)[...] = theirs


@lru_cache(maxsize=1024)
def _describe(
    collective: Collective, dtype: np.dtype[Any], shape: tuple[int, ...], algorithm: str | None, is_uncommitted: bool
) -> str:
    if collective.is_counts:
        return collective.name
    early = ", uncommitted" if is_uncommitted else ""
    by = "size" if algorithm is None else distinct_name(algorithm)
    return f"{collective.name} of {type_name(dtype)} {list(shape)} by {by}{early}"


@dataclass(slots=True, eq=False)
class Task:
    """An operation as it runs in one view: what a runner needs of it.

    Attributes:
        fingerprint: what all ranks must have in common; 16 bytes.
        hosts: of all ranks, by number.
        weight: the input is multiplied by it first; 0 makes zeros of anything; None: it is added as it is.
        reduction: what becomes of the inputs.
        turn: of the chunks, in turns, the one that this rank digests as it holds it.
    """

    operation: Operation
    fingerprint: bytes
    input: Array
    result: Array
    rank: int
    hosts: tuple[int, ...]
    weight: float | None
    reduction: Reduction
    turn: int

    @property
    def gathers(self) -> bool:
        """Whether the result has a place for each rank's input."""
        return self.operation.collective.gathers

    def schedule(self) -> Schedule:
        """What this rank sends, receives and reduces."""
        return self.operation.collective.schedule(self.operation.ran, self.rank, self.hosts)

    def program(self, piece: slice) -> Program:
        """What this rank does over shared memory with a piece of the input."""
        collective = self.operation.collective
        return collective.program(self.operation.ran, self.rank, self.hosts, self.input, piece)


def task_of(
    operation: Operation,
    fingerprint: bytes,
    rank: int,
    hosts: tuple[int, ...],
    counts: Array | None,
    turn: int,
    *,
    measured: str | None = None,
    is_wan: bool = False,
) -> Task:
    """`operation` in a view of members on `hosts`.

    `counts`: of the samples of each, where it is weighted; `measured`: the algorithm that a table of prices says.
    """
    collective, world_size = operation.collective, len(hosts)
    algorithm = operation.algorithm or measured
    operation.ran = collective.choose(algorithm, operation.input.nbytes, world_size, is_wan=is_wan)
    if collective.gathers:
        operation.result = np.empty(operation.input.size * world_size, operation.input.dtype)
    elif operation.is_uncommitted:
        operation.result = np.empty_like(operation.result)
    weight = _weight(operation, rank, counts) if collective.is_weighted else None
    reduction = collective.reduction(world_size, weight)
    return Task(operation, fingerprint, operation.input, operation.result, rank, hosts, weight, reduction, turn)


def _weight(operation: Operation, rank: int, counts: Array | None) -> float | None:
    """What this rank's input is multiplied by before anything is added: its share of the weights.

    None: by nothing. So it is where all have the same share, and the sum is divided once; not where sums are rounded on
    their way, which might overflow.
    """
    assert counts is not None
    weights = counts[:, WEIGHT].tolist()
    if weights[0] > 0 and weights.count(weights[0]) == len(weights) and operation.ran in ROUND_ONCE:
        return None
    return float(weights[rank] / max(sum(weights), 1))

"""A collective as a script calls it, and as it runs in a view."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from collectives import Array, Medium, Reduction, Schedule, type_name
from collectives.algorithms import distinct_name
from collectives.price_table import is_rounded_once
from collectives.program import Program

from .collective import Collective
from .receipts import WEIGHT


class Outcome(NamedTuple):
    """Of an operation, in one view; as the attributes of `Operation`."""

    result: Array
    rank: int | None
    num_ranks: int
    is_root_missing: bool


@dataclass(slots=True, eq=False)
class Operation:
    """A collective as this peer calls it.

    Attributes:
        collective: the collective that is called.
        input: 1-D, contiguous; not written, and not to be written before the step commits.
        result: 1-D, contiguous, separate memory; written here, the caller's after the commit. That of a gather, and of
            an uncommitted operation, is made anew for each view.
        shape: of the caller's tensor; part of the fingerprint.
        algorithm: of `collectives.ALGORITHMS`; None: by size, and by the number of members of each view.
        is_uncommitted: the result is wanted as soon as it is complete here, before the commit of its step.
        ran: the algorithm that was used in the last view.
        rank: in that view; None: it has run in none, its result came from the members.
        num_ranks: in the view that the result is of.
        is_root_missing: the root was not in that view, so nothing was moved.
        on_complete: called by the training thread, before the commit, where the result is complete in a view, of which
            it gets the hash; and at the commit, with that of the view in which it was finished.
        is_far: whether the result is further from the input than what other hardware rounds otherwise; of a `Resync`.
        part: which one of the caller's tensor it is, in words; empty: all of it.
    """

    collective: Collective
    input: Array
    result: Array
    shape: tuple[int, ...]
    algorithm: str | None = None
    is_uncommitted: bool = False
    ran: str = ""
    rank: int | None = None
    num_ranks: int = 0
    is_root_missing: bool = False
    on_complete: Callable[[bytes], None] | None = None
    is_far: Callable[[], bool] | None = None
    part: str = ""

    @property
    def outcome(self) -> "Outcome":
        """The outcome in the view in which it ran last."""
        return Outcome(self.result, self.rank, self.num_ranks, self.is_root_missing)

    def describe(self) -> str:
        """In words, what all ranks must have in common."""
        return _describe(self.collective, self.input.dtype, self.shape, self.algorithm, self.is_uncommitted) + self.part

    def fingerprint(self, segment_bytes: int, index: int, step: int) -> bytes:
        """A digest, 16 bytes, of what all ranks must have in common."""
        return xxhash.xxh3_128_digest(f"{self.describe()}, {segment_bytes}, {index} of {step}".encode())

    @property
    def common(self) -> Array:
        """The part of the result that all members have, which they compare, and give to observers."""
        return self.result if self.collective.is_common and not self.is_root_missing else self.result[:0]

    def adopt(self, result: bytes | memoryview, members: Sequence[str]) -> None:
        """Put what the members with these peer_ids have in common in the place of the result here.

        Raises:
            ValueError: it is too long, or too short.
        """
        collective, theirs = self.collective, np.frombuffer(result, np.uint8)
        self.rank, self.num_ranks = None, len(members)
        self.is_root_missing = bool(collective.root) and collective.root not in members
        is_given = collective.is_common and not self.is_root_missing
        expected = is_given * self.input.nbytes * (len(members) if collective.gathers else 1)
        if theirs.size != expected:
            raise ValueError(f"a result of {self.describe()} has {theirs.size} bytes, not {expected}")
        if collective.gathers:
            self.result = theirs.copy().view(self.input.dtype)
        elif is_given:
            self.result.view(np.uint8)[...] = theirs


WHOLE_BYTES: Final = 64 << 20
"""A tensor of more bytes is called as several operations, the same at all members, wherever it lives."""
PART_BYTES: Final = 32 << 20
"""Each of these but the last has so many."""


def parts_of(num_bytes: int, itemsize: int) -> list[slice]:
    """Of the elements of a tensor, those of each operation that it is called as. Of the protocol (PROTOCOL.md)."""
    size = num_bytes // itemsize
    if num_bytes <= WHOLE_BYTES:
        return [slice(0, size)]
    step = PART_BYTES // itemsize
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


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
        root: of the ranks, where there is one.
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
    root: int

    @property
    def gathers(self) -> bool:
        """Whether the result has a place for each rank's input."""
        return self.operation.collective.gathers

    def schedule(self) -> Schedule:
        """The schedule of this rank."""
        return self.operation.collective.schedule(self.operation.ran, self.rank, self.hosts, self.root)

    def program(self, piece: slice) -> Program:
        """The program of this rank over shared memory, for a piece of the input."""
        collective = self.operation.collective
        return collective.program(self.operation.ran, self.rank, self.hosts, self.input, piece, self.root)

    def needs(self) -> Callable[[int], bool] | None:
        """Whether a chunk of the result is of use to this rank; None: all are."""
        return self.operation.collective.needs(self.rank, len(self.hosts), self.root)


def task_of(
    operation: Operation,
    fingerprint: bytes,
    rank: int,
    hosts: tuple[int, ...],
    counts: Array | None,
    turn: int,
    *,
    measured: str | None = None,
    medium: Medium = Medium.LAN,
    root: int | None = 0,
) -> Task:
    """`operation` in a view of members on `hosts`.

    `counts`: of the samples of each, where it is weighted; `measured`: the algorithm that a table of prices says;
    `medium`: what decides where there is none. `root`: its rank; None: it has one, which is not in the view.
    """
    collective, world_size = operation.collective, len(hosts)
    algorithm = operation.algorithm or measured
    operation.ran = collective.choose(algorithm, operation.input.nbytes, world_size, medium)
    if collective.gathers:
        operation.result = np.empty(operation.input.size * world_size, operation.input.dtype)
    elif operation.is_uncommitted:
        operation.result = np.empty_like(operation.result)
    operation.rank, operation.num_ranks, operation.is_root_missing = rank, world_size, root is None
    input, result = operation.input, operation.result
    if root is None:
        input, result = input[:0], result[:0]
    weight = _weight(operation, rank, counts) if collective.is_weighted else None
    reduction = collective.reduction(world_size, weight)
    return Task(operation, fingerprint, input, result, rank, hosts, weight, reduction, turn, root or 0)


def _weight(operation: Operation, rank: int, counts: Array | None) -> float | None:
    """The factor of this rank's input before the sum: its share of the weights.

    None: no factor. That holds where all shares are equal, and the sum is divided once; but not where partial sums are
    rounded, which might overflow.
    """
    assert counts is not None
    weights = counts[:, WEIGHT].tolist()
    if weights[0] > 0 and weights.count(weights[0]) == len(weights) and is_rounded_once(operation.ran):
        return None
    return float(weights[rank] / max(sum(weights), 1))

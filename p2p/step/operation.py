"""One collective as a peer calls it, and those of the step that is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from collectives import type_name

from .receipts import UNKNOWN_SAMPLE

Array = npt.NDArray[Any]


class Use(Enum):
    """What an operation is to its step."""

    PLAIN = auto()
    COUNTS = auto()
    """All-gathers (first sample, number of samples) per rank; comes before any weighted operation."""
    WEIGHTED = auto()
    """A mean, in which each input is multiplied by its rank's share of the samples."""


@dataclass(slots=True, eq=False)
class Operation:
    """One collective as this peer calls it.

    Attributes:
        kind: `all_reduce`, `all_gather` or `barrier`.
        input: 1-D, contiguous; not written, and not to be written before the step commits.
        result: 1-D, contiguous, separate memory; written here, the caller's after the commit. An all_gather's
            is made anew for each view, since its size depends on it.
        shape: of the caller's tensor; part of the fingerprint.
        algorithm: of `collectives.ALGORITHMS`; None: by size, and by the number of members of each view.
        scratch: like `input`; holds the weighted input where `use` is WEIGHTED.
        op: of `collectives.OPS`, for an all_reduce. A mean is over members, or over samples where `use` is WEIGHTED.
        ran: the algorithm that was taken in the last view.
        is_early: its result is wanted as soon as it is complete here, before its step is committed. Each run writes
            another one, since the caller may still read what it was handed.
        is_handed_out: that has happened.
    """

    kind: str
    input: Array
    result: Array
    shape: tuple[int, ...]
    algorithm: str | None
    use: Use = Use.PLAIN
    scratch: Array | None = None
    op: str = "sum"
    ran: str = ""
    is_early: bool = False
    is_handed_out: bool = False

    def __post_init__(self) -> None:
        assert self.use is not Use.WEIGHTED or self.op == "mean", f"a weighted {self.op}"

    def describe(self) -> str:
        """What all ranks must have in common, in words."""
        weighted = " weighted" if self.use is Use.WEIGHTED else ""
        name = f"{self.kind}{weighted} {self.op}" if self.kind == "all_reduce" else self.kind
        early = ", uncommitted" if self.is_early else ""
        return f"{name} of {type_name(self.input.dtype)} {list(self.shape)} by {self.algorithm or 'size'}{early}"


@dataclass(slots=True)
class OpenStep:
    """What was submitted for a step, in order."""

    number: int
    operations: list[Operation] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)
    state_digest: bytes | None = None
    """Of the parameters that the step is computed with; None until the last operation was submitted."""

    def add(self, operation: Operation, segment_bytes: int) -> None:
        self.operations.append(operation)
        text = f"{operation.describe()}, {segment_bytes}, {len(self.fingerprints)} of {self.number}"
        self.fingerprints.append(xxhash.xxh3_128_digest(text.encode()))

    def renumber(self, number: int, state_digest: bytes, segment_bytes: int) -> None:
        """It is that step now, and counts no samples."""
        operations, self.operations, self.fingerprints = self.operations, [], []
        self.number, self.state_digest = number, state_digest
        for operation in operations:
            self.add(operation, segment_bytes)
            if operation.use is Use.COUNTS:
                operation.input[...] = UNKNOWN_SAMPLE, 0


def overwrite(operations: Sequence[Operation], results: Sequence[bytes | memoryview]) -> None:
    """Put the bytes that others have in the place of the results here.

    Raises:
        ValueError: a result of another size.
    """
    for operation, result in zip(operations, results, strict=True):
        theirs = np.frombuffer(result, np.uint8)
        if operation.kind == "all_gather":
            operation.result = theirs.copy().view(operation.input.dtype)
        elif theirs.size != operation.result.nbytes:
            raise ValueError(f"a result of {operation.describe()} has {theirs.size} bytes")
        else:
            operation.result.view(np.uint8)[...] = theirs

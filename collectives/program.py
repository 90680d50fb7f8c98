"""A collective operation over shared memory as data: what one rank reads, writes and waits for.

If a rank can read the memory of all others, no data has to be sent. Each rank lends its input and its result; a
*progress* counter says what is ready there. A program is the list of one rank's instructions:

- PUBLISH increments the own progress: everything that this rank has written so far may be read from now on. The first
  PUBLISH of an operation lends the input.
- WAIT waits until the progress of each of its peers, in this operation, has reached its value.
- REDUCE adds up one chunk of inputs, or of results in their current state, and writes the sum into the own result. A
  single source is copied.
- COPY copies one chunk of a peer's result into the own result.

Inputs are never written. A chunk of a result may be written again: a ring leaves a partial sum there for its neighbour,
and the complete sum later. `compilation` makes a program from any schedule; `program_verification` proves that no rank
reads data that may be missing, or written meanwhile. A rank writes its result, and its digests, only after it has
seen that all others have begun: so no rank still reads the result of the operation before. The progress of all ranks
ends at the same value, however often they publish, so that the next operation can continue from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Source(NamedTuple):
    """The location of a summand."""

    rank: int
    is_result: bool = False
    """In the current result of the rank; otherwise in its input."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Let others read everything written so far."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until each of `peers` has published `progress` times in this operation."""

    peers: tuple[int, ...]
    progress: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Write the sum of `chunk` of all sources, in this order, into the own result."""

    chunk: int
    sources: tuple[Source, ...]
    """The own result can only be the first."""

    completes: bool = True
    """Whether this is the result of all ranks; otherwise it is a partial sum for others to read."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Write `chunk` of the result of `peer` into the own result."""

    chunk: int
    peer: int
    is_passed_on: bool = False
    """Whether others read the copy."""


Instruction = Publish | Wait | Reduce | Copy


@dataclass(frozen=True, eq=False)
class Program:
    """One rank's part of an operation. Compared by identity; build it once and keep it."""

    chunks: tuple[float, ...]
    """The weight of each chunk, as in a schedule."""

    instructions: tuple[Instruction, ...]
    num_publishes: int
    """By how much the operation increments the progress: the largest number of PUBLISHes of any rank."""

    @cached_property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @cached_property
    def lends_results(self) -> bool:
        """Whether ranks read each other's results, which are then published, too, and must be in shared memory."""
        return self.num_publishes > 1


def inputs_of(ranks: Sequence[int]) -> tuple[Source, ...]:
    """The inputs of `ranks`, in this order."""
    return tuple(map(Source, ranks))

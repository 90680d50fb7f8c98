"""A collective operation over shared memory as data: what one rank reads, writes and waits for.

Where a rank can read the memory of all others, nothing has to be sent. Each lends its input and its result; a
*progress* counter says what is ready there. A program is the list of what one rank does:

- PUBLISH counts the own progress up by one: whatever this rank has written so far may be read from now on. The
  first one of an operation is what lends the input.
- WAIT goes on when the progress of each of these peers, in this operation, has come as far as it says.
- REDUCE adds up one chunk of inputs, or of results as they stand, and writes the sum into the own result. One
  source alone is copied.
- COPY takes one chunk of a peer's result into the own result.

Inputs are never written. A chunk of a result may be: a ring leaves a partial sum there for its neighbour, and the
sum of all later. `compilation` makes a program of any schedule; `program_verification` proves that nobody reads what is
not there yet, or may be written meanwhile. A rank writes its result, and what goes with it, only after it has seen that
all others have begun: so nobody still reads it for the operation before. All ranks count their progress up equally far,
however often they publish, so that the next operation can count on from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Source(NamedTuple):
    """Where a summand lies."""

    rank: int
    is_result: bool = False
    """In the result of the rank, as it stands; otherwise in its input."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Let others read what was written so far."""


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
    """Whether this is the result of all ranks; otherwise it is a partial sum, that others read."""


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
    """By how much the operation counts the progress up: as often as the rank publishes that does so most."""

    @cached_property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @cached_property
    def lends_results(self) -> bool:
        """Whether ranks read each other's results, which then have to lie in shared memory: they are published, too."""
        return self.num_publishes > 1


def inputs_of(ranks: Sequence[int]) -> tuple[Source, ...]:
    """The inputs of `ranks`, in this order."""
    return tuple(map(Source, ranks))

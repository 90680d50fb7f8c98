"""The collectives that a peer can call, as data: what they make of the inputs of all ranks, and how.

A new one is a new class here: the open step and its runners ask a collective, and never which one it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, Final

from collectives import Array, Medium, Reduction, Schedule, all_reduce_schedule, choose_algorithm
from collectives.goal_programs import goal_program
from collectives.goals import GOALS, default_algorithm, schedule_of
from collectives.program import Program
from collectives.programs import all_gather_program, all_reduce_program

_reduction: Final = lru_cache(maxsize=64)(Reduction)
"""The same object for each operation like it: runners look by it for what carries it out."""


class _Usual:
    """Defaults of a collective.

    Attributes:
        label: see `AllGather`, also for `is_counts`, `codec` and `is_rows`.
        is_weighted: see `AllReduce`.
        is_of_one: whether its result is the input of one rank, to which the others add zeros.
        is_priced: whether its algorithm may follow from prices of links.
        root: see `GenericCollective`.
    """

    __slots__ = ()
    label: str = ""
    is_counts: bool = False
    codec: str = ""
    is_rows: bool = False
    is_weighted: bool = False
    is_of_one: bool = False
    is_priced: bool = False
    root: str = ""


@dataclass(frozen=True, slots=True)
class AllReduce(_Usual):
    """Every rank gets what `op` makes of all inputs.

    Attributes:
        op: of `collectives.OPS`.
        is_weighted: a mean over samples: each input is multiplied by its rank's share of them.
        label: what it is of, in words, which all ranks must have in common.
    """

    op: str = "sum"
    is_weighted: bool = False
    label: str = ""
    kind: ClassVar[str] = "all-reduce"
    is_new: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    is_broadcast: ClassVar[bool] = False
    is_common: ClassVar[bool] = True
    is_priced = True

    def __post_init__(self) -> None:
        assert not self.is_weighted or self.op == "mean", f"a weighted {self.op}"

    @property
    def name(self) -> str:
        """In the fingerprint."""
        return f"all_reduce{' weighted' if self.is_weighted else ''} {self.op}{self.label and f' ({self.label})'}"

    def choose(self, algorithm: str | None, num_bytes: int, world_size: int, medium: Medium = Medium.LAN) -> str:
        """The algorithm that is taken in a view of so many members, if `algorithm` was asked for."""
        return algorithm or choose_algorithm(num_bytes, world_size, medium)

    def reduction(self, world_size: int, weight: float | None) -> Reduction:
        """How inputs are reduced. With a `weight` they were multiplied before, so they are only added."""
        return _reduction("sum" if weight is not None else self.op, world_size)

    def schedule(self, algorithm: str, rank: int, hosts: tuple[int, ...], root: int) -> Schedule:
        """The schedule of `rank`, where the ranks are on these hosts."""
        return all_reduce_schedule(algorithm, rank, len(hosts), hosts)

    def program(
        self, algorithm: str, rank: int, hosts: tuple[int, ...], input: Array, piece: slice, root: int
    ) -> Program:
        """The program of `rank` for a piece of its input over shared memory."""
        length, itemsize, start, stop = input.size, input.itemsize, piece.start, piece.stop
        return all_reduce_program(algorithm, rank, len(hosts), length, itemsize, start, stop, hosts)

    def needs(self, rank: int, world_size: int, root: int) -> Callable[[int], bool] | None:
        """Whether a chunk of the result of `rank` is of use to it; None: all are."""
        return None


@dataclass(frozen=True, slots=True)
class Barrier(AllReduce):
    """Every rank knows that all have come. A sum of one element, under a name of its own."""

    @property
    def name(self) -> str:
        """In the fingerprint."""
        return "barrier"


@dataclass(frozen=True, slots=True)
class Resync(AllReduce):
    """Every rank gets the bytes of one, to which the others add zeros. The view in which it runs says whose (R21)."""

    is_of_one = True

    @property
    def name(self) -> str:
        """In the fingerprint."""
        return "a slice of the replica"


@dataclass(frozen=True, slots=True)
class AllGather(_Usual):
    """Every rank gets the inputs of all, one behind the other; they are of one length.

    Attributes:
        is_counts: `Counts` of each rank (receipts.py): the first operation where means are weighted.
        label: what it is for, in words, which all ranks must have in common.
        codec: of the inputs, where they are payloads: whose nobody can decode adds no samples to the step.
        is_rows: of what each has measured of its links (agreed_rows.py).
    """

    is_counts: bool = False
    label: str = ""
    codec: str = ""
    is_rows: bool = False
    kind: ClassVar[str] = "all-gather"
    is_new: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    is_broadcast: ClassVar[bool] = False
    is_common: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """In the fingerprint."""
        if not self.is_counts:
            return self.label or "all_gather"
        return f"a training step on {self.label}" if self.label else "a training step"

    def choose(self, algorithm: str | None, num_bytes: int, world_size: int, medium: Medium = Medium.LAN) -> str:
        return algorithm or default_algorithm("all-gather", num_bytes, world_size)

    def reduction(self, world_size: int, weight: float | None) -> Reduction:
        return _reduction("sum", world_size)

    def schedule(self, algorithm: str, rank: int, hosts: tuple[int, ...], root: int) -> Schedule:
        return schedule_of("all-gather", algorithm, rank, len(hosts))

    def program(
        self, algorithm: str, rank: int, hosts: tuple[int, ...], input: Array, piece: slice, root: int
    ) -> Program:
        return all_gather_program(rank, len(hosts))

    def needs(self, rank: int, world_size: int, root: int) -> Callable[[int], bool] | None:
        return None


@dataclass(frozen=True, slots=True)
class GenericCollective(_Usual):
    """One of `collectives.goals`: a broadcast, a reduce-scatter, and what only the benchmark calls.

    Attributes:
        kind: its name there.
        op: the reduction, of a collective that reduces.
        root: peer_id of the member whose input is sent, or that receives the result. A view without it moves nothing.
    """

    kind: str
    op: str = "sum"
    root: str = ""

    def __post_init__(self) -> None:
        assert bool(self.root) == GOALS[self.kind].has_root, f"{self.kind} with root {self.root!r}"

    @property
    def name(self) -> str:
        """In the fingerprint."""
        adds = f" {self.op}" if self.kind.startswith("reduce") else ""
        way = "from" if self.is_common or self.kind == "scatter" else "to"
        return f"{self.kind.replace('-', '_')}{adds}{self.root and f' {way} peer {self.root}'}"

    @property
    def is_new(self) -> bool:
        """Whether the script is given a tensor of its own, whose size follows from the members."""
        return not self.is_broadcast

    @property
    def gathers(self) -> bool:
        """Whether the result has a place for each rank's input."""
        return self.kind == "gather"

    @property
    def is_common(self) -> bool:
        """Whether all end with the same result. If not, nobody compares it, and no observer is given any."""
        return self.is_broadcast

    @property
    def is_broadcast(self) -> bool:
        """Whether all get the input of the root."""
        return self.kind == "broadcast"

    def choose(self, algorithm: str | None, num_bytes: int, world_size: int, medium: Medium = Medium.LAN) -> str:
        return algorithm or default_algorithm(self.kind, num_bytes, world_size, medium)

    def reduction(self, world_size: int, weight: float | None) -> Reduction:
        return _reduction(self.op, world_size)

    def schedule(self, algorithm: str, rank: int, hosts: tuple[int, ...], root: int) -> Schedule:
        return schedule_of(self.kind, algorithm, rank, len(hosts), root)

    def program(
        self, algorithm: str, rank: int, hosts: tuple[int, ...], input: Array, piece: slice, root: int
    ) -> Program:
        whole = input.size, input.itemsize
        return goal_program(self.kind, algorithm, rank, len(hosts), root, *whole, piece.start, piece.stop)

    def needs(self, rank: int, world_size: int, root: int) -> Callable[[int], bool] | None:
        return partial(_is_needed, self.kind, rank, world_size, root)


def _is_needed(kind: str, rank: int, world_size: int, root: int, chunk: int) -> bool:
    return GOALS[kind].needed(rank, chunk, world_size, root) is not None


Collective = AllReduce | AllGather | GenericCollective

"""The collectives, defined by which input each rank ends with in each chunk; and their schedules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from collectives.algorithms import ALGORITHMS, Medium
from collectives.binary_tree import binary_tree_broadcast, binary_tree_reduce
from collectives.direct import direct_reduce_scatter
from collectives.matching import MatchedSchedules, RankChunk, ScheduleError
from collectives.one_shot import one_shot_all_gather, one_shot_broadcast
from collectives.ring import ring_all_gather, ring_broadcast, ring_reduce_scatter
from collectives.scatter import direct_all_to_all, direct_gather, direct_scatter
from collectives.schedule import Build, Schedule
from collectives.verification import Expressions, evaluate, what_is_wrong

ONE_HOP_MAX_BYTES: Final = 256 << 10
ONE_HOP_MAX_WAN_BYTES: Final = 2 << 20

SUM: Final = -1
"""The sum of the inputs of all ranks."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A collective in terms of chunks; the root of one that has a root is rank 0.

    Attributes:
        postcondition: from (rank, chunk, world size): whose input the rank ends with in the chunk, or `SUM`; None:
            anything.
        precondition: from the same: whether the rank has an input in the chunk at the start.
        chunks_per_rank: the number of chunks is the world size to this power; None: any number.
        has_root: whether the collective has a root, which may be any rank.
    """

    postcondition: Callable[[int, int, int], int | None]
    precondition: Callable[[int, int, int], bool] = lambda rank, chunk, n: True
    chunks_per_rank: int | None = None
    has_root: bool = False

    def needed(self, rank: int, chunk: int, world_size: int, root: int = 0) -> int | None:
        """As `postcondition`, with that root."""
        source = self.postcondition(*self._seen_from(root, rank, chunk, world_size), world_size)
        return source if source is None or source == SUM else (source + root) % world_size

    def has_input(self, rank: int, chunk: int, world_size: int, root: int) -> bool:
        """As `precondition`, with that root."""
        return self.precondition(*self._seen_from(root, rank, chunk, world_size), world_size)

    def _seen_from(self, root: int, rank: int, chunk: int, world_size: int) -> tuple[int, int]:
        """Rank and chunk, counted from the root; chunks only if there is one per rank."""
        chunk = (chunk - root) % world_size if self.chunks_per_rank == 1 else chunk
        return (rank - root) % world_size, chunk


GOALS: Final[Mapping[str, Goal]] = MappingProxyType(
    {
        "all-reduce": Goal(lambda rank, chunk, n: SUM),
        "reduce-scatter": Goal(lambda rank, chunk, n: SUM if chunk == rank else None, chunks_per_rank=1),
        "all-gather": Goal(lambda rank, chunk, n: chunk, lambda rank, chunk, n: rank == chunk, 1),
        "broadcast": Goal(lambda rank, chunk, n: 0, lambda rank, chunk, n: rank == 0, has_root=True),
        "reduce": Goal(lambda rank, chunk, n: None if rank else SUM, has_root=True),
        "gather": Goal(lambda rank, chunk, n: None if rank else chunk, lambda rank, chunk, n: rank == chunk, 1, True),
        "scatter": Goal(lambda rank, chunk, n: 0 if rank == chunk else None, lambda rank, chunk, n: rank == 0, 1, True),
        "all-to-all": Goal(
            lambda rank, chunk, n: chunk // n if chunk % n == rank else None,
            lambda rank, chunk, n: chunk // n == rank,
            2,
        ),
    }
)

COLLECTIVES: Final[Mapping[str, Mapping[str, Build]]] = MappingProxyType(
    {
        "all-reduce": ALGORITHMS,
        "reduce-scatter": {"direct": direct_reduce_scatter, "ring": ring_reduce_scatter},
        "all-gather": {"one-shot": one_shot_all_gather, "ring": ring_all_gather},
        "broadcast": {"one-shot": one_shot_broadcast, "binary-tree": binary_tree_broadcast, "ring": ring_broadcast},
        "reduce": {"binary-tree": binary_tree_reduce},
        "gather": {"direct": direct_gather},
        "scatter": {"direct": direct_scatter},
        "all-to-all": {"direct": direct_all_to_all},
    }
)
"""The schedules of each collective, by algorithm."""


@lru_cache(maxsize=4096)
def schedule_of(collective: str, algorithm: str, rank: int, world_size: int, root: int = 0) -> Schedule:
    """The schedule of `rank`; the same object each time.

    Raises:
        ValueError: there is no such collective, or no such algorithm of it.
    """
    builds = COLLECTIVES.get(collective, {})
    if algorithm not in builds:
        raise ValueError(f"{collective} has no algorithm {algorithm!r}: choose from {', '.join(builds)}")
    build: Callable[..., Schedule] = builds[algorithm]
    return build(rank, world_size, root) if GOALS[collective].has_root else build(rank, world_size)


def default_algorithm(collective: str, num_bytes: int, world_size: int, medium: Medium = Medium.LAN) -> str:
    """The algorithm for an input of this size, for all collectives but all-reduce: a fixed rule.

    Usually one hop. In a broadcast of one hop, one rank sends n-1 times, so large ones take a ring: from a larger size
    on if hops are slow.
    """
    if collective != "broadcast":
        return next(iter(COLLECTIVES[collective]))
    most_bytes = ONE_HOP_MAX_WAN_BYTES if medium is Medium.WAN else ONE_HOP_MAX_BYTES
    return "one-shot" if num_bytes * (world_size - 1) <= most_bytes else "ring"


def verify_goal(collective: str, build: Callable[..., Schedule], world_size: int, root: int = 0) -> None:
    """Prove that the schedules of `build` are this collective, of `GOALS`, whatever the timing.

    `build` gets the root as third argument, unless it is rank 0.

    Raises:
        ScheduleError: they are not. Names the rank, the transfer and the chunk.
    """
    goal, place = GOALS[collective], (root,) if root else ()
    matched = MatchedSchedules([build(rank, world_size, *place) for rank in range(world_size)])
    num_chunks = len(matched.schedules[0].chunks)
    if goal.chunks_per_rank is not None and num_chunks != (needed := world_size**goal.chunks_per_rank):
        raise ScheduleError(f"{collective} of {world_size} ranks has {needed} chunks, and these schedules {num_chunks}")
    expressions = Expressions(world_size)

    def input_of(rank: int, chunk: int) -> int:
        return rank if goal.has_input(rank, chunk, world_size, root) else expressions.garbage

    check_goal(goal, evaluate(matched, expressions, input_of), expressions, world_size, root)


def check_goal(
    goal: Goal, results: Mapping[RankChunk, int], expressions: Expressions, world_size: int, root: int = 0
) -> None:
    """Check that each rank ends with what it needs, and that all ranks with a sum have the same bits.

    Raises:
        ScheduleError: they do not.
    """
    totals: dict[int, int] = {}
    for (rank, chunk), result in results.items():
        needed = goal.needed(rank, chunk, world_size, root)
        if needed is None:
            continue
        if needed != SUM and result != needed:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: does not end as the input of rank {needed}")
        if needed == SUM and (summands := expressions.summands[result]) != tuple(range(world_size)):
            found = f"adds up inputs {summands}, not each one once{what_is_wrong(summands, world_size)}"
            raise ScheduleError(f"rank {rank}, chunk {chunk}: {found}")
        if needed == SUM and world_size > 1 and result not in expressions.completed:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: no rank's last write of it completes the sum")
        if needed == SUM and totals.setdefault(chunk, result) != result:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: adds in another order than others, or rounds elsewhere")

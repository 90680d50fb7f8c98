"""What the collectives are that move and add up chunks: which input has to be where at the end. And their schedules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from collectives.algorithms import ALGORITHMS
from collectives.binary_tree import binary_tree_broadcast, binary_tree_reduce
from collectives.direct import direct_reduce_scatter
from collectives.matching import MatchedSchedules, ScheduleError
from collectives.one_shot import one_shot_all_gather
from collectives.ring import ring_all_gather, ring_reduce_scatter
from collectives.scatter import direct_all_to_all, direct_gather, direct_scatter
from collectives.schedule import Build
from collectives.verification import Expressions, evaluate

SUM: Final = -1
"""Of the inputs of all ranks."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A collective in terms of chunks; the root of one that has a root is rank 0.

    Attributes:
        ends: whose input a rank has in a chunk at the end, or `SUM`; None: anything. From rank, chunk and world size.
        has: whether a rank has an input in a chunk at the start. Likewise.
        chunks_per_rank: whether the number of chunks is given: the world size, to this power. None: any number.
    """

    ends: Callable[[int, int, int], int | None]
    has: Callable[[int, int, int], bool] = lambda rank, chunk, n: True
    chunks_per_rank: int | None = None


GOALS: Final[Mapping[str, Goal]] = MappingProxyType(
    {
        "all-reduce": Goal(lambda rank, chunk, n: SUM),
        "reduce-scatter": Goal(lambda rank, chunk, n: SUM if chunk == rank else None, chunks_per_rank=1),
        "all-gather": Goal(lambda rank, chunk, n: chunk, lambda rank, chunk, n: rank == chunk, 1),
        "broadcast": Goal(lambda rank, chunk, n: 0, lambda rank, chunk, n: rank == 0),
        "reduce": Goal(lambda rank, chunk, n: None if rank else SUM),
        "gather": Goal(lambda rank, chunk, n: None if rank else chunk, lambda rank, chunk, n: rank == chunk, 1),
        "scatter": Goal(lambda rank, chunk, n: 0 if rank == chunk else None, lambda rank, chunk, n: rank == 0, 1),
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
        "broadcast": {"binary-tree": binary_tree_broadcast},
        "reduce": {"binary-tree": binary_tree_reduce},
        "gather": {"direct": direct_gather},
        "scatter": {"direct": direct_scatter},
        "all-to-all": {"direct": direct_all_to_all},
    }
)
"""The schedules of each collective, by algorithm."""


def verify_goal(collective: str, build: Build, world_size: int) -> None:
    """Prove that the schedules of `build` are this collective, of `GOALS`, whatever the timing.

    Raises:
        ScheduleError: they are not. Names the rank, the transfer and the chunk.
    """
    goal, matched = GOALS[collective], MatchedSchedules([build(rank, world_size) for rank in range(world_size)])
    num_chunks = len(matched.schedules[0].chunks)
    if goal.chunks_per_rank is not None and num_chunks != (needed := world_size**goal.chunks_per_rank):
        raise ScheduleError(f"{collective} of {world_size} ranks has {needed} chunks, and these schedules {num_chunks}")
    expressions = Expressions(world_size)

    def input_of(rank: int, chunk: int) -> int:
        return rank if goal.has(rank, chunk, world_size) else expressions.garbage

    totals: dict[int, int] = {}
    for (rank, chunk), result in evaluate(matched, expressions, input_of).items():
        needed = goal.ends(rank, chunk, world_size)
        if needed is None:
            continue
        if needed != SUM and result != needed:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: does not end as the input of rank {needed}")
        if needed == SUM and (summands := expressions.summands[result]) != tuple(range(world_size)):
            raise ScheduleError(f"rank {rank}, chunk {chunk}: adds up inputs {summands}, not each one once")
        if needed == SUM and world_size > 1 and result not in expressions.completed:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: no rank's last write of it completes the sum")
        if needed == SUM and totals.setdefault(chunk, result) != result:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: adds in another order than others, or rounds elsewhere")

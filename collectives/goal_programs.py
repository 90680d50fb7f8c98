"""Programs of all collectives but all-reduce: ranks of one host read data in place, with few waits."""

from functools import lru_cache

from collectives.compilation import compile_programs
from collectives.goals import GOALS, schedule_of
from collectives.program import Program, Reduce, inputs_of
from collectives.programs import all_gather_program, beginning, num_blocks_for, program_of_piece
from collectives.schedule import even_chunks, only_chunks


@lru_cache(maxsize=1024)
def goal_program(
    collective: str,
    algorithm: str,
    rank: int,
    world_size: int,
    root: int,
    length: int,
    itemsize: int,
    start: int,
    stop: int,
) -> Program:
    """The program of `rank` for the elements from `start` to `stop` of an array; the same object each time.

    In a collective without sums, each rank reads what it needs from the input of the rank that has it, whatever the
    algorithm. The array has `length` elements of `itemsize` bytes: for a gather those of one rank, else of all chunks.

    Raises:
        ValueError: there is no such collective, or no such algorithm of it.
    """
    of_whole = schedule_of(collective, algorithm, rank, world_size, root).chunks
    if collective == "all-gather":
        return all_gather_program(rank, world_size)
    if collective == "gather":
        return gather_program(rank, world_size, root)
    if collective == "broadcast":
        return broadcast_program(rank, world_size, root, num_blocks_for((stop - start) * itemsize, 1))

    def compiled(kept: tuple[int, ...], num_blocks: int) -> Program:
        return _compile(collective, algorithm, world_size, root, kept, num_blocks)[rank]

    return program_of_piece(compiled, of_whole, length, itemsize, slice(start, stop))


def broadcast_program(rank: int, world_size: int, root: int, num_blocks: int) -> Program:
    """Copy the input of `root`: one wait."""
    copies = [Reduce(block, inputs_of([root])) for block in range(num_blocks)]
    return Program(even_chunks(num_blocks), (*beginning(rank, world_size), *copies), num_publishes=1)


def gather_program(rank: int, world_size: int, root: int) -> Program:
    """Copy the input of rank r into chunk r, at `root`: one wait."""
    copies = [Reduce(peer, inputs_of([peer])) for peer in range(world_size)] if rank == root else []
    return Program(even_chunks(world_size), (*beginning(rank, world_size), *copies), num_publishes=1)


@lru_cache(maxsize=256)
def _compile(
    collective: str, algorithm: str, world_size: int, root: int, kept: tuple[int, ...], num_blocks: int
) -> tuple[Program, ...]:
    """The programs of all ranks, if all chunks but those in `kept` are empty."""
    goal = GOALS[collective]
    schedules = [schedule_of(collective, algorithm, rank, world_size, root) for rank in range(world_size)]

    def is_needed(rank: int, chunk: int) -> bool:
        return goal.needed(rank, kept[chunk], world_size, root) is not None

    return compile_programs([only_chunks(each, kept) for each in schedules], num_blocks, is_needed)

"""A collective operation over shared memory as data: what one rank reads, writes and waits for.

Where a rank can read the memory of all others, nothing has to be sent. Each lends its input and its result; a
*progress* counter says what is ready there. A program is the list of what one rank does:

- PUBLISH counts the own progress up by one: whatever this rank has written so far may be read from now on. The
  first one of an operation is what lends the input.
- WAIT goes on when the progress of each of these peers, in this operation, has come as far as it says.
- REDUCE adds one chunk of the inputs of these peers, in their order, and writes the sum into the own result. With
  one peer it is a copy of its input.
- COPY takes one chunk of a peer's result into the own result.

Inputs are never written, and each chunk of a result once. So what has been published is never written again, and a
read is safe if a WAIT listed before it names a progress that its lender reaches only after the write: this is what
`verify_programs` proves. All ranks publish equally often, so the next operation can count on from there; and every
rank sees that every other has begun, so with two operations begun nobody still reads for the one before them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Final

from collectives.matching import Node, Place, ScheduleError
from collectives.schedule import peers_after

BLOCK_BYTES: Final = 512 << 10
"""What is reduced at a time: the sum stays in a core's own cache until all inputs are in."""

BLOCKS_FROM_BYTES: Final = 1 << 20

BLOCKS_BEHIND: Final = 8
"""So far behind its own blocks a rank copies those of others: near enough to find them in a cache that all share, and
far enough that ranks which share a core need not change places after each block."""


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
    """Write the sum of `chunk` of the inputs of `peers`, in this order, into the own result."""

    chunk: int
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Write `chunk` of the result of `peer` into the own result."""

    chunk: int
    peer: int


Instruction = Publish | Wait | Reduce | Copy


@dataclass(frozen=True, eq=False)
class Program:
    """One rank's part of an operation. Compared by identity; build it once and keep it."""

    num_chunks: int
    """Of equal size."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def num_publishes(self) -> int:
        """By how much the operation counts the progress up."""
        return sum(isinstance(each, Publish) for each in self.instructions)

    @cached_property
    def lends_result(self) -> bool:
        """Whether peers read the result of this rank, so that it has to lie in shared memory."""
        return any(isinstance(each, Copy) for each in self.instructions)


def one_shot_program(rank: int, world_size: int) -> Program:
    """Everybody adds up all inputs: one wait, for small buckets. For n ranks and S bytes each reads nS."""
    return Program(1, (Publish(), *_wait(peers_after(rank, world_size), 1), Reduce(0, tuple(range(world_size)))))


def direct_program(rank: int, world_size: int, num_blocks: int = 1) -> Program:
    """Add up the own part for all, then copy the others' parts: two waits; for n ranks and S bytes each reads 2S.

    The part of a rank is cut into `num_blocks` chunks, which are its own and follow each other. Those of others are
    copied while it is still busy with its own, `BLOCKS_BEHIND` later.
    """
    peers, everybody = peers_after(rank, world_size), tuple(range(world_size))
    instructions: list[Instruction] = [Publish(), *_wait(peers, 1)]
    lag = min(num_blocks, BLOCKS_BEHIND)
    for block in range(num_blocks + lag):
        if block < num_blocks:
            instructions += [Reduce(rank * num_blocks + block, everybody), Publish()]
        if (copied := block - lag) >= 0:
            for peer in peers:
                instructions += [*_wait([peer], 2 + copied), Copy(peer * num_blocks + copied, peer)]
    return Program(world_size * num_blocks, tuple(instructions))


def all_gather_program(rank: int, world_size: int) -> Program:
    """Copy the input of rank r into chunk r: one wait; each rank reads what all have."""
    copies = [Reduce(peer, (peer,)) for peer in range(world_size)]
    return Program(world_size, (Publish(), *_wait(peers_after(rank, world_size), 1), *copies))


@lru_cache(maxsize=1024)
def all_reduce_program(algorithm: str, rank: int, world_size: int, size_bytes: int) -> Program | None:
    """What `rank` does with a bucket of this size; None for an algorithm that has no program."""
    if algorithm == "one-shot":
        return one_shot_program(rank, world_size)
    if algorithm == "direct":
        return direct_program(rank, world_size, num_blocks_for(size_bytes, world_size))
    return None


def num_blocks_for(size_bytes: int, world_size: int) -> int:
    """Into how many blocks the part of one rank is cut, in a bucket of this size."""
    return 1 if size_bytes < BLOCKS_FROM_BYTES else -(-size_bytes // (world_size * BLOCK_BYTES))


def _wait(peers: Sequence[int], progress: int) -> list[Wait]:
    return [Wait(tuple(peers), progress)] if peers else []


def verify_programs(programs: Sequence[Program], expected: Callable[[int], tuple[int, ...]] | None = None) -> None:
    """Prove that `programs`, one per rank, are an operation, whatever the timing.

    Args:
        programs: in rank order.
        expected: whose inputs are added up in a chunk, in order; None: everybody's in rank order, an all-reduce.

    Raises:
        ScheduleError: they would hang, read what may not be there yet, or leave another result.
    """
    everybody = tuple(range(len(programs)))
    _check_shapes(programs)
    shown = _find_writes(programs)
    for rank, program in enumerate(programs):
        _check_reads(rank, program, shown, len(programs))
    results = _evaluate(programs)
    for rank in everybody:
        for chunk in range(programs[0].num_chunks):
            found = results.get((rank, chunk), ())
            if found != (wanted := everybody if expected is None else expected(chunk)):
                raise ScheduleError(f"rank {rank}, chunk {chunk}: adds up inputs {found}, not {wanted}")


def _check_shapes(programs: Sequence[Program]) -> None:
    first, ranks = programs[0], range(len(programs))
    for rank, program in enumerate(programs):
        shape = program.num_chunks, program.num_publishes
        if shape != (first.num_chunks, first.num_publishes):
            raise ScheduleError(
                f"rank {rank} has {shape[0]} chunks and publishes {shape[1]} times, "
                f"rank 0 has {first.num_chunks} and publishes {first.num_publishes} times"
            )
        for index, instruction in enumerate(program.instructions):
            if not _is_sound(instruction, rank, ranks, range(first.num_chunks), first.num_publishes):
                raise ScheduleError(f"{_name((rank, index), instruction)}: no such rank, chunk or progress")


def _is_sound(instruction: Instruction, rank: int, ranks: range, chunks: range, num_publishes: int) -> bool:
    match instruction:
        case Publish():
            return True
        case Wait(peers, progress):
            return all(peer in ranks and peer != rank for peer in peers) and 1 <= progress <= num_publishes
        case Reduce(chunk, peers):
            return chunk in chunks and all(peer in ranks for peer in peers) and bool(peers)
    return instruction.chunk in chunks and instruction.peer in ranks and instruction.peer != rank


def _find_writes(programs: Sequence[Program]) -> dict[Place, int]:
    """For each chunk of each result, the progress of its rank that shows it to others."""
    shown: dict[Place, int] = {}
    for rank, program in enumerate(programs):
        progress = 0
        for index, instruction in enumerate(program.instructions):
            if isinstance(instruction, Publish):
                progress += 1
            elif isinstance(instruction, Reduce | Copy):
                if (rank, instruction.chunk) in shown:
                    raise ScheduleError(f"{_name((rank, index), instruction)}: the chunk is written twice")
                shown[rank, instruction.chunk] = progress + 1
    return shown


def _check_reads(rank: int, program: Program, shown: dict[Place, int], world_size: int) -> None:
    """Every read of another rank's memory comes after a wait for what was published after the write."""
    awaited = [0] * world_size
    for index, instruction in enumerate(program.instructions):
        needed: list[tuple[int, int]] = []
        match instruction:
            case Wait(peers, progress):
                for peer in peers:
                    awaited[peer] = max(awaited[peer], progress)
            case Reduce(_, peers):
                needed = [(peer, 1) for peer in peers if peer != rank]
            case Copy(chunk, peer):
                needed = [(peer, shown.get((peer, chunk), 1 << 40))]
        for peer, progress in needed:
            if awaited[peer] < progress:
                raise ScheduleError(
                    f"{_name((rank, index), instruction)}: does not wait until rank {peer} has shown it"
                )
    for peer in range(world_size):
        if peer != rank and not awaited[peer]:
            raise ScheduleError(
                f"rank {rank} never sees that rank {peer} has begun, so memory could be reused too early"
            )


def _evaluate(programs: Sequence[Program]) -> dict[Place, tuple[int, ...]]:
    """Whose inputs each chunk of each result adds up, in order."""
    results: dict[Place, tuple[int, ...]] = {}
    for rank, index in _sort(programs):
        match programs[rank].instructions[index]:
            case Reduce(chunk, peers):
                results[rank, chunk] = peers
            case Copy(chunk, peer):
                results[rank, chunk] = results[peer, chunk]
            case _:
                pass
    return results


def _sort(programs: Sequence[Program]) -> list[Node]:
    """All instructions, each after what it waits for."""
    publishes = [
        [index for index, each in enumerate(program.instructions) if isinstance(each, Publish)] for program in programs
    ]
    graph: dict[Node, list[Node]] = {}
    for rank, program in enumerate(programs):
        for index, instruction in enumerate(program.instructions):
            graph[rank, index] = [(rank, index - 1)] if index else []
            if isinstance(instruction, Wait):
                graph[rank, index] += [(peer, publishes[peer][instruction.progress - 1]) for peer in instruction.peers]
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = [_name(node, programs[node[0]].instructions[node[1]]) for node in error.args[1]]
        raise ScheduleError(f"these wait for each other: {'; '.join(cycle)}") from None


def _name(node: Node, instruction: Instruction) -> str:
    return f"rank {node[0]}, instruction {node[1]} ({instruction})"

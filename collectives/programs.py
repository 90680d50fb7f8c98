"""The programs of all-reduce and all-gather: compiled from schedules, except those that every new view needs at once.

`one_shot_program`, `direct_program` and `all_gather_program` are equal to what `compile_programs` makes from the
schedules of these names. They are written by hand because compilation needs the schedules of all ranks, takes 1 to 3 ms
for 8 ranks and up to 100 ms for 33, and survivors of a death would wait for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from collectives.algorithms import all_reduce_schedule
from collectives.compilation import BLOCKS_BEHIND, compile_programs
from collectives.partition import split_by_weight
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Wait, inputs_of
from collectives.schedule import even_chunks, only_chunks, peers_after

BLOCK_BYTES: Final = 512 << 10
"""Bytes that are reduced at a time: the sum stays in a core's own cache until all inputs are added."""

BLOCKS_FROM_BYTES: Final = 1 << 20
MOST_CHUNKS: Final = 256
"""Chunks of a program, and so also ranks that share memory, at most: the space for digests is limited to these."""


def one_shot_program(rank: int, world_size: int) -> Program:
    """Each rank adds up all inputs: one wait, for small buckets. For n ranks and S bytes each reads nS."""
    reduce = Reduce(0, inputs_of(range(world_size)))
    return Program(even_chunks(1), (*beginning(rank, world_size), reduce), num_publishes=1)


def direct_program(rank: int, world_size: int, num_blocks: int = 1) -> Program:
    """Add up the own part for all, then copy the parts of the others: two waits; for n ranks and S bytes each reads 2S.

    The part of a rank is cut into `num_blocks` consecutive chunks. Those of others are copied while the rank still adds
    up its own, `BLOCKS_BEHIND` later.
    """
    peers, everybody = peers_after(rank, world_size), inputs_of(range(world_size))
    instructions = beginning(rank, world_size)
    publishes = [Publish()] if peers else []
    lag = min(num_blocks, BLOCKS_BEHIND)
    for block in range(num_blocks + lag):
        if block < num_blocks:
            instructions += [Reduce(rank * num_blocks + block, everybody), *publishes]
        if (copied := block - lag) >= 0:
            for peer in peers:
                instructions += [Wait((peer,), 2 + copied), Copy(peer * num_blocks + copied, peer)]
    chunks = even_chunks(world_size * num_blocks)
    return Program(chunks, tuple(instructions), 1 + num_blocks * len(publishes))


def all_gather_program(rank: int, world_size: int) -> Program:
    """Copy the input of rank r into chunk r: one wait; each rank reads all inputs."""
    copies = [Reduce(peer, inputs_of([peer])) for peer in (rank, *peers_after(rank, world_size))]
    instructions = (*beginning(rank, world_size), *copies)
    return Program(even_chunks(world_size), instructions, num_publishes=1)


@lru_cache(maxsize=1024)
def all_reduce_program(
    algorithm: str,
    rank: int,
    world_size: int,
    length: int,
    itemsize: int,
    start: int = 0,
    stop: int | None = None,
    hosts: tuple[int, ...] = (),
) -> Program:
    """The program of `rank` for the elements from `start` to `stop` of an array; the same object each time.

    Each element is added up in the same order as in the whole array, so the bits do not depend on `start` and `stop`:
    the chunks of a piece are its parts of the chunks of the whole. If all chunks are added up in rank order, the piece
    is divided independently.

    The array has `length` elements of `itemsize` bytes; `hosts` as of `all_reduce_schedule`.

    Raises:
        ValueError: the algorithm is unknown, or the rank is not in `range(world_size)`.
    """
    stop = length if stop is None else stop
    if algorithm == "one-shot":
        return one_shot_program(rank, world_size)
    if algorithm == "direct":
        return direct_program(rank, world_size, num_blocks_for((stop - start) * itemsize, world_size))
    of_whole = all_reduce_schedule(algorithm, rank, world_size, hosts).chunks

    def compiled(kept: tuple[int, ...], num_blocks: int) -> Program:
        return _compile(algorithm, world_size, hosts, kept, num_blocks)[rank]

    return program_of_piece(compiled, of_whole, length, itemsize, slice(start, stop))


def program_of_piece(
    compiled: Callable[[tuple[int, ...], int], Program],
    of_whole: tuple[float, ...],
    length: int,
    itemsize: int,
    piece: slice,
) -> Program:
    """The program of a rank for a piece of an array; its chunks are its parts of the chunks `of_whole`.

    `compiled`: from (chunks that are not empty, blocks of each) to the program.
    """
    if piece.stop - piece.start == length:
        return compiled(tuple(range(len(of_whole))), num_blocks_for(length * itemsize, len(of_whole)))
    bounds = split_by_weight(length, of_whole)
    weights = [max(0, min(piece.stop, each.stop) - max(piece.start, each.start)) for each in bounds]
    kept = tuple(chunk for chunk, weight in enumerate(weights) if weight) or (0,)
    num_blocks = num_blocks_for(max(weights) * itemsize * len(kept), len(kept))
    chunks = tuple(weights[chunk] or 1 for chunk in kept for _ in range(num_blocks))
    return replace(compiled(kept, num_blocks), chunks=chunks)


@lru_cache(maxsize=256)
def _compile(
    algorithm: str, world_size: int, hosts: tuple[int, ...], kept: tuple[int, ...], num_blocks: int
) -> tuple[Program, ...]:
    """The programs of all ranks, if all chunks but those in `kept` are empty."""
    schedules = [all_reduce_schedule(algorithm, rank, world_size, hosts) for rank in range(world_size)]
    return compile_programs([only_chunks(each, kept) for each in schedules], num_blocks)


def num_blocks_for(size_bytes: int, num_chunks: int) -> int:
    """The number of blocks per chunk, for a bucket of this size in `num_chunks` equal chunks."""
    if size_bytes < BLOCKS_FROM_BYTES:
        return 1
    return min(-(-size_bytes // (num_chunks * BLOCK_BYTES)), max(1, MOST_CHUNKS // num_chunks))


def beginning(rank: int, world_size: int) -> list[Instruction]:
    """Lend the input, and wait until all others have."""
    peers: Sequence[int] = peers_after(rank, world_size)
    return [Publish(), *([Wait(tuple(peers), 1)] if peers else [])]

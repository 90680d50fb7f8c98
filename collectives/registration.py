"""Algorithms of a user: proven when they are given a name, and part of what all ranks must have in common."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from collectives.algorithms import ALGORITHMS, SHARES, add_algorithm
from collectives.compilation import compile_programs
from collectives.matching import ScheduleError
from collectives.message_run import compile_tables
from collectives.program_verification import verify_programs
from collectives.programs import MOST_CHUNKS
from collectives.schedule import Build
from collectives.verification import verify

PROVEN: Final = range(1, 17)


def register_algorithm(name: str, build: Build, world_sizes: Iterable[int] = PROVEN) -> None:
    """Make `build` an all-reduce that can be asked for by `name`, from then on, in this process.

    Every peer has to register the same: what it does with these numbers of ranks is in the fingerprint of each
    operation. It is proven for them now, and for any other number when a view has so many members: where it is no
    all-reduce of so many, the peer ends with that error.

    Args:
        name: that there is not yet.
        build: from rank and world size to what the rank does.
        world_sizes: for which it is proven now.

    Raises:
        ScheduleError: it is no all-reduce; names the rank, the transfer and the chunk. Or it cannot be carried out: a
            SEND waits for more than the last write of its chunk, or there are more than 256 chunks.
        ValueError: there is such a name, or it has a colon, behind which `direct` has its shares.
    """
    if SHARES in name:
        raise ValueError(f"the name of an algorithm has no {SHARES!r}, this is {name!r}")
    if name in ALGORITHMS:
        raise ValueError(f"there is an algorithm {name!r} already: take another name")
    digest = blake2b(digest_size=8)
    for world_size in world_sizes:
        prove(build, world_size)
        for rank in range(world_size):
            schedule = build(rank, world_size)
            digest.update(f"{world_size} {rank} {schedule.chunks} {schedule.transfers}".encode())
    add_algorithm(name, build, digest.hexdigest(), prove)


def prove(build: Build, world_size: int) -> None:
    """That these are schedules of an all-reduce which can be carried out, by messages and over memory.

    Raises:
        ScheduleError: they are not.
    """
    verify(build, world_size)
    schedules = [build(rank, world_size) for rank in range(world_size)]
    for rank, schedule in enumerate(schedules):
        if len(schedule.chunks) > MOST_CHUNKS:
            raise ScheduleError(f"{len(schedule.chunks)} chunks are more than the {MOST_CHUNKS} that there is room for")
        try:
            compile_tables(schedule, rank, len(schedule.chunks), 1)
        except ValueError as error:
            raise ScheduleError(f"{error}: wait for the last write of the chunk only, as a TransferList does") from None
    if any(transfer.is_copied for schedule in schedules for transfer in schedule.transfers):
        try:
            verify_programs(compile_programs(schedules), schedules)
        except ScheduleError as error:
            raise ScheduleError(f"over memory, where nothing is copied: {error}") from None

"""Registration of users' algorithms: they are proven, and become part of what must be equal on all ranks."""

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
    """Make `build` available as an all-reduce by `name`, in this process.

    Every peer must register the same: the schedules for `world_sizes` are part of the fingerprint of each operation.
    They are proven now, and those for any other world size when a view has that many members: if they are no
    all-reduce, the peer ends with that error.

    Args:
        name: a new name.
        build: from rank and world size to the schedule of the rank.
        world_sizes: to prove now.

    Raises:
        ScheduleError: `build` is no all-reduce; names the rank, the transfer and the chunk. Or it cannot be executed: a
            SEND waits for more than the last write of its chunk, or there are more than 256 chunks.
        ValueError: the name exists, or has a colon, which separates the shares of `direct`.
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
    """Prove that the schedules are an all-reduce, and can be executed by messages and over memory.

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

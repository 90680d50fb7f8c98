from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ScheduleError
from collectives.program import (
    BLOCK_BYTES,
    Copy,
    Instruction,
    Program,
    Publish,
    Reduce,
    Wait,
    all_gather_program,
    all_reduce_program,
    direct_program,
    num_blocks_for,
    one_shot_program,
    verify_programs,
)

Build = Callable[[int, int], Program]

BUILDS: list[Build] = [
    one_shot_program,
    direct_program,
    partial(direct_program, num_blocks=3),
    partial(direct_program, num_blocks=11),
]


def programs(build: Build, world_size: int) -> list[Program]:
    return [build(rank, world_size) for rank in range(world_size)]


def edited(build: Build, world_size: int, rank: int, edit: Callable[[list[Instruction]], None]) -> list[Program]:
    """The programs of all ranks, after `edit` of the one of `rank`."""
    found = programs(build, world_size)
    instructions = list(found[rank].instructions)
    edit(instructions)
    found[rank] = Program(found[rank].num_chunks, tuple(instructions))
    return found


def written(*ranks: list[Instruction], num_chunks: int = 1) -> list[Program]:
    return [Program(num_chunks, tuple(instructions)) for instructions in ranks]


@pytest.mark.parametrize("world_size", range(1, 34))
def test_every_rank_ends_with_each_input_once_and_reads_only_what_is_published(world_size: int) -> None:
    for build in BUILDS:
        verify_programs(programs(build, world_size))
    verify_programs(programs(all_gather_program, world_size), lambda chunk: (chunk,))


@given(st.sampled_from(BUILDS), st.integers(2, 5), st.data())
def test_no_instruction_can_be_left_out(build: Build, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    index = data.draw(st.integers(0, len(build(rank, world_size).instructions) - 1))
    with pytest.raises(ScheduleError):
        verify_programs(edited(build, world_size, rank, lambda each: each.__delitem__(index)))


@given(st.sampled_from(BUILDS), st.integers(2, 5), st.data())
def test_no_wait_can_be_for_less(build: Build, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    waits = [(i, each) for i, each in enumerate(build(rank, world_size).instructions) if isinstance(each, Wait)]
    index, wait = data.draw(st.sampled_from(waits))
    less = [replace(wait, progress=wait.progress - 1), replace(wait, peers=wait.peers[1:])]
    changed = data.draw(st.sampled_from(less))
    with pytest.raises(ScheduleError):
        verify_programs(edited(build, world_size, rank, lambda each: each.__setitem__(index, changed)))


def test_another_order_of_the_inputs_is_refused_since_it_gives_other_bits() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, chunk 0: adds up inputs \(1, 0, 2\), not \(0, 1, 2\)"):
        verify_programs(edited(one_shot_program, 3, 1, lambda each: each.__setitem__(-1, Reduce(0, (1, 0, 2)))))


def test_an_input_is_not_read_before_its_rank_has_published_it() -> None:
    early: list[Instruction] = [Publish(), Reduce(0, (0, 1)), Wait((1,), 1)]
    with pytest.raises(ScheduleError, match="does not wait until rank 1 has shown it"):
        verify_programs([Program(1, tuple(early)), one_shot_program(1, 2)])


def test_a_result_is_not_copied_before_its_rank_has_published_it() -> None:
    one: list[Instruction] = [Publish(), Wait((1,), 1), Reduce(0, (0, 1)), Publish()]
    other: list[Instruction] = [Publish(), Wait((0,), 1), Copy(0, 0), Publish()]
    with pytest.raises(ScheduleError, match=r"rank 1, instruction 2 .*: does not wait until rank 0 has shown it"):
        verify_programs(written(one, other))


def test_who_copies_what_nobody_writes_is_refused() -> None:
    copies: list[Instruction] = [Publish(), Wait((1,), 1), Copy(0, 1)]
    idle: list[Instruction] = [Publish(), Wait((0,), 1)]
    with pytest.raises(ScheduleError, match="rank 0, instruction 2"):
        verify_programs(written(copies, idle))


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    ranks: list[list[Instruction]] = [[Wait((1 - rank,), 1), Publish(), Reduce(0, (0, 1))] for rank in range(2)]
    with pytest.raises(ScheduleError, match=r"these wait for each other: .*Wait"):
        verify_programs(written(*ranks))


def test_a_chunk_that_is_written_twice_is_refused_since_others_may_be_reading_it() -> None:
    with pytest.raises(ScheduleError, match="the chunk is written twice"):
        verify_programs(edited(one_shot_program, 2, 0, lambda each: each.append(Reduce(0, (0, 1)))))


def test_ranks_that_publish_a_different_number_of_times_are_refused() -> None:
    with pytest.raises(ScheduleError, match="rank 1 has 1 chunks and publishes 2 times, rank 0 has 1 and publishes 1"):
        verify_programs(edited(one_shot_program, 2, 1, lambda each: each.append(Publish())))


def test_a_rank_that_does_not_look_whether_others_have_begun_is_refused() -> None:
    alone: list[Instruction] = [Publish(), Reduce(0, (0,))]
    with pytest.raises(ScheduleError, match="rank 0 never sees that rank 1 has begun"):
        verify_programs(written(alone, alone))


@pytest.mark.parametrize(
    "wrong", [Wait((0,), 1), Wait((2,), 1), Wait((1,), 9), Reduce(1, (0, 1)), Reduce(0, ()), Copy(0, 0), Copy(7, 1)]
)
def test_an_instruction_without_such_a_rank_chunk_or_progress_is_refused(wrong: Instruction) -> None:
    with pytest.raises(ScheduleError, match="no such rank, chunk or progress"):
        verify_programs(edited(one_shot_program, 2, 0, lambda each: each.append(wrong)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_parts_are_reduced_in_blocks_from_1_mb_on(world_size: int) -> None:
    assert num_blocks_for((1 << 20) - 4, world_size) == 1
    num_blocks = num_blocks_for(64 << 20, world_size)
    assert num_blocks * world_size * BLOCK_BYTES >= 64 << 20 > (num_blocks - 1) * world_size * BLOCK_BYTES


def test_a_program_is_built_once_and_only_where_there_is_one() -> None:
    assert all_reduce_program("direct", 1, 3, 4096) is all_reduce_program("direct", 1, 3, 4096)
    assert all_reduce_program("one-shot", 1, 3, 4096) is all_reduce_program("one-shot", 1, 3, 4096)
    assert all_reduce_program("ring", 1, 3, 4096) is None


def test_a_program_says_whether_others_read_its_result() -> None:
    assert direct_program(0, 2).lends_result
    assert not one_shot_program(0, 2).lends_result
    assert not direct_program(0, 1).lends_result

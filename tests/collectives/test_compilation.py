from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    ALGORITHMS,
    Kind,
    Schedule,
    ScheduleError,
    Transfer,
    even_chunks,
    one_shot_all_gather,
    split_by_weight,
    verify,
)
from collectives.compilation import compile_programs
from collectives.elements import TYPES
from collectives.program import Copy, Program, Publish, Reduce, Source, Wait
from collectives.program_verification import verify_gather_programs, verify_programs
from collectives.programs import all_gather_program, direct_program, one_shot_program
from tests.cases import LARGER, some_of
from tests.collectives.chain import chain_all_reduce
from tests.collectives.doubling import doubling_all_reduce
from tests.collectives.edits import RECV, REDUCE, SEND, Build, edited, edits, listed
from tests.collectives.inputs import DType, all_reduce, ops_of, random_inputs
from tests.collectives.memory import run_programs

BUILDS: dict[str, Build] = {
    **ALGORITHMS,
    "chain": chain_all_reduce,
    "doubling": doubling_all_reduce,
    "doubling of two": partial(doubling_all_reduce, num_chunks=2),
}

SIZES = some_of([((2, 3, 4, 5, 6, 7, 8, 9, 16),), ((17, *LARGER),)], 0)
"""Of a swarm: powers of two, their neighbours, and odd ones; all others up to 33."""

seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.integers(0, 12), st.sampled_from([97, 1009]))


def schedules_of(build: Build, world_size: int) -> list[Schedule]:
    return [build(rank, world_size) for rank in range(world_size)]


def parts(program: Program) -> tuple[object, ...]:
    """What two programs have in common that do the same."""
    return program.chunks, program.instructions, program.num_publishes


# The bits of the messages.


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", BUILDS)
def test_every_program_leaves_the_bits_of_its_schedule_at_every_size(name: str, sizes: Sequence[int]) -> None:
    for world_size in sizes:
        schedules = schedules_of(BUILDS[name], world_size)
        for num_blocks in (1, 3, 11) if world_size < 5 else (1,):
            verify_programs(compile_programs(schedules, num_blocks), schedules)


@pytest.mark.parametrize("name", BUILDS)
def test_a_program_for_one_rank_is_right(name: str) -> None:
    verify_programs(compile_programs(schedules_of(BUILDS[name], 1), 2))


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@given(world_size=st.integers(1, 8), length=lengths, num_blocks=st.integers(1, 4), seed=seeds, data=st.data())
@settings(deadline=None, max_examples=5)
def test_every_type_and_reduction_has_the_bits_of_the_messages(
    name: str, dtype: DType, world_size: int, length: int, num_blocks: int, seed: int, data: st.DataObject
) -> None:
    op = data.draw(st.sampled_from(ops_of(dtype)))
    inputs = random_inputs(seed, world_size, length, dtype)
    programs = compile_programs(schedules_of(BUILDS[name], world_size), num_blocks)
    result = run_programs(programs, inputs, op, seed)
    assert result.tobytes() == all_reduce(BUILDS[name], inputs, op, seed).tobytes()


@given(st.sampled_from(sorted(BUILDS)), st.integers(2, 5), st.integers(1, 2), st.data(), seeds)
def test_every_schedule_that_is_right_makes_programs_that_are(
    name: str, world_size: int, num_blocks: int, data: st.DataObject, seed: int
) -> None:
    """Of all the ways to edit a schedule, some do no harm."""
    rank = data.draw(st.integers(0, world_size - 1))
    build = edited(BUILDS[name], rank, data.draw(edits(BUILDS[name](rank, world_size))))
    try:
        verify(build, world_size)
    except ScheduleError:
        return
    schedules = schedules_of(build, world_size)
    programs = compile_programs(schedules, num_blocks)
    verify_programs(programs, schedules)
    inputs = random_inputs(seed, world_size, 31, np.dtype(np.float32))
    assert run_programs(programs, inputs, "sum", seed).tobytes() == all_reduce(build, inputs, "sum", seed).tobytes()


@pytest.mark.parametrize("chunks", [(1, 2, 3), (3, 0, 1)])
def test_blocks_do_not_cross_the_borders_of_uneven_chunks(chunks: tuple[int, ...]) -> None:
    """Each chunk takes another way, and so is added up in another order."""

    def build(rank: int, world_size: int) -> Schedule:
        ring = ALGORITHMS["ring"](rank, world_size)
        return Schedule(chunks, ring.transfers)

    schedules = schedules_of(build, 3)
    programs = compile_programs(schedules, 4)
    verify_programs(programs, schedules)
    for length in (0, 1, 10, 1009):
        borders = {each.stop for each in split_by_weight(length, chunks)}
        assert borders <= {each.stop for each in split_by_weight(length, programs[0].chunks)}


# What is compiled to what.


def test_a_ring_of_three_passes_a_partial_sum_on() -> None:
    """Chunk 0 starts at rank 0, is complete at rank 2, and comes back by rank 0 to rank 1."""
    programs = compile_programs(schedules_of(ALGORITHMS["ring"], 3))
    assert programs[1].instructions == (
        Publish(),
        Wait((2, 0), 1),
        Reduce(0, (Source(1), Source(0)), completes=False),
        Publish(),
        Wait((0,), 2),
        Reduce(2, (Source(1), Source(0, is_result=True)), completes=True),
        Publish(),
        Wait((0,), 3),
        Copy(1, 0, is_passed_on=True),
        Publish(),
        Wait((0,), 4),
        Copy(0, 0),
    )
    assert all(program.num_publishes == 4 and program.lends_results for program in programs)


def test_who_is_read_by_nobody_publishes_less_and_counts_as_far_as_all() -> None:
    leaf, root = compile_programs(schedules_of(chain_all_reduce, 2))
    assert leaf.instructions == (Publish(), Wait((1,), 1), Wait((1,), 2), Copy(0, 1))
    assert root.instructions == (Publish(), Wait((0,), 1), Reduce(0, (Source(0), Source(1))), Publish())
    assert leaf.num_publishes == root.num_publishes == 2


def test_where_sends_copy_one_rank_adds_up_what_all_would() -> None:
    """Rank 3 has a partial sum of its own in the schedule, and the same as rank 2."""
    first, second, third, fourth = compile_programs(schedules_of(doubling_all_reduce, 4))
    partial_sum = Reduce(0, (Source(2), Source(3)), completes=False)
    assert first.instructions[-3:] == (
        Wait((2,), 2),
        Reduce(0, (Source(0, is_result=True), Source(2, is_result=True)), completes=True),
        Publish(),
    )
    assert third.instructions[2:] == (partial_sum, Publish(), Wait((0,), 3), Copy(0, 0))
    assert second.instructions[2:] == fourth.instructions[2:] == (Wait((0,), 3), Copy(0, 0))


def test_what_is_replaced_is_not_read_but_waited_for() -> None:
    """Rank 0 adds the partial sum of rank 1, is then given that of all by rank 2, and hands it on to rank 1."""
    build = listed(
        [
            Transfer(SEND, 1, 0),
            Transfer(REDUCE, 1, 0),
            Transfer(RECV, 2, 0),
            Transfer(SEND, 1, 0, after=(2,)),
        ],
        [
            Transfer(REDUCE, 0, 0),
            Transfer(SEND, 0, 0, after=(0,)),
            Transfer(SEND, 2, 0, after=(0,)),
            Transfer(RECV, 0, 0),
        ],
        [Transfer(REDUCE, 1, 0), Transfer(SEND, 0, 0, after=(0,))],
    )
    schedules = schedules_of(build, 3)
    programs = compile_programs(schedules)
    assert programs[0].instructions[2:] == (Wait((1, 2), 2), Copy(0, 2, is_passed_on=True), Publish())
    verify_programs(programs, schedules)


def test_what_comes_twice_is_waited_for_once() -> None:
    build = listed(
        [Transfer(SEND, 1, 0), Transfer(RECV, 1, 0), Transfer(RECV, 1, 0)],
        [Transfer(REDUCE, 0, 0), Transfer(SEND, 0, 0, after=(0,)), Transfer(SEND, 0, 0, after=(0,))],
    )
    schedules = schedules_of(build, 2)
    programs = compile_programs(schedules)
    verify_programs(programs, schedules)
    assert programs[0].instructions == (Publish(), Wait((1,), 1), Wait((1,), 2), Copy(0, 1))


def test_a_partial_sum_can_be_passed_on_and_then_replaced() -> None:
    """From rank 1 by rank 0 to rank 2, which completes it for all."""
    build = listed(
        [Transfer(SEND, 1, 0), Transfer(RECV, 1, 0), Transfer(SEND, 2, 0, after=(1,)), Transfer(RECV, 2, 0)],
        [Transfer(REDUCE, 0, 0), Transfer(SEND, 0, 0, after=(0,)), Transfer(RECV, 2, 0)],
        [Transfer(REDUCE, 0, 0), Transfer(SEND, 0, 0, after=(0,)), Transfer(SEND, 1, 0, after=(0,))],
    )
    verify(build, 3)
    schedules = schedules_of(build, 3)
    programs = compile_programs(schedules, 2)
    verify_programs(programs, schedules)
    inputs = random_inputs(0, 3, 31, np.dtype(np.float32))
    assert run_programs(programs, inputs, "mean", 0).tobytes() == all_reduce(build, inputs, "mean").tobytes()


@pytest.mark.parametrize("world_size", some_of(range(1, 34), *range(9), 15, 16))
def test_what_is_written_down_is_what_would_be_compiled(world_size: int) -> None:
    ranks = range(world_size)
    one_shot = compile_programs(schedules_of(ALGORITHMS["one-shot"], world_size))
    assert [parts(each) for each in one_shot] == [parts(one_shot_program(rank, world_size)) for rank in ranks]
    gather = compile_programs(schedules_of(one_shot_all_gather, world_size))
    assert [parts(each) for each in gather] == [parts(all_gather_program(rank, world_size)) for rank in ranks]
    for num_blocks in (1, 3) if world_size > 5 else (1, 3, 20):
        direct = compile_programs(schedules_of(ALGORITHMS["direct"], world_size), num_blocks)
        written = [direct_program(rank, world_size, num_blocks) for rank in ranks]
        assert [parts(each) for each in direct] == [parts(each) for each in written]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_gather_around_a_ring_can_be_compiled(world_size: int) -> None:
    def build(rank: int, world_size: int) -> Schedule:
        left, right = (rank - 1) % world_size, (rank + 1) % world_size
        transfers: list[Transfer] = []
        for hop in range(world_size - 1):
            arrived = (len(transfers) - 1,) if hop else ()
            transfers.append(Transfer(Kind.SEND, right, (rank - hop) % world_size, arrived))
            transfers.append(Transfer(Kind.RECV, left, (rank - hop - 1) % world_size))
        return Schedule(even_chunks(world_size), tuple(transfers))

    verify_gather_programs(compile_programs(schedules_of(build, world_size)))


def test_schedules_that_do_not_fit_together_are_refused() -> None:
    unheard = listed([Transfer(SEND, 1, chunk=0)], [])
    with pytest.raises(ScheduleError, match=r"rank 0, transfer 0 .*: never received"):
        compile_programs(schedules_of(unheard, 2))
    both_wait = listed(
        [Transfer(RECV, 1, chunk=0), Transfer(SEND, 1, chunk=1, after=(0,))],
        [Transfer(RECV, 0, chunk=1), Transfer(SEND, 0, chunk=0, after=(0,))],
        num_chunks=2,
    )
    with pytest.raises(ScheduleError, match="deadlock"):
        compile_programs(schedules_of(both_wait, 2))

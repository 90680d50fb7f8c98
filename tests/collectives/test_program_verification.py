from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS, ScheduleError, even_chunks
from collectives.compilation import compile_programs
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Source, Wait, inputs_of
from collectives.program_verification import verify_gather_programs, verify_programs
from collectives.programs import all_gather_program, direct_program, one_shot_program
from tests.collectives.inputs import random_inputs
from tests.collectives.memory import run_programs

BuildProgram = Callable[[int, int], Program]
Instructions = list[Instruction]


def compiled(algorithm: str, rank: int, world_size: int) -> Program:
    return compile_programs([ALGORITHMS[algorithm](each, world_size) for each in range(world_size)])[rank]


BUILDS: dict[str, BuildProgram] = {
    "one-shot": one_shot_program,
    "direct": direct_program,
    "blocks": partial(direct_program, num_blocks=3),
    "ring": partial(compiled, "ring"),
    "tree": partial(compiled, "tree"),
}


def programs(name: str, world_size: int) -> list[Program]:
    return [BUILDS[name](rank, world_size) for rank in range(world_size)]


def edited(name: str, world_size: int, rank: int, edit: Callable[[Instructions], object]) -> list[Program]:
    """The programs of all ranks, after `edit` of the one of `rank`."""
    found = programs(name, world_size)
    instructions = list(found[rank].instructions)
    edit(instructions)
    found[rank] = replace(found[rank], instructions=tuple(instructions))
    return found


def written(*ranks: Instructions, num_chunks: int = 1) -> list[Program]:
    """Programs of those who count up as far as the busiest."""
    num_publishes = max(sum(isinstance(each, Publish) for each in instructions) for instructions in ranks)
    return [Program(even_chunks(num_chunks), tuple(instructions), num_publishes) for instructions in ranks]


def begin(rank: int, world_size: int) -> Instructions:
    return [Publish(), Wait(tuple(peer for peer in range(world_size) if peer != rank), 1)]


def test_what_is_right_is_accepted() -> None:
    for name in BUILDS:
        verify_programs(programs(name, 4))


# What is left out.


@given(st.sampled_from(sorted({*BUILDS} - {"tree"})), st.integers(2, 5), st.data())
def test_no_instruction_can_be_left_out(name: str, world_size: int, data: st.DataObject) -> None:
    """A leaf of a tree may wait for its parent only, which has seen that all others have begun."""
    rank = data.draw(st.integers(0, world_size - 1))
    index = data.draw(st.integers(0, len(BUILDS[name](rank, world_size).instructions) - 1))
    with pytest.raises(ScheduleError):
        verify_programs(edited(name, world_size, rank, lambda each: each.__delitem__(index)))


@given(st.sampled_from(sorted({*BUILDS} - {"tree"})), st.integers(2, 5), st.data())
def test_no_wait_can_be_for_less(name: str, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    waits = [(i, each) for i, each in enumerate(BUILDS[name](rank, world_size).instructions) if isinstance(each, Wait)]
    index, wait = data.draw(st.sampled_from(waits))
    less = [replace(wait, progress=wait.progress - 1), replace(wait, peers=wait.peers[1:])]
    changed = data.draw(st.sampled_from(less))
    with pytest.raises(ScheduleError):
        verify_programs(edited(name, world_size, rank, lambda each: each.__setitem__(index, changed)))


@given(st.sampled_from(sorted(BUILDS)), st.integers(2, 4), st.data(), st.integers(0, 2**32 - 1))
def test_whatever_is_accepted_can_be_carried_out(name: str, world_size: int, data: st.DataObject, seed: int) -> None:
    """Two instructions change places, or one is left out, or comes twice."""
    rank = data.draw(st.integers(0, world_size - 1))
    places = st.integers(0, len(BUILDS[name](rank, world_size).instructions) - 1)
    one, other, kind = data.draw(places), data.draw(places), data.draw(st.sampled_from(["swap", "delete", "repeat"]))

    def edit(instructions: Instructions) -> None:
        if kind == "swap":
            instructions[one], instructions[other] = instructions[other], instructions[one]
        elif kind == "delete":
            del instructions[one]
        else:
            instructions.insert(other, instructions[one])

    changed = edited(name, world_size, rank, edit)
    try:
        verify_programs(changed)
    except ScheduleError:
        return
    inputs = random_inputs(seed, world_size, 31, np.dtype(np.float32))
    before = run_programs(programs(name, world_size), inputs, "sum", seed)
    assert run_programs(changed, inputs, "sum", seed).tobytes() == before.tobytes()


# What another order does.


def test_another_order_of_additions_is_refused_since_it_gives_other_bits() -> None:
    with pytest.raises(ScheduleError, match="rank 1, chunk 0: adds in another order than rank 0, or rounds elsewhere"):
        verify_programs(edited("one-shot", 3, 1, lambda each: each.__setitem__(-1, Reduce(0, inputs_of([1, 2, 0])))))


def test_an_order_that_is_not_that_of_the_schedule_is_refused() -> None:
    schedules = [ALGORITHMS["one-shot"](rank, 3) for rank in range(3)]
    verify_programs(programs("one-shot", 3), schedules)
    other = [
        replace(each, instructions=(*each.instructions[:-1], Reduce(0, inputs_of([1, 2, 0]))))
        for each in programs("one-shot", 3)
    ]
    verify_programs(other)
    with pytest.raises(ScheduleError, match="rank 0, chunk 0: adds in another order than the schedule"):
        verify_programs(other, schedules)


def test_an_input_that_is_added_twice_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, chunk 0: adds up inputs \(0, 1, 1\), not each one once"):
        verify_programs(edited("one-shot", 2, 1, lambda each: each.__setitem__(-1, Reduce(0, inputs_of([0, 1, 1])))))


def test_a_sum_that_nobody_completes_has_no_digest() -> None:
    partial_sum = Reduce(0, inputs_of([0, 1]), completes=False)
    with pytest.raises(ScheduleError, match="rank 1, chunk 0: nothing is written there at last that has a digest"):
        verify_programs(edited("one-shot", 2, 1, lambda each: each.__setitem__(-1, partial_sum)))


def test_a_partial_sum_that_is_completed_is_refused() -> None:
    """A mean would be divided twice."""
    ranks = programs("ring", 3)
    changed = [replace(each, completes=True) if isinstance(each, Reduce) else each for each in ranks[1].instructions]
    with pytest.raises(ScheduleError, match="adds in another order than the schedule, or rounds elsewhere"):
        verify_programs(
            [ranks[0], replace(ranks[1], instructions=tuple(changed)), ranks[2]],
            [ALGORITHMS["ring"](rank, 3) for rank in range(3)],
        )


def test_a_gather_of_another_input_is_refused() -> None:
    ranks = [all_gather_program(rank, 2) for rank in range(2)]
    verify_gather_programs(ranks)
    wrong = (*ranks[1].instructions[:-1], Reduce(0, inputs_of([1])))
    with pytest.raises(ScheduleError, match="rank 1, chunk 0: does not end as the input of rank 0"):
        verify_gather_programs([ranks[0], replace(ranks[1], instructions=wrong)])


# Who reads too early, or too late.


def test_who_writes_before_all_others_have_begun_is_refused() -> None:
    early: Instructions = [Publish(), Reduce(0, inputs_of([0, 1])), Wait((1,), 1)]
    with pytest.raises(ScheduleError, match=r"rank 0, instruction 1 .*: does not wait until rank 1 has begun"):
        verify_programs(written(early, [*begin(1, 2), Reduce(0, inputs_of([0, 1]))]))


def test_a_result_is_not_copied_before_its_rank_has_published_it() -> None:
    one: Instructions = [*begin(0, 2), Reduce(0, inputs_of([0, 1])), Publish()]
    other: Instructions = [*begin(1, 2), Copy(0, 0)]
    with pytest.raises(ScheduleError, match=r"rank 1, instruction 2 .*: while it reads, rank 0, instruction 2"):
        verify_programs(written(one, other))


def test_a_chunk_is_not_written_again_while_others_may_read_it() -> None:
    """Rank 2 reads the partial sum of rank 0, which does not know when it has."""
    partial_sum = Reduce(0, (Source(0), Source(1)), completes=False)
    total = Reduce(0, (Source(0, is_result=True), Source(2)))
    ranks: list[Instructions] = [
        [*begin(0, 3), partial_sum, Publish(), total, Publish()],
        [*begin(1, 3), Wait((0,), 3), Copy(0, 0)],
        [*begin(2, 3), Wait((0,), 2), total],
    ]
    with pytest.raises(ScheduleError, match=r"rank 2, instruction 3 .*: while it reads, rank 0, instruction 4"):
        verify_programs(written(*ranks))
    ranks[0][4:4] = [Wait((2,), 2)]
    ranks[2].append(Publish())
    verify_programs(written(*ranks))


def test_who_copies_what_nobody_writes_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"rank 0, instruction 2 .*: rank 1 has written nothing there by then"):
        verify_programs(written([*begin(0, 2), Copy(0, 1)], begin(1, 2)))


def test_who_reads_the_own_result_before_it_is_written_is_refused() -> None:
    total = Reduce(0, (Source(0, is_result=True), Source(1)))
    with pytest.raises(ScheduleError, match="rank 0 has written nothing there by then"):
        verify_programs(written([*begin(0, 2), total], begin(1, 2)))


def test_a_copy_that_is_not_passed_on_is_read_by_nobody() -> None:
    ranks: list[Instructions] = [
        [*begin(0, 3), Reduce(0, inputs_of([0, 1, 2])), Publish()],
        [*begin(1, 3), Wait((0,), 2), Copy(0, 0), Publish()],
        [*begin(2, 3), Wait((1,), 2), Copy(0, 1)],
    ]
    with pytest.raises(ScheduleError, match=r"rank 2, instruction 3 .*: reads what is not lent, rank 1, instruction 3"):
        verify_programs(written(*ranks))
    ranks[1][3] = Copy(0, 0, is_passed_on=True)
    verify_programs(written(*ranks))


def test_a_result_that_is_shown_with_the_input_is_not_lent() -> None:
    one: Instructions = [Wait((1,), 1), Reduce(0, inputs_of([0, 1])), Publish()]
    with pytest.raises(ScheduleError, match=r"rank 1, instruction 2 .*: reads what is not lent, rank 0, instruction 1"):
        verify_programs(written(one, [*begin(1, 2), Copy(0, 0)]))


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    ranks: list[Instructions] = [[Wait((1 - rank,), 1), Publish(), Reduce(0, inputs_of([0, 1]))] for rank in range(2)]
    with pytest.raises(ScheduleError, match=r"these wait for each other: .*Wait"):
        verify_programs(written(*ranks))


# What does not fit together.


def test_ranks_that_count_up_differently_are_refused() -> None:
    ranks = programs("one-shot", 2)
    with pytest.raises(ScheduleError, match=r"rank 1 has chunks \(1,\) and counts up by 2, rank 0 has \(1,\) and .* 1"):
        verify_programs([ranks[0], replace(ranks[1], num_publishes=2)])


@pytest.mark.parametrize("edit", [lambda each: each.append(Publish()), lambda each: each.pop(0)])
def test_who_publishes_more_often_than_it_counts_up_or_never_is_refused(edit: Callable[[Instructions], None]) -> None:
    with pytest.raises(ScheduleError, match=r"rank 1 publishes [02] times, and counts up by 1"):
        verify_programs(edited("one-shot", 2, 1, edit))


@pytest.mark.parametrize(
    "wrong",
    [
        Wait((0,), 1),
        Wait((2,), 1),
        Wait((1,), 9),
        Reduce(1, inputs_of([0, 1])),
        Reduce(0, ()),
        Reduce(0, inputs_of([0, 2])),
        Reduce(0, (Source(1), Source(0, is_result=True))),
        Copy(0, 0),
        Copy(7, 1),
    ],
)
def test_an_instruction_without_such_a_rank_chunk_or_progress_is_refused(wrong: Instruction) -> None:
    with pytest.raises(ScheduleError, match="no such rank, chunk or progress"):
        verify_programs(edited("one-shot", 2, 0, lambda each: each.append(wrong)))

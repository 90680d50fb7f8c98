"""The order of additions is that of the whole array, however it is cut, and whichever way it takes."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, MessageRun, Reduction, Schedule, all_reduce_schedule, split_by_weight
from collectives.elements import FLOATS, TYPES
from collectives.goal_programs import goal_program
from collectives.goals import COLLECTIVES, GOALS, schedule_of
from collectives.program_verification import verify_programs
from collectives.programs import all_reduce_program
from collectives.schedule import only_chunks
from tests.cases import some_of
from tests.collectives.delivery import deliver
from tests.collectives.inputs import Array, DType, all_reduce, ops_of, random_inputs
from tests.collectives.memory import run_all, run_programs


def over_memory(
    algorithm: str, inputs: list[Array], op: str, cuts: list[int], seed: int, hosts: tuple[int, ...] = ()
) -> bytes:
    """The result, added up piece by piece."""
    length, itemsize, world_size = inputs[0].size, inputs[0].itemsize, len(inputs)
    bounds = [0, *sorted(cut % (length + 1) for cut in cuts), length]
    pieces = []
    for start, stop in pairwise(bounds):
        programs = [
            all_reduce_program(algorithm, rank, world_size, length, itemsize, start, stop, hosts)
            for rank in range(world_size)
        ]
        pieces.append(run_programs(programs, [each[start:stop] for each in inputs], op, seed).tobytes())
    return b"".join(pieces)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    world_size=st.integers(1, 9),
    length=st.one_of(st.integers(0, 12), st.sampled_from([97, 1009])),
    dtype=st.sampled_from(list(TYPES)),
    cuts=st.lists(st.integers(0, 1009), max_size=4),
    segment_lengths=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_pieces_segments_and_the_way_leave_the_same_bits(
    algorithm: str,
    world_size: int,
    length: int,
    dtype: DType,
    cuts: list[int],
    segment_lengths: tuple[int, int],
    seed: int,
    data: st.DataObject,
) -> None:
    op = data.draw(st.sampled_from(ops_of(dtype)))
    inputs = random_inputs(seed, world_size, length, dtype)
    bits = {all_reduce(ALGORITHMS[algorithm], inputs, op, seed, each).tobytes() for each in segment_lengths}
    assert bits == {over_memory(algorithm, inputs, op, cuts, seed)}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple),
    st.lists(st.integers(0, 1009), max_size=3),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=25)
def test_nor_does_it_matter_where_it_is_cut_for_ranks_that_share_hosts(
    hosts: tuple[int, ...], cuts: list[int], seed: int
) -> None:
    def build(rank: int, world_size: int) -> Schedule:
        return all_reduce_schedule("hierarchical", rank, world_size, hosts)

    inputs = random_inputs(seed, len(hosts), 211, np.dtype(np.float32))
    by_messages = all_reduce(build, inputs, "mean", seed).tobytes()
    assert by_messages == over_memory("hierarchical", inputs, "mean", cuts, seed, hosts)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(collective, algorithm) for collective in ("reduce", "reduce-scatter") for algorithm in COLLECTIVES[collective]],
)
@given(
    world_size=st.integers(1, 9),
    length=st.one_of(st.integers(0, 12), st.sampled_from([97, 1009])),
    dtype=st.sampled_from(list(FLOATS)),
    cuts=st.lists(st.integers(0, 1009), max_size=4),
    segment_lengths=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_sums_for_some_ranks_have_the_same_bits_however_they_are_cut_and_whichever_way_they_take(
    collective: str,
    algorithm: str,
    world_size: int,
    length: int,
    dtype: DType,
    cuts: list[int],
    segment_lengths: tuple[int, int],
    seed: int,
    data: st.DataObject,
) -> None:
    """Of one root, or of each rank its chunk: by messages in segments, and over memory in pieces."""
    op = data.draw(st.sampled_from(ops_of(dtype)))
    goal, ranks = GOALS[collective], range(world_size)
    root = data.draw(st.integers(0, world_size - 1)) if goal.has_root else 0
    inputs = random_inputs(seed, world_size, length, dtype)
    schedules = [schedule_of(collective, algorithm, rank, world_size, root) for rank in ranks]
    chunks = split_by_weight(length, schedules[0].chunks)

    def needed(results: Sequence[Array]) -> list[bytes]:
        return [
            results[rank][where].tobytes()
            for rank in ranks
            for chunk, where in enumerate(chunks)
            if goal.needed(rank, chunk, world_size, root) is not None
        ]

    by_messages = [needed(by_runs(schedules, inputs, op, seed, each)) for each in segment_lengths]
    bounds, over_memory = [0, *sorted(cut % (length + 1) for cut in cuts), length], [each.copy() for each in inputs]
    for start, stop in pairwise(bounds):
        programs = [
            goal_program(collective, algorithm, rank, world_size, root, length, dtype.itemsize, start, stop)
            for rank in ranks
        ]
        for whole, piece in zip(
            over_memory, run_all(programs, [each[start:stop] for each in inputs], op, seed), strict=True
        ):
            whole[start:stop] = piece
    assert by_messages == [needed(over_memory)] * 2


def by_runs(
    schedules: Sequence[Schedule], inputs: Sequence[Array], op: str, seed: int, segment_length: int
) -> list[Array]:
    """What each rank ends with, by messages that are delivered in any order."""
    results = [np.full_like(each, 1) for each in inputs]
    given: dict[str, Any] = {
        "segment_bytes": segment_length * inputs[0].itemsize,
        "reduction": Reduction(op, len(inputs)),
    }
    runs = [MessageRun(schedule, rank, inputs[rank], results[rank], **given) for rank, schedule in enumerate(schedules)]
    deliver(runs, random.Random(seed))
    assert all(run.done for run in runs)
    return results


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"one-shot", "direct"}))
@pytest.mark.parametrize("world_size", some_of([2, 3, 5, 8], 1))
def test_a_piece_of_many_blocks_is_cut_where_the_chunks_of_the_whole_end(algorithm: str, world_size: int) -> None:
    """Blocks begin at 1 MiB: what is added up in them is proven, and where they lie is looked at."""
    length, start, stop = (40 << 20) // 4 + 3, (9 << 20) // 4, (31 << 20) // 4
    programs = [all_reduce_program(algorithm, rank, world_size, length, 4, start, stop) for rank in range(world_size)]
    schedules = [all_reduce_schedule(algorithm, rank, world_size) for rank in range(world_size)]
    borders = {each.stop - start for each in split_by_weight(length, schedules[0].chunks)} & set(range(stop - start))
    assert borders <= {each.stop for each in split_by_weight(stop - start, programs[0].chunks)}
    kept = [
        chunk
        for chunk, each in enumerate(split_by_weight(length, schedules[0].chunks))
        if each.start < stop and start < each.stop
    ]
    assert programs[0].num_chunks > len(kept)
    verify_programs(programs, [only_chunks(each, kept) for each in schedules])


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_the_cut_would_show(algorithm: str) -> None:
    """Were each piece added up as an array of its own, the bits would be others."""
    inputs = random_inputs(7, 5, 1009, np.dtype(np.float32))
    whole = all_reduce(ALGORITHMS[algorithm], inputs, "sum").tobytes()
    parts = [all_reduce(ALGORITHMS[algorithm], [each[of] for each in inputs], "sum") for of in np.s_[:500, 500:]]
    assert b"".join(each.tobytes() for each in parts) != whole


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(collective, algorithm) for collective in ("reduce", "reduce-scatter") for algorithm in COLLECTIVES[collective]],
)
def test_a_mean_for_some_ranks_is_divided_once(collective: str, algorithm: str, world_size: int) -> None:
    """Not where partial sums lie that others go on with."""
    goal, ranks, length = GOALS[collective], range(world_size), 30
    inputs = [np.arange(length, dtype=np.float64) * 60 * (rank + 1) for rank in ranks]
    schedules = [schedule_of(collective, algorithm, rank, world_size) for rank in ranks]
    programs = [goal_program(collective, algorithm, rank, world_size, 0, length, 8, 0, length) for rank in ranks]
    mean = np.sum(inputs, 0) / world_size
    over_memory = run_all(programs, [each.copy() for each in inputs], "mean", 0)
    for results in (by_runs(schedules, [each.copy() for each in inputs], "mean", 0, 4), over_memory):
        for chunk, where in enumerate(split_by_weight(length, schedules[0].chunks)):
            for rank in ranks:
                if goal.needed(rank, chunk, world_size) is not None:
                    assert (results[rank][where] == mean[where]).all()

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    ALGORITHMS,
    Reduction,
    Schedule,
    ScheduleError,
    Transfer,
    direct_all_reduce,
    even_chunks,
    one_shot_all_gather,
    one_shot_all_reduce,
    verify,
    verify_all_gather,
)
from tests.cases import LARGER, some_of
from tests.collectives.chain import chain_all_reduce
from tests.collectives.delivery import deliver
from tests.collectives.doubling import doubling_all_reduce
from tests.collectives.edits import RECV, REDUCE, SEND, Build, Transfers, edited, edits, listed, swapped, without
from tests.collectives.execution import Execution

BUILDS: dict[str, Build] = {**ALGORITHMS, "doubling": doubling_all_reduce}


@pytest.mark.parametrize("build", [*ALGORITHMS.values(), chain_all_reduce, doubling_all_reduce])
@pytest.mark.parametrize("sizes", some_of([((*range(1, 10), 16, 17),), (LARGER,)], 0))
def test_every_algorithm_is_an_all_reduce_at_every_size(build: Build, sizes: tuple[int, ...]) -> None:
    for world_size in sizes:
        verify(build, world_size)


def test_one_shot_is_an_all_gather_at_every_size() -> None:
    for world_size in range(1, 34):
        verify_all_gather(one_shot_all_gather, world_size)


@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 9), st.data())
@settings(deadline=None)
def test_a_transfer_that_is_missing_is_noticed(algorithm: str, world_size: int, data: st.DataObject) -> None:
    build = ALGORITHMS[algorithm]
    rank = data.draw(st.integers(0, world_size - 1))
    transfers = build(rank, world_size).transfers
    index = data.draw(st.sampled_from([i for i, each in enumerate(transfers) if each.peer != rank]))
    with pytest.raises(ScheduleError):
        verify(edited(build, rank, lambda transfers: without(transfers, index)), world_size)


@given(st.sampled_from(["direct", "ring", "tree"]), st.integers(2, 9), st.data())
@settings(deadline=None)
def test_a_transfer_of_the_wrong_chunk_is_noticed(algorithm: str, world_size: int, data: st.DataObject) -> None:
    build = ALGORITHMS[algorithm]
    rank = data.draw(st.integers(0, world_size - 1))
    schedule = build(rank, world_size)
    index = data.draw(st.sampled_from([i for i, each in enumerate(schedule.transfers) if each.peer != rank]))
    others = set(range(len(schedule.chunks))) - {schedule.transfers[index].chunk}
    wrong = replace(schedule.transfers[index], chunk=data.draw(st.sampled_from(sorted(others))))
    with pytest.raises(ScheduleError):
        verify(edited(build, rank, lambda each: [*each[:index], wrong, *each[index + 1 :]]), world_size)


@given(st.sampled_from(sorted(BUILDS)), st.integers(2, 5), st.data())
def test_whatever_is_accepted_can_be_carried_out(algorithm: str, world_size: int, data: st.DataObject) -> None:
    """Of all the ways to edit a schedule, some do no harm: those have to work, on any bucket."""
    rank = data.draw(st.integers(0, world_size - 1))
    edit = data.draw(edits(BUILDS[algorithm](rank, world_size)))
    build = edited(BUILDS[algorithm], rank, edit)
    try:
        verify(build, world_size)
    except ScheduleError:
        return
    length, seed = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 1000))
    is_half = data.draw(st.booleans())
    dtype, reduction = (np.float16, Reduction("mean", world_size)) if is_half else (np.float32, Reduction())
    inputs = [np.random.default_rng((seed, rank)).random(length).astype(dtype) for rank in range(world_size)]
    results = [np.empty_like(each) for each in inputs]
    executions = [
        Execution(build(rank, world_size), rank, inputs[rank], results[rank], segment_bytes=8, reduction=reduction)
        for rank in range(world_size)
    ]
    deliver(executions, random.Random(seed))
    assert all(execution.done for execution in executions)
    assert len({each.tobytes() for each in results}) == 1
    exact = sum(each.astype(np.float32) for each in inputs) / reduction.num_inputs
    assert np.allclose(results[0], exact, rtol=world_size * float(np.finfo(dtype).eps))


def test_a_send_may_wait_for_another_chunk() -> None:
    verify(edited(direct_all_reduce, 0, lambda each: [each[0], replace(each[1], after=(0,)), *each[2:]]), 3)


def test_an_input_that_is_added_twice_is_noticed() -> None:
    twice = edited(one_shot_all_reduce, 1, lambda transfers: [*transfers, Transfer(REDUCE, peer=1, chunk=0)])
    with pytest.raises(ScheduleError, match=r"^rank 1, chunk 0: adds up inputs \(0, 1, 1, 2\)"):
        verify(twice, 3)


def test_another_order_of_additions_is_noticed() -> None:
    other_order = edited(one_shot_all_reduce, 2, lambda transfers: swapped(transfers, 3, 4))
    with pytest.raises(ScheduleError, match="rank 2, chunk 0: adds in another order than rank 0"):
        verify(other_order, 3)


def test_a_sum_that_is_rounded_on_the_way_is_not_one_that_is_rounded_once() -> None:
    """Half types: rank 0 is given 0 + 1, rounded, and adds 2; rank 2 adds up all three."""
    mixed = listed(
        [
            Transfer(SEND, peer=1, chunk=0),
            Transfer(SEND, peer=2, chunk=0),
            Transfer(RECV, peer=1, chunk=0),
            Transfer(REDUCE, peer=2, chunk=0),
            Transfer(SEND, peer=1, chunk=0, after=(3,)),
        ],
        [
            Transfer(SEND, peer=2, chunk=0),
            Transfer(REDUCE, peer=0, chunk=0),
            Transfer(SEND, peer=0, chunk=0, after=(1,)),
            Transfer(RECV, peer=0, chunk=0),
        ],
        [Transfer(SEND, peer=0, chunk=0), *(Transfer(REDUCE, peer, chunk=0) for peer in range(3))],
    )
    with pytest.raises(ScheduleError, match=r"rank 2, chunk 0: .* or rounds elsewhere"):
        verify(mixed, 3)


def test_a_sum_that_nobody_completes_is_noticed() -> None:
    """Rank 0 has the sum, and is then given it back: its last write is no REDUCE, so nobody would divide a mean."""
    there_and_back = listed(
        [Transfer(REDUCE, 1, chunk=0), Transfer(SEND, 1, chunk=0, after=(0,)), Transfer(RECV, 1, chunk=0)],
        [Transfer(SEND, 0, chunk=0), Transfer(RECV, 0, chunk=0), Transfer(SEND, 0, chunk=0, after=(1,))],
    )
    with pytest.raises(ScheduleError, match="rank 0, chunk 0: no rank's last write of it completes the sum"):
        verify(there_and_back, 2)


def test_swapping_the_operands_of_one_addition_keeps_the_bits() -> None:
    verify(edited(one_shot_all_reduce, 2, lambda transfers: swapped(transfers, 2, 3)), 3)


def test_ranks_that_wait_for_each_other_are_noticed() -> None:
    both_wait = listed(
        [Transfer(RECV, 1, chunk=0), Transfer(SEND, 1, chunk=1, after=(0,))],
        [Transfer(RECV, 0, chunk=1), Transfer(SEND, 0, chunk=0, after=(0,))],
        num_chunks=2,
    )
    with pytest.raises(ScheduleError, match=r"^deadlock: rank \d, .* waits for rank \d"):
        verify(both_wait, 2)


def test_a_write_over_a_chunk_that_may_still_be_on_its_way_is_noticed() -> None:
    """Rank 0 sends its partial sum to ranks 1 and 2; the final sum from 2 may be faster than the bytes to 1."""
    final = Transfer(RECV, peer=2, chunk=0)
    racing = listed(
        [
            Transfer(REDUCE, peer=1, chunk=0),
            Transfer(SEND, peer=1, chunk=0, after=(0,)),
            Transfer(SEND, peer=2, chunk=0, after=(0,)),
            final,
        ],
        [Transfer(SEND, peer=0, chunk=0), Transfer(RECV, peer=0, chunk=0), final],
        [
            Transfer(REDUCE, peer=0, chunk=0),
            Transfer(SEND, peer=0, chunk=0, after=(0,)),
            Transfer(SEND, peer=1, chunk=0, after=(0,)),
        ],
    )
    with pytest.raises(ScheduleError, match=r"^rank 0, transfer 3 .* lent to rank 0, transfer 1 \(SEND chunk 0"):
        verify(racing, 3)


def test_of_recursive_doubling_nothing_that_is_sent_and_overwritten_is_taken_without_a_copy() -> None:
    """Each of its SENDs of a result, made one that lends, is refused; those of an input are never overwritten."""
    for world_size in range(3, 18):
        for rank in range(world_size):
            for index, transfer in enumerate(doubling_all_reduce(rank, world_size).transfers):
                if not transfer.is_copied:
                    continue

                def lend(transfers: Transfers, index: int = index) -> Transfers:
                    return [*transfers[:index], replace(transfers[index], is_copied=False), *transfers[index + 1 :]]

                build = edited(doubling_all_reduce, rank, lend)
                if not transfer.after:
                    verify(build, world_size)
                    continue
                with pytest.raises(ScheduleError, match=rf"^rank {rank}, .* may overwrite what is still lent to"):
                    verify(build, world_size)


def test_a_send_that_copies_waits_for_nothing_but_the_chunk_which_is_another_later() -> None:
    both = edited(
        partial(doubling_all_reduce, num_chunks=2),
        0,
        lambda each: [replace(one, after=(3, 5)) if one.after == (5,) else one for one in each],
    )
    with pytest.raises(ScheduleError, match=r"^rank 0, transfer 6 .*is copied, so it has to wait for transfer 5 alone"):
        verify(both, 4)


@pytest.mark.parametrize(
    ("transfers", "fault"),
    [
        ([Transfer(SEND, peer=1, chunk=1)], "there is no such chunk"),
        ([Transfer(SEND, peer=2, chunk=0)], "there is no such rank"),
        ([Transfer(SEND, peer=0, chunk=0)], "only a REDUCE may name the rank itself"),
        ([Transfer(SEND, peer=1, chunk=0, after=(0,))], "not all earlier transfers"),
        ([Transfer(SEND, peer=1, chunk=0, after=(-1,))], "not all earlier transfers"),
        ([Transfer(RECV, peer=1, chunk=0), Transfer(SEND, peer=1, chunk=0)], "has to wait for transfer 0"),
        (
            [
                Transfer(REDUCE, peer=1, chunk=0),
                Transfer(SEND, peer=1, chunk=0, after=(0,)),
                Transfer(REDUCE, peer=0, chunk=0),
            ],
            "sends a sum before the own input is in",
        ),
        ([Transfer(SEND, peer=1, chunk=0)], "never received"),
        ([Transfer(RECV, peer=1, chunk=0)], "never sent"),
    ],
)
def test_a_fault_of_one_rank_is_named(transfers: Transfers, fault: str) -> None:
    with pytest.raises(ScheduleError, match=rf"^rank 0, transfer \d .*{fault}"):
        verify(listed(transfers, []), 2)


def test_a_chunk_taken_for_another_is_named() -> None:
    crossed = listed([Transfer(SEND, peer=1, chunk=0)], [Transfer(RECV, peer=0, chunk=1)], num_chunks=2)
    with pytest.raises(ScheduleError, match=r"SEND chunk 0.*taken for another, rank 1, .*RECV chunk 1"):
        verify(crossed, 2)


def test_ranks_that_cut_different_chunks_are_named() -> None:
    with pytest.raises(ScheduleError, match="rank 1 cuts chunks"):
        verify(lambda rank, world_size: Schedule(even_chunks(1 + rank), ()), 2)


def test_a_gather_needs_a_chunk_for_each_rank() -> None:
    with pytest.raises(ScheduleError, match="not one of weight 1 for each of 2 ranks"):
        verify_all_gather(one_shot_all_reduce, 2)


def test_a_gather_of_what_a_rank_does_not_have_is_noticed() -> None:
    """Rank 0 sends rank 1's chunk, which it only has room for."""
    blind = listed([Transfer(SEND, peer=1, chunk=1)], [Transfer(RECV, peer=0, chunk=1)], num_chunks=2)
    with pytest.raises(ScheduleError, match="rank 0, chunk 1: does not end as the input of rank 1"):
        verify_all_gather(blind, 2)

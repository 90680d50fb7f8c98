"""All collectives as schedules: what they are is proven, and played with numbers."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, Kind, Medium, ScheduleError, TransferList, even_chunks, verify
from collectives.compilation import compile_programs
from collectives.direct import direct_all_reduce
from collectives.goal_programs import goal_program
from collectives.goals import (
    COLLECTIVES,
    GOALS,
    ONE_HOP_MAX_BYTES,
    ONE_HOP_MAX_WAN_BYTES,
    SUM,
    default_algorithm,
    schedule_of,
    verify_goal,
)
from collectives.hierarchical import hierarchical_all_reduce
from collectives.partition import split_by_weight
from collectives.program_verification import verify_goal_programs, verify_programs
from collectives.programs import BLOCK_BYTES, MOST_CHUNKS
from collectives.schedule import Schedule
from tests.cases import LARGER, some_of
from tests.collectives.delivery import deliver
from tests.collectives.edits import Build, edited, without
from tests.collectives.execution import Execution

CASES = [(collective, algorithm) for collective, builds in COLLECTIVES.items() for algorithm in builds]
OTHERS = [case for case in CASES if case[0] != "all-reduce"]
"""Of which nothing is proven elsewhere."""


@pytest.mark.parametrize(("collective", "algorithm"), OTHERS)
@pytest.mark.parametrize("sizes", some_of([((*range(1, 10), 16, 17),), (LARGER,)], 0))
def test_every_schedule_is_its_collective_at_every_size(
    collective: str, algorithm: str, sizes: tuple[int, ...]
) -> None:
    for world_size in sizes:
        verify_goal(collective, COLLECTIVES[collective][algorithm], world_size)


@pytest.mark.parametrize(("collective", "algorithm"), [case for case in OTHERS if GOALS[case[0]].has_root])
def test_any_rank_can_be_the_root(collective: str, algorithm: str) -> None:
    for world_size in range(1, 10):
        for root in range(world_size):
            verify_goal(collective, COLLECTIVES[collective][algorithm], world_size, root)
    with pytest.raises(ScheduleError):
        verify_goal(collective, lambda rank, n, _: schedule_of(collective, algorithm, rank, n, 2), 4, root=1)


@pytest.mark.parametrize(("collective", "algorithm"), OTHERS)
@given(world_size=st.integers(1, 7), length=st.integers(1, 90), data=st.data())
@settings(deadline=None, max_examples=20)
def test_what_is_done_over_memory_is_the_same_collective_in_every_piece(
    collective: str, algorithm: str, world_size: int, length: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, world_size - 1)) if GOALS[collective].has_root else 0
    itemsize = data.draw(st.sampled_from([4, 1 << 20]))
    programs = [
        goal_program(collective, algorithm, rank, world_size, root, length, itemsize, 0, length)
        for rank in range(world_size)
    ]
    num_chunks = len(schedule_of(collective, algorithm, 0, world_size, root).chunks)
    verify_goal_programs(collective, programs, root, programs[0].num_chunks // num_chunks)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    bounds = split_by_weight(length, even_chunks(num_chunks))
    for rank in range(world_size):
        if collective not in ("broadcast", "gather", "all-gather"):  # there a piece is cut anew
            part = goal_program(collective, algorithm, rank, world_size, root, length, 4, start, stop)
            ends = [each.stop for each in split_by_weight(stop - start, part.chunks)]
            assert {start + end for end in ends} <= {each.stop for each in bounds} | {start, stop}


@pytest.mark.parametrize(("collective", "algorithm"), OTHERS)
@pytest.mark.parametrize("sizes", some_of([((*range(1, 10), 16, 17),), (LARGER,)], 0))
def test_every_program_is_its_collective_at_every_size(collective: str, algorithm: str, sizes: tuple[int, ...]) -> None:
    """At once and, where that takes more than one block, in several; with the last rank as root, too.

    Of an all-to-all n x n chunks have to have a place in a program, which has room for 256.
    """
    for world_size in sizes:
        if world_size ** (GOALS[collective].chunks_per_rank or 0) > MOST_CHUNKS:
            continue
        for root in {0, world_size - 1} if GOALS[collective].has_root else {0}:
            num_chunks = len(schedule_of(collective, algorithm, 0, world_size, root).chunks)
            for itemsize in (4, BLOCK_BYTES):
                length = 3 * num_chunks
                programs = [
                    goal_program(collective, algorithm, rank, world_size, root, length, itemsize, 0, length)
                    for rank in range(world_size)
                ]
                verify_goal_programs(collective, programs, root, programs[0].num_chunks // num_chunks)


def test_what_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="broadcast has no algorithm 'star': choose from one-shot, binary-tree, ring"):
        schedule_of("broadcast", "star", 0, 2)


@pytest.mark.parametrize(("collective", "algorithm"), OTHERS)
@given(world_size=st.integers(2, 7), data=st.data())
@settings(deadline=None, max_examples=20)
def test_a_transfer_that_is_missing_is_noticed(
    collective: str, algorithm: str, world_size: int, data: st.DataObject
) -> None:
    build = COLLECTIVES[collective][algorithm]
    rank = data.draw(st.integers(0, world_size - 1))
    transfers = build(rank, world_size).transfers
    index = data.draw(st.sampled_from([i for i, each in enumerate(transfers) if each.peer != rank]))
    with pytest.raises(ScheduleError):
        verify_goal(collective, edited(build, rank, lambda each: without(each, index)), world_size)


@pytest.mark.parametrize("collective", GOALS)
def test_no_schedule_is_taken_for_another_collective(collective: str) -> None:
    """But for what does more than it has to."""
    proven = set()
    for other, builds in COLLECTIVES.items():
        for build in builds.values():
            try:
                verify_goal(collective, build, 4)
            except ScheduleError:
                continue
            proven.add(other)
    assert collective in proven
    does_more = {"reduce": {"all-reduce"}, "reduce-scatter": {"all-reduce"}, "gather": {"all-gather"}}
    assert proven <= {collective} | does_more.get(collective, set())


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
@given(world_size=st.integers(1, 6), length=st.integers(0, 200), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_played_with_numbers_each_rank_ends_with_what_is_promised(
    collective: str, algorithm: str, world_size: int, length: int, seed: int
) -> None:
    rng, goal = np.random.default_rng(seed), GOALS[collective]
    schedules = [COLLECTIVES[collective][algorithm](rank, world_size) for rank in range(world_size)]
    inputs = [rng.integers(0, 1000, length) for _ in schedules]
    results = [np.full(length, -1) for _ in schedules]
    runs = [
        Execution(schedules[rank], rank, inputs[rank], results[rank], segment_bytes=80) for rank in range(world_size)
    ]
    deliver(runs, random.Random(seed))
    assert all(run.done for run in runs)
    for rank, result in enumerate(results):
        for chunk, where in enumerate(split_by_weight(length, schedules[0].chunks)):
            source = goal.postcondition(rank, chunk, world_size)
            if source is not None:
                expected = sum(each[where] for each in inputs) if source == SUM else inputs[source][where]
                assert (result[where] == expected).all()


def test_a_sum_that_some_rank_adds_in_another_order_is_refused() -> None:
    def build(rank: int, world_size: int) -> Schedule:
        one_shot = ALGORITHMS["one-shot"](rank, world_size)
        sends = [each for each in one_shot.transfers if each.kind is Kind.SEND]
        adds = [each for each in one_shot.transfers if each.kind is Kind.REDUCE]
        return replace(one_shot, transfers=(*sends, *(reversed(adds) if rank == 2 else adds)))

    with pytest.raises(ScheduleError, match="rank 2, chunk 0: adds in another order than others"):
        verify_goal("all-reduce", build, 3)


def test_the_number_of_chunks_is_part_of_what_a_gather_is() -> None:
    with pytest.raises(ScheduleError, match="gather of 3 ranks has 3 chunks, and these schedules 1"):
        verify_goal("gather", ALGORITHMS["one-shot"], 3)


# Hosts, and weights.


@pytest.mark.parametrize("between", sorted(set(ALGORITHMS) - {"one-shot", "hierarchical"}))
@given(hosts=st.lists(st.integers(0, 4), min_size=1, max_size=13))
@settings(deadline=None, max_examples=25)
def test_within_hosts_and_between_them_is_an_all_reduce_whoever_shares_a_host(between: str, hosts: list[int]) -> None:
    def build(rank: int, world_size: int) -> Schedule:
        return hierarchical_all_reduce(rank, world_size, hosts, ALGORITHMS[between])

    verify(build, len(hosts))
    if len(hosts) > 1:
        schedules = [build(rank, len(hosts)) for rank in range(len(hosts))]
        verify_programs(compile_programs(schedules, 2), schedules)


def test_one_shot_between_hosts_is_refused_by_the_proof() -> None:
    build: Build = lambda rank, n: hierarchical_all_reduce(rank, n, (), ALGORITHMS["one-shot"])  # noqa: E731
    with pytest.raises(ScheduleError, match="adds in another order than rank 0"):
        verify(build, 3)


def test_between_hosts_goes_what_one_rank_of_each_would_send() -> None:
    hosts = [0, 1, 0, 1, 1, 0]
    sent = 0.0
    for rank in range(6):
        schedule = hierarchical_all_reduce(rank, 6, hosts)
        sent += sum(
            schedule.chunks[each.chunk] / sum(schedule.chunks)
            for each in schedule.transfers
            if each.kind is Kind.SEND and hosts[each.peer] != hosts[rank]
        )
    assert sent == pytest.approx(2 * 2 * (2 - 1) / 2)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9).filter(any))
def test_shares_of_any_size_are_an_all_reduce_with_the_same_order_of_additions(weights: list[int]) -> None:
    verify(lambda rank, n: direct_all_reduce(rank, n, weights), len(weights))
    weighted, even = (direct_all_reduce(0, len(weights), each).transfers for each in (weights, ()))
    assert [each for each in weighted if each.kind is not Kind.SEND] == [
        each for each in even if each.kind is not Kind.SEND
    ]


def test_who_owns_less_sends_less() -> None:
    def sent(rank: int) -> float:
        schedule = direct_all_reduce(rank, 3, (1, 2, 5))
        return sum(schedule.chunks[each.chunk] for each in schedule.transfers if each.kind is Kind.SEND)

    assert [sent(rank) for rank in range(3)] == [7 + 2, 6 + 4, 3 + 10]


def test_what_fits_in_one_hop_is_sent_in_one() -> None:
    for medium, most in ((Medium.LAN, ONE_HOP_MAX_BYTES), (Medium.WAN, ONE_HOP_MAX_WAN_BYTES)):
        assert default_algorithm("broadcast", most // 3, 4, medium) == "one-shot"
        assert default_algorithm("broadcast", most // 3 + 1, 4, medium) == "ring"
    assert default_algorithm("all-gather", 1 << 40, 4) == next(iter(COLLECTIVES["all-gather"]))


def test_a_sum_that_is_overwritten_wherever_it_is_complete_is_refused() -> None:
    """Who completes it gets it back from the other one: nobody knows by its last write that it is complete."""

    def build(rank: int, world_size: int) -> Schedule:
        transfers = TransferList()
        if rank == 0:
            transfers.reduce(1, 0)
            transfers.send(1, 0)
            transfers.recv(1, 0)
        else:
            transfers.send(0, 0)
            transfers.recv(0, 0)
            transfers.send(0, 0)
        return transfers.schedule(even_chunks(1))

    with pytest.raises(ScheduleError, match=r"chunk 0: no rank's last write of it completes the sum"):
        verify_goal("all-reduce", build, 2)


@pytest.mark.parametrize(("collective", "algorithm"), [("reduce", "binary-tree"), ("reduce-scatter", "ring")])
def test_a_partial_sum_that_is_taken_for_a_whole_one_is_noticed(collective: str, algorithm: str) -> None:
    def build(rank: int, world_size: int) -> Schedule:
        return replace(schedule_of(collective, algorithm, rank, world_size), partial=frozenset())

    with pytest.raises(ScheduleError, match="adds to what is complete already"):
        verify_goal(collective, build, 4)

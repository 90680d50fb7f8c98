from collections.abc import Iterator

import numpy as np
import pytest

from collectives import (
    ALGORITHMS,
    Kind,
    Schedule,
    ScheduleError,
    Transfer,
    all_reduce_schedule,
    even_chunks,
    register_algorithm,
)
from collectives import algorithms as module
from collectives.algorithms import distinct_name
from collectives.program_verification import verify_programs
from collectives.programs import all_reduce_program
from p2p.step.collective import AllReduce
from p2p.step.operation import Operation
from tests.collectives.chain import chain_all_reduce


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was registered here."""
    before = set(ALGORITHMS)
    yield
    for name in set(ALGORITHMS) - before:
        del module._BUILDS[name], module._ADDED[name]
    module.all_reduce_schedule.cache_clear()
    module._prove.cache_clear()


def fingerprint(algorithm: str) -> bytes:
    values = np.zeros(4)
    return Operation(AllReduce(), values, np.zeros(4), (4,), algorithm).fingerprint(64, 0, 0)


def test_what_is_registered_is_an_algorithm_like_others_over_messages_and_memory() -> None:
    register_algorithm("chain", chain_all_reduce)
    assert ALGORITHMS["chain"] is chain_all_reduce
    schedules = [all_reduce_schedule("chain", rank, 5) for rank in range(5)]
    assert schedules[2].transfers == chain_all_reduce(2, 5).transfers
    verify_programs([all_reduce_program("chain", rank, 5, 100, 4) for rank in range(5)], schedules)


def test_of_one_name_but_another_schedule_operations_differ() -> None:
    """Or two peers would sum by two schedules, and find that out by a hang or by nothing."""
    from p2p.step.operation import _describe

    assert distinct_name("ring") == "ring"
    found = []
    for build in (chain_all_reduce, ALGORITHMS["tree"], chain_all_reduce):
        register_algorithm("mine", build)
        _describe.cache_clear()
        found.append((distinct_name("mine"), fingerprint("mine")))
        del module._BUILDS["mine"], module._ADDED["mine"]
    assert found[0] == found[2] != found[1]
    assert found[0][1] != found[1][1]


def test_a_name_that_there_is_is_not_given_again() -> None:
    with pytest.raises(ValueError, match="there is an algorithm 'ring' already"):
        register_algorithm("ring", chain_all_reduce)


def test_a_name_has_no_colon_behind_which_direct_has_its_shares() -> None:
    with pytest.raises(ValueError, match="has no ':', this is 'mine:1'"):
        register_algorithm("mine:1", chain_all_reduce)
    assert "mine:1" not in ALGORITHMS


def test_what_is_no_all_reduce_gets_no_name() -> None:
    def half(rank: int, world_size: int) -> Schedule:
        if rank:
            return Schedule(even_chunks(1), (Transfer(Kind.SEND, 0, 0),))
        return Schedule(even_chunks(1), tuple(Transfer(Kind.REDUCE, peer, 0) for peer in range(1, world_size)))

    with pytest.raises(ScheduleError, match=r"rank 1, chunk 0: adds up inputs \(1,\), not each one once"):
        register_algorithm("half", half)
    assert "half" not in ALGORITHMS


def test_what_messages_cannot_carry_out_gets_no_name() -> None:
    def eager(rank: int, world_size: int) -> Schedule:
        """A chain that sends back when two transfers are over, of which one would do."""
        chain = chain_all_reduce(rank, world_size)
        if rank != 1 or world_size != 3:
            return chain
        *others, last = chain.transfers
        return Schedule(chain.chunks, (*others, Transfer(last.kind, last.peer, last.chunk, (1, *last.after))))

    with pytest.raises(ScheduleError, match="waits for more than one transfer of its chunk: wait for the last write"):
        register_algorithm("eager", eager)


def test_more_chunks_than_there_is_room_for_get_no_name() -> None:
    def fine(rank: int, world_size: int) -> Schedule:
        return Schedule(even_chunks(257), ())

    with pytest.raises(ScheduleError, match="257 chunks are more than the 256 that there is room for"):
        register_algorithm("fine", fine, [1])


def test_for_a_number_of_ranks_that_was_not_proven_it_is_proven_when_there_are_so_many() -> None:
    def for_two(rank: int, world_size: int) -> Schedule:
        return chain_all_reduce(rank, 2) if rank < 2 else Schedule(even_chunks(1), ())

    register_algorithm("for-two", for_two, [2])
    assert all_reduce_schedule("for-two", 0, 2).transfers == chain_all_reduce(0, 2).transfers
    with pytest.raises(ScheduleError, match="adds up inputs"):
        all_reduce_schedule("for-two", 0, 3)

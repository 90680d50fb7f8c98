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
    verify,
)
from collectives import algorithms as module
from collectives.algorithms import distinct_name
from collectives.program_verification import verify_programs
from collectives.programs import all_reduce_program
from p2p.step.collective import AllReduce
from p2p.step.operation import Operation
from tests.collectives.chain import chain_all_reduce
from tests.collectives.doubling import doubling_all_reduce
from tests.collectives.edits import listed
from tests.collectives.inputs import all_reduce, random_inputs
from tests.collectives.test_pieces import over_memory

pytestmark = pytest.mark.usefixtures("own_algorithms")


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


def test_recursive_doubling_which_copies_is_an_all_reduce_in_pieces_too_for_any_number_of_ranks() -> None:
    register_algorithm("doubling", doubling_all_reduce, range(1, 34))
    for world_size in (1, 2, 3, 4, 5, 8, 13):
        inputs = random_inputs(world_size, world_size, 1009, np.dtype(np.float16))
        bits = all_reduce(doubling_all_reduce, inputs, "mean").tobytes()
        assert over_memory("doubling", inputs, "mean", [1, 400, 1000], seed=world_size) == bits


def test_what_is_copied_by_messages_and_cannot_be_over_memory_gets_no_name() -> None:
    """Rank 1 hands on what ranks 0 and 3 have, one after the other, by one chunk, before rank 2 has looked."""
    to_two = [Transfer(Kind.SEND, 2, 0), Transfer(Kind.RECV, 0, 0), Transfer(Kind.SEND, 2, 0, (1,), is_copied=True)]
    adds = [Transfer(Kind.REDUCE, 1, 0)] * 3
    build = listed(
        [Transfer(Kind.SEND, 1, 0), Transfer(Kind.RECV, 2, 0)],
        [*to_two, Transfer(Kind.RECV, 3, 0), Transfer(Kind.SEND, 2, 0, (3,)), Transfer(Kind.RECV, 2, 0)],
        [*adds, *(Transfer(Kind.SEND, peer, 0, (2,)) for peer in (0, 1, 3))],
        [Transfer(Kind.SEND, 1, 0), Transfer(Kind.RECV, 2, 0)],
    )
    verify(build, 4)
    with pytest.raises(ScheduleError, match=r"over memory, where nothing is copied: rank .* adds up inputs"):
        register_algorithm("relay", build, [4])
    assert "relay" not in ALGORITHMS


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

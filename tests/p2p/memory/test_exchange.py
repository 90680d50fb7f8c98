from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from collectives import ALGORITHMS, Array, Reduction, reducer, split_by_weight
from collectives.compilation import compile_programs
from collectives.program import Program
from collectives.programs import all_gather_program, direct_program, one_shot_program
from p2p.errors import RemoteProtocolError
from p2p.memory.arena import Region
from p2p.memory.board import DIGESTS_BYTES, Finished, Reference
from p2p.memory.operands import Differs, Interrupted, OwnOperands
from tests.collectives.chain import chain_all_reduce
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution
from tests.p2p.memory.machine import SAME, Host, Rank, finish, ranks_of

ADD = reducer(Reduction(), np.dtype(np.float32))


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host(5)
    yield host
    host.close()


def inputs(world_size: int, size: int, dtype: npt.DTypeLike = np.float32) -> list[Array]:
    rng = np.random.default_rng(size)
    return [(rng.standard_normal(size) * 1000).astype(dtype) for _ in range(world_size)]


def by_messages(algorithm: str, values: list[Array]) -> Array:
    """The sum as the message path computes it."""
    schedule_of = chain_all_reduce if algorithm == "chain" else ALGORITHMS[algorithm]
    schedules = [schedule_of(rank, len(values)) for rank in range(len(values))]
    results = [np.empty_like(value) for value in values]
    runs = [
        Execution(schedule, rank, values[rank], results[rank], segment_bytes=64)
        for rank, schedule in enumerate(schedules)
    ]
    deliver(runs, Random(0))
    return results[0]


@cache
def compiled(algorithm: str, num_blocks: int, world_size: int) -> tuple[Program, ...]:
    schedule_of = chain_all_reduce if algorithm == "chain" else ALGORITHMS[algorithm]
    return compile_programs([schedule_of(rank, world_size) for rank in range(world_size)], num_blocks)


PROGRAMS = {
    "one-shot": 1,
    "direct": 1,
    "direct in blocks": 3,
    "direct in many blocks": 21,
    "ring": 1,
    "ring in many blocks": 11,
    "tree": 2,
    "chain": 3,
}
"""Number of blocks of each chunk."""


def program_of(name: str, rank: Rank, world_size: int) -> Program:
    return compiled(name.split()[0], PROGRAMS[name], world_size)[rank.rank]


def add_up(name: str, ranks: Sequence[Rank], values: Sequence[Array], *, seed: int = 0, is_heap: bool = False) -> None:
    """Run one operation to its end."""
    for rank, value in zip(ranks, values, strict=True):
        rank.begin(program_of(name, rank, len(ranks)), value, is_heap=is_heap)
    finish(Random(seed), *(rank.exchange.advance for rank in ranks))


def published(rank: Rank, count: int) -> None:
    """Set the board as if `rank` had published `count` times."""
    rank.arena.board.progress[0] = (rank.in_view.view_number << 40) + count


# Results


@pytest.mark.parametrize("is_heap", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_sums_have_the_bits_of_the_message_path(host: Host, world_size: int, name: str, is_heap: bool) -> None:
    ranks = ranks_of(host, world_size)
    for seed, size in enumerate((1, 2, 0, 1000, 4099)):
        values = inputs(world_size, size)
        add_up(name, ranks, values, seed=seed, is_heap=is_heap)
        expected = by_messages(name.split()[0], values).tobytes()
        assert [rank.result.tobytes() for rank in ranks] == [expected] * world_size


def test_whole_numbers_are_summed_as_such(host: Host) -> None:
    values = [np.full(10, 2**62 + rank, np.int64) for rank in range(2)]
    ranks = ranks_of(host, 2)
    add_up("direct", ranks, values)
    assert all((rank.result == values[0] + values[1]).all() for rank in ranks)


def test_inputs_are_only_read(host: Host) -> None:
    ranks, values = ranks_of(host, 3), inputs(3, 600)
    regions = [(rank, rank.lend(value)) for rank, value in zip(ranks, values, strict=True)]
    for rank, region in regions:
        call = OwnOperands(SAME, region, np.float32, rank.lend(values[0]))
        rank.exchange.begin(direct_program(rank.rank, 3, 2), call, ADD)
    finish(Random(0), *(rank.exchange.advance for rank in ranks))
    assert all((rank.arena.array(region, np.float32) == values[rank.rank]).all() for rank, region in regions)


def test_what_is_complete_stays_so(host: Host) -> None:
    ranks = ranks_of(host, 2)
    add_up("direct", ranks, inputs(2, 10))
    before = [rank.result.tobytes() for rank in ranks]
    assert all(rank.exchange.advance() for rank in ranks)
    assert not any(rank.exchange.progress.late() for rank in ranks)
    assert [rank.result.tobytes() for rank in ranks] == before


def test_others_can_be_heard_after_so_many_chunks(host: Host) -> None:
    ranks, values = ranks_of(host, 2), inputs(2, 4099)
    for rank, value in zip(ranks, values, strict=True):
        rank.begin(program_of("direct in many blocks", rank, 2), value)
    assert not ranks[0].exchange.advance() and ranks[0].exchange.progress.late() == [1]
    assert not ranks[1].exchange.advance() and ranks[1].exchange.progress.late() == []
    assert not ranks[1].exchange.advance() and ranks[1].exchange.progress.late() == [0]
    finish(Random(0), *(rank.exchange.advance for rank in ranks))
    assert [rank.result.tobytes() for rank in ranks] == [by_messages("one-shot", values).tobytes()] * 2


def test_another_way_to_reduce_is_used_for_every_chunk(host: Host) -> None:
    ranks, values = ranks_of(host, 2), inputs(2, 10)
    for rank, value in zip(ranks, values, strict=True):
        rank.begin(direct_program(rank.rank, 2), value, reduce=reducer(Reduction("max"), value.dtype))
    finish(Random(1), *(rank.exchange.advance for rank in ranks))
    assert all(np.array_equal(rank.result, np.maximum(*values)) for rank in ranks)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_gather_copies_every_input_to_its_place_and_touches_nothing_else(host: Host, world_size: int) -> None:
    ranks, values = ranks_of(host, world_size), inputs(world_size, 7, np.int64)
    results = [np.full(9 * world_size, -1, np.int64) for _ in ranks]
    places = tuple(slice(start + 1, start + 8) for start in range(0, 9 * world_size, 9))
    for rank, value, result in zip(ranks, values, results, strict=True):
        call = OwnOperands(SAME, rank.lend(value), np.int64, result=result, places=places)
        rank.exchange.begin(all_gather_program(rank.rank, world_size), call, ADD)
    finish(Random(2), *(rank.exchange.advance for rank in ranks))
    expected = np.concatenate([[-1, *value, -1] for value in values])
    assert all(np.array_equal(result, expected) for result in results)


# Digests


@pytest.mark.parametrize("is_heap", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_ranks_have_the_digests_of_all_chunks(host: Host, name: str, is_heap: bool) -> None:
    ranks, values = ranks_of(host, 3), inputs(3, 630)
    for turn in range(3):  # both tables of digests, and the first again
        add_up(name, ranks, values, seed=turn, is_heap=is_heap)
        bounds = split_by_weight(630, program_of(name, ranks[0], 3).chunks)
        expected = [xxhash.xxh3_128_digest(ranks[0].result[where].tobytes()) for where in bounds]
        assert [rank.exchange.digests for rank in ranks] == [expected] * 3


@pytest.mark.parametrize("checked", range(6))
def test_a_chunk_that_was_read_with_other_bits_is_noticed_when_its_turn_comes(host: Host, checked: int) -> None:
    """Rank 1 has digested chunk 1; then its memory changes, and rank 0 copies it."""
    ranks, values = ranks_of(host, 2), inputs(2, 40)
    for rank, value in zip(ranks, values, strict=True):
        rank.begin(direct_program(rank.rank, 2), value, is_heap=True, checked=checked)
    assert not ranks[0].exchange.advance()
    assert not ranks[1].exchange.advance()
    lent = ranks[1].arena.board.lent(0)
    ranks[1].arena.array(Region(lent.result_offset, 160), np.float32)[-1] += 1
    finish(Random(0), *(rank.exchange.advance for rank in ranks))
    assert ranks[0].result[-1] != ranks[1].result[-1]
    digests = [rank.exchange.digests for rank in ranks]
    assert digests[0][0] == digests[1][0]
    assert (digests[0][1] != digests[1][1]) is (checked % 2 == 1)


# Waits


def test_who_sleeps_is_rung_for_and_who_is_awake_is_not(host: Host) -> None:
    early, late = ranks_of(host, 2)
    sleeping, value = early.arena.board.sleeping, inputs(1, 4)[0]
    early.begin(one_shot_program(0, 2), value)
    assert not early.exchange.advance()
    assert early.exchange.progress.late() == [1]
    assert early.exchange.progress.prepare_to_wait()
    assert sleeping[0] == (early.in_view.view_number << 40) + 1
    late.begin(one_shot_program(1, 2), value)
    assert late.exchange.advance()
    assert (late.rung, early.rung) == ([0], [])
    early.exchange.progress.finish_wait()
    assert sleeping[0] == 0
    assert early.exchange.advance()
    early.begin(one_shot_program(0, 2), value)
    late.begin(one_shot_program(1, 2), value)
    finish(Random(0), early.exchange.advance, late.exchange.advance)
    assert (late.rung, early.rung) == ([0], [])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_last_one_who_is_waited_for_rings(host: Host, order: tuple[int, int]) -> None:
    ranks, value = ranks_of(host, 3), inputs(1, 4)[0]
    for rank in ranks:
        rank.begin(one_shot_program(rank.rank, 3), value)
    assert not ranks[0].exchange.advance() and ranks[0].exchange.progress.prepare_to_wait()
    for number in order:
        assert [rank.rung for rank in ranks] == [[], [], []]
        ranks[number].exchange.advance()
    assert ranks[order[1]].rung == [0] and ranks[order[0]].rung == []


def test_who_waits_for_one_rank_is_rung_for_by_that_one(host: Host) -> None:
    ranks, value = ranks_of(host, 3), inputs(1, 6)[0]
    for rank in ranks:
        rank.begin(direct_program(rank.rank, 3), value)
        rank.exchange.advance()  # only the last one sees that all have begun, and sums its part
    assert not ranks[0].exchange.advance()
    assert ranks[0].exchange.progress.late() == [1] and ranks[0].exchange.progress.prepare_to_wait()
    assert ranks[1].exchange.advance()
    assert (ranks[1].rung, ranks[2].rung) == ([0], [])


def test_who_is_not_late_any_more_is_not_slept_for(host: Host) -> None:
    early, late = ranks_of(host, 2)
    early.begin(one_shot_program(0, 2), inputs(1, 4)[0])
    assert not early.exchange.advance()
    late.begin(one_shot_program(1, 2), inputs(1, 4)[0])
    late.exchange.advance()
    assert not early.exchange.progress.prepare_to_wait()


def test_all_who_have_not_come_are_named(host: Host) -> None:
    ranks, value = ranks_of(host, 4), inputs(1, 4)[0]
    assert ranks[0].exchange.progress.late() == []
    for rank, others in ((0, [1, 2, 3]), (2, [3, 1]), (3, [1])):
        ranks[rank].begin(one_shot_program(rank, 4), value)
        assert not ranks[rank].exchange.advance()
        assert ranks[rank].exchange.progress.late() == others
    assert ranks[0].exchange.progress.late() == [1]


def test_who_spins_in_vain_stops_and_begins_again_after_a_short_wait(host: Host) -> None:
    exchange = ranks_of(host, 2)[0].exchange
    for _ in range(3):
        exchange.progress.waited(is_long=True)
    assert exchange.progress.spins
    exchange.progress.waited(is_long=True)
    assert not exchange.progress.spins
    exchange.progress.waited(is_long=False)
    assert exchange.progress.spins


# Steps


def test_a_finished_step_is_shown_to_all_and_the_next_goes_on_from_there(host: Host) -> None:
    ranks = ranks_of(host, 3)
    for step in range(4):
        add_up("direct in blocks" if step % 2 else "tree", ranks, inputs(3, 99), seed=step)
        shown = [bytes([16 * step + rank.rank]) * DIGESTS_BYTES for rank in ranks]
        for rank in ranks:
            assert rank.exchange.finished(step) == [(other, shown[other]) for other in range(rank.rank)]
            rank.exchange.announce(Finished(step, rank.in_view.tag, shown[rank.rank]))
            assert sorted(rank.exchange.progress.late()) == list(range(rank.rank + 1, 3))
        for rank in ranks:
            assert not rank.exchange.progress.late()
            assert rank.exchange.finished(step) == [(o, shown[o]) for o in range(3) if o != rank.rank]
            assert rank.exchange.finished(step + 1) == []


def test_who_sleeps_until_all_have_finished_is_rung_for(host: Host) -> None:
    early, late = ranks_of(host, 2)
    early.exchange.announce(Finished(0, early.in_view.tag, bytes(DIGESTS_BYTES)))
    assert early.exchange.progress.prepare_to_wait()
    late.exchange.announce(Finished(0, late.in_view.tag, bytes(DIGESTS_BYTES)))
    assert (early.rung, late.rung) == ([], [0])


def test_what_was_finished_by_who_has_left_the_view_is_not_seen(host: Host) -> None:
    ranks = ranks_of(host, 3)
    for rank in ranks:
        rank.exchange.announce(Finished(0, rank.in_view.tag, bytes(DIGESTS_BYTES)))
    ranks[2].arena.board.install(0)
    assert ranks[0].exchange.finished(0) == [(1, bytes(DIGESTS_BYTES))]


# Ends of operations


@pytest.mark.parametrize("tag", [0, 1])
def test_what_was_read_of_a_rank_that_has_left_the_view_is_void(host: Host, tag: int) -> None:
    rank, other = ranks_of(host, 2)
    other.arena.board.progress[0] = (rank.in_view.view_number + 1) << 40  # of a later view
    other.arena.board.install(tag)
    rank.begin(one_shot_program(0, 2), inputs(1, 4)[0])
    with pytest.raises(Interrupted, match="rank 1 has left the view: what was read of it is void"):
        rank.exchange.advance()


@pytest.mark.parametrize("name", sorted({*PROGRAMS} - {"chain"}))  # in a chain rank 0 computes no sum
def test_a_rank_that_leaves_while_it_is_read_leaves_no_result(host: Host, name: str) -> None:
    """It leaves the view, and writes its memory, in the middle of the sum."""
    ranks, values = ranks_of(host, 2), inputs(2, 40)

    def leave(sources: Sequence[Array], result: Array, /, *, completes: bool = True) -> None:
        ranks[1].arena.board.install(0)
        ADD(sources, result, completes=completes)

    program = program_of(name, ranks[0], 2)
    ranks[0].begin(program, values[0], reduce=leave)
    ranks[1].begin(program_of(name, ranks[1], 2), values[1])
    ranks[1].exchange.advance()
    with pytest.raises(Interrupted, match="rank 1 has left the view"):
        ranks[0].exchange.advance()
    assert ranks[0].exchange.digests == [b""] * program.num_chunks


def test_a_rank_that_leaves_before_its_result_is_copied_leaves_no_result(host: Host) -> None:
    def leave(_: memoryview) -> bytes:
        other.arena.board.install(0)
        return bytes(16)

    rank, other = ranks_of(host, 2, digest=leave)  # called between the sum of its own part and the copy of the other
    values = inputs(2, 40)
    region = other.lend(values[1])
    other.arena.board.lend(0, Reference(SAME, *region, region.offset))
    published(other, 2)
    rank.begin(direct_program(0, 2), values[0])
    with pytest.raises(Interrupted, match="rank 1 has left the view"):
        rank.exchange.advance()


def test_a_rank_that_calls_another_operation_is_not_summed(host: Host) -> None:
    ranks, values = ranks_of(host, 2), inputs(2, 40)
    names = [bytes([rank]) * 16 for rank in range(2)]
    for rank in ranks:
        rank.begin(one_shot_program(rank.rank, 2), values[rank.rank], fingerprint=names[rank.rank])
    assert not ranks[0].exchange.advance()
    for rank in reversed(ranks):
        with pytest.raises(Differs) as caught:
            rank.exchange.advance()
        other = 1 - rank.rank
        assert (caught.value.rank, caught.value.fingerprint) == (other, names[other])
        assert (rank.result == 99).all()


@pytest.mark.parametrize(
    "lent",
    [Reference(SAME, 1 << 40, 160), Reference(SAME, 4096, 164), Reference(SAME, 0, 160), Reference(SAME, 4096, 0)],
)
def test_a_rank_that_lends_what_it_does_not_have_is_not_summed(host: Host, lent: Reference) -> None:
    rank, other = ranks_of(host, 2)
    other.arena.board.lend(0, lent)
    published(other, 1)
    rank.begin(one_shot_program(0, 2), inputs(1, 40)[0])
    with pytest.raises(RemoteProtocolError, match="rank 1 lends"):
        rank.exchange.advance()
    assert (rank.result == 99).all()


@pytest.mark.parametrize("offset", [0, 64, (1 << 20) - 159, 1 << 40])
def test_a_result_that_lies_nowhere_is_not_copied(host: Host, offset: int) -> None:
    rank, other = ranks_of(host, 2)
    region = other.lend(inputs(1, 40)[0])
    other.arena.board.lend(0, Reference(SAME, *region, offset))
    published(other, 2)
    rank.begin(direct_program(0, 2), inputs(1, 40)[0])
    with pytest.raises(RemoteProtocolError, match="rank 1 lends what it does not have"):
        rank.exchange.advance()

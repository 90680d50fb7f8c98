import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from collectives import Execution, all_reduce_schedule
from collectives.program import Program, all_gather_program, direct_program, one_shot_program
from p2p.arena import Array
from p2p.board import Lent
from p2p.errors import RemoteProtocolError
from p2p.exchange import add_in_order
from p2p.lending import Call, Differs, Interrupted
from tests.collectives.delivery import deliver
from tests.p2p.sharing import LIMIT_S, SAME, TAG, Host, Rank


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def inputs(world_size: int, size: int, dtype: npt.DTypeLike = np.float32) -> list[Array]:
    rng = np.random.default_rng(size)
    return [(rng.standard_normal(size) * 1000).astype(dtype) for _ in range(world_size)]


def by_messages(algorithm: str, values: list[Array]) -> Array:
    """The sum as the message path computes it."""
    schedules = [all_reduce_schedule(algorithm, rank, len(values)) for rank in range(len(values))]
    results = [np.empty_like(value) for value in values]
    runs = [
        Execution(schedule, rank, values[rank], results[rank], segment_bytes=64)
        for rank, schedule in enumerate(schedules)
    ]
    deliver(runs, Random(0))
    return results[0]


PROGRAMS: dict[str, Callable[[int, int], Program]] = {
    "one-shot": one_shot_program,
    "direct": direct_program,
    "blocks": partial(direct_program, num_blocks=3),
}


@pytest.mark.parametrize("spin_s", [0.0, 1e-3])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_sums_have_the_bits_of_the_message_path(host: Host, world_size: int, name: str, spin_s: float) -> None:
    ranks = host.ranks(world_size, spin_s=spin_s)
    programs = [PROGRAMS[name](rank, world_size) for rank in range(world_size)]
    for size in (1, 2, 1000):
        values = inputs(world_size, size)
        expected = by_messages("one-shot", values)
        jobs = host.run(*(partial(r.all_reduce, p, v) for r, p, v in zip(ranks, programs, values, strict=True)))
        assert all(np.array_equal(job.result(), expected) for job in jobs)
    assert all(rank.exchange.num_caught == 0 for rank in ranks)


def test_whole_numbers_are_summed_as_such(host: Host) -> None:
    values = [np.full(10, 2**62 + rank, np.int64) for rank in range(2)]
    jobs = host.run(*(partial(r.all_reduce, direct_program(r.rank, 2), values[r.rank]) for r in host.ranks(2)))
    assert all((job.result() == values[0] + values[1]).all() for job in jobs)


def test_infinities_are_summed_without_a_word() -> None:
    huge, result = np.full(4, 3e38, np.float32), np.empty(4, np.float32)
    add_in_order([huge, huge, -np.inf * huge], result)
    assert np.isnan(result).all()


@pytest.mark.parametrize("is_heap", [False, True])
def test_all_ranks_have_the_digests_of_all_chunks(host: Host, is_heap: bool) -> None:
    ranks, values = host.ranks(3, digest=xxhash.xxh3_128_digest), inputs(3, 600)
    programs = [direct_program(rank, 3, 2) for rank in range(3)]
    calls = [partial(r.all_reduce, programs[r.rank], values[r.rank], is_heap=is_heap) for r in ranks]
    results = [job.result() for job in host.run(*calls)]
    chunks = results[0].reshape(6, 100)
    expected = b"".join(xxhash.xxh3_128_digest(chunk.tobytes()) for chunk in chunks)
    assert [rank.digests for rank in ranks] == [expected] * 3
    assert all(np.array_equal(result, by_messages("direct", values)) for result in results)


def test_another_way_to_reduce_is_used_for_every_chunk(host: Host) -> None:
    def largest(sources: Sequence[Array], result: Array) -> None:
        result[:] = np.max(sources, axis=0)

    ranks, values = host.ranks(2, reduction=largest), inputs(2, 10)
    jobs = host.run(*(partial(r.all_reduce, direct_program(r.rank, 2), values[r.rank]) for r in ranks))
    assert all(np.array_equal(job.result(), np.maximum(*values)) for job in jobs)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_gather_copies_every_input(host: Host, world_size: int) -> None:
    ranks, values = host.ranks(world_size), inputs(world_size, 7, np.int64)

    def gather(rank: Rank) -> Array:
        result = np.empty(7 * world_size, np.int64)
        call = Call(SAME, rank.lend(values[rank.rank]), np.int64, result=result)
        rank.exchange.run(all_gather_program(rank.rank, world_size), call, LIMIT_S)
        return result

    assert all(
        np.array_equal(job.result(), np.concatenate(values)) for job in host.run(*(partial(gather, r) for r in ranks))
    )


# Who waits.


def test_who_sleeps_is_rung_for_and_who_spins_is_not(host: Host) -> None:
    early, late = host.ranks(2, spin_s=0.0)
    (job,) = host.run(partial(early.all_reduce, one_shot_program(0, 2), inputs(2, 4)[0]))
    sleeping = early.arena.board.sleeping(0)
    while not sleeping[0]:
        os.sched_yield()
    assert sleeping[0] == (3 << 40) + 1
    late.all_reduce(one_shot_program(1, 2), inputs(2, 4)[1])
    job.result()
    assert (late.num_rung, early.num_rung, early.exchange.num_sleeps, late.exchange.num_sleeps) == (1, 0, 1, 0)
    assert sleeping[0] == 0


def test_a_wake_up_that_is_lost_is_caught_and_counted(host: Host) -> None:
    early, late = host.ranks(2, spin_s=0.0)
    (job,) = host.run(partial(early.all_reduce, one_shot_program(0, 2), inputs(2, 4)[0]))
    while not early.arena.board.sleeping(0)[0]:
        os.sched_yield()
    late._bells = [threading.Event(), threading.Event()]  # nobody hears these
    late.all_reduce(one_shot_program(1, 2), inputs(2, 4)[1])
    job.result()
    assert early.exchange.num_caught == 1


def test_who_spins_in_vain_stops_and_begins_again_after_a_short_wait(host: Host) -> None:
    early, late = host.ranks(2, spin_s=2e-3)
    programs, value = [one_shot_program(rank, 2) for rank in range(2)], inputs(1, 4)[0]
    sleeping = early.arena.board.sleeping(0)
    number = 0
    while early.exchange.spins:
        number += 1
        (job,) = host.run(partial(early.all_reduce, programs[0], value))
        while sleeping[0] != (3 << 40) + number:
            os.sched_yield()
        late.all_reduce(programs[1], value)
        job.result()
    assert number == early.exchange.num_sleeps == 4
    while not early.exchange.spins:  # until one was short
        for job in host.run(*(partial(r.all_reduce, programs[r.rank], value) for r in (early, late))):
            job.result()


def test_who_waits_for_nobody_knows_what_gives_up_in_the_end(host: Host) -> None:
    (rank, _) = host.ranks(2)
    call = Call(SAME, rank.lend(inputs(1, 4)[0]), np.float32, result=np.empty(4, np.float32))
    with pytest.raises(TimeoutError, match="ranks 1 do not come"):
        rank.exchange.run(one_shot_program(0, 2), call, 0.01)
    assert rank.arena.board.sleeping(0)[0] == 0


# What ends an operation.


@pytest.mark.parametrize("spin_s", [0.0, 60.0])
def test_an_interrupt_ends_a_wait(host: Host, spin_s: float) -> None:
    rank, _ = host.ranks(2, spin_s=spin_s)
    (job,) = host.run(partial(rank.all_reduce, one_shot_program(0, 2), inputs(1, 4)[0]))
    while not rank.arena.board.progress(0)[0]:
        os.sched_yield()
    rank.stop()
    with pytest.raises(Interrupted, match="another view is installed"):
        job.result()
    assert rank.arena.board.sleeping(0)[0] == 0


@pytest.mark.parametrize("tag", [0, TAG + 1])
def test_what_was_read_of_a_rank_that_has_left_the_view_is_void(host: Host, tag: int) -> None:
    rank, other = host.ranks(2)
    other.arena.board.progress(0)[0] = 4 << 40  # of a later view
    other.arena.board.install(tag)
    with pytest.raises(Interrupted, match="rank 1 has left the view: what was read of it is void"):
        rank.all_reduce(one_shot_program(0, 2), inputs(1, 4)[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_that_leaves_while_it_is_read_leaves_no_result(host: Host, name: str) -> None:
    """It leaves the view, and writes its memory, in the middle of the sum."""
    ranks = host.ranks(2)

    def leave(sources: Sequence[Array], result: Array) -> None:
        ranks[1].arena.board.install(0)
        add_in_order(sources, result)

    ranks[0].exchange._reduction = leave
    jobs = host.run(*(partial(r.all_reduce, PROGRAMS[name](r.rank, 2), inputs(2, 40)[r.rank]) for r in ranks))
    with pytest.raises(Interrupted, match="rank 1 has left the view"):
        jobs[0].result()
    host.close()
    assert jobs[1].exception() is None or isinstance(jobs[1].exception(), Interrupted)


def test_a_rank_that_leaves_before_its_result_is_copied_leaves_no_result(host: Host) -> None:
    rank, other = host.ranks(2)
    values = inputs(2, 40)
    region = other.lend(values[1])
    other.arena.board.lend(0, 0, Lent(SAME, *region, *region))
    other.arena.board.progress(0)[0] = (3 << 40) + 2

    def leave(chunk: memoryview) -> bytes:
        other.arena.board.install(0)
        return bytes(16)

    rank.exchange._digest = leave  # called between the sum of the own part and the copy of the other
    with pytest.raises(Interrupted, match="rank 1 has left the view"):
        rank.all_reduce(direct_program(0, 2), values[0])


def test_a_rank_that_calls_another_operation_is_not_summed(host: Host) -> None:
    ranks, values = host.ranks(2), inputs(2, 40)
    names = [bytes([rank]) * 16 for rank in range(2)]
    calls = [
        partial(r.all_reduce, one_shot_program(r.rank, 2), values[r.rank], fingerprint=names[r.rank]) for r in ranks
    ]
    for rank, job in enumerate(host.run(*calls)):
        error = job.exception()
        assert isinstance(error, Differs)
        assert (error.rank, error.fingerprint) == (1 - rank, names[1 - rank])


@pytest.mark.parametrize(
    "lent", [Lent(SAME, 1 << 40, 160), Lent(SAME, 4096, 164), Lent(SAME, 0, 160), Lent(SAME, 4096, 0)]
)
def test_a_rank_that_lends_what_it_does_not_have_is_not_summed(host: Host, lent: Lent) -> None:
    rank, other = host.ranks(2)
    other.arena.board.lend(0, 0, lent)
    other.arena.board.progress(0)[0] = (3 << 40) + 1
    with pytest.raises(RemoteProtocolError, match="rank 1 lends"):
        rank.all_reduce(one_shot_program(0, 2), inputs(1, 40)[0])


def test_a_result_that_lies_nowhere_is_not_copied(host: Host) -> None:
    rank, other = host.ranks(2)
    region = other.lend(inputs(1, 40)[0])
    other.arena.board.lend(0, 0, Lent(SAME, *region, 1 << 40, 160))
    other.arena.board.progress(0)[0] = (3 << 40) + 2
    with pytest.raises(RemoteProtocolError, match="rank 1 lends what it does not have"):
        rank.all_reduce(direct_program(0, 2), inputs(1, 40)[0])

"""Gathers over shared memory: every input at its place, bit by bit, for any number of pieces."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Array, Reduction, one_shot_all_gather
from collectives.elements import TYPES
from p2p.memory.operands import Interrupted
from p2p.memory.shared_run import PIECES, Pieces, SharedRun
from p2p.memory.shared_runner import SharedRunner
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution
from tests.p2p.memory.machine import SAME, Machine, carry_out, gather_of

NUM_PEERS = 5
TINY = Pieces(first_bytes=256, long_bytes=1024)

DType = np.dtype[Any]
dtypes = st.sampled_from(list(TYPES))
seeds = st.integers(0, 2**32 - 1)


@st.composite
def lengths(draw: st.DrawFn, dtype: DType) -> int:
    """Lengths shorter than a piece, equal, a little longer, of several pieces, and not multiples."""
    piece = TINY.first_bytes // dtype.itemsize
    return max(0, draw(st.integers(0, 4)) * piece + draw(st.integers(-2, 2) | st.integers(0, piece)))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(NUM_PEERS, TINY, space_bytes=1 << 20)
    yield machine
    machine.host.close()


def inputs_of(world_size: int, length: int, dtype: DType, seed: int) -> list[Array]:
    """Inputs with random bits."""
    rng = np.random.default_rng(seed)
    most = 2 if dtype == np.bool_ else 256
    return [rng.integers(0, most, length * dtype.itemsize, np.uint8).view(dtype) for _ in range(world_size)]


def begin(group: Sequence[SharedRunner], values: Sequence[Array]) -> list[SharedRun]:
    """Enqueue a gather at each rank, into results with other contents."""
    runs = []
    for sharing, own in zip(group, values, strict=True):
        result = np.full(len(group) * own.nbytes, 77, np.uint8).view(own.dtype)
        runs.append(SharedRun(gather_of(sharing), SAME, own, result, Reduction()))
        sharing.enqueue(runs[-1])
    return runs


def results_of(runs: Sequence[SharedRun]) -> set[bytes]:
    return {run.result.tobytes() for run in runs}


def joined(values: Sequence[Array]) -> bytes:
    return b"".join(own.tobytes() for own in values)


def digest_by_messages(values: Sequence[Array]) -> bytes:
    """The digest of the message path; checks that it has the same result."""
    world_size, results = len(values), [np.empty(len(values) * own.size, own.dtype) for own in values]
    executions = [
        Execution(
            one_shot_all_gather(rank, world_size),
            rank,
            own,
            result,
            segment_bytes=1 << 20,
            own_chunk=rank,
            digest=xxhash.xxh3_128_digest,
        )
        for rank, (own, result) in enumerate(zip(values, results, strict=True))
    ]
    deliver(executions, Random(0))
    assert results[0].tobytes() == joined(values)
    return executions[0].digest()


def gather(machine: Machine, values: Sequence[Array], seed: int = 0) -> None:
    """Gather arrays that are partly in the arena; checks that results and digests are right, and inputs unchanged."""
    rng, group = Random(seed), machine.enter_view(*range(len(values)))
    inputs = [machine.place(rank, own) if rng.random() < 0.5 else own for rank, own in enumerate(values)]
    runs = begin(group, inputs)
    carry_out(group, runs, seed)
    assert results_of(runs) == {joined(values)}
    assert runs[0].digest() == digest_by_messages(values)
    assert joined(inputs) == joined(values)


@given(st.integers(2, NUM_PEERS), dtypes.flatmap(lambda dtype: st.tuples(st.just(dtype), lengths(dtype))), seeds)
@settings(deadline=None)
def test_every_rank_has_all_inputs_in_rank_order_and_the_digest_of_the_message_path(
    machine: Machine, world_size: int, kind: tuple[DType, int], seed: int
) -> None:
    dtype, length = kind
    gather(machine, inputs_of(world_size, length, dtype, seed), seed)


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_every_type_can_be_gathered(machine: Machine, dtype: DType, length: int) -> None:
    gather(machine, inputs_of(3, length, dtype, length))


def test_pieces_of_full_size_are_gathered() -> None:
    machine = Machine(2, PIECES, space_bytes=3 * PIECES.first_bytes)
    try:
        gather(machine, inputs_of(2, 5 * PIECES.first_bytes // 2 // 8 + 1, np.dtype(np.float64), 1))
    finally:
        machine.host.close()


def test_what_is_called_behind_a_long_gather_is_done_after_it(machine: Machine) -> None:
    group, values = machine.enter_view(0, 1), inputs_of(2, 500, np.dtype(np.int64), 1)
    short = inputs_of(2, 3, np.dtype(np.int32), 2)
    first, second = begin(group, values), begin(group, short)
    carry_out(group, second)
    assert results_of(first) == {joined(values)}
    assert results_of(second) == {joined(short)}
    assert {run.digest() for run in first} == {digest_by_messages(values)}


def test_who_is_waited_for_in_a_long_gather_is_named_with_the_piece(machine: Machine) -> None:
    group, values = machine.enter_view(0, 1), inputs_of(2, 100, np.dtype(np.int64), 1)
    begin(group, values)
    group[0].advance()
    assert group[0].missing(0) == ((1, 0, 0, 4),)
    for rank in (1, 0, 0):
        group[rank].advance()
    assert group[0].missing(0) == ((1, 0, 1, 4),)


@given(st.integers(0, 20), seeds)
@settings(deadline=None, max_examples=30)
def test_a_gather_that_is_cut_off_leaves_no_wrong_result_and_the_next_view_redoes_it(
    machine: Machine, num_turns: int, seed: int
) -> None:
    rng, group = Random(seed), machine.enter_view(0, 1, 2)
    values = inputs_of(3, 123, np.dtype(np.int64), seed)
    runs = begin(group, [values[0], machine.place(1, values[1]), values[2]])
    for _ in range(num_turns):
        group[rng.randrange(3)].advance()
    machine.host.arenas[2].board.install(0)
    slots, result = machine.slots[2]  # its memory is no longer lent
    for slot in (slots.take(TINY.first_bytes), slots.take(TINY.first_bytes), result):
        machine.host.arenas[2].array(slot, np.uint8).fill(255)
    for _ in range(20):
        rank = rng.randrange(2)
        with suppress(Interrupted):
            group[rank].advance()
        if runs[rank].done:
            assert results_of([runs[rank]]) == {joined(values)}
            assert runs[rank].digest() == digest_by_messages(values)
    group = machine.enter_view(1, 0)
    again = begin(group, [runs[1].input, runs[0].input])
    carry_out(group, again, seed)
    assert results_of(again) == {joined([values[1], values[0]])}
    assert again[0].digest() == digest_by_messages([values[1], values[0]])

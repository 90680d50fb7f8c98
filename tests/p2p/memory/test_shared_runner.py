import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, OPS, Array, Reduction, all_reduce_schedule, as_bits, scale
from collectives.elements import FLOATS, TYPES
from p2p.errors import RemoteProtocolError
from p2p.memory.arena import Region
from p2p.memory.board import DIGESTS_BYTES, Reference
from p2p.memory.operands import Differs, Interrupted
from p2p.memory.shared_run import PIECES, SharedRun
from p2p.memory.shared_runner import RunState, SharedRunner
from tests.cases import some_of
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution
from tests.p2p.memory.machine import SAME, SMALL_PIECES, SPACE, Machine, all_reduce_of, carry_out, finish, gather_of

NUM_PEERS = 3
PIECE_BYTES = SMALL_PIECES.first_bytes

DType = np.dtype[Any]
seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.integers(0, 20), st.sampled_from([1000, 65_537]))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(NUM_PEERS)
    yield machine
    machine.host.close()


@pytest.fixture(scope="module")
def full_size() -> Iterator[Machine]:
    machine = Machine(2, PIECES, space_bytes=5 * PIECES.first_bytes)
    yield machine
    machine.host.close()


def values_of(world_size: int, length: int, dtype: DType, seed: int = 0) -> list[Array]:
    """Values of very different magnitudes, so that the order of additions matters."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return list(rng.random((world_size, length)) < 0.3)
    if dtype in FLOATS:
        wide = rng.standard_normal((world_size, length)) * 10.0 ** rng.integers(-3, 4, (world_size, length))
        if dtype.kind == "V":
            return [(each.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(dtype) for each in wide]
        return list(wide.astype(dtype))
    bounds = np.iinfo(dtype)
    return list(rng.integers(bounds.min, bounds.max, (world_size, length), dtype, endpoint=True))


def by_messages(algorithm: str, values: Sequence[Array], op: str) -> bytes:
    """The bits of the message path's result."""
    world_size, results = len(values), [np.empty_like(each) for each in values]
    executions = [
        Execution(
            all_reduce_schedule(algorithm, rank, world_size),
            rank,
            values[rank],
            results[rank],
            segment_bytes=1 << 20,
            reduction=Reduction(op, world_size),
        )
        for rank in range(world_size)
    ]
    deliver(executions, Random(0))
    (bits,) = {each.tobytes() for each in results}
    return bits


def run_of(
    sharing: SharedRunner,
    algorithm: str,
    values: Array,
    result: Array,
    op: str = "sum",
    *,
    world_size: int,
    fingerprint: bytes = SAME,
    weight: float | None = None,
    checked: int = 0,
) -> SharedRun:
    """Enqueue a sum."""
    run = SharedRun(
        all_reduce_of(sharing, algorithm, values),
        fingerprint,
        values,
        result,
        Reduction(op, world_size),
        weight=weight,
        checked=checked,
    )
    sharing.enqueue(run)
    return run


def reduce_all(
    machine: Machine, algorithm: str, values: Sequence[Array], op: str, *, is_lent: bool = False, seed: int = 0
) -> list[Array]:
    """Run an all-reduce in a new view; returns the results of all ranks."""
    group, world_size = machine.enter_view(*range(len(values))), len(values)
    results = [np.full(each.nbytes, 77, np.uint8).view(each.dtype) for each in values]
    inputs = list(values)
    if is_lent:
        offset = -(-values[0].nbytes // 64) * 64
        inputs = [machine.place(peer, each) for peer, each in enumerate(values)]
        results = [machine.place(peer, each, offset) for peer, each in enumerate(results)]
    before = [each.tobytes() for each in inputs]
    runs = [
        run_of(group[rank], algorithm, inputs[rank], results[rank], op, world_size=world_size, checked=seed)
        for rank in range(world_size)
    ]
    carry_out(group, runs, seed)
    assert before == [each.tobytes() for each in inputs]
    return results


def ops_of(dtype: DType) -> list[str]:
    return [op for op in OPS if op != "mean" or dtype in FLOATS]


CASES = [pytest.param(dtype, op, id=f"{name}-{op}") for dtype, name in TYPES.items() for op in ops_of(dtype)]

# Reductions


@pytest.mark.parametrize(("dtype", "op"), CASES)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, NUM_PEERS), lengths, st.booleans(), seeds)
@settings(deadline=None, max_examples=10)
def test_every_type_and_reduction_has_the_bits_of_the_message_path(
    machine: Machine,
    dtype: DType,
    op: str,
    algorithm: str,
    world_size: int,
    length: int,
    is_lent: bool,
    seed: int,
) -> None:
    values = values_of(world_size, length, dtype, seed)
    results = reduce_all(machine, algorithm, values, op, is_lent=is_lent, seed=seed)
    assert {each.tobytes() for each in results} == {by_messages(algorithm, values, op)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *(each for each in FLOATS if each.itemsize == 2)], ids=str)
def test_what_is_longer_than_a_piece_is_cut_and_has_the_bits_of_the_message_path(
    machine: Machine, dtype: DType, is_lent: bool, algorithm: str
) -> None:
    """In rings and trees the order of additions depends on the position in the whole array."""
    for num_bytes in (PIECE_BYTES, PIECE_BYTES + dtype.itemsize, 5 * PIECE_BYTES // 2):
        values = values_of(2, num_bytes // dtype.itemsize, dtype, num_bytes)
        results = reduce_all(machine, algorithm, values, "mean", is_lent=is_lent)
        assert {each.tobytes() for each in results} == {by_messages(algorithm, values, "mean")}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("is_lent", some_of([False, True], 1))
def test_pieces_of_full_size_are_added_up_in_blocks_and_have_the_bits_of_the_message_path(
    full_size: Machine, is_lent: bool, algorithm: str
) -> None:
    values = values_of(2, (5 * PIECES.first_bytes // 2 - 64) // 4, np.dtype(np.float32))
    results = reduce_all(full_size, algorithm, values, "mean", is_lent=is_lent)
    assert {each.tobytes() for each in results} == {by_messages(algorithm, values, "mean")}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_peer_may_lend_what_others_have_elsewhere(machine: Machine, algorithm: str) -> None:
    group, values = machine.enter_view(0, 1, 2), values_of(3, 1001, np.dtype(np.float64))
    results = [np.empty_like(each) for each in values]
    inputs = [machine.place(0, values[0]), values[1], machine.place(2, values[2])]
    results[1], results[2] = machine.place(1, results[1]), machine.place(2, results[2], 16_384)
    runs = [run_of(s, algorithm, i, r, world_size=3) for s, i, r in zip(group, inputs, results, strict=True)]
    carry_out(group, runs, seed=3)
    assert {each.tobytes() for each in results} == {by_messages(algorithm, values, "sum")}


@pytest.mark.parametrize("algorithm", ["direct", "ring", "tree"])
@pytest.mark.parametrize("lenders", [(0, 1, 2), (0, 2), ()])
def test_where_all_lend_what_follows_the_first_piece_is_done_in_one_go(
    machine: Machine, algorithm: str, lenders: tuple[int, ...]
) -> None:
    group = machine.enter_view(0, 1, 2)
    rest = 3 * PIECE_BYTES // 2
    values = values_of(3, (PIECE_BYTES + rest) // 4, np.dtype(np.float32))
    results = [np.empty_like(each) for each in values]
    inputs = list(values)
    for peer in lenders:
        inputs[peer], results[peer] = machine.place(peer, values[peer]), machine.place(peer, values[peer], SPACE // 2)
    runs = [run_of(s, algorithm, i, r, world_size=3) for s, i, r in zip(group, inputs, results, strict=True)]
    carry_out(group, runs, seed=1)
    is_lent = len(lenders) == 3
    assert {each.tobytes() for each in results} == {by_messages(algorithm, values, "sum")}
    lent = [{arena.board.lent(turn).input_bytes for turn in (0, 1)} for arena in machine.host.arenas]
    assert lent == [{PIECE_BYTES, rest if is_lent else rest - PIECE_BYTES}] * 3


# Weights


@pytest.mark.parametrize("dtype", FLOATS, ids=FLOATS.values())
@pytest.mark.parametrize("is_lent", [False, True])
def test_an_input_is_multiplied_by_its_weight_as_the_message_path_does(
    machine: Machine, dtype: DType, is_lent: bool
) -> None:
    for length in (1, 501, PIECE_BYTES // dtype.itemsize + 3):
        group, values = machine.enter_view(0, 1, 2), values_of(3, length, dtype, length)
        inputs = [machine.place(peer, each) for peer, each in enumerate(values)] if is_lent else values
        results = [np.empty_like(each) for each in values]
        weights = (1 / 3, 0.5, 1 / 6)
        runs = [
            run_of(group[rank], "direct", inputs[rank], results[rank], world_size=3, weight=weights[rank])
            for rank in range(3)
        ]
        carry_out(group, runs)
        scaled = [np.empty_like(each) for each in values]
        for own, weight, out in zip(values, weights, scaled, strict=True):
            scale(own, weight, out)
        assert {each.tobytes() for each in results} == {by_messages("direct", scaled, "sum")}
        assert [each.tobytes() for each in inputs] == [each.tobytes() for each in values]


@pytest.mark.parametrize("dtype", FLOATS, ids=FLOATS.values())
def test_what_counts_for_nothing_is_zeros_whatever_it_is(machine: Machine, dtype: DType) -> None:
    nan = np.full(50, 0xFF, np.uint8).repeat(dtype.itemsize).view(dtype)
    group, values = machine.enter_view(0, 1), values_of(1, 50, dtype)[0]
    for number, lent in enumerate((nan, machine.place(0, nan))):
        results = [np.empty_like(values) for _ in group]
        runs = [
            run_of(group[0], "one-shot", lent, results[0], world_size=2, weight=0),
            run_of(group[1], "one-shot", values, results[1], world_size=2, weight=1.0),
        ]
        carry_out(group, runs, number)
        zeros = as_bits(values) & 0x7FFF == 0 if dtype.itemsize == 2 else values == 0
        assert not zeros.any()  # -0 + 0 is 0
        assert {each.tobytes() for each in results} == {values.tobytes()}


# Sequences of operations


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(ALGORITHMS)), st.sampled_from([0, 1, 77, 40_000]), st.booleans()),
        min_size=1,
        max_size=9,
    ),
    seeds,
)
@settings(deadline=None, max_examples=60)
def test_operations_run_one_after_the_other_however_early_a_rank_is(
    machine: Machine, calls: list[tuple[str, int, bool]], seed: int
) -> None:
    group, rng = machine.enter_view(0, 1, 2), Random(seed)
    values = [values_of(3, length, np.dtype(np.float32), seed + i) for i, (_, length, _) in enumerate(calls)]
    results = [[np.empty_like(each) for each in operation] for operation in values]
    runs: list[list[SharedRun]] = [[], [], []]

    def step_of(rank: int) -> Callable[[], bool]:
        def step() -> bool:
            if len(runs[rank]) < len(calls) and rng.random() < 0.5:
                index = len(runs[rank])
                algorithm, _, is_lent = calls[index]
                own = machine.place(rank, values[index][rank], 400_000 * index) if is_lent else values[index][rank]
                runs[rank].append(
                    run_of(
                        group[rank], algorithm, own, results[index][rank], world_size=3, fingerprint=bytes([index] * 16)
                    )
                )
            group[rank].advance()
            return len(runs[rank]) == len(calls) and all(run.done for run in runs[rank])

        return step

    finish(rng, *map(step_of, range(3)))
    for index, (algorithm, _, _) in enumerate(calls):
        assert {each.tobytes() for each in results[index]} == {by_messages(algorithm, values[index], "sum")}
        assert len({run[index].digest() for run in runs}) == 1
    assert [sharing.advance() for sharing in group] == [RunState.IDLE] * 3


def test_others_are_heard_between_two_pieces(machine: Machine) -> None:
    group = machine.enter_view(0, 1)
    values = values_of(2, PIECE_BYTES // 2 + 1, np.dtype(np.float32))
    runs = [run_of(s, "one-shot", v, np.empty_like(v), world_size=2) for s, v in zip(group, values, strict=True)]
    assert group[0].advance() is RunState.WAITING
    assert [group[1].advance() for _ in range(2)] == [RunState.RUNNABLE, RunState.WAITING]
    assert [group[0].advance() for _ in range(3)] == [RunState.RUNNABLE, RunState.RUNNABLE, RunState.WAITING]
    assert [group[1].advance() for _ in range(3)] == [RunState.RUNNABLE, RunState.RUNNABLE, RunState.IDLE]
    assert group[0].advance() is RunState.RUNNABLE
    assert all(run.done for run in runs)


def test_who_is_waited_for_is_named_with_the_piece(machine: Machine) -> None:
    group = machine.enter_view(0, 1, 2)
    values = values_of(3, PIECE_BYTES // 4 + 1, np.dtype(np.float32))
    for each, own in zip(group, values, strict=True):
        run_of(each, "one-shot", own, np.empty_like(own), world_size=3)
    assert group[0].missing(0) == ()
    group[0].advance()
    assert group[0].missing(0) == ((1, 0, 0, 2), (2, 0, 0, 2))
    group[1].advance()
    assert group[0].missing(0) == ((2, 0, 0, 2),)
    waiting = group[0].progress
    assert not waiting.is_over() and waiting.prepare_to_wait()
    for _ in range(2):
        group[2].advance()
    assert waiting.is_over() and not waiting.prepare_to_wait()
    assert (2, 0) in machine.rung
    waiting.finish_wait()
    group[0].advance()
    group[0].advance()
    assert group[0].missing(0) == ((1, 0, 1, 2),)


@pytest.mark.parametrize("checked", [0, 1, 6, 7])
def test_every_rank_checks_one_chunk_of_each_piece_and_another_one_in_each_step(machine: Machine, checked: int) -> None:
    """Rank 1 has digested chunk 1; then its memory changes, and rank 0 copies it."""
    group, values = machine.enter_view(0, 1), values_of(2, 40, np.dtype(np.float32))
    results = [np.empty_like(each) for each in values]
    runs = [
        run_of(s, "direct", v, r, world_size=2, checked=checked) for s, v, r in zip(group, values, results, strict=True)
    ]
    for sharing in group:
        assert sharing.advance() is RunState.WAITING
    arena = machine.host.arenas[1]
    lent = Region(arena.board.lent(0).result_offset, values[1].nbytes)
    arena.array(lent, np.float32)[-1] += 1
    for sharing in group:
        assert sharing.advance() is RunState.RUNNABLE
    assert results[0].tobytes() != results[1].tobytes()
    assert (runs[0].digest() != runs[1].digest()) is (checked % 2 == 1)


# Finish


def digests_of(rank: int) -> bytes:
    return bytes([rank]) * DIGESTS_BYTES


def test_a_step_that_all_have_finished_is_told_once(machine: Machine) -> None:
    group = machine.enter_view(0, 1, 2)
    assert [sharing.all_finished() for sharing in group] == [None, None, None]
    for rank in (2, 0):
        group[rank].announce(7, digests_of(rank))
        assert group[rank].advance() is RunState.WAITING
        assert group[rank].all_finished() is None
    group[1].announce(7, digests_of(1))
    assert group[1].advance() is RunState.IDLE
    assert group[0].all_finished() == (digests_of(0), [(1, digests_of(1)), (2, digests_of(2))])
    assert group[0].all_finished() is None
    assert group[2].all_finished() == (digests_of(2), [(0, digests_of(0)), (1, digests_of(1))])


def test_who_is_in_another_view_by_then_does_not_show_it(machine: Machine) -> None:
    group = machine.enter_view(0, 1, 2)
    for rank, sharing in enumerate(group):
        sharing.announce(0, digests_of(rank))
    machine.host.arenas[2].board.install(0)
    assert group[0].all_finished() == (digests_of(0), [(1, digests_of(1))])


# Ends of a view


def broken(sharing: SharedRunner) -> bool:
    """Whether the runner is broken and idle."""
    return sharing.is_broken and [sharing.advance() for _ in range(3)] == [RunState.IDLE] * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(st.integers(0, 12), seeds)
@settings(deadline=None, max_examples=20)
def test_a_rank_that_leaves_in_the_middle_leaves_no_wrong_result_and_the_next_view_redoes_it(
    machine: Machine, algorithm: str, num_turns: int, seed: int
) -> None:
    rng, peers = Random(seed), (0, 1, 2)
    group = machine.enter_view(*peers)
    values = values_of(3, PIECE_BYTES // 4 + 333, np.dtype(np.float32), seed)
    inputs = [values[0], machine.place(1, values[1]), values[2]]
    results = [np.empty_like(each) for each in values]
    runs = [run_of(s, algorithm, v, r, world_size=3) for s, v, r in zip(group, inputs, results, strict=True)]
    for _ in range(num_turns):
        group[rng.randrange(3)].advance()
    machine.host.arenas[2].board.install(0)
    inputs_slots, result_slot = machine.slots[2]  # its memory is no longer lent
    for slot in (inputs_slots.take(PIECE_BYTES), inputs_slots.take(PIECE_BYTES), result_slot):
        machine.host.arenas[2].array(slot, np.uint8).fill(255)
    expected = by_messages(algorithm, values, "sum")
    for _ in range(30):
        rank = rng.randrange(2)
        try:
            group[rank].advance()
        except Interrupted:
            assert broken(group[rank])
        if runs[rank].done:
            assert results[rank].tobytes() == expected
    for peer in (0, 1):
        assert inputs[peer].tobytes() == values[peer].tobytes()
    group = machine.enter_view(1, 0)
    runs = [run_of(group[i], algorithm, inputs[peer], results[peer], world_size=2) for i, peer in enumerate((1, 0))]
    carry_out(group, runs, seed)
    expected = by_messages(algorithm, [values[1], values[0]], "sum")
    assert {results[peer].tobytes() for peer in (0, 1)} == {expected}


def test_after_another_call_nothing_runs_any_more(machine: Machine) -> None:
    group, values = machine.enter_view(0, 1), values_of(2, 10, np.dtype(np.float32))
    for rank in (0, 1):
        for _ in range(2):
            run_of(
                group[rank],
                "one-shot",
                values[rank],
                np.empty_like(values[rank]),
                world_size=2,
                fingerprint=bytes([rank]) * 16,
            )
    assert group[0].advance() is RunState.WAITING
    for rank in (1, 0):
        with pytest.raises(Differs) as caught:
            group[rank].advance()
        assert caught.value.rank == 1 - rank
        assert broken(group[rank])


def test_after_a_rank_lends_what_it_does_not_have_nothing_runs_any_more(machine: Machine) -> None:
    group, values = machine.enter_view(0, 1), values_of(2, 10, np.dtype(np.float32))
    run_of(group[0], "one-shot", values[0], np.empty_like(values[0]), world_size=2)
    group[1].announce(0, digests_of(1))  # publishes
    machine.host.arenas[1].board.lend(0, Reference(SAME, 1 << 40, 40))
    with pytest.raises(RemoteProtocolError, match="rank 1 lends what it does not have"):
        group[0].advance()
    assert broken(group[0])


def test_an_operation_that_was_cut_off_keeps_no_memory_of_others(machine: Machine) -> None:
    """Found by churn: after a kill the dead member's arena stayed mapped until garbage collection."""
    sharing, _ = machine.enter_view(0, 1)
    own, gathered = np.zeros(2), np.zeros(4)
    program_of = gather_of(sharing)
    assert program_of is not None
    run = SharedRun(program_of, SAME, own, gathered, Reduction())
    sharing.enqueue(run)
    assert sharing.advance() is RunState.WAITING
    left = weakref.ref(sharing)
    gc.disable()
    try:
        del sharing, program_of, run
        assert left() is None
    finally:
        gc.enable()

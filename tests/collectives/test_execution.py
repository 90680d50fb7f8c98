import random
from collections.abc import Callable
from functools import reduce
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from collectives import (
    ALGORITHMS,
    BFLOAT16,
    Kind,
    MissingSegment,
    Outgoing,
    Schedule,
    Transfer,
    all_reduce_schedule,
    even_chunks,
    one_shot_all_gather,
    split_by_weight,
)
from tests.collectives.chain import chain_all_reduce
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution

Array = NDArray[Any]
Build = Callable[[int, int], Schedule]

seeds = st.integers(0, 2**32 - 1)
world_sizes = st.integers(1, 9)


def digest(data: memoryview) -> bytes:
    return sha256(data).digest()


def random_inputs(seed: int, world_size: int, length: int, dtype: type) -> list[Array]:
    """Of very different magnitudes, so that the order of additions shows."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-3, 4, (world_size, length))
    return list((rng.standard_normal((world_size, length)) * scales * 1000).astype(dtype))


def all_reduce(build: Build, inputs: list[Array], segment_bytes: int, seed: int) -> tuple[list[Array], set[bytes]]:
    """The result of each rank, and the different digests."""
    results = [np.full_like(each, 77) for each in inputs]
    executions = [
        Execution(build(rank, len(inputs)), rank, own, result, segment_bytes=segment_bytes, digest=digest)
        for rank, (own, result) in enumerate(zip(inputs, results, strict=True))
    ]
    deliver(executions, random.Random(seed))
    assert all(execution.done and not execution.missing() for execution in executions)
    return results, {execution.digest() for execution in executions}


@pytest.mark.parametrize("build", [*ALGORITHMS.values(), chain_all_reduce])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@given(world_size=world_sizes, length=st.integers(0, 2000), num_segments=st.integers(1, 12), seed=seeds)
@settings(deadline=None, max_examples=25)
def test_every_rank_ends_with_the_sum_and_the_same_bits(
    build: Build, dtype: type, world_size: int, length: int, num_segments: int, seed: int
) -> None:
    inputs = random_inputs(seed, world_size, length, dtype)
    before = [each.copy() for each in inputs]
    segment_bytes = (length // num_segments + 1) * inputs[0].itemsize
    results, digests = all_reduce(build, inputs, segment_bytes, seed)
    assert [each.tobytes() for each in inputs] == [each.tobytes() for each in before]
    assert len({each.tobytes() for each in results}) == len(digests) == 1
    exact = sum(each.astype(np.float64) for each in inputs)
    magnitude = sum(np.abs(each.astype(np.float64)) for each in inputs)
    tolerance = 0.0 if dtype is np.int64 else world_size * np.finfo(np.float32).eps
    assert np.all(np.abs(results[0] - exact) <= tolerance * magnitude)


@pytest.mark.parametrize("build", [ALGORITHMS["one-shot"], ALGORITHMS["direct"], chain_all_reduce])
@given(world_size=world_sizes, length=st.integers(0, 2000), seed=seeds)
@settings(deadline=None, max_examples=25)
def test_additions_in_rank_order_leave_the_bits_of_a_plain_loop(
    build: Build, world_size: int, length: int, seed: int
) -> None:
    inputs = random_inputs(seed, world_size, length, np.float32)
    results, _ = all_reduce(build, inputs, segment_bytes=1024, seed=seed)
    assert results[0].tobytes() == reduce(np.add, inputs).tobytes()


@given(world_sizes, st.integers(0, 500), seeds)
@settings(deadline=None, max_examples=50)
def test_a_gather_puts_the_input_of_each_rank_into_its_chunk(world_size: int, length: int, seed: int) -> None:
    inputs = random_inputs(seed, world_size, length, np.float32)
    results = [np.empty(world_size * length, np.float32) for _ in inputs]
    executions = [
        Execution(one_shot_all_gather(rank, world_size), rank, own, results[rank], segment_bytes=400, own_chunk=rank)
        for rank, own in enumerate(inputs)
    ]
    deliver(executions, random.Random(seed))
    assert all(execution.done for execution in executions)
    assert {each.tobytes() for each in results} == {np.concatenate(inputs).tobytes()}


def test_the_digest_is_that_of_the_chunks_in_order() -> None:
    inputs = random_inputs(seed=1, world_size=3, length=10, dtype=np.int64)
    (result, *_), digests = all_reduce(ALGORITHMS["ring"], inputs, segment_bytes=16, seed=1)
    chunks = [result[bounds] for bounds in split_by_weight(10, even_chunks(3))]
    assert digests == {b"".join(sha256(chunk.tobytes()).digest() for chunk in chunks)}


def one_shot_of_3(rank: int, own: list[float], *, segment_bytes: int = 8) -> tuple[Execution, Array]:
    result = np.zeros(len(own), np.float32)
    schedule = all_reduce_schedule("one-shot", rank, 3)
    return Execution(schedule, rank, np.array(own, np.float32), result, segment_bytes=segment_bytes), result


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def as_data(outgoing: list[Outgoing]) -> list[tuple[int, int, int, bytes]]:
    return [(each.peer, each.transfer, each.segment, each.payload.tobytes()) for each in outgoing]


def test_without_a_digest_function_the_digest_is_empty() -> None:
    inputs = random_inputs(seed=1, world_size=1, length=3, dtype=np.int64)
    execution = Execution(all_reduce_schedule("ring", 0, 1), 0, inputs[0], np.zeros(3, np.int64), segment_bytes=8)
    assert execution.done
    assert execution.digest() == b""


def test_there_is_no_digest_before_the_end() -> None:
    execution, _ = one_shot_of_3(0, [1.0])
    with pytest.raises(ValueError, match="not complete yet"):
        execution.digest()


def test_what_is_sent_is_lent_not_copied() -> None:
    own, result = np.ones(4, np.float32), np.zeros(4, np.float32)
    execution = Execution(all_reduce_schedule("ring", 0, 2), 0, own, result, segment_bytes=64)
    (first,) = execution.start()
    (second,) = execution.receive(1, 0, 0, floats(5, 6))
    assert np.shares_memory(first.payload, own)
    assert np.shares_memory(second.payload, result)
    assert second.payload.tolist() == [6, 7]


def test_segments_wait_for_their_turn_in_rank_order() -> None:
    execution, result = one_shot_of_3(2, [1.0])
    huge = floats(2.0**30)
    assert execution.receive(1, 0, 0, floats(-(2.0**30))) == []
    assert result.tolist() == [0]
    assert execution.receive(0, 0, 0, huge) == []
    assert result.tolist() == [1]
    assert execution.done


def test_missing_names_what_has_not_arrived() -> None:
    execution, _ = one_shot_of_3(0, [1.0, 2.0, 3.0])
    execution.receive(2, 0, 0, floats(1, 2))
    execution.receive(1, 0, 1, floats(3))
    assert execution.missing() == (MissingSegment(1, 0, 0, 2), MissingSegment(2, 0, 1, 2))


@pytest.mark.parametrize(
    ("source", "transfer", "segment", "payload", "complaint"),
    [
        (0, 0, 0, floats(1, 2), "rank 0 has no transfer 0"),
        (3, 0, 0, floats(1, 2), "rank 3 has no transfer 0"),
        (2, 1, 0, floats(1, 2), "rank 2 has no transfer 1"),
        (2, 0, 2, floats(1, 2), "has 2 segments, got number 2"),
        (2, 0, -1, floats(1, 2), "has 2 segments, got number -1"),
        (2, 0, 0, floats(1), "has 2 elements, got 1"),
        (2, 0, 1, floats(1, 2), "has 1 elements, got 2"),
        (2, 0, 0, b"12345", "buffer size must be a multiple"),
        (2, 0, 0, b"", "has 2 elements, got 0"),
        (1, 0, 0, floats(1, 2), "segment 0 of transfer 0 from rank 1 came twice"),
        (2, 0, 1, floats(3), "segment 1 of transfer 0 from rank 2 came twice"),
    ],
)
def test_a_segment_that_nobody_awaits_changes_nothing(
    source: int, transfer: int, segment: int, payload: bytes, complaint: str
) -> None:
    execution, result = one_shot_of_3(0, [1.0, 2.0, 3.0])
    execution.receive(1, 0, 0, floats(10, 20))
    execution.receive(2, 0, 1, floats(300))
    before = result.tolist(), execution.missing()
    with pytest.raises(ValueError, match=complaint):
        execution.receive(source, transfer, segment, payload)
    assert (result.tolist(), execution.missing()) == before
    execution.receive(2, 0, 0, floats(100, 200))
    execution.receive(1, 0, 1, floats(30))
    assert result.tolist() == [111, 222, 333]


def test_a_send_after_another_chunk_waits_for_all_of_it_and_one_after_the_same_for_a_segment() -> None:
    schedule = Schedule(
        even_chunks(2),
        (
            Transfer(Kind.RECV, peer=1, chunk=0),
            Transfer(Kind.SEND, peer=1, chunk=0, after=(0,)),
            Transfer(Kind.SEND, peer=1, chunk=1, after=(0,)),
            Transfer(Kind.SEND, peer=2, chunk=1, after=(2,)),
        ),
    )
    own, result = np.array([1, 2, 3, 4], np.int64), np.zeros(4, np.int64)
    execution = Execution(schedule, 0, own, result, segment_bytes=8)
    assert execution.start() == []
    five, six, three, four = (np.int64(value).tobytes() for value in (5, 6, 3, 4))
    assert as_data(execution.receive(1, 0, 1, six)) == [(1, 0, 1, six)]
    assert as_data(execution.receive(1, 0, 0, five)) == [
        (1, 0, 0, five),
        (1, 1, 0, three),
        (1, 1, 1, four),
        (2, 0, 0, three),
        (2, 0, 1, four),
    ]
    assert execution.done
    assert result.tolist() == [5, 6, 3, 4]


def test_nobody_waits_for_an_empty_chunk() -> None:
    transfers = (Transfer(Kind.RECV, peer=1, chunk=0), Transfer(Kind.SEND, peer=1, chunk=1, after=(0,)))
    own, result = np.array([8], np.int64), np.zeros(1, np.int64)
    execution = Execution(Schedule((0, 1), transfers), 0, own, result, segment_bytes=8)
    assert as_data(execution.start()) == [(1, 0, 0, own.tobytes())]
    assert execution.done


def test_infinities_are_added_without_a_warning() -> None:
    inputs = [np.array([value, 3e38], np.float32) for value in (np.inf, -np.inf)]
    (result, _), _ = all_reduce(ALGORITHMS["direct"], inputs, segment_bytes=8, seed=0)
    assert np.isnan(result[0])
    assert np.isposinf(result[1])


@pytest.mark.parametrize(
    ("own", "result", "complaint"),
    [
        (np.zeros((2, 2), np.float32), np.zeros(4, np.float32), "input must be one-dimensional"),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32), "input must be one-dimensional, contiguous"),
        (np.zeros(4, np.float32), np.zeros(4, np.complex64), "result must be .* complex64"),
        (np.zeros(4, BFLOAT16), np.zeros(4, np.float16), "result must have the type of input"),
        (np.zeros(4, np.float32), np.zeros(4, np.int64), "result must have the type of input"),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), "input must have 4 elements, got 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(own: Array, result: Array, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Execution(all_reduce_schedule("ring", 0, 2), 0, own, result, segment_bytes=8)


def test_the_result_needs_memory_of_its_own() -> None:
    own = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="memory of its own"):
        Execution(all_reduce_schedule("ring", 0, 2), 0, own, own, segment_bytes=8)


@pytest.mark.parametrize("segment_bytes", [0, -4, 6])
def test_segments_hold_whole_elements(segment_bytes: int) -> None:
    own, result = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="segment_bytes must be a multiple of 4"):
        Execution(all_reduce_schedule("ring", 0, 2), 0, own, result, segment_bytes=segment_bytes)


def test_a_gather_takes_the_input_of_one_chunk() -> None:
    own, result = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="input must have 2 elements, got 3"):
        Execution(one_shot_all_gather(1, 2), 1, own, result, segment_bytes=8, own_chunk=1)

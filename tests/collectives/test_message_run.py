"""Runs by messages against `Execution`, the slow way to do the same: segment by segment, bit by bit."""

import random
import tracemalloc
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    ALGORITHMS,
    OPS,
    Buffer,
    Kind,
    MessageRun,
    MissingSegment,
    Outgoing,
    Reduction,
    Schedule,
    Transfer,
    one_shot_all_gather,
    scale,
)
from collectives.elements import FLOATS, TYPES, Array
from tests.collectives.chain import chain_all_reduce
from tests.collectives.delivery import deliver
from tests.collectives.doubling import doubling_all_reduce
from tests.collectives.execution import Execution
from tests.collectives.inputs import ops_of, random_inputs

OURS = {**ALGORITHMS, "doubling": doubling_all_reduce}
BUILDS = {**OURS, "chain": chain_all_reduce, "gather": one_shot_all_gather}


def digest(data: memoryview) -> bytes:
    return sha256(data).digest()


class Both:
    """A run and an execution of the same operation, which get the same and have to do the same."""

    def __init__(self, algorithm: str, rank: int, world_size: int, own: Array, segment_bytes: int, op: str) -> None:
        gathers = algorithm == "gather"
        self.results = [np.full(own.size * (world_size if gathers else 1), 1).astype(own.dtype) for _ in range(2)]
        given: dict[str, Any] = {
            "segment_bytes": segment_bytes,
            "reduction": Reduction(op, world_size),
            "own_chunk": rank if gathers else None,
            "digest": digest,
        }
        schedule = BUILDS[algorithm](rank, world_size)
        self.run = MessageRun(schedule, rank, own, self.results[0], **given)
        self.execution = Execution(schedule, rank, own, self.results[1], **given)

    def start(self) -> Sequence[Outgoing]:
        return self._equal(self.run.start(), self.execution.start())

    def receive(self, source: int, transfer: int, segment: int, payload: Buffer) -> Sequence[Outgoing]:
        sent = [each.receive(source, transfer, segment, payload) for each in (self.run, self.execution)]
        with pytest.raises(ValueError, match="came twice"):
            self.run.receive(source, transfer, segment, payload)
        return self._equal(*sent)

    def _equal(self, ours: Sequence[Outgoing], theirs: Sequence[Outgoing]) -> Sequence[Outgoing]:
        assert [_content(each) for each in ours] == [_content(each) for each in theirs]
        assert (self.run.done, self.run.missing()) == (self.execution.done, self.execution.missing())
        return ours


def _content(sent: Outgoing) -> tuple[int, int, int, bytes]:
    return sent.peer, sent.transfer, sent.segment, sent.payload.tobytes()


@pytest.mark.parametrize("algorithm", BUILDS)
@given(
    world_size=st.integers(1, 6),
    length=st.integers(0, 300),
    segment_length=st.integers(1, 200),
    dtype=st.sampled_from(list(TYPES)),
    op=st.sampled_from(OPS),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=12)
def test_a_run_does_what_an_execution_does_whatever_arrives_first(
    algorithm: str, world_size: int, length: int, segment_length: int, dtype: Any, op: str, seed: int
) -> None:
    op = op if op in ops_of(dtype) else "sum"
    inputs = random_inputs(seed, world_size, length, dtype)
    ranks = [
        Both(algorithm, rank, world_size, own, segment_length * dtype.itemsize, op) for rank, own in enumerate(inputs)
    ]
    deliver(ranks, random.Random(seed))
    for each in ranks:
        assert each.run.done and each.results[0].tobytes() == each.results[1].tobytes()
        assert each.run.digest() == each.execution.digest()


@pytest.mark.parametrize("algorithm", OURS)
@given(
    world_size=st.integers(1, 6),
    length=st.integers(0, 300),
    segment_length=st.integers(1, 200),
    dtype=st.sampled_from(list(FLOATS)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=20)
def test_a_weighted_run_does_what_an_execution_does_with_inputs_multiplied_before(
    algorithm: str, world_size: int, length: int, segment_length: int, dtype: Any, seed: int
) -> None:
    inputs = random_inputs(seed, world_size, length, dtype)
    weights = np.random.default_rng(seed).choice([0.0, 0.25, 1 / 3, 0.9], world_size).tolist()
    multiplied = [np.zeros_like(each) for each in inputs]
    for own, weight, out in zip(inputs, weights, multiplied, strict=True):
        if weight:
            scale(own, weight, out)
    given: dict[str, Any] = {"segment_bytes": segment_length * dtype.itemsize, "digest": digest}
    build = OURS[algorithm]
    runs = [
        MessageRun(build(rank, world_size), rank, own, np.empty_like(own), weight=weights[rank], **given)
        for rank, own in enumerate(inputs)
    ]
    executions = [
        Execution(build(rank, world_size), rank, own, np.empty_like(own), **given)
        for rank, own in enumerate(multiplied)
    ]
    before = [own.tobytes() for own in inputs]
    deliver(runs, random.Random(seed))
    deliver(executions, random.Random(seed + 1))
    assert [each.digest() for each in runs] == [each.digest() for each in executions]
    assert before == [own.tobytes() for own in inputs]


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_weights_need_no_third_array(algorithm: str, world_size: int) -> None:
    """Beside the segments that are added up, which is the same for any length."""
    own, result = np.ones(1 << 20, np.float32), np.empty(1 << 20, np.float32)
    tracemalloc.start()
    run = MessageRun(
        ALGORITHMS[algorithm](3 % world_size, world_size),
        3 % world_size,
        own,
        result,
        segment_bytes=1 << 16,
        weight=0.5,
    )
    sent = run.start()
    for awaited in run.missing():
        run.receive(awaited.peer, awaited.transfer, awaited.segment, bytes(1 << 16))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.done and np.shares_memory(sent[0].payload, result)
    assert peak_bytes < own.nbytes / 2


def lone_run() -> MessageRun:
    """Rank 0 of three, one-shot: three elements in two segments."""
    own, result = np.array([1, 2, 3], np.float32), np.zeros(3, np.float32)
    return MessageRun(ALGORITHMS["one-shot"](0, 3), 0, own, result, segment_bytes=8)


@pytest.mark.parametrize(
    ("source", "transfer", "segment", "num_bytes", "complaint"),
    [
        (0, 0, 0, 8, "rank 0 has no transfer 0"),
        (2, 1, 0, 8, "rank 2 has no transfer 1"),
        (2, 0, 2, 8, "has 2 segments, got number 2"),
        (2, 0, -1, 8, "has 2 segments, got number -1"),
        (2, 0, 0, 4, "has 2 elements, got 1"),
        (2, 0, 1, 8, "has 1 elements, got 2"),
        (2, 0, 0, 5, "buffer size must be a multiple"),
        (2, 0, 0, 0, "has 2 elements, got 0"),
    ],
)
def test_a_segment_that_nobody_awaits_changes_nothing(
    source: int, transfer: int, segment: int, num_bytes: int, complaint: str
) -> None:
    run = lone_run()
    with pytest.raises(ValueError, match=complaint):
        run.receive(source, transfer, segment, bytes(num_bytes))
    assert run.missing() == tuple(MissingSegment(peer, 0, segment, 2) for peer in (1, 2) for segment in (0, 1))
    with pytest.raises(ValueError, match="not complete yet"):
        run.digest()


def test_what_is_sent_is_lent_not_copied() -> None:
    own, result = np.ones(4, np.float32), np.zeros(4, np.float32)
    run = MessageRun(ALGORITHMS["ring"](0, 2), 0, own, result, segment_bytes=64)
    (first,) = run.start()
    (second,) = run.receive(1, 0, 0, np.array([5, 6], np.float32))
    assert np.shares_memory(first.payload, own)
    assert np.shares_memory(second.payload, result)


@pytest.mark.parametrize("after", [(0, 1), (2,), (0,)], ids=["of several", "of a send", "of another chunk"])
def test_a_schedule_with_other_waits_is_refused(after: tuple[int, ...]) -> None:
    transfers = (
        Transfer(Kind.REDUCE, 1, 0),
        Transfer(Kind.REDUCE, 2, 0),
        Transfer(Kind.SEND, 1, 0, (1,)),
        Transfer(Kind.SEND, 2, 1 if after == (0,) else 0, after),
    )
    with pytest.raises(ValueError, match="waits for more than one transfer"):
        MessageRun(Schedule((1, 1), transfers), 0, *np.zeros((2, 4)), segment_bytes=8)


def test_what_is_copied_is_not_what_the_chunk_becomes_and_what_is_not_copied_is() -> None:
    """Rank 0 of four: its partial sum goes to rank 2, whose own comes first, before the transport has sent anything."""

    def sent(*, is_copied: bool) -> tuple[Array, bytes]:
        schedule = doubling_all_reduce(0, 4, is_copied=is_copied)
        run = MessageRun(schedule, 0, np.full(4, 1.0), np.empty(4), segment_bytes=64)
        run.start()
        assert run.receive(2, 0, 0, np.full(4, 30.0).data) == ()
        (outgoing,) = run.receive(1, 0, 0, np.full(4, 2.0).data)
        assert run.done and outgoing.peer == 2
        return outgoing.payload, run.digest()

    assert sent(is_copied=True)[0].tolist() == [3.0] * 4
    assert sent(is_copied=False)[0].tolist() == [33.0] * 4

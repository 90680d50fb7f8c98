"""The open step of a peer without a seat, which takes over the members' committed steps."""

import numpy as np
import pytest

from p2p.errors import OperationMismatch
from p2p.net.parcels import StepRecord
from p2p.step.effects import Leave, Tell
from p2p.step.given_up import OBSERVES
from p2p.step.notices import Withdrawn
from p2p.step.open_step import OpenStep
from p2p.step.receipts import Contribution
from p2p.step.transitions import Stage
from tests.gossip.members import A, B, C, view_of
from tests.p2p.step.group import SEGMENT_BYTES, counts
from tests.p2p.step.lone import (
    STATE,
    fed,
    one,
)


def test_a_fed_step_without_operations_needs_no_call() -> None:
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    commit = step.adopt(fed(view_of(2, B)), [])
    assert commit is not None and commit.operations == [] and step.done == 0


def test_a_fed_step_waits_for_the_calls_of_that_step() -> None:
    step, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    assert step.adopt(fed(view_of(2, B), operation, step=1), [bytes(8)]) is None


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([bytes(8)], r"step 0 is all_reduce sum of float64 \[1\] by one-shot here, and differs at the members"),
        ([bytes(9)], r"a result of all_reduce sum of float64 \[1\] by one-shot has 9 bytes"),
    ],
)
def test_a_fed_step_of_other_operations_ends_this_peer_alone(results: list[bytes], reason: str) -> None:
    step, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    called = one(early=True) if len(results[0]) == 8 else operation
    with pytest.raises(OperationMismatch, match=reason) as caught:
        step.adopt(fed(view_of(2, B), called), results)
    assert caught.value.is_alone


def test_a_fed_step_with_numbers_that_nobody_counts_ends_this_peer_alone() -> None:
    step, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    record = fed(view_of(2, B), operation)
    wrong = StepRecord(b"", b"", record.finish, record.view, ((2**70, 1, 1),), record.algorithms, record.fingerprints)
    with pytest.raises(OperationMismatch):
        step.adopt(wrong, [bytes(8)])


def test_fed_counts_of_too_few_members_end_this_peer_alone() -> None:
    step, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), counts(3)
    step.submit(0, 0, operation)
    step.close(0, STATE)
    with pytest.raises(OperationMismatch, match="a result of a training step has 48 bytes, not 96"):
        step.adopt(fed(view_of(2, B, C), operation), [bytes(48)])


def test_a_state_that_is_loaded_in_the_middle_of_a_step_makes_it_the_next_one_which_counts_nothing() -> None:
    step, gathered, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), counts(3, first=9), one()
    step.submit(0, 0, gathered)
    step.submit(0, 0, operation)
    step.close(0, STATE)
    step.loaded(8, b"others")
    assert step.submission is not None
    assert (step.done, step.submission.step, step.submission.state_digest) == (8, 9, b"others")
    assert gathered.input.tolist() == [-1, 0, 0, 0, 0, 0]
    record = fed(view_of(2, B), gathered, operation, step=9)
    assert step.adopt(record, [bytes(48), np.array([7.0]).tobytes()]) is not None
    assert step.done == 9


def test_a_state_that_is_loaded_between_two_steps_says_which_is_next() -> None:
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    step.loaded(8, None)
    assert (step.done, step.stage) == (8, Stage.EMPTY)


def test_an_observer_commits_a_closed_step_with_the_results_of_the_members() -> None:
    step, operation = OpenStep(A, segment_bytes=SEGMENT_BYTES), one()
    record = fed(view_of(2, B, C), operation)
    assert step.adopt(record, [np.array([7.0]).tobytes()]) is None
    step.submit(0, 0, operation)
    assert step.adopt(record, [np.array([7.0]).tobytes()]) is None
    assert step.close(0, STATE) == []
    commit = step.adopt(record, [np.array([7.0]).tobytes()])
    assert commit is not None and commit.operations == [operation] and operation.result.tolist() == [7.0]
    assert commit.receipt.contributions == (
        Contribution("b", 1, ((5, 6),), 6, 0),
        Contribution("c", 1, ((7, 8),), 8, 1),
    )
    assert (commit.receipt.algorithms, commit.view) == (("ring",), record.view)
    assert (step.stage, step.submission, step.done) == (Stage.EMPTY, None, 0)


def test_an_observer_cannot_go_on_without_a_step_of_the_members() -> None:
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    step.submit(0, 0, one())
    assert step.withdraw(0, 0) == [Tell(Withdrawn(0))]
    told, leave = step.void(0, "its script goes on")
    assert isinstance(told, Tell) and str(told.notice) == OBSERVES and leave == Leave()

"""The open step of one peer: the effects of each command, frame and decision."""

from collections.abc import Sequence

import pytest

from gossip.given_up import Cause, GivenUp
from gossip.progress import Abort
from p2p.errors import OperationInterrupted, OperationMismatch, ShoalError
from p2p.step.effects import DeliverEarly, Disagree, Finish, GiveUp, StepEffect, Tell
from p2p.step.notices import Admitted, Commit, Uncommitted, Withdrawn
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.transitions import Stage
from tests.gossip.members import A, B, view_of
from tests.p2p.step.group import SEGMENT_BYTES
from tests.p2p.step.lone import (
    NEXT,
    PAIR,
    STATE,
    activate,
    alone,
    committed_in,
    enter,
    finish_of,
    from_b,
    in_pair,
    one,
    receipt_of,
    sent,
    taken_back,
)

INTERRUPTED = GivenUp(0, 2, Cause.IN_USE, "members have come")


def raised(step: OpenStep, effects: Sequence[StepEffect], kind: type[ShoalError]) -> str:
    """Check that the only effect is to tell of an error, and that no step is open afterwards."""
    (effect,) = effects
    assert isinstance(effect, Tell) and isinstance(effect.notice, kind)
    assert (step.stage, step.submission) == (Stage.EMPTY, None)
    return str(effect.notice)


# A step that commits: one test for each transition


def test_the_first_operation_opens_the_step_and_is_sent_at_once() -> None:
    step, operation = in_pair(), one()
    assert step.submit(0, 0, operation) == [sent(operation)]
    assert step.stage is Stage.OPEN
    assert step.submission is not None and step.submission.operations == [operation]


def test_further_operations_are_sent_in_their_order() -> None:
    step, operations = in_pair(), [one(value) for value in (1.0, 2.0)]
    step.submit(0, 0, operations[0])
    assert step.submit(0, 0, operations[1]) == [sent(operations[1], 1)]
    assert step.stage is Stage.OPEN


def test_a_step_that_is_closed_before_it_is_complete_waits() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    assert step.close(0, STATE) == []
    assert step.stage is Stage.CLOSED


def test_a_closed_step_is_finished_with_its_last_segment() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    assert step.receive(from_b(operation)) == [finish_of(PAIR, 2.0)]
    assert step.stage is Stage.FINISHED


def test_a_complete_step_is_finished_when_it_is_closed() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    assert step.receive(from_b(operation)) == []
    assert step.close(0, STATE) == [finish_of(PAIR, 2.0)]


def test_a_finished_step_runs_again_if_the_barrier_has_dropped_it() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.receive(from_b(operation))
    step.close(0, STATE)
    assert enter(step, NEXT) == [sent(operation, view=NEXT)]
    assert step.stage is Stage.CLOSED
    assert step.receive(from_b(operation)) == [finish_of(NEXT, 2.0)]


def test_a_finished_step_that_is_committed_makes_room_for_the_next() -> None:
    step, operations = in_pair(), [one(value) for value in (1.0, 2.0)]
    for index, operation in enumerate(operations):
        step.submit(0, 0, operation)
        step.receive(from_b(operation, index))
    (finish,) = step.close(0, STATE)
    assert finish == finish_of(PAIR, 2.0, 4.0)
    fingerprints = tuple(operation.fingerprint(SEGMENT_BYTES, i, 0) for i, operation in enumerate(operations))
    receipt = receipt_of(PAIR, finish, ["one-shot", "one-shot"])
    assert step.committed(committed_in(PAIR, finish), PAIR) == Commit(receipt, PAIR, operations, fingerprints)
    assert (step.stage, step.submission, step.done) == (Stage.EMPTY, None, 0)


def test_step_0_is_committed_with_nothing_in_it() -> None:
    step = in_pair()
    finish = Finish(0, b"", b"", 0, PAIR.number)
    assert step.committed(committed_in(PAIR, finish), PAIR) == Commit(receipt_of(PAIR, finish, []), PAIR, [], ())
    assert (step.stage, step.done) == (Stage.EMPTY, 0)


# A step that does not commit


def test_what_has_not_run_is_taken_back_without_a_word_to_the_others() -> None:
    step = in_pair()
    assert step.withdraw(0, 0) == [Tell(Withdrawn(0))]
    assert step.stage is Stage.EMPTY
    step.installed(NEXT)
    step.submit(0, 1, one())
    assert step.withdraw(0, 1) == [Tell(Withdrawn(0))]
    assert (step.stage, step.submission) == (Stage.EMPTY, None)
    assert activate(step, NEXT) == [Tell(Admitted(NEXT, -1))]


def test_what_has_run_is_taken_back_by_another_view() -> None:
    step = in_pair()
    step.submit(0, 0, one())
    assert step.withdraw(0, 0) == [Tell(Withdrawn(0)), taken_back(is_in_use=False)]
    assert (step.stage, step.submission) == (Stage.EMPTY, None)


def test_what_is_wanted_before_the_commit_is_taken_back_at_all() -> None:
    step = in_pair()
    step.submit(0, 0, one(early=True))
    assert step.withdraw(0, 0) == [Tell(Withdrawn(0)), taken_back(is_in_use=True)]


def mismatch(ours: Operation, theirs: str) -> str:
    return f"operation 0 of step 0 is {ours.describe()} at peer a, {theirs} at peer b"


def test_an_open_step_is_given_up_when_another_call_is_heard_of_and_the_script_hears_of_it_at_the_next_view() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    reason = mismatch(operation, "another")
    ours = Abort(0, 0, operation.describe())
    assert step.receive_abort(B, Abort(0, 0, "another")) == [
        Disagree(ours),
        GiveUp(0, Cause.MISMATCH, reason, is_told=True),
    ]
    assert step.stage is Stage.VOID and step.submission is not None and step.run is None
    assert step.submit(0, 0, one()) == step.close(0, STATE) == step.withdraw(0, 0) == []
    assert reason in raised(step, step.installed(NEXT), OperationMismatch)


def test_a_closed_step_is_given_up_alike() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    ours = Abort(0, 0, operation.describe())
    expected = [Disagree(ours), GiveUp(0, Cause.MISMATCH, mismatch(operation, "another"), is_told=True)]
    assert step.receive_abort(B, Abort(0, 0, "another")) == expected
    assert step.stage is Stage.VOID


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_barrier_gives_up_what_was_submitted_and_the_script_hears_of_it_at_once(is_closed: bool) -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    if is_closed:
        step.close(0, STATE)
    step.installed(NEXT)
    assert "step 0 was given up in view 2: members have come" in raised(
        step, step.aborted(INTERRUPTED), OperationInterrupted
    )
    assert activate(step, NEXT) == [Tell(Admitted(NEXT, -1))]


def test_the_barrier_gives_up_what_was_finished_here() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.receive(from_b(operation))
    step.close(0, STATE)
    step.installed(NEXT)
    raised(step, step.aborted(INTERRUPTED), OperationInterrupted)


def test_what_the_barrier_gives_up_before_it_is_called_raises_when_it_is() -> None:
    step = in_pair()
    step.installed(NEXT)
    assert step.aborted(INTERRUPTED) == []
    assert step.stage is Stage.VOID
    assert activate(step, NEXT) == [Tell(Admitted(NEXT, -1))]
    assert enter(step, view_of(4, A, B)) == []
    assert step.aborted(INTERRUPTED) == []
    raised(step, step.submit(0, 3, one()), OperationInterrupted)
    assert step.submit(0, 3, one()) == step.close(3, STATE) == []
    again = one()
    assert step.submit(0, 4, again) == [sent(again, view=view_of(4, A, B))]


def test_who_withdraws_before_calling_anything_of_a_step_that_is_given_up_hears_of_that() -> None:
    """The script waits for an answer."""
    step = in_pair()
    step.installed(NEXT)
    step.aborted(INTERRUPTED)
    activate(step, NEXT)
    raised(step, step.withdraw(0, 0), OperationInterrupted)


def test_a_mismatch_that_others_have_found_is_raised_as_one() -> None:
    step = in_pair()
    step.submit(0, 0, one())
    step.installed(NEXT)
    given_up = GivenUp(0, 2, Cause.MISMATCH, "shapes differ")
    assert "shapes differ; nothing was summed" in raised(step, step.aborted(given_up), OperationMismatch)


def test_who_goes_on_without_the_step_gives_it_up_for_the_others() -> None:
    step = in_pair()
    step.submit(0, 0, one())
    step.withdraw(0, 0)
    assert step.void(0, "its script goes on") == [GiveUp(0, Cause.VOIDED, "its script goes on", is_told=True)]
    assert step.stage is Stage.EMPTY and step.run is None


def test_who_goes_on_without_a_step_that_the_others_have_given_up_has_nothing_to_add() -> None:
    step = in_pair()
    step.submit(0, 0, one())
    step.withdraw(0, 0)
    step.installed(NEXT)
    assert step.aborted(INTERRUPTED) == []
    assert step.void(0, "its script goes on") == []
    assert step.stage is Stage.EMPTY
    activate(step, NEXT)
    again = one()
    assert step.submit(0, 1, again) == [sent(again, view=NEXT)]


# Attempts


def test_what_was_on_its_way_for_an_attempt_that_is_over_is_dropped() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 5, operation)
    step.installed(NEXT)
    raised(step, step.aborted(INTERRUPTED), OperationInterrupted)
    activate(step, NEXT)
    for attempt in (4, 5):
        assert step.submit(0, attempt, one()) == step.close(attempt, STATE) == step.withdraw(0, attempt) == []
        assert (step.stage, step.submission) == (Stage.EMPTY, None)
    again = one()
    assert step.submit(0, 6, again) == [sent(again, view=NEXT)]


def test_what_was_on_its_way_when_it_was_withdrawn_or_committed_is_dropped() -> None:
    step = alone()
    step.submit(0, 0, one())
    step.withdraw(0, 0)
    assert step.submit(0, 0, one()) == step.close(0, STATE) == []
    enter(step, view_of(3, A))
    step.submit(0, 1, one())
    (finish,) = step.close(1, STATE)
    assert isinstance(finish, Finish)
    step.committed(committed_in(view_of(3, A), finish), view_of(3, A))
    assert step.submit(1, 1, one()) == step.close(1, STATE) == step.withdraw(1, 1) == []
    assert step.stage is Stage.EMPTY


@pytest.mark.parametrize("stage", [Stage.EMPTY, Stage.CLOSED])
def test_what_no_script_can_do_is_loud(stage: Stage) -> None:
    step = alone()
    if stage is Stage.CLOSED:
        step = in_pair()
        step.submit(0, 0, one())
        step.close(0, STATE)
    with pytest.raises(AssertionError, match=f"CLOSE in {stage.name}, step 0"):
        step.close(0, STATE)


# Results before the commit


def test_what_is_complete_and_wanted_is_offered_once_in_a_view_and_told_once() -> None:
    step, operation = in_pair(), one(early=True)
    step.submit(0, 0, operation)
    assert step.receive(from_b(operation)) == [DeliverEarly(0, PAIR.number)]
    assert step.advance()[1] == []
    later = one()
    assert step.submit(0, 0, later) == [sent(later, 1)]
    first, outcome = operation.result, operation.outcome
    assert step.deliver_early(0) == [Tell(Uncommitted(operation, outcome))]
    assert step.deliver_early(0) == []
    assert enter(step, NEXT) == [sent(operation, view=NEXT), sent(later, 1, view=NEXT)]
    assert step.receive(from_b(operation)) == []
    assert operation.result is not first and operation.result.tolist() == first.tolist() == [2.0]


def test_what_was_offered_in_a_view_that_is_over_is_offered_again() -> None:
    step, operation = in_pair(), one(early=True)
    step.submit(0, 0, operation)
    assert step.receive(from_b(operation)) == [DeliverEarly(0, PAIR.number)]
    assert enter(step, NEXT) == [sent(operation, view=NEXT)]
    assert step.receive(from_b(operation)) == [DeliverEarly(0, NEXT.number)]


def test_nothing_is_handed_out_of_a_step_that_is_not_open_any_more() -> None:
    step, operation = in_pair(), one(early=True)
    step.submit(0, 0, operation)
    step.receive(from_b(operation))
    step.withdraw(0, 0)
    assert step.deliver_early(0) == []


# Views, and peers that are barred from one


def test_nothing_runs_in_a_view_from_which_this_peer_has_withdrawn_but_in_the_next() -> None:
    step = in_pair()
    step.submit(0, 0, one())
    step.withdraw(0, 0)
    again = one()
    assert step.submit(0, 1, again) == step.close(1, STATE) == []
    assert step.receive(from_b(again)) == [] and step.advance()[1] == []
    assert enter(step, NEXT) == [sent(again, view=NEXT)]


def test_who_withdraws_in_a_barrier_what_may_be_in_use_is_barred_from_that_view() -> None:
    """Otherwise the others would redo operations whose results they have used, with other inputs."""
    step = in_pair()
    step.submit(0, 0, one(early=True))
    step.installed(NEXT)
    assert step.withdraw(0, 0) == [Tell(Withdrawn(0)), taken_back(is_in_use=True)]
    again = one()
    step.submit(0, 1, again)
    assert activate(step, NEXT) == [Tell(Admitted(NEXT, -1))] and step.run is None
    assert enter(step, view_of(4, A, B)) == [sent(again, view=view_of(4, A, B))]


def test_a_machine_that_stops_runs_nothing_more() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.stop()
    assert step.run is None and step.receive(from_b(operation)) == [] and step.advance()[1] == []

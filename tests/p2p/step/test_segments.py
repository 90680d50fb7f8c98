"""Segments of the open step: their operations, which wait, which are refused; and the step's progress."""

from collections.abc import Sequence

import numpy as np
import pytest

from collectives import MissingSegment
from p2p.errors import RemoteProtocolError
from p2p.net.frames import Segment
from p2p.step.effects import Finish, SendSegment, Tell
from p2p.step.notices import Admitted
from p2p.step.open_step import OpenStep
from p2p.step.runner import MessageRunner
from tests.gossip.members import A
from tests.p2p.step.group import SEGMENT_BYTES, all_reduce, counts, weighted
from tests.p2p.step.lone import (
    NEXT,
    PAIR,
    STATE,
    activate,
    alone,
    committed_in,
    finish_of,
    from_b,
    in_pair,
    one,
    sent,
)


def test_a_segment_waits_for_its_operation_and_for_its_view() -> None:
    step, operations = in_pair(), [one(value) for value in (1.0, 2.0)]
    step.installed(NEXT)
    assert step.receive(from_b(operations[1], 1)) == step.receive(from_b(operations[0])) == []
    step.submit(0, 0, operations[0])
    assert activate(step, NEXT) == [Tell(Admitted(NEXT, -1)), sent(operations[0], view=NEXT)]
    assert operations[0].result.tolist() == [2.0]
    step.submit(0, 0, operations[1])
    assert step.close(0, STATE) == [finish_of(NEXT, 2.0, 4.0)]


def test_operations_are_numbered_through_all_steps_of_a_view() -> None:
    step, first, second = in_pair(), [one(1.0), one(2.0)], one(3.0)
    for index, operation in enumerate(first):
        step.submit(0, 0, operation)
        step.receive(from_b(operation, index))
    (finish,) = step.close(0, STATE)
    assert isinstance(finish, Finish)
    assert step.receive(from_b(second, 0, sequence=2, step=1)) == []  # B knows of the commit before A
    step.committed(committed_in(PAIR, finish), PAIR)
    assert step.submit(1, 1, second) == [sent(second, 0, sequence=2, step=1)]
    assert step.close(1, STATE) == [finish_of(PAIR, 6.0, step=1)]


def test_numbers_begin_anew_with_a_view_also_if_a_step_commits_at_its_barrier() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.receive(from_b(operation))
    (finish,) = step.close(0, STATE)
    assert isinstance(finish, Finish)
    step.installed(NEXT)
    step.committed(committed_in(PAIR, finish), PAIR)
    second = one()
    step.submit(1, 1, second)
    assert activate(step, NEXT, done=0) == [Tell(Admitted(NEXT, 0)), sent(second, step=1, view=NEXT)]


def test_what_was_left_of_a_former_step_is_dropped() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.receive(from_b(operation))
    (finish,) = step.close(0, STATE)
    assert isinstance(finish, Finish)
    step.committed(committed_in(PAIR, finish), PAIR)
    assert step.receive(from_b(operation)) == []
    assert step.num_refused == 0


def wrong_segments(good: Segment) -> list[Segment]:
    return [
        good._replace(source=7),
        good._replace(transfer=99),
        good._replace(segment=99),
        good._replace(payload=b""),
        good._replace(payload=bytes(good.payload) + bytes(8)),
        good._replace(payload=bytes(good.payload)[:-1]),
    ]


def test_a_segment_that_fits_nothing_is_refused_and_the_right_one_still_taken() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    step.close(0, STATE)
    for wrong in wrong_segments(from_b(operation)):
        with pytest.raises(RemoteProtocolError, match="segment of operation 0"):
            step.receive(wrong)
    assert step.receive(from_b(operation)) == [finish_of(PAIR, 2.0)]
    with pytest.raises(RemoteProtocolError, match="segment of operation 0"):
        step.receive(from_b(operation))


def test_an_early_segment_that_fits_nothing_harms_nobody_and_is_counted() -> None:
    step, operation = in_pair(), one()
    wrong = wrong_segments(from_b(operation))
    for segment in (*wrong, from_b(operation)):
        assert step.receive(segment) == []
    step.submit(0, 0, operation)
    assert step.close(0, STATE) == [finish_of(PAIR, 2.0)]
    assert step.num_refused == len(wrong)


def test_a_weighted_operation_and_those_behind_it_wait_for_the_counts() -> None:
    step, mean, last = in_pair(), weighted(np.array([3.0])), one()
    own, theirs = counts(1), counts(2)
    assert len(step.submit(0, 0, own)) == 1
    assert step.submit(0, 0, mean) == step.submit(0, 0, last) == []
    effects = step.receive(from_b(theirs))
    assert [effect.sequence for effect in effects if isinstance(effect, SendSegment)] == [1, 2]


# Progress, for people and for the core


def test_progress_is_told_when_something_has_got_on() -> None:
    step, operations = in_pair(), [one(value) for value in (1.0, 2.0)]
    assert step.progress() is None
    step.submit(0, 0, operations[0])
    assert (step.progress(), step.progress()) == ((0, 1, 0), None)
    step.submit(0, 0, operations[1])
    assert (step.progress(), step.progress()) == ((0, 2, 0), None)
    step.receive(from_b(operations[0]))
    assert (step.progress(), step.progress()) == ((0, 2, 1), None)
    step.installed(NEXT)
    assert step.progress() is None
    activate(step, NEXT)
    assert (step.progress(), step.progress()) == ((0, 2, 0), None)


def test_a_segment_that_completes_nothing_is_progress() -> None:
    step, operation = in_pair(), all_reduce(np.arange(16), "one-shot")
    step.submit(0, 0, operation)
    assert step.progress() == (0, 1, 0)
    fingerprint = operation.fingerprint(SEGMENT_BYTES, 0, 0)
    step.receive(Segment(0, 1, 0, 0, fingerprint, bytes(64)))
    assert (step.progress(), step.progress()) == ((0, 1, 0), None)


def test_another_view_has_heard_of_no_progress() -> None:
    step, operation = in_pair(), one()
    step.submit(0, 0, operation)
    assert (step.progress(), step.progress()) == ((0, 1, 0), None)
    step.installed(NEXT)
    activate(step, NEXT)
    assert (step.progress(), step.progress()) == ((0, 1, 0), None)


def test_a_finished_step_has_no_progress_to_tell() -> None:
    step = alone()
    step.submit(0, 0, one())
    step.close(0, STATE)
    assert step.progress() is None


def test_what_is_missing_is_named_while_a_view_is_active() -> None:
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    assert step.explain_missing("ab") == ""
    step = in_pair()
    step.submit(0, 0, one())
    assert step.explain_missing("ab") == "waits for segment 0 of 1 of operation 0 from peer b"
    step.installed(NEXT)
    assert step.explain_missing("ab") == ""


def test_a_thread_that_asks_what_is_missing_while_the_step_ends_is_told_nothing() -> None:
    class Ending(MessageRunner):
        """A runner whose step ends during a query, as it may in the loop's thread."""

        def missing(self, index: int) -> Sequence[MissingSegment]:
            self.end_step()
            return super().missing(index)

    step = in_pair()
    step.submit(0, 0, one())
    step.installed(NEXT)
    step.activated(NEXT, -1, Ending(SEGMENT_BYTES))
    assert step.explain_missing("ab") == ""

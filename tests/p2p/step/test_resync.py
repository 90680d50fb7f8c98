"""The operation that takes the bytes of one member, which the view determines."""

import numpy as np
import pytest

from gossip import Member, Seat, View
from gossip.numerics import marked
from p2p.net.frames import Segment
from p2p.step.agreed_rows import AgreedRows
from p2p.step.collective import AllReduce, Resync
from p2p.step.effects import Finish
from p2p.step.operation import Operation
from p2p.step.run import Run
from p2p.step.runner import MessageRunner
from p2p.step.submission import Submission
from tests.p2p.step.group import submission_of

DIGEST = b"of my parameters"


def view_of(classes: str) -> View:
    seats = tuple(Seat(Member(f"{rank:016x}", 1), 1, numerics=each.encode() * 8) for rank, each in enumerate(classes))
    return View(bytes(16), 1, 1, seats, b"")


def submitted(rank: int, *, is_far: bool = False) -> Submission:
    mine = np.full(300, 1000 + rank)
    submission = submission_of(7, 1, state_digest=DIGEST)
    submission.add(Operation(Resync(), mine, np.zeros_like(mine), (300,), is_far=lambda: is_far), 64)
    return submission


def carried_out(view: View, submissions: list[Submission]) -> list[Finish]:
    """The finish of each member."""
    runs = [Run(MessageRunner(64), view, me, AgreedRows(me)) for me in view.members[: len(submissions)]]
    for run, submission in zip(runs, submissions, strict=True):
        assert run.start(submission)
    while any(run.runner.outgoing for run in runs):
        for rank, run in enumerate(runs):
            for _, _, fingerprint, (peer, transfer, segment, payload) in run.take_outgoing():
                runs[peer].runner.receive(0, Segment(0, rank, transfer, segment, fingerprint, bytes(payload)))
    assert all(run.runner.is_complete(0) for run in runs)
    assert not any(run.complete(submission) for run, submission in zip(runs, submissions, strict=True))
    return [run.finish(submission) for run, submission in zip(runs, submissions, strict=True)]


@pytest.mark.parametrize(("classes", "source"), [("ab", 0), ("abb", 1), ("aab", 0), ("b", 0), ("bb", 0)])
def test_all_have_the_bytes_of_the_source_and_their_own_inputs_stay(classes: str, source: int) -> None:
    submissions = [submitted(rank) for rank in range(len(classes))]
    finishes = carried_out(view_of(classes), submissions)
    for rank, submission in enumerate(submissions):
        (operation,) = submission.operations
        assert {*operation.result.tolist()} == {1000 + source} and {*operation.input.tolist()} == {1000 + rank}
    assert len({finish.digest for finish in finishes}) == 1


def test_a_redo_in_another_view_has_another_source() -> None:
    submissions = [submitted(rank) for rank in range(3)]
    carried_out(view_of("abb"), submissions)
    carried_out(view_of("ab"), [submissions[0], submissions[2]])
    assert {*submissions[2].operations[0].result.tolist()} == {1000}


def test_who_is_far_says_so_where_there_are_several_classes() -> None:
    finishes = carried_out(view_of("ab"), [submitted(0), submitted(1, is_far=True)])
    assert [each.state_digest for each in finishes] == [marked(DIGEST, is_far=is_far) for is_far in (False, True)]
    assert [each.state_digest for each in carried_out(view_of("aa"), [submitted(0), submitted(1, is_far=True)])] == [
        DIGEST
    ] * 2


def test_a_sum_over_several_classes_has_one_nan() -> None:
    """Which NaN a sum has depends on the processor."""
    odd = np.array([0x7FC00001, 0x7FC00002], np.uint32).view(np.float32)
    for classes, bits in (("ab", 0x7FC00000), ("aa", 0x7FC00001)):
        submissions = []
        for each in odd:
            submissions.append(submission_of(7, 1, state_digest=b""))
            mine = np.array([each])
            submissions[-1].add(Operation(AllReduce(), mine, np.zeros_like(mine), (1,), "one-shot"), 64)
        carried_out(view_of(classes), submissions)
        results = [each.operations[0].result.view(np.uint32)[0] for each in submissions]
        assert (results[0] == results[1] == bits) if classes == "ab" else 0x7FC00000 not in results


def test_a_step_that_is_renumbered_has_the_operations_of_the_state_that_was_loaded() -> None:
    submission = submitted(0)
    before, operations = submission.fingerprints, submitted(1).operations
    submission.renumber(9, b"now", 64, [*operations, *operations])
    assert (submission.step, submission.state_digest, submission.operations) == (9, b"now", operations * 2)
    assert len(submission.fingerprints) == 2 and before[0] not in submission.fingerprints

"""The open step of A, and messages of B to it; operations have one element, so that effects can be compared."""

from collections.abc import Sequence

import numpy as np

from collectives import Outgoing
from gossip import View
from gossip.given_up import Cause
from gossip.progress import Finish as Finished
from p2p.net.frames import Segment
from p2p.net.parcels import StepRecord
from p2p.step.effects import Finish, GiveUp, SendSegment, StepEffect, Tell
from p2p.step.notices import Admitted
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.receipts import Contribution, Receipt
from p2p.step.runner import MessageRunner
from tests.gossip.members import LINEAGE, A, B, view_of
from tests.p2p.step.group import SEGMENT_BYTES, all_reduce

STATE = b"parameters"
PAIR, NEXT = view_of(2, A, B), view_of(3, A, B)


def one(value: float = 1.0, *, early: bool = False) -> Operation:
    """An operation of one element, so that effects can be compared."""
    return all_reduce(np.array([value]), "one-shot", early=early)


def enter(step: OpenStep, view: View, done: int = -1) -> list[StepEffect]:
    """Complete the barrier of `view`; returns the further effects."""
    assert step.installed(view) == []
    told, *effects = activate(step, view, done)
    assert told == Tell(Admitted(view, done))
    return effects


def activate(step: OpenStep, view: View, done: int = -1) -> list[StepEffect]:
    return step.activated(view, done, MessageRunner(SEGMENT_BYTES))


def alone() -> OpenStep:
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    enter(step, view_of(2, A))
    return step


def in_pair() -> OpenStep:
    """The open step of A in a pair with B; both are founders."""
    step = OpenStep(A, segment_bytes=SEGMENT_BYTES)
    step.loaded(-1, None)
    enter(step, PAIR)
    return step


def sent(
    operation: Operation, index: int = 0, sequence: int | None = None, step: int = 0, view: View = PAIR
) -> SendSegment:
    """The segment to B, for an operation of one element."""
    fingerprint = operation.fingerprint(SEGMENT_BYTES, index, step)
    number = index if sequence is None else sequence
    return SendSegment(view.number, number, fingerprint, Outgoing(1, 0, 0, operation.input))


def taken_back(*, is_in_use: bool) -> GiveUp:
    """A's request after it has withdrawn from step 0."""
    cause = Cause.VOIDED if is_in_use else Cause.WITHDRAWN
    return GiveUp(0, cause, "a took back what it had submitted", is_told=False)


def from_b(operation: Operation, index: int = 0, sequence: int | None = None, step: int = 0) -> Segment:
    """B's segment of an operation, with the same value."""
    fingerprint = operation.fingerprint(SEGMENT_BYTES, index, step)
    return Segment(index if sequence is None else sequence, 1, 0, 0, fingerprint, operation.input.tobytes())


def finish_of(view: View, *results: float, step: int = 0) -> Finish:
    """The finish of a step with these results of operations of one element."""
    lone, number = alone(), len(results)
    for value in results:
        lone.submit(0, 0, one(value))
    (finish,) = lone.close(0, STATE)
    assert isinstance(finish, Finish)
    return Finish(step, finish.digest, STATE, number, view.number)


def committed_in(view: View, finish: Finish) -> Finished:
    return Finished(finish.step, finish.digest, finish.state_digest, view.number)


def receipt_of(view: View, finish: Finish, algorithms: Sequence[str]) -> Receipt:
    return Receipt(
        lineage=LINEAGE.hex(),
        view_number=view.number,
        step=finish.step,
        contributions=tuple(Contribution(member.peer_id, 1, (), 0, 0) for member in view.members),
        algorithms=tuple(algorithms),
        digest=finish.digest.hex(),
        state_digest=finish.state_digest.hex(),
    )


def fed(view: View, *operations: Operation, step: int = 0) -> StepRecord:
    fingerprints = tuple(operation.fingerprint(SEGMENT_BYTES, i, step) for i, operation in enumerate(operations))
    numbers = tuple((5 + 2 * rank, 6 + 2 * rank, rank) for rank in range(len(view.members)))
    finish = Finished(step, b"r" * 16, STATE, view.number)
    return StepRecord(b"before", b"after", finish, view, numbers, ("ring",) * len(operations), fingerprints)

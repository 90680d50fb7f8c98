"""The open step of a peer: what its script has submitted, what of that runs in which view, and what becomes of it.

One machine without I/O, clock or thread. Commands of the training thread, segments, and what the core decides come in;
what is to be done comes back as effects (effects.py), to be carried out in order. Everything that affects an open step
is decided here; the simulation runs this very machine.

The operations of a step start in the order of the calls, and are kept, with their untouched inputs, until the step
commits: each view that becomes active before that runs them again from the first. Every segment names its operation by
a fingerprint; one that differs from ours is never summed. The training thread numbers its attempts at a step: what it
has submitted for one that is over, and is still on its way, is dropped.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from gossip import Member, View
from gossip.effects import Send
from gossip.given_up import Cause, GivenUp
from gossip.progress import NOTHING_DONE, Abort
from gossip.progress import Finish as Finished

from ..errors import OperationInterrupted, OperationMismatch, RemoteProtocolError, ShoalError
from ..memory.operands import Differs, Interrupted
from ..memory.shared_runner import RunState
from ..net.frames import Segment
from ..net.parcels import StepRecord
from .effects import Finish, GiveUp, Leave, StepEffect, Tell, Void, Withdraw
from .mismatch import Mismatches
from .notices import Admitted, Commit, Uncommitted, Withdrawn
from .operation import Operation, overwrite
from .receipts import write_receipt
from .run import Run
from .runner import Runner
from .submission import Submission
from .transitions import TRANSITIONS, Event, Stage

OBSERVES: Final = (
    "an exception ended a `peer.step` block of this peer while it only observed: it cannot skip a step of the members, "
    "so it leaves, and they go on; start it again"
)

PEER_ID: Final = attrgetter("peer_id")


class OpenStep:
    """The steps of one peer, one after the other.

    Attributes:
        stage: of the open one.
        done: the last one that is committed here, or was loaded.
        submission: what the script has submitted for the open one.
        num_refused: segments that came early, and fitted nothing when their turn came.
    """

    def __init__(self, me: Member, *, segment_bytes: int) -> None:
        """Nothing is open. A segment carries `segment_bytes` at most."""
        self.stage = Stage.EMPTY
        self.done = NOTHING_DONE
        self.submission: Submission | None = None
        self.num_refused = 0
        self._me = me
        self._segment_bytes = segment_bytes
        self._view: View | None = None
        self._run: Run | None = None
        self._barred_in = 0
        self._has_ended = False
        self._over = -1
        self._owed: ShoalError | None = None
        self._pending: defaultdict[int, list[Segment]] = defaultdict(list)
        self._mismatches = Mismatches(me)
        self._reported: tuple[int, int, int] | None = None

    @property
    def runner(self) -> Runner | None:
        """Who carries operations out, if a view is active, and this peer has not given its step up."""
        return None if self._run is None else self._run.runner

    def _move(self, event: Event) -> None:
        assert (self.stage, event) in TRANSITIONS, f"{event.name} in {self.stage.name}, step {self.done + 1}"
        self.stage = TRANSITIONS[self.stage, event]

    # Commands of the training thread.

    def submit(self, step: int, attempt: int, operation: Operation) -> list[StepEffect]:
        """Add `operation` to `step`, which is opened by its first one."""
        if attempt <= self._over:
            return []
        if self.stage is Stage.VOID:  # before anything of it is sent: the others are at their next call
            return self._tell(attempt) if self.submission is None else []
        self._move(Event.SUBMIT)
        if self.submission is None:
            self.submission = Submission(step, attempt)
        self.submission.add(operation, self._segment_bytes)
        effects = self._go_on()
        return [*effects, *self._compare()] if self._mismatches.heard else effects

    def close(self, attempt: int, state_digest: bytes) -> list[StepEffect]:
        """Nothing more is submitted for the open step, which was computed with parameters of this digest."""
        if attempt <= self._over or self.stage is Stage.VOID:
            return []
        self._move(Event.CLOSE)
        assert self.submission is not None
        self.submission.state_digest = state_digest
        effects = self._compare() if self._mismatches.heard else []
        return effects or self._go_on()

    def withdraw(self, step: int, attempt: int) -> list[StepEffect]:
        """Take back what was submitted. The others start the step over, if they were sent anything of it.

        Nothing more of this peer runs before they do, also if this happens in the barrier of a view.
        """
        if attempt <= self._over:
            return []
        if self.stage is Stage.VOID:  # the script hears of that instead: now, or when the next view is installed
            return self._tell(attempt) if self.submission is None else []
        self._move(Event.WITHDRAW)
        operations = [] if self.submission is None else self.submission.operations
        has_run = self._run is not None and self._run.num_started > 0
        interrupts = any(operation.is_uncommitted for operation in operations)
        self.submission, self._over = None, attempt
        told: list[StepEffect] = [Tell(Withdrawn(step))]
        if not (has_run or interrupts):
            return told
        self._bar()
        return [*told, Withdraw(step, interrupts)]

    def void(self, step: int, reason: str) -> list[StepEffect]:
        """The script has withdrawn from `step` and goes on without it, so nobody else may go on with it."""
        if self.stage is Stage.VOID:  # as the others found, too; this script knows already
            self._move(Event.TELL)
            return []
        if self._view is None:
            return self._leave(ShoalError(OBSERVES))
        self._bar()
        return [Void(step, reason)]

    def _bar(self) -> None:
        """Nothing more of this step runs in the installed view."""
        self._run = None
        self._barred_in = 0 if self._view is None else self._view.number

    # Segments, and what else arrives.

    def receive(self, segment: Segment) -> list[StepEffect]:
        """A segment of the installed view.

        Raises:
            RemoteProtocolError: it fits nothing; nothing changed.
        """
        run = self._run
        if run is None or segment.sequence >= run.first_sequence + run.num_started:
            self._pending[segment.sequence].append(segment)
            return []
        index = segment.sequence - run.first_sequence
        if index < 0:
            return []  # of a step that is over
        return [*self._feed(run, index, segment), *self._go_on()]

    def overhear(self, source: Member, abort: Abort) -> list[StepEffect]:
        """`source` says what it has called."""
        if self._view is None:
            return []
        step = self.done + 1
        told = self._mismatches.hear(self._view, self.submission, step, source, abort)
        return [*told, *self._compare()]

    def _feed(self, run: Run, index: int, segment: Segment) -> Sequence[StepEffect]:
        assert self.submission is not None
        if segment.fingerprint != self.submission.fingerprints[index]:
            return self._object(run, index, segment.source)
        run.feed(index, segment)
        self._reported = None
        return ()

    # What runs.

    def advance(self) -> tuple[RunState, list[StepEffect]]:
        """Go on with what runs, for a moment.

        Raises:
            RemoteProtocolError: a member lends what it does not have; nothing more runs in this view.
        """
        run = self._run
        if run is None:
            return RunState.IDLE, []
        try:
            state = run.runner.advance()
        except Interrupted:
            return RunState.IDLE, []  # the next view is on its way
        except Differs as error:
            return RunState.IDLE, self._object(run, run.num_complete, error.rank)
        if state is not RunState.BUSY and not run.runner.outgoing:
            return state, []
        self._reported = None
        return state, self._go_on()

    def _go_on(self) -> list[StepEffect]:
        """Send what is to be sent, start what may start, and say what is complete."""
        run, submission = self._run, self.submission
        effects: list[StepEffect] = []
        if run is None or submission is None:
            return effects
        while True:
            if run.runner.outgoing:
                effects += run.take_outgoing(submission)
            if run.complete(submission):
                continue
            if not run.start(submission):
                break
            effects += self._feed_pending(run)
        if submission.is_wanted_early:
            effects += run.offer(submission)
        if self.stage is Stage.CLOSED and run.num_complete == len(submission.operations):
            effects.append(self._finish(run, submission))
        return effects

    def _feed_pending(self, run: Run) -> list[StepEffect]:
        """What came before the last operation that was started."""
        index = run.num_started - 1
        effects: list[StepEffect] = []
        for segment in self._pending.pop(run.first_sequence + index, ()):
            try:
                effects += self._feed(run, index, segment)
            except RemoteProtocolError:
                self.num_refused += 1
        return effects

    def hand_out(self, index: int) -> list[StepEffect]:
        """The core knows that the result of operation `index` is about to be used."""
        submission = self.submission
        if submission is None or index < submission.num_handed_out:
            return []
        submission.num_handed_out = index + 1
        operation = submission.operations[index]
        return [Tell(Uncommitted(operation, operation.result))]

    def _finish(self, run: Run, submission: Submission) -> Finish:
        self._move(Event.COMPLETE)
        assert submission.state_digest is not None and submission.step == self.done + 1, f"step {submission.step}"
        submission.counts = run.counts
        number = len(submission.operations)
        return Finish(submission.step, run.digest(), submission.state_digest, number, run.view.number)

    # Views and commits.

    def installed(self, view: View) -> list[StepEffect]:
        """A view replaces the one before: nothing of that one completes any more, and its segments are dropped."""
        self._view, self._run = view, None
        self._pending = defaultdict(list)
        self._mismatches.begin()
        self._reported = None
        if self.stage is Stage.VOID and self.submission is not None:
            return self._tell(self.submission.attempt)
        return []

    def activated(self, view: View, done: int, runner: Runner) -> list[StepEffect]:
        """Run what was submitted in `view`, by `runner`, from step `done` + 1 on."""
        self.done = done
        self._mismatches.begin()
        told: list[StepEffect] = [Tell(Admitted(view, done))]
        if self._has_ended or view.number <= self._barred_in:
            return told
        if self.stage is Stage.FINISHED:
            self._move(Event.REDO)
        self._run = Run(runner, view, view.members.index(self._me))
        return [*told, *self._go_on()]

    def committed(self, finish: Finished, view: View) -> Commit:
        """All have finished the step, in `view`: what the training thread is to hear."""
        self._move(Event.COMMIT)
        submission = self._end(finish.step, view)
        receipt = write_receipt(finish, view, submission.counts, submission.algorithms)
        return Commit(receipt, view, submission.operations, tuple(submission.fingerprints))

    def _end(self, step: int, view: View) -> Submission:
        """The step is committed, with these members on its receipt."""
        submission, self.submission = self.submission or Submission(step, self._over), None
        self.done, self._over = step, submission.attempt
        if self._run is not None:  # in a barrier the count of the view has not begun
            self._run.next_step(len(submission.operations))
        self._mismatches.commit(map(PEER_ID, view.members))
        return submission

    def loaded(self, step: int, contributors: Iterable[str], state_digest: bytes | None) -> None:
        """The state after `step` is loaded, whose receipt names `contributors`.

        If the training thread waits for a step, that is the one after it; `state_digest` is of the parameters now.
        """
        self.done = step
        self._mismatches.commit(contributors)
        if state_digest is not None:
            assert self.submission is not None and self._run is None
            self.submission.renumber(step + 1, state_digest, self._segment_bytes)

    def take_over(self, record: StepRecord, results: Sequence[bytes | memoryview]) -> Commit | None:
        """The members have committed a step with these results; None if it is not all submitted here yet.

        Raises:
            OperationMismatch: other operations were submitted here.
        """
        finish, view, submission = record.finish, record.view, self.submission
        is_submitted = submission is not None and submission.step == finish.step and self.stage is Stage.CLOSED
        if record.fingerprints and not is_submitted:
            return None
        operations = [] if submission is None else submission.operations
        try:
            if submission is not None and tuple(submission.fingerprints) != record.fingerprints:
                ours = ", ".join(operation.describe() for operation in operations)
                raise ValueError(f"step {finish.step} is {ours} here, and another one at the members")
            overwrite(operations, results)
            counts = np.array(record.counts, np.int64)
        except (ValueError, OverflowError) as error:
            raise OperationMismatch(str(error), is_alone=True) from None
        self._move(Event.COMMIT)
        self._end(finish.step, view)
        return Commit(write_receipt(finish, view, counts, record.algorithms), view, operations, record.fingerprints)

    # Steps that are given up.

    def aborted(self, given_up: GivenUp) -> list[StepEffect]:
        """The barrier of the installed view says that the step came to nothing."""
        if self.stage is Stage.VOID:
            return []
        if given_up.cause is Cause.MISMATCH:
            error: ShoalError = OperationMismatch(given_up.reason)
        else:
            error = OperationInterrupted(given_up.step, given_up.view_number, given_up.reason)
        self._give_up(error)
        return [] if self.submission is None else self._tell(self.submission.attempt)

    def _object(self, run: Run, index: int, rank: int) -> list[StepEffect]:
        """A rank calls operation `index` differently."""
        assert self.submission is not None
        return [*self._mismatches.see(run.view, self.submission, index, run.view.members[rank])]

    def _compare(self) -> list[StepEffect]:
        """Give the step up if somebody calls one of its operations differently."""
        submission, view = self.submission, self._view
        if self._has_ended or self.stage is Stage.VOID or submission is None or view is None:
            return []
        if (found := self._mismatches.find(submission)) is None:
            return []
        ours, reason = found
        if self._mismatches.is_fresh(self._me):
            return self._leave(OperationMismatch(reason, is_alone=True))
        if self.stage is Stage.FINISHED:
            return []  # it ends here before that operation: whoever has called it starts the step over, and says why
        self._give_up(OperationMismatch(reason))
        self._bar()
        told = [Send(member, ours, view.stamp) for member in view.members if member != self._me]
        return [*told, GiveUp(submission.step, reason)]

    def _give_up(self, error: ShoalError) -> None:
        self._move(Event.GIVE_UP)
        self._owed = error

    def _tell(self, attempt: int) -> list[StepEffect]:
        """The script hears that its step was given up; what it has submitted for it in this attempt is void."""
        error, self._owed = self._owed, None
        self._move(Event.TELL)
        self.submission, self._over = None, attempt
        assert error is not None
        return [Tell(error)]

    def _leave(self, error: ShoalError) -> list[StepEffect]:
        """The script is wrong, or has lost a step: it hears so, and the others go on without this peer."""
        self.stop()
        return [Tell(error), Leave()]

    def stop(self) -> None:
        """Nothing more runs, in no view."""
        self._run, self._has_ended = None, True

    # For people, and for the core.

    def progress(self) -> tuple[int, int, int] | None:
        """Step, operations submitted and complete in the active view; None: nothing has got on since the last time."""
        if self._run is None or self.submission is None or self.stage is Stage.FINISHED:
            return None
        standing = self.done + 1, len(self.submission.operations), self._run.num_complete
        if standing == self._reported:
            return None
        self._reported = standing
        return standing

    def explain_missing(self, members: Sequence[object]) -> str:
        """The first segment that is waited for, in words; `members` in rank order."""
        return "" if self._run is None else self._run.explain_missing(members)

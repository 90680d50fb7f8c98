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
from collections.abc import Sequence

from collectives import Medium
from gossip import Member, View
from gossip.given_up import Cause, GivenUp
from gossip.progress import NOTHING_DONE, Abort
from gossip.progress import Finish as Finished

from ..errors import OperationMismatch, RemoteProtocolError, ShoalError
from ..memory.operands import Differs, Interrupted
from ..memory.shared_runner import BUSY, IDLE, RunState
from ..net.frames import Segment
from ..net.parcels import StepRecord
from .agreed_rows import AgreedRows
from .call_path import CallPath
from .effects import GiveUp, Leave, StepEffect, Tell
from .given_up import OBSERVES, error_of
from .mismatch import Mismatches
from .notices import Admitted, Commit, Uncommitted, Withdrawn
from .operation import Operation
from .receipts import Receipt, write_receipt
from .run import Run
from .runner import Runner
from .submission import Submission
from .transitions import TRANSITIONS, Event, Stage

CLOSED, VOID = Stage.CLOSED, Stage.VOID
SUBMIT, CLOSE, COMPLETE, COMMIT = Event.SUBMIT, Event.CLOSE, Event.COMPLETE, Event.COMMIT
"""Of each step: an enum looks its members up slowly."""


class OpenStep:
    """The steps of one peer, one after the other.

    Attributes:
        stage: of the open one.
        done: the last one that is committed here, or was loaded.
        submission: what the script has submitted for the open one.
        run: of its operations, if a view is active, and this peer has not given the step up in it.
        num_refused: segments that came early, and fitted nothing when their turn came.
        agreed: what all know of the links, and which algorithms follow from it.
    """

    def __init__(self, me: Member, *, segment_bytes: int, medium: Medium = Medium.LAN) -> None:
        """No step is open. A segment carries `segment_bytes` at most; `medium`: of messages, the same on all peers."""
        self.stage = Stage.EMPTY
        self.done = NOTHING_DONE
        self.submission: Submission | None = None
        self.run: Run | None = None
        self.num_refused = 0
        self.agreed = AgreedRows(me)
        self._me, self._segment_bytes, self._medium = me, segment_bytes, medium
        self._view: View | None = None
        self._is_barred, self._has_ended, self._over = False, False, -1
        self._owed: list[StepEffect] = []
        self._pending: defaultdict[int, list[Segment]] = defaultdict(list)
        self._mismatches = Mismatches(me)

    def _move(self, event: Event) -> None:
        following = TRANSITIONS.get((self.stage, event))
        assert following is not None, f"{event.name} in {self.stage.name}, step {self.done + 1}"
        self.stage = following

    # Commands of the training thread.

    def submit(self, step: int, attempt: int, operation: Operation) -> list[StepEffect]:
        """Add `operation` to `step`, which is opened by its first one."""
        if attempt <= self._over:
            return []
        if self.stage is VOID:  # before anything of it is sent: the others are at their next call
            return self._tell(attempt) if self.submission is None else []
        self._move(SUBMIT)
        if self.submission is None:
            self.submission = Submission(step, attempt, self.agreed)
        self.submission.add(operation, self._segment_bytes)
        return self._go_on()

    def close(
        self, attempt: int, state_digest: bytes, took_us: int = 0, place: CallPath | None = None
    ) -> list[StepEffect]:
        """Close the open step for submissions. Its parameters have this digest, and it took `took_us` to compute here.

        `place`: where the script has called the step, if it is not one of a model.
        """
        if attempt <= self._over or self.stage is VOID:
            return []
        self._move(CLOSE)
        assert self.submission is not None
        self.submission.close(state_digest, self._segment_bytes)
        self.submission.place = place
        if self.submission.is_training:
            self.agreed.took_us = took_us
        return self._go_on()

    def withdraw(self, step: int, attempt: int) -> list[StepEffect]:
        """Take back what was submitted. The others start the step over, if they were sent anything of it."""
        if attempt <= self._over:
            return []
        if self.stage is VOID:  # the script hears of that instead: now, or when the next view is installed
            return self._tell(attempt) if self.submission is None else []
        self._move(Event.WITHDRAW)
        submission, self.submission, self._over = self.submission, None, attempt
        has_run = (self.run is not None and self.run.num_started > 0) or self._mismatches.has_spoken
        is_in_use = submission is not None and submission.is_wanted_early
        told: list[StepEffect] = [Tell(Withdrawn(step))]
        if not (has_run or is_in_use):
            return told
        cause = Cause.VOIDED if is_in_use else Cause.WITHDRAWN
        return [*told, self._bar(step, cause, f"{self._me} took back what it had submitted", is_told=False)]

    def void(self, step: int, reason: str) -> list[StepEffect]:
        """The script has withdrawn from `step` and goes on without it, so nobody else may go on with it."""
        if self.stage is VOID:  # as the others found, too; this script knows already
            self._move(Event.TELL)
            return []
        if self._view is None:
            self.stop()
            return [Tell(ShoalError(OBSERVES)), Leave()]
        return [self._bar(step, Cause.VOIDED, reason, is_told=True)]

    def _bar(self, step: int, cause: Cause, reason: str, *, is_told: bool) -> GiveUp:
        """Run no operation before the step starts over, even if the barrier of the view is still open."""
        self._drop_run()
        self._is_barred = True
        return GiveUp(step, cause, reason, is_told)

    def why_damaged(self, state_digest: bytes) -> str:
        """Why the state after the last committed step, with these parameters now, must not be given away (R28)."""
        return "" if self.submission is None else self.submission.why_damaged(state_digest)

    # What runs, and what arrives.

    def receive(self, segment: Segment) -> list[StepEffect]:
        """A segment of the installed view.

        Raises:
            RemoteProtocolError: it fits nothing; nothing changed.
        """
        run = self.run
        if run is None or segment.sequence >= run.first_sequence + run.num_started:
            self._pending[segment.sequence].append(segment)
            return []
        index = segment.sequence - run.first_sequence
        if index < 0:
            return []  # of a step that is over
        run.has_got_on = True
        effects = self._feed(run, index, segment)
        if not (effects or run.runner.outgoing or run.runner.is_complete(index)):
            return effects  # as most segments of a long operation: nothing follows from it alone
        return [*effects, *self._go_on()]

    def receive_abort(self, source: Member, abort: Abort) -> list[StepEffect]:
        """`source` says what it has called."""
        if self._view is None:
            return []
        self._mismatches.hear(self.done + 1, source, abort)
        return self._compare()

    def _feed(self, run: Run, index: int, segment: Segment) -> list[StepEffect]:
        """A segment of an operation that has started."""
        assert self.submission is not None
        if segment.fingerprint != run.fingerprints[index]:
            return self._object(index)
        try:
            run.runner.receive(index, segment)
        except ValueError as error:
            raise RemoteProtocolError(f"segment of operation {segment.sequence}: {error}") from None
        return []

    def advance(self) -> tuple[RunState, list[StepEffect]]:
        """Go on with what runs, for a moment.

        Raises:
            RemoteProtocolError: a member lends what it does not have; nothing more runs in this view.
        """
        run = self.run
        if run is None:
            return IDLE, []
        try:
            state = run.runner.advance()
        except (Interrupted, Differs) as error:  # the next view is on its way, or somebody calls something else
            return IDLE, self._object(run.num_complete) if isinstance(error, Differs) else []
        return state, self._go_on() if state is BUSY or run.runner.outgoing else []

    def _go_on(self) -> list[StepEffect]:
        """Send what is to be sent, start what may start, and say what is complete; unless the step is given up."""
        effects = self._compare() if self._mismatches.heard else []
        run, submission = self.run, self.submission
        if self.stage is VOID or run is None or submission is None:
            return effects
        run.has_got_on = True
        while True:
            if run.runner.outgoing:
                effects += run.take_outgoing()
            if run.num_complete < run.num_started and run.runner.is_complete(run.num_complete):
                effects += run.complete(submission)
                continue
            index = run.num_started
            if index == len(submission.operations) or not run.start(submission):
                break
            for segment in self._pending.pop(run.first_sequence + index, ()):
                try:
                    effects += self._feed(run, index, segment)
                except RemoteProtocolError:
                    self.num_refused += 1
        if submission.is_wanted_early:
            effects += run.offer(submission)
        if self.stage is CLOSED and run.num_complete == len(submission.operations):
            assert submission.step == self.done + 1, f"step {submission.step} after {self.done}"
            self._move(COMPLETE)
            effects.append(run.finish(submission))
        return effects

    def deliver_early(self, index: int) -> list[StepEffect]:
        """The core knows that the result of operation `index` is about to be used."""
        submission = self.submission
        if submission is None or index < submission.num_delivered_early:
            return []
        submission.num_delivered_early = index + 1
        return [Tell(Uncommitted(operation := submission.operations[index], operation.outcome))]

    # Views and commits.

    def installed(self, view: View) -> list[StepEffect]:
        """A view replaces the one before: nothing of that one completes any more, and its segments are dropped."""
        self._drop_run()
        self._view, self._is_barred = view, self._has_ended
        self._pending = defaultdict(list)
        self._mismatches.begin()
        return self.notify_if_given_up()

    def activated(self, view: View, done: int, runner: Runner, founded_in: int = 0) -> list[StepEffect]:
        """Run what was submitted in `view`, by `runner`, from step `done` + 1 on.

        `founded_in`: number of the view whose seats are founders.
        """
        self.done, self._mismatches.founded_in = done, founded_in
        self._mismatches.begin()
        told: list[StepEffect] = [Tell(Admitted(view, done))]
        if self._is_barred:
            return told
        if self.stage is Stage.FINISHED:
            self._move(Event.REDO)
        self.run = Run(runner, view, self._me, self.agreed, self._medium)
        return [*told, *self._go_on()]

    def committed(self, finish: Finished, view: View) -> Commit:
        """Commit the step, which all have finished in `view`. Returns the notice for the training thread."""
        submission = self.submission or Submission(finish.step, self._over, self.agreed)
        receipt = write_receipt(finish, view, submission.counts, submission.algorithms)
        return self._commit(submission, view, receipt)

    def _commit(self, submission: Submission, view: View, receipt: Receipt) -> Commit:
        self._move(COMMIT)
        if submission.is_training:
            self.agreed.committed(receipt.step, view, submission.operations)
        self.submission, self.done, self._over = None, receipt.step, submission.attempt
        if self.run is not None:  # in a barrier the count of the view has not begun
            self.run.next_step(len(submission.operations))
        self._mismatches.begin()
        path = b"" if submission.place is None else submission.place.path
        return Commit(receipt, view, submission.operations, tuple(submission.fingerprints), path)

    def loaded(
        self, step: int, state_digest: bytes | None, operations: Sequence[Operation] | None = None, is_due: bool = False
    ) -> None:
        """The state after `step` is loaded.

        If the training thread waits for a step, that becomes the step after it, with these parameters now, and these
        operations (None: those that were submitted). `is_due`: a receipt has asked for rows since.
        """
        self.done, self.agreed.is_due = step, is_due
        self._mismatches.begin()
        if state_digest is not None:
            assert self.submission is not None and self.run is None
            self.submission.renumber(step + 1, state_digest, self._segment_bytes, operations)

    def adopt_renumbered(self, record: StepRecord, results: Sequence[bytes | memoryview]) -> Commit:
        """As `adopt`, of a submission that matches the calls of members in another step, and becomes that step."""
        assert self.submission is not None and self.is_like(record)
        self.submission.renumber(record.finish.step, b"", self._segment_bytes)
        commit = self.adopt(record, results)
        assert commit is not None
        return commit

    def adopt(self, record: StepRecord, results: Sequence[bytes | memoryview]) -> Commit | None:
        """Take over a step that the members have committed, with its results; None if not all of it is submitted yet.

        Raises:
            OperationMismatch: other operations were submitted here.
        """
        step = record.finish.step
        submission = self.submission or Submission(step, self._over, self.agreed)
        if record.fingerprints and (submission.step, self.stage) != (step, CLOSED):
            return None
        submission.adopt(record, results)
        receipt = write_receipt(record.finish, record.view, submission.counts, record.algorithms)
        return self._commit(submission, record.view, receipt)

    def is_like(self, record: StepRecord) -> bool:
        """Whether what is submitted here is what the members have called in that step, but for the counts."""
        return self.submission is not None and self.submission.is_like(record, self._segment_bytes)

    # Steps that are given up.

    def aborted(self, given_up: GivenUp) -> list[StepEffect]:
        """The barrier of the installed view says that the step came to nothing."""
        if self.stage is VOID:
            return []
        self._give_up(error_of(given_up))
        return self.notify_if_given_up()

    def _object(self, index: int) -> list[StepEffect]:
        """A member calls operation `index` differently."""
        self._mismatches.see(index)
        return self._compare()

    def _compare(self) -> list[StepEffect]:
        """Say what is called here where somebody calls something else; once that is settled, go, or give the step up.

        Who stays waits for those who go to say so.
        """
        submission, view = self.submission, self._view
        if self._is_barred or self.stage is VOID or submission is None or view is None:
            return []
        told: list[StepEffect] = [*self._mismatches.say(submission, view)]
        if (found := self._mismatches.judge(view, submission.step)) is None:
            return told
        reason, stay = found
        if self._mismatches.is_out(stay):
            self._give_up(OperationMismatch(reason, is_alone=True))
            self.stop()
            return [*told, Leave(submission.step)]
        if stay or self.stage is Stage.FINISHED:
            return told  # where none can stay it ends here before that operation: whoever has called it says why
        self._give_up(OperationMismatch(reason))
        return [*told, self._bar(submission.step, Cause.MISMATCH, reason, is_told=True)]

    def _give_up(self, error: ShoalError) -> None:
        self._move(Event.GIVE_UP)
        self._owed = [Tell(error)]

    def _tell(self, attempt: int) -> list[StepEffect]:
        """The script hears that its step was given up; what it has submitted for it in this attempt is void."""
        self._move(Event.TELL)
        self.submission, self._over = None, attempt
        told, self._owed = self._owed, []
        return told

    def notify_if_given_up(self) -> list[StepEffect]:
        """No member can commit the step any more: if it is given up, tell the script that waits for it."""
        return self._tell(self.submission.attempt) if self.stage is VOID and self.submission is not None else []

    def stop(self) -> None:
        """Run no further operation, in any view."""
        self._drop_run()
        self._is_barred, self._has_ended = True, True

    def _drop_run(self) -> None:
        """Stop the run; from now on it does not touch the memory of operations, which belongs to the script again."""
        if self.run is not None:
            self.run.runner.stop()
            self.run = None

    # For people, and for the core.

    def progress(self) -> tuple[int, int, int] | None:
        """Step, operations submitted and complete in the active view; None: nothing has got on since the last time."""
        run, submission = self.run, self.submission
        if run is None or submission is None or self.stage is Stage.FINISHED or not run.has_got_on:
            return None
        run.has_got_on = False
        return self.done + 1, len(submission.operations), run.num_complete

    def explain_missing(self, members: Sequence[object]) -> str:
        """The first segment that is waited for, in words; `members` in rank order."""
        return "" if self.run is None else self.run.explain_missing(members)

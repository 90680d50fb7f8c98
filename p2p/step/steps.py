"""The open step of this peer: what was submitted for it, and when it is finished, committed or given up.

Belongs to the loop. The training thread numbers its attempts at a step: what it submitted for one that was given up
meanwhile, and is still in the queue, is void.
"""

from collections.abc import Callable, Sequence

import numpy as np

from collectives.programs import MOST_CHUNKS
from gossip import Core, Member, View
from gossip import effects as fx
from gossip import messages as m

from ..errors import OperationInterrupted, OperationMismatch
from ..memory.shared_runner import RunState, Sharing
from ..net.frames import Frames, Segment
from ..net.headers import NO_DIGEST
from ..net.parcels import StepRecord
from .mismatch import Mismatches
from .notices import Admitted, Commit, Early, Notice, Withdrawn
from .operation import overwrite
from .operations import Array, Operation, Operations
from .receipts import write_receipt
from .waiting import explain_waiting


class Steps:
    """The steps of one peer, one after the other."""

    def __init__(
        self,
        core: Core,
        frames: Frames,
        *,
        segment_bytes: int,
        now: Callable[[], float],
        carry_out: Callable[[list[fx.Effect]], None],
        tell: Callable[[Notice], None],
        note: Callable[[str, int], None],
        share: Callable[[View], Sharing],
    ) -> None:
        """Nothing is open.

        Args:
            core: of this peer.
            frames: through which segments go out.
            segment_bytes: what one frame carries, at most.
            now: the time.
            carry_out: does what the core asks for.
            tell: what the training thread should hear.
            note: remembers when something happened.
            share: runs the operations of a view over shared memory.
        """
        self._core = core
        self._now = now
        self._carry_out = carry_out
        self._tell = tell
        self._note = note
        self._share = share
        self._operations = Operations(frames.send_segment, self._object, segment_bytes=segment_bytes)
        self._mismatches = Mismatches(core.me, self._operations.called)
        self._counts: Array | None = None
        self._shown = b""
        self._reported, self._gets_on, self._is_out = (0, 0, 0), False, False
        self._attempt, self._void_attempt = 0, -1
        self._aborted: tuple[int, str] | None = None

    @property
    def num_refused(self) -> int:
        """Early segments that fit nothing when their turn came."""
        return self._operations.num_refused

    # What the training thread wants.

    def submit(self, step: int, attempt: int, operation: Operation) -> None:
        """Add `operation` to `step`, which the training thread tries for the `attempt`-th time in all."""
        if attempt == self._void_attempt:
            return
        self._attempt = attempt
        if self._aborted is not None and self._aborted[0] == step:
            self.give_up(*self._aborted)  # before anything of it is sent: the others are at their next call
            return
        self._operations.submit(step, operation)
        self._compare()
        self.try_finish()

    def close(self, step: int, attempt: int, state_digest: bytes) -> None:
        """Nothing more is submitted for `step`."""
        if attempt != self._void_attempt:
            self._operations.close(step, state_digest)
            self.try_finish()

    def withdraw(self, step: int, attempt: int) -> None:
        """Take back what was submitted for `step`. The others start it over, if they were sent anything of it.

        Nothing more runs here before they do, also if this happens in the barrier of a view.
        """
        if attempt == self._void_attempt:
            return  # it is given up: the training thread is told
        has_run = self._operations.progress()[0] > 0
        interrupts = any(operation.is_early for operation in self._operations.end())
        self._tell(Withdrawn(step))
        if has_run or interrupts:
            self._operations.pause()
            self._is_out = True
            self._core.submitted(step, 0, 0)
            self._carry_out(self._core.withdraw(self._now(), step, interrupts=interrupts))

    # What runs over shared memory.

    @property
    def sharing(self) -> Sharing | None:
        """Where the members of the active view share memory."""
        return self._operations.sharing

    def advance(self) -> RunState:
        """Go on with what runs over shared memory, by one piece.

        Raises:
            RemoteProtocolError: a member lends what it does not have; nothing more runs in this view.
        """
        standing = self._operations.advance()
        if standing is RunState.BUSY:
            self._gets_on = True
            self.try_finish()
        is_open = self._core.has_finished  # it may have been heard to be committed meanwhile
        if (sharing := self.sharing) is not None and is_open and (shown := sharing.all_finished()):
            self._see(shown)
        return standing

    def _see(self, shown: list[tuple[int, bytes]]) -> None:
        """These ranks show the open step as finished, with these digests."""
        view, step = self._core.view, self._core.done + 1
        assert view is not None
        if len(shown) == len(view.members) - 1 and all(digests == self._shown for _, digests in shown):
            self._carry_out(self._core.all_finished(self._now()))
            return
        told = []
        for rank, digests in shown:
            digest, state_digest, chain = digests[:16], digests[16:32], digests[32:]
            finish = m.Finish(step, _or_none(digest), _or_none(state_digest), view.number)
            told.append((view.members[rank], m.Progress(step - 1, chain, finish)))
        self._carry_out(self._core.saw(self._now(), told))

    # What comes from others.

    def receive(self, segment: Segment) -> None:
        """A segment of the installed view. `try_finish` follows when all that have come were received.

        Raises:
            RemoteProtocolError: it fits nothing; nothing changed.
        """
        self._operations.receive(segment)
        self._gets_on = True

    def overhear(self, source: Member, abort: m.Abort) -> None:
        """`source` says what it has called."""
        self._carry_out([*self._mismatches.hear(self._core.done + 1, source, abort)])
        self._compare()

    # Views and commits.

    def install(self) -> None:
        """A view replaces the one before."""
        self._operations.install()
        self._mismatches.begin()
        self._reported, self._is_out = (0, 0, 0), False

    def activate(self, view: View, done: int, *, shares: bool) -> None:
        """Run what was submitted in `view`, from step `done` + 1 on; over shared memory if its members share it."""
        self._note("active", view.number)
        self._mismatches.begin()
        self._tell(Admitted(view, done))
        shares = shares and 1 < len(view.members) <= MOST_CHUNKS
        sharing = self._share(view) if shares else None
        if not self._is_out:
            self._operations.activate(view.members.index(self._core.me), len(view.members), sharing)
            self.try_finish()

    def loaded(self, step: int, contributors: tuple[str, ...], state_digest: bytes | None) -> None:
        """The state after `step` is loaded, whose receipt names `contributors`.

        If the training thread waits for a step, that is the one after it; `state_digest` is of the parameters now.
        """
        self._mismatches.commit(contributors)
        if state_digest is not None:
            self._operations.renumber(step + 1, state_digest)

    def take_over(self, record: StepRecord, results: Sequence[bytes | memoryview]) -> Commit | None:
        """The members have committed a step with these results; None if it is not all submitted here yet.

        Raises:
            OperationMismatch: other operations were submitted here.
        """
        finish, view = record.finish, record.view
        if record.fingerprints and not self._operations.is_submitted(finish.step):
            return None
        is_same = self._operations.fingerprints == record.fingerprints
        operations = self._operations.end()
        try:
            if not is_same:
                ours = ", ".join(operation.describe() for operation in operations)
                raise ValueError(f"step {finish.step} is {ours} here, and another one at the members")
            overwrite(operations, results)
        except ValueError as error:
            raise OperationMismatch(str(error), is_alone=True) from None
        self._note("followed", finish.step)
        self._mismatches.commit(member.peer_id for member in view.members)
        try:
            counts = np.array(record.counts, np.int64)
        except OverflowError as error:
            raise OperationMismatch(f"numbers of samples that nobody has: {error}", is_alone=True) from None
        receipt = write_receipt(finish, view, counts, record.algorithm)
        return Commit(receipt, view, operations, record.fingerprints)

    def try_finish(self) -> None:
        """Say that the open step is finished, if it is; before that, hand out the results that are wanted early."""
        if self._operations.early:
            early, self._operations.early = self._operations.early, []
            self._core.handed_out()
            for operation in early:
                operation.is_handed_out = True
                self._tell(Early(operation, operation.result))
        if self._core.has_finished:
            return
        finished = self._operations.finished()
        if finished is not None and finished[0] == self._core.done + 1:
            self._counts = self._operations.counts
            self._note("finished", finished[0])
            step, digest, state_digest = finished
            if (sharing := self.sharing) is not None:
                digests = digest, state_digest, self._core.digest
                self._shown = b"".join(each or NO_DIGEST for each in digests)
                sharing.announce(step, self._shown)
            number = self._operations.progress()[0]
            self._core.submitted(step, number, number)
            self._carry_out(self._core.finished(self._now(), *finished, is_shown=sharing is not None))

    def report(self) -> None:
        """Tell the core how far the open step is, if something of it has got on."""
        num_running, num_complete = self._operations.progress()
        standing = self._core.done + 1, num_running, num_complete
        if num_running and not self._core.has_finished and (self._gets_on or standing != self._reported):
            self._core.submitted(*standing)
            self._reported, self._gets_on = standing, False

    def commit(self, finish: m.Finish, view: View) -> Commit:
        """All have finished the step, in `view`: what the training thread is to hear."""
        self._note("committed", finish.step)
        fingerprints = self._operations.fingerprints
        operations = self._operations.end()
        algorithm = operations[-1].ran if operations else ""
        self._mismatches.commit(member.peer_id for member in view.members)
        counts, self._counts = self._counts, None
        return Commit(write_receipt(finish, view, counts, algorithm), view, operations, fingerprints)

    # Operations that do not match.

    def _object(self, index: int, rank: int) -> None:
        view = self._core.view
        assert view is not None  # a segment came in it
        self._carry_out([*self._mismatches.see(view, self._core.done + 1, index, view.members[rank])])

    def _compare(self) -> None:
        """Give the step up if somebody calls one of its operations differently."""
        step = self._core.done + 1
        if (found := self._mismatches.find(step)) is None:
            return
        ours, reason = found
        if self._mismatches.is_fresh(self._core.me):
            self._tell(OperationMismatch(reason, is_alone=True))
            self._carry_out(self._core.leave(self._now()))
            return
        if self._core.has_finished:
            return  # it ends here before that operation: whoever has called it starts the step over, and says why
        effects = [*self._core.broadcast(ours), *self._core.abort(self._now(), step, reason)]
        self.give_up(step, reason)
        self._carry_out(effects)

    def give_up(self, step: int, reason: str) -> None:
        """Raise in the training thread, once, what it submits for `step`, or has submitted. `reason`: as in READY."""
        if self._operations.operation(step, 0) is not None:
            self._operations.end()
            self._operations.pause()
        elif self._aborted != (step, reason):
            self._aborted = step, reason
            return
        self._mismatches.settle()
        self._aborted, self._void_attempt = None, self._attempt
        number = 0 if self._core.view is None else self._core.view.number
        self._tell(OperationMismatch(reason) if reason else OperationInterrupted(step, number))

    def explain(self) -> str:
        """What the open step waits for; a snapshot, from any thread."""
        return explain_waiting(self._core, self._operations, self._now())


def _or_none(digest: bytes) -> bytes:
    return b"" if digest == NO_DIGEST else digest

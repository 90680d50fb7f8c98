"""The open step in one view: which of its operations have started there, and how far they are. No decisions."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import xxhash

from collectives import Array, Medium, MissingSegment
from gossip import Member, View
from gossip.numerics import marked, source_of

from .agreed_rows import AgreedRows, hosts_of
from .collective import Collective
from .effects import DeliverEarly, Finish, SendSegment, Tell
from .notices import Complete
from .operation import task_of
from .payloads import accept
from .receipts import NUM_COUNTED
from .runner import Runner
from .submission import Submission


class Run:
    """Operations of one step after the other, in the order of the calls.

    Attributes:
        first_sequence: of the open step, in this view.
        num_started, num_complete: of its operations.
        fingerprints: of those that were started: what all ranks must have in common, in this view.
        counts: `Counts` of each rank in it, int64 [ranks, 3], once that is known.
        has_got_on: since somebody last asked.
    """

    def __init__(self, runner: Runner, view: View, me: Member, agreed: AgreedRows, medium: Medium = Medium.LAN) -> None:
        """Of `me` in `view`. Its messages go over `medium`, measured as is `agreed`."""
        self.runner = runner
        self.view = view
        self.first_sequence = 0
        self.num_started = self.num_complete = 0
        self.counts: Array | None = None
        self.has_got_on = False
        self.fingerprints: list[bytes] = []
        self._agreed = agreed
        self._rank, self._medium = view.members.index(me), medium if runner.sends else Medium.MEMORY
        self._ranks = {member.peer_id: rank for rank, member in enumerate(view.members)}
        self._hosts = hosts_of(view)
        self._num_offered = 0

    def next_step(self, num_operations: int) -> None:
        """The step of so many operations is over; another one is open."""
        self.runner.end_step()
        self.first_sequence += num_operations
        self.num_started = self.num_complete = self._num_offered = 0
        self.counts, self.fingerprints = None, []

    def start(self, submission: Submission) -> bool:
        """Start the next operation, if what it needs is known."""
        index = self.num_started
        operation = submission.operations[index]
        if operation.collective.is_weighted and self.counts is None:
            return False
        measured, fingerprint = self._agreed.choice(operation, self.view), submission.fingerprints[index]
        if measured is not None:  # who takes another way than the others is refused
            fingerprint = xxhash.xxh3_128_digest(fingerprint + measured.encode())
        self.num_started += 1
        self.fingerprints.append(fingerprint)
        place = self._rank, self._hosts, self.counts, submission.step
        root = self._root_of(operation.collective) if operation.collective.root else 0
        task = task_of(operation, fingerprint, *place, measured=measured, medium=self._medium, root=root)
        if operation.collective.is_of_one and self._rank != source_of(self.view):
            task.weight = 0.0
        if self.view.is_mixed:
            task.reduction = replace(task.reduction, has_one_nan=True)
        self.runner.start(index, task)
        return True

    def _root_of(self, collective: Collective) -> int | None:
        """The rank of the root; None: it is not in this view."""
        return self._ranks.get(collective.root)

    def complete(self, submission: Submission) -> list[Tell]:
        """The first running operation is complete: tell its listener, which wants to know before the commit."""
        operation = submission.operations[self.num_complete]
        if operation.collective.is_counts:
            self.counts = operation.result.reshape(len(self.view.members), -1)[:, :NUM_COUNTED]
        self.num_complete += 1
        return [Tell(Complete(operation, submission.attempt, self.view))] if operation.on_complete else []

    def take_outgoing(self) -> list[SendSegment]:
        """Take the segments to be sent now."""
        sent, self.runner.outgoing = self.runner.outgoing, []
        number, first, fingerprints = self.view.number, self.first_sequence, self.fingerprints
        return [SendSegment(number, first + index, fingerprints[index], segment) for index, segment in sent]

    def offer(self, submission: Submission) -> list[DeliverEarly]:
        """Complete operations whose results are wanted before the commit; each once per view."""
        first, self._num_offered = max(self._num_offered, submission.num_delivered_early), self.num_complete
        wanted = (index for index in range(first, self.num_complete) if submission.operations[index].is_uncommitted)
        return [DeliverEarly(index, self.view.number) for index in wanted]

    def finish(self, submission: Submission) -> Finish:
        """The finish of a step whose operations are complete, with a 16-byte digest of all results."""
        state_digest = submission.state_digest
        assert state_digest is not None
        if state_digest and self.view.is_mixed:
            is_far = any([each.is_far is not None and each.is_far() for each in submission.operations])
            state_digest = marked(state_digest, is_far=is_far)
        number = self.num_complete
        if self.counts is not None:
            submission.counts = accept(self.counts, submission.operations, self.view)
        compared = [index for index in range(number) if submission.operations[index].collective.is_common]
        digest = xxhash.xxh3_128_digest(b"".join(map(self.runner.digest, compared)))
        return Finish(submission.step, digest, state_digest, number, self.view.number)

    def awaited_bytes(self, submission: Submission) -> int:
        """Size of the operation in which others are waited for; 0: all are complete."""
        operations, index = submission.operations, self.num_complete
        return operations[index].input.nbytes if index < len(operations) else 0

    def explain_missing(self, members: Sequence[object]) -> str:
        """The first segment that is waited for, in words; `members` in rank order. Any thread may ask."""
        missing: list[tuple[int, MissingSegment]] = []
        with suppress(IndexError):  # the step ends meanwhile
            for index in range(self.num_complete, self.num_started):
                missing += [(index, each) for each in self.runner.missing(index)]
        if not missing:
            return ""
        index, first = missing[0]
        where = f"segment {first.segment} of {first.num_segments} of operation {index}"
        peer = members[first.peer] if first.peer < len(members) else f"of rank {first.peer}"
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return f"waits for {where} from peer {peer}{more}"

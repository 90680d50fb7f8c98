"""The operations of the open step: what was submitted, what runs, and the frames that came before their turn.

Belongs to the loop. Knows ranks and segments, no sockets: what is to be sent goes to a function. The
operations of a step are kept, with their untouched inputs, until the step commits: each view that becomes active
before that runs them again from the first. Every frame names its operation by a *fingerprint*; one that differs
from ours is never summed.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from collectives import (
    Awaited,
    Execution,
    Outgoing,
    Reduction,
    all_reduce_schedule,
    choose_algorithm,
    one_shot_all_gather,
    scale,
)
from gossip.messages import NOT_CALLED

from ..errors import RemoteProtocolError
from ..memory.operands import Differs, Interrupted
from ..memory.shared_runner import RunState, SharedRun, Sharing
from ..net.frames import Segment
from .operation import OpenStep
from .operation import Operation as Operation
from .operation import Use as Use

Array = npt.NDArray[Any]

ROUND_ONCE: Final = ("one-shot", "direct")
"""Algorithms that add up all inputs of an element in one go."""


class Operations:
    """Runs the operations of one step after the other, in the view that is active.

    Attributes:
        early: operations that are complete here, and whose results are wanted before the commit; taken by who hands
            them out.
    """

    def __init__(
        self,
        send: Callable[[int, bytes, Outgoing], None],
        mismatched: Callable[[int, int], None],
        *,
        segment_bytes: int,
    ) -> None:
        """Nothing runs before `activate`.

        Args:
            send: takes sequence, fingerprint and segment.
            mismatched: told the index of an operation, and the rank that calls it differently.
            segment_bytes: what one frame carries, at most.
        """
        self._send = send
        self._mismatched = mismatched
        self._segment_bytes = segment_bytes
        self._step: OpenStep | None = None
        self.num_refused = 0
        """Early segments that fit no transfer when their turn came."""
        self.install()

    # Views.

    def install(self) -> None:
        """A view replaces the one before: nothing of that one completes any more, its frames are dropped."""
        self._active = False
        self.sharing: Sharing | None = None
        self._shared: deque[int] = deque()
        self._running: list[Execution | SharedRun | None] = []
        self._early: defaultdict[int, list[Segment]] = defaultdict(list)
        self._first_sequence = 0
        self._num_complete = 0
        self.early: list[Operation] = []
        self.counts: Array | None = None

    def activate(self, rank: int, world_size: int, sharing: Sharing | None = None) -> None:
        """Run what was submitted, from the first operation, as `rank` of `world_size`; by `sharing` if there is one."""
        self._active = True
        self.sharing = sharing
        self._rank, self._world_size = rank, world_size
        if self._step is not None:
            for index in range(len(self._step.operations)):
                self._run(index)

    def pause(self) -> None:
        """Run nothing more before `activate`: the members have called different operations in this view."""
        self._active = False
        self.sharing = None

    # Steps.

    def submit(self, step: int, operation: Operation) -> None:
        """Add an operation to `step`, which is opened by its first one."""
        if self._step is None:
            self._step = OpenStep(step)
        assert self._step.number == step and self._step.state_digest is None, f"step {step} into {self._step}"
        index = len(self._step.operations)
        self._step.add(operation, self._segment_bytes)
        if self._active:
            self._run(index)

    def close(self, step: int, state_digest: bytes) -> None:
        """Nothing more is submitted for `step`."""
        assert self._step is not None and self._step.number == step
        self._step.state_digest = state_digest

    def finished(self) -> tuple[int, bytes, bytes] | None:
        """Step, digest of its results and of its parameters, once everything is complete here."""
        step = self._step
        if step is None or step.state_digest is None or self._num_complete < len(step.operations) or not self._active:
            return None
        digests = b"".join(run.digest() for run in self._running if run is not None)
        return step.number, xxhash.xxh3_128_digest(digests), step.state_digest

    def end(self) -> list[Operation]:
        """The open step is committed or given up: hand its operations back and make room for the next."""
        step, self._step = self._step, None
        operations = [] if step is None else step.operations
        if self._active:  # in a barrier the count of the view has not begun
            self._first_sequence += len(operations)
        self._running, self._num_complete, self.early, self.counts = [], 0, [], None
        self._shared.clear()
        return operations

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        """Of the operations of the open step."""
        return tuple(self._step.fingerprints) if self._step is not None else ()

    def is_submitted(self, step: int) -> bool:
        """Whether all operations of `step` were submitted here."""
        return self._step is not None and self._step.number == step and self._step.state_digest is not None

    def renumber(self, step: int, state_digest: bytes) -> None:
        """What was submitted is `step` now, and counts no samples: the state before that was loaded meanwhile."""
        assert self._step is not None and not self._active
        self._step.renumber(step, state_digest, self._segment_bytes)

    def progress(self) -> tuple[int, int]:
        """How many operations of the open step run, and how many of them are complete."""
        return len(self._running) if self._active else 0, self._num_complete

    def operation(self, step: int, index: int) -> Operation | None:
        """What was submitted here as operation `index` of `step`, if it was."""
        if self._step is None or self._step.number != step or index >= len(self._step.operations):
            return None
        return self._step.operations[index]

    def called(self, step: int, index: int) -> str | None:
        """What was called here as operation `index` of `step`, in words; None: nothing yet."""
        if (operation := self.operation(step, index)) is not None:
            return operation.describe()
        return NOT_CALLED if self.is_submitted(step) else None

    def missing(self) -> list[tuple[int, int, int, int, int]]:
        """(operation, peer, transfer, segment, number of segments) still waited for, of what runs."""
        runs = [(index, run) for index, run in enumerate(self._running) if run is not None and not run.done]
        return [(index, *entry) for index, run in runs for entry in self._missing(run)]

    def _missing(self, run: Execution | SharedRun) -> Sequence[Awaited]:
        if isinstance(run, Execution):
            return run.missing()
        return () if self.sharing is None else self.sharing.missing(run)

    def explain_missing(self, members: Sequence[object]) -> str:
        """The first segment that is waited for, in words; `members` in rank order."""
        missing = self.missing()
        if not missing:
            return ""
        operation, rank, _, segment, num_segments = missing[0]
        where = f"segment {segment} of {num_segments} of operation {operation}"
        peer = members[rank] if rank < len(members) else f"of rank {rank}"
        return f"waits for {where} from peer {peer} (and {len(missing) - 1} more)"

    # Shared memory.

    def advance(self) -> RunState:
        """Go on with what runs over shared memory, by one piece.

        Raises:
            RemoteProtocolError: a member lends what it does not have; nothing more runs in this view.
        """
        if self.sharing is None:
            return RunState.IDLE
        try:
            standing = self.sharing.advance()
        except Interrupted:
            return RunState.IDLE  # the next view is on its way
        except Differs as error:
            self._mismatched(self._shared[0], error.rank)
            return RunState.IDLE
        while self._shared and isinstance(run := self._running[self._shared[0]], SharedRun) and run.done:
            self._after(self._shared.popleft(), run)
        return standing

    # Frames.

    def receive(self, segment: Segment) -> None:
        """A segment of the installed view.

        Raises:
            RemoteProtocolError: it fits no transfer of its operation; nothing changed.
        """
        index = segment.sequence - self._first_sequence
        if index < 0:
            return  # of a step that was given up here while it was under way
        run = self._running[index] if self._active and index < len(self._running) else None
        if run is None:
            self._early[segment.sequence].append(segment)
        else:
            self._feed(index, segment)

    def _run(self, index: int) -> None:
        step = self._step
        assert step is not None
        operation = step.operations[index]
        while len(self._running) <= index:
            self._running.append(None)
        weighted = operation.use is Use.WEIGHTED
        if self._running[index] is not None or (weighted and self.counts is None):
            return  # the turn of what is weighted comes when the counts are known
        if self.sharing is not None and index and self._running[index - 1] is None:
            return  # and so does that of what is behind it: over shared memory all ranks keep one order
        if operation.is_early:
            operation.result = np.empty_like(operation.result)
        if operation.kind == "all_gather":
            operation.ran = "one-shot"
            operation.result = np.empty(operation.input.size * self._world_size, operation.input.dtype)
        else:
            operation.ran = operation.algorithm or choose_algorithm(operation.input.nbytes, self._world_size)
        if self.sharing is None:
            self._start(index)
        else:
            self._running[index] = self._share(index, operation)
            self._shared.append(index)
            self._feed_early(index)

    def _start(self, index: int) -> None:
        """Carry an operation out by messages: in this view there is no shared memory."""
        assert self._step is not None
        self._running[index] = run = self._execute(self._step.operations[index])
        self._send_all(index, run.start())
        run.digest_chunks()
        self._after(index, run)
        self._feed_early(index)

    def _feed_early(self, index: int) -> None:
        """What came before the operation was called here."""
        for segment in self._early.pop(self._first_sequence + index, []):
            try:
                self._feed(index, segment)
            except RemoteProtocolError:
                self.num_refused += 1

    def _execute(self, operation: Operation) -> Execution:
        gathers, weight = operation.kind == "all_gather", self._weight(operation)
        if gathers:
            schedule = one_shot_all_gather(self._rank, self._world_size)
        else:
            schedule = all_reduce_schedule(operation.ran, self._rank, self._world_size)
        return Execution(
            schedule,
            self._rank,
            operation.input if weight is None else _weigh(operation, weight),
            operation.result,
            segment_bytes=self._segment_bytes,
            reduction=self._reduction(operation, weight),
            own_chunk=self._rank if gathers else None,
            digest=xxhash.xxh3_128_digest,
        )

    def _share(self, index: int, operation: Operation) -> SharedRun:
        """Carry an operation out over shared memory."""
        assert self._step is not None and self.sharing is not None
        weight = self._weight(operation)
        if operation.kind == "all_gather":
            program_of = self.sharing.all_gather()
        else:
            program_of = self.sharing.all_reduce(operation.ran)
        run = SharedRun(
            program_of,
            self._step.fingerprints[index],
            operation.input,
            operation.result,
            self._reduction(operation, weight),
            weight=weight,
            checked=self._step.number,
        )
        self.sharing.enqueue(run)
        return run

    def _feed(self, index: int, segment: Segment) -> None:
        run = self._running[index]
        assert self._step is not None and run is not None
        if segment.fingerprint != self._step.fingerprints[index]:
            self._mismatched(index, segment.source)
            return
        if isinstance(run, SharedRun):
            raise RemoteProtocolError(f"operation {segment.sequence} came as a frame, and is one of shared memory")
        was_done = run.done
        try:
            outgoing = run.receive(segment.source, segment.transfer, segment.segment, segment.payload)
        except ValueError as error:
            raise RemoteProtocolError(f"segment of operation {segment.sequence}: {error}") from None
        self._send_all(index, outgoing)
        run.digest_chunks()
        if not was_done:
            self._after(index, run)

    def _send_all(self, index: int, outgoing: list[Outgoing]) -> None:
        assert self._step is not None
        sequence, fingerprint = self._first_sequence + index, self._step.fingerprints[index]
        for segment in outgoing:
            self._send(sequence, fingerprint, segment)

    def _after(self, index: int, run: Execution | SharedRun) -> None:
        """If `run` is complete, count it, and start what waited for it."""
        assert self._step is not None
        if not run.done:
            return
        self._num_complete += 1
        operation = self._step.operations[index]
        if operation.is_early and not operation.is_handed_out:
            self.early.append(operation)
        if operation.use is Use.COUNTS:
            self.counts = operation.result.reshape(self._world_size, -1)
            for later in range(index + 1, len(self._step.operations)):
                self._run(later)

    def _weight(self, operation: Operation) -> float | None:
        """What this rank's input is multiplied by before anything is added: its share of the samples.

        None: by nothing. So it is, too, where all have the same share, and the sum is divided once: it is not where
        sums are rounded on their way, which might overflow.
        """
        if operation.use is not Use.WEIGHTED:
            return None
        assert self.counts is not None
        numbers = self.counts[:, 1].tolist()
        if numbers[0] > 0 and numbers.count(numbers[0]) == len(numbers) and operation.ran in ROUND_ONCE:
            return None
        return float(numbers[self._rank] / max(sum(numbers), 1))

    def _reduction(self, operation: Operation, weight: float | None) -> Reduction:
        is_sum = operation.kind == "all_gather" or weight is not None
        return Reduction("sum" if is_sum else operation.op, self._world_size)


def _weigh(operation: Operation, weight: float) -> Array:
    """The input times `weight`; zeros, not 0 x input, where that is 0."""
    assert operation.scratch is not None
    if weight == 0:
        operation.scratch.fill(0)
    else:
        scale(operation.input, weight, operation.scratch)
    return operation.scratch

"""Runners carry out the operations of a view: by messages, or over shared memory.

The open step starts tasks in order, passes on what arrives, asks what is complete, and sends what a runner leaves in
`outgoing`. It does not know which kind of runner it has. An operation that is *not ready yet* is started all the same,
and its runner continues it in `advance`.
"""

from collections.abc import Sequence
from typing import Protocol

import xxhash

from collectives import MessageRun, MissingSegment, Outgoing

from ..memory.shared_runner import IDLE, RunState
from ..net.frames import Segment
from .operation import Task


class Runner(Protocol):
    """The operations of one step after the other, in one view.

    Attributes:
        sends: whether it works by messages, not over shared memory.
        outgoing: (index of the operation, segment) to be sent, in order; whoever sends them empties it.
    """

    sends: bool
    outgoing: list[tuple[int, Outgoing]]

    def start(self, index: int, task: Task) -> None:
        """Begin operation `index` of the open step; those before it were started."""

    def receive(self, index: int, segment: Segment) -> None:
        """A segment of an operation that was started, with its fingerprint.

        Raises:
            ValueError: it fits no transfer; nothing changed.
        """

    def advance(self) -> RunState:
        """Continue, for a moment.

        Raises:
            Interrupted: a rank has left this view; nothing more runs (`stop`).
            Differs: a rank calls another operation; nothing more runs.
            RemoteProtocolError: a rank lends what it does not have; nothing more runs.
        """

    def is_complete(self, index: int) -> bool:
        """Whether the result is complete, and others have been given what they need of it."""

    def digest(self, index: int) -> bytes:
        """The digests of all chunks of the result, once it is complete."""

    def missing(self, index: int) -> Sequence[MissingSegment]:
        """Segments that a started operation still waits for."""

    def end_step(self) -> None:
        """The step is over: the next operation is the first of another one."""

    def stop(self) -> None:
        """Stop: when this returns, no started operation reads or writes anything."""


class MessageRunner:
    """Operations by messages, each as its segments come."""

    sends = True

    def __init__(self, segment_bytes: int) -> None:
        """`segment_bytes`: what one segment carries, at most."""
        self.outgoing: list[tuple[int, Outgoing]] = []
        self._segment_bytes = segment_bytes
        self._running: list[MessageRun] = []

    def start(self, index: int, task: Task) -> None:
        assert index == len(self._running)
        run = MessageRun(
            task.schedule(),
            task.rank,
            task.input,
            task.result,
            segment_bytes=self._segment_bytes,
            reduction=task.reduction,
            own_chunk=task.rank if task.gathers else None,
            weight=task.weight,
            digest=xxhash.xxh3_128_digest if task.operation.collective.is_common else None,
            is_needed=task.needs(),
        )
        self._running.append(run)
        self.outgoing += [(index, segment) for segment in run.start()]

    def receive(self, index: int, segment: Segment) -> None:
        _, source, transfer, number, _, payload = segment
        for each in self._running[index].receive(source, transfer, number, payload):
            self.outgoing.append((index, each))

    def advance(self) -> RunState:
        """Digest what is complete: what others wait for was sent before."""
        for run in self._running:
            run.digest_chunks()
        return IDLE

    def is_complete(self, index: int) -> bool:
        return self._running[index].done

    def digest(self, index: int) -> bytes:
        return self._running[index].digest()

    def missing(self, index: int) -> Sequence[MissingSegment]:
        return self._running[index].missing()

    def end_step(self) -> None:
        self._running.clear()

    def stop(self) -> None:
        """No-op: only `receive` and `advance` write."""

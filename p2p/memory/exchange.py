"""Runs programs (collectives/program.py) over the memory of the members of a view, who all share one host.

No message is needed: what a rank lends and how far it is (progress.py) stand in its arena. Nothing here waits:
`advance` goes on until somebody else has to do something first.

What is read of another rank counts only if its tag is right *after* the read (PROTOCOL.md, R10). Whatever goes
wrong, inputs are untouched, and what is half written lies in the result: the operation can be done again.

A device may add up and copy chunks (adding.py). What it does is over before anything is published, at the end, and
before the host reads what the device still writes: until then `advance` does not go on.

Left out: who allocates regions and when they are free again; members on other hosts; what a doorbell is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from collectives import Reducer
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Wait

from ..device import Mark, failures_named
from .adding import DeviceSum
from .arena import Memory
from .board import Finished
from .operands import Operands, OwnOperands, RankInView
from .progress import Progress

_CHUNKS_AT_ONCE: Final = 8
"""Then others should be heard. Some milliseconds for chunks of half a megabyte."""

_RANK: Final = attrgetter("rank")

DigestFunction = Callable[[memoryview], bytes]


class Exchange:
    """The operations of one view, one after the other. After an error no more.

    Attributes:
        progress: of all ranks; says who is late, if `advance` does not go on.
        digests: of all chunks of the last result.
    """

    def __init__(
        self, memories: Sequence[Memory], in_view: RankInView, ring: Callable[[int], None], *, digest: DigestFunction
    ) -> None:
        """An exchange that writes nothing before its first operation.

        Args:
            memories: of all ranks; the own arena among them, whose board has the tag of the view.
            in_view: in the view.
            ring: rings the doorbell of a rank. Never blocks.
            digest: of a chunk, 16 bytes; called by whoever reduces it, while it is in the cache.
        """
        self._memories, self._in_view, self._digest = memories, in_view, digest
        self._boards = [memory.board for memory in memories]
        self.progress = Progress(self._boards, in_view, ring)
        self._base = self.progress.published
        self._turn = 0
        self._instructions: Sequence[Instruction] = ()
        self._next = 0
        self._under_way: deque[tuple[Mark, Reduce | Copy]] = deque()
        self.digests: list[bytes] = []

    # Operations.

    def begin(
        self,
        program: Program,
        mine: OwnOperands,
        reduce: Reducer,
        *,
        checked: int = 0,
        digest_of: Sequence[DigestFunction] | None = None,
        on_device: DeviceSum | None = None,
    ) -> None:
        """Say what is lent for the next operation, which `advance` carries out.

        Args:
            program: of this rank.
            mine: the operation as this rank calls it.
            reduce: what a REDUCE does.
            checked: of the chunks, in turns, which one this rank digests as it holds it, if another one reduced it.
            digest_of: digests each of the chunks, where not all do so alike.
            on_device: what adds up and copies chunks before this rank does so itself.
        """
        self._operands = Operands(program, mine, self._memories, self._in_view, self._turn)
        self._instructions, self._next, self._base = program.instructions, 0, self.progress.published
        self._end = self._base + program.num_publishes
        assert not self._under_way, "a device still writes for the operation before"
        self._on_device = on_device
        self._reducer, self._checked = reduce, checked % program.num_chunks
        self._digest_of = digest_of or (self._digest,) * program.num_chunks
        self.digests = [b""] * program.num_chunks
        self._copied: set[int] = set()
        self._turn ^= 1

    def advance(self) -> bool:
        """Go on, for a while. Whether the operation is complete; if not, and nobody is late, go on at once.

        Raises:
            Interrupted: a rank has left this view.
            Differs: a rank calls something else.
            RemoteProtocolError: a rank lends what it does not have.
            DeviceLost: the own device has failed; what it has written is not published.
        """
        progress, num_written = self.progress, 0
        while self._next < len(self._instructions):
            match self._instructions[self._next]:
                case Publish():
                    if self._under_way and not self._settle():
                        return False
                    progress.publish()
                case Wait(peers, count):
                    progress.awaited = peers, self._base + count
                    if not progress.is_over():
                        return False
                    if count == 1:
                        self._operands.check_calls(peers)
                case Reduce() | Copy() as write:
                    if not self._write(write):
                        return False
                    num_written += 1
            self._next += 1
            if num_written == _CHUNKS_AT_ONCE:
                return False
        if self._under_way and not self._settle():
            return False
        if self._instructions:
            self._instructions, self._next = (), 0
            progress.published = self._end  # others may have published more often, and all go on from the same number
            if self._checked in self._copied:
                held = self._operands.result[self._operands.bounds[self._checked]]
                self.digests[self._checked] = self._digest_of[self._checked](held.view(np.uint8).data)
        return True

    def _write(self, write: Reduce | Copy) -> bool:
        """Begin with one chunk. False: not yet, since the device still writes what may be read or written here."""
        if self._on_device is not None and (mark := self._begin_on(self._on_device, write)) is not None:
            self._under_way.append((mark, write))
            return True
        if self._under_way and not self._settle():
            return False
        operands = self._operands
        where = operands.bounds[write.chunk]
        if isinstance(write, Reduce):
            arrays = operands.read(write.sources, write.chunk)
            self._reducer(arrays, operands.target[where], completes=write.completes)
            self._has_reduced(write)
        else:
            operands.result[where] = operands.lent_result(write.peer)[where]
            self._has_copied(write)
        return True

    def _begin_on(self, device: DeviceSum, write: Reduce | Copy) -> Mark | None:
        """Give one chunk to the device; None: the host has to."""
        operands = self._operands
        where = operands.bounds[write.chunk]
        if isinstance(write, Copy):
            copied = (write.peer, operands.lent_result(write.peer)[where])
            return device.begin([copied], operands.result[where], completes=False)
        arrays = operands.read(write.sources, write.chunk)
        summands = [*zip(map(_RANK, write.sources), arrays, strict=True)]
        return device.begin(summands, operands.target[where], completes=write.completes)

    def _settle(self) -> bool:
        """Whether nothing is under way on the device; what follows from that is done."""
        while self._under_way:
            mark, write = self._under_way[0]
            with failures_named():
                if not mark.is_over():
                    return False
            self._under_way.popleft()
            self._has_written(write)
        return True

    @property
    def is_under_way(self) -> bool:
        """Whether a device has to finish something first."""
        return bool(self._under_way)

    def _has_written(self, write: Reduce | Copy) -> None:
        match write:
            case Reduce():
                self._has_reduced(write)
            case Copy():
                self._has_copied(write)

    def _has_reduced(self, reduce: Reduce) -> None:
        operands, chunk = self._operands, reduce.chunk
        where = operands.bounds[chunk]
        operands.check_tags(map(_RANK, reduce.sources))
        if not reduce.completes:
            return
        result = operands.target[where]
        self.digests[chunk] = digest = self._digest_of[chunk](result.view(np.uint8).data)
        if operands.lent is not None:
            if operands.lent is not operands.result:
                operands.result[where] = result
            operands.write_digest(chunk, digest)

    def _has_copied(self, copy: Copy) -> None:
        """The digest comes along; that of a partial sum says nothing, and nobody asks for it."""
        operands, chunk = self._operands, copy.chunk
        where = operands.bounds[chunk]
        self.digests[chunk] = digest = operands.read_digest(copy.peer, chunk)
        self._copied.add(chunk)
        operands.check_tags((copy.peer,))
        if copy.is_passed_on:
            assert operands.lent is not None
            if operands.lent is not operands.result:
                operands.lent[where] = operands.result[where]
            operands.write_digest(chunk, digest)

    def ahead_bytes(self) -> int:
        """How much of what follows the operation that is complete all ranks can do in one go; the same on all.

        Raises:
            Interrupted: a rank has left this view.
        """
        return self._operands.ahead_bytes()

    # Steps.

    def announce(self, finished: Finished) -> None:
        """Show all that a step is finished here; `progress` says who has not done so yet."""
        progress = self.progress
        self._boards[self._in_view.rank].finish(finished)
        progress.publish()
        progress.awaited = progress.others, progress.published

    def finished(self, step: int) -> list[tuple[int, bytes]]:
        """The other ranks that show `step` as finished in this view, with the digests that they show."""
        shown = []
        for rank in self.progress.others:
            if (digests := self._boards[rank].finished(step, self._in_view.tag)) is not None:
                shown.append((rank, digests))
        return shown

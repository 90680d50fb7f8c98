"""Runs programs (collectives/program.py) over the memory of the members of a view, who all share one host.

No message is needed: what a rank lends and how far it is (progress.py) stand in its arena. Nothing here waits:
`advance` goes on until somebody else has to do something first.

What is read of another rank counts only if its tag is right *after* the read (PROTOCOL.md, R10). Whatever goes
wrong, inputs are untouched, and what is half written lies in the result: the operation can be done again.

Left out: who allocates regions and when they are free again; members on other hosts; what a doorbell is.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from collectives import Reducer
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Wait

from .arena import Memory
from .board import Finished
from .operands import Operands, OwnOperands, RankInView
from .progress import Progress

_CHUNKS_AT_ONCE: Final = 8
"""Then others should be heard. Some milliseconds for chunks of half a megabyte."""

DigestFunction = Callable[[memoryview], bytes]


class Exchange:
    """The operations of one group in one view, one after the other. After an error no more.

    Attributes:
        progress: of all ranks; says who is late, if `advance` does not go on.
        digests: of all chunks of the last result.
    """

    def __init__(
        self, memories: Sequence[Memory], in_view: RankInView, ring: Callable[[int], None], *, digest: DigestFunction
    ) -> None:
        """Nothing is written before the first operation.

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
    ) -> None:
        """Say what is lent for the next operation, which `advance` carries out.

        Args:
            program: of this rank.
            mine: the operation as this rank calls it.
            reduce: what a REDUCE does.
            checked: of the chunks, in turns, which one this rank digests as it holds it, if another one reduced it.
            digest_of: digests each of the chunks, where not all do so alike.
        """
        self._operands = Operands(program, mine, self._memories, self._in_view, self._turn)
        self._instructions, self._next, self._base = program.instructions, 0, self.progress.published
        self._end = self._base + program.num_publishes
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
        """
        progress, num_written = self.progress, 0
        while self._next < len(self._instructions):
            match self._instructions[self._next]:
                case Publish():
                    progress.publish()
                case Wait(peers, count):
                    progress.awaited = peers, self._base + count
                    if progress.late():
                        return False
                    if count == 1:
                        self._operands.check_calls(peers)
                case Reduce() as reduce:
                    self._reduce(reduce)
                    num_written += 1
                case Copy() as copy:
                    self._copy(copy)
                    num_written += 1
            self._next += 1
            if num_written == _CHUNKS_AT_ONCE:
                return False
        if self._instructions:
            self._instructions, self._next = (), 0
            progress.published = self._end  # others may have published more often, and all go on from the same number
            if self._checked in self._copied:
                held = self._operands.result[self._operands.bounds[self._checked]]
                self.digests[self._checked] = self._digest_of[self._checked](held.view(np.uint8).data)
        return True

    def _reduce(self, reduce: Reduce) -> None:
        operands, chunk = self._operands, reduce.chunk
        where = operands.bounds[chunk]
        result = (operands.result if operands.lent is None else operands.lent)[where]
        arrays = [operands.read(source, chunk) for source in reduce.sources]
        self._reducer(arrays, result, completes=reduce.completes)
        operands.check_tags([source.rank for source in reduce.sources])
        if not reduce.completes:
            return
        self.digests[chunk] = digest = self._digest_of[chunk](result.view(np.uint8).data)
        if operands.lent is not None:
            if operands.lent is not operands.result:
                operands.result[where] = result
            operands.write_digest(chunk, digest)

    def _copy(self, copy: Copy) -> None:
        """The digest comes along; that of a partial sum says nothing, and nobody asks for it."""
        operands, chunk = self._operands, copy.chunk
        where = operands.bounds[chunk]
        operands.result[where] = operands.lent_result(copy.peer)[where]
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

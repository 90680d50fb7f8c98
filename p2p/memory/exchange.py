"""Runs programs (collectives/program.py) over the memory of the members of a view, who all share one host.

No message is needed: what a rank lends and how far it is stand in its arena. Nothing here waits: `advance` goes on
until somebody else has to do something first. Whoever drives it looks again for a while; then it says on its board
what it waits for (`doze`), looks once more, and sleeps until its doorbell rings. Whoever publishes rings for who
sleeps, if it is the last one waited for.

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
from .board import Finished, fence
from .operands import Operands, OwnOperands, RankInView

VIEW_SHIFT: Final = 40
"""Progress counts from the number of the view, shifted by this."""
_SPINS_GIVEN_UP: Final = 4
_MOST_NAMED: Final = 64
"""Ranks, for which a board has bits."""
_CHUNKS_AT_ONCE: Final = 8
"""Then others should be heard. Some milliseconds for chunks of half a megabyte."""

DigestFunction = Callable[[memoryview], bytes]


class Exchange:
    """The operations of one group in one view, one after the other. After an error no more."""

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
        self._memories, self._in_view, self._ring, self._digest = memories, in_view, ring, digest
        boards = [memory.board for memory in memories]
        self._boards = boards
        self._progress = [board.progress(in_view.group) for board in boards]
        self._sleeping, self._for = (
            boards[in_view.rank].sleeping(in_view.group),
            boards[in_view.rank].awaited(in_view.group),
        )
        self._others = [
            (rank, board.sleeping(in_view.group), board.awaited(in_view.group))
            for rank, board in enumerate(boards)
            if rank != in_view.rank
        ]
        self._peers = tuple(rank for rank, *_ in self._others)
        self._published = self._base = in_view.view_number << VIEW_SHIFT
        self._turn = 0
        self._instructions: Sequence[Instruction] = ()
        self._next = 0
        self._awaited: tuple[tuple[int, ...], int] = ((), 0)
        self._num_long_waits = 0
        self.digests: list[bytes] = []
        """Of all chunks of the last result."""

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
        self._instructions, self._next, self._base = program.instructions, 0, self._published
        self._end = self._base + program.num_publishes
        self._reducer, self._checked = reduce, checked % program.num_chunks
        self._digest_of = digest_of or (self._digest,) * program.num_chunks
        self.digests = [b""] * program.num_chunks
        self._copied: set[int] = set()
        self._turn ^= 1

    def advance(self) -> bool:
        """Go on, for a while. Whether the operation is complete; if not, and nobody is `late`, go on at once.

        Raises:
            Interrupted: a rank has left this view.
            Differs: a rank calls something else.
            RemoteProtocolError: a rank lends what it does not have.
        """
        num_written = 0
        while self._next < len(self._instructions):
            match self._instructions[self._next]:
                case Publish():
                    self._publish()
                case Wait(peers, progress):
                    self._awaited = peers, self._base + progress
                    if self.late():
                        return False
                    if progress == 1:
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
            self._published = self._end  # others may have published more often, and all go on from the same number
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
        """Show all that a step is finished here; `late` says who has not done so yet."""
        self._boards[self._in_view.rank].finish(finished)
        self._publish()
        self._awaited = self._peers, self._published

    def finished(self, step: int) -> list[tuple[int, bytes]]:
        """The other ranks that show `step` as finished in this view, with the digests that they show."""
        shown = ((rank, self._boards[rank].finished(step, self._in_view.tag)) for rank in self._peers)
        return [(rank, digests) for rank, digests in shown if digests is not None]

    # Waiting.

    def late(self) -> list[int]:
        """The ranks that have not come as far as what goes on next needs."""
        ranks, target = self._awaited
        return [rank for rank in ranks if self._progress[rank][0] < target]

    @property
    def spins(self) -> bool:
        """Whether to look again before sleeping: not after several waits in which that was all in vain."""
        return self._num_long_waits < _SPINS_GIVEN_UP

    def waited(self, *, is_long: bool) -> None:
        """A wait is over, or longer than a spin."""
        self._num_long_waits = self._num_long_waits + 1 if is_long else 0

    def doze(self) -> bool:
        """Say that this rank sleeps until nobody is late. Whether it has to: somebody still is."""
        ranks, target = self._awaited
        self._for[0] = sum(1 << rank for rank in ranks) if max(ranks, default=0) < _MOST_NAMED else 0
        self._sleeping[0] = target
        fence()
        return bool(self.late())

    def wake(self) -> None:
        """This rank is awake: nobody needs to ring."""
        self._sleeping[0] = 0

    def _publish(self) -> None:
        fence()  # a large copy may have been made with stores that the processor does not keep in order
        self._published += 1
        self._progress[self._in_view.rank][0] = self._published
        fence()
        for rank, sleeping, awaited in self._others:
            if 0 < (target := sleeping[0]) <= self._published and self._is_last(awaited[0], target):
                self._ring(rank)

    def _is_last(self, awaited: int, target: int) -> bool:
        """Whether all who are waited for have come as far as `target`. Of those who come at once one sees it."""
        return all(progress[0] >= target for rank, progress in enumerate(self._progress) if awaited >> rank & 1)

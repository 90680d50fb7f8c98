"""The operations of a view whose members all read each other's memory. Belongs to the loop.

They run one after the other, in the order in which they were submitted, each in *pieces*, cut alike on all ranks. What
does not lie in the arena of this peer is copied there, piece by piece, into *slots* that take turns: a slot is written
again only after all ranks have begun the piece after the one that it was for, and nobody reads it any more. So
operations of any length need little of the arena. The first piece has `Pieces.first_bytes`, and with it each rank says
how long the next may be: `Pieces.long_bytes` where nothing has to be copied anywhere.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import cache
from typing import Protocol

import xxhash

from collectives import Array, MissingSegment, Outgoing, Reduction, reducer
from collectives.program import Program

from .adding import Adding
from .arena import Arena, Memory, Region, Slots
from .board import Finished
from .exchange import Exchange
from .operands import OwnOperands, RankInView
from .shared_run import PIECES, Pieces, SharedRun


class RunState(Enum):
    """The next action of a run."""

    IDLE = auto()
    RUNNABLE = auto()
    """Go on at once, as soon as others were heard."""
    WAITING = auto()
    """Others have to do something first."""
    DEVICE_PENDING = auto()
    """A device of this peer has to: look again soon."""


IDLE, BUSY, WAITING, UNDER_WAY = RunState
"""Asked for some thirty times for each operation: an enum looks its members up slowly."""


class SharedTask(Protocol):
    """An operation as this runner needs it; as `step.operation.Task`."""

    fingerprint: bytes
    weight: float | None
    reduction: Reduction
    turn: int
    input: Array
    result: Array

    def program(self, piece: slice, /) -> Program: ...


class SharedRunner:
    """The operations of one view.

    Attributes:
        outgoing: as of any runner; nothing is ever sent.
        progress: of all ranks in the view: whom this one waits for.
        announced: the step that is finished here, until all show that it is.
    """

    sends = False

    def __init__(
        self,
        arena: Arena,
        slots: tuple[Slots, Region],
        memories: Sequence[Memory],
        in_view: RankInView,
        ring: Callable[[int], None],
        pieces: Pieces = PIECES,
        adding: Adding | None = None,
    ) -> None:
        """A runner without operations.

        Args:
            arena: of this peer.
            slots: for inputs, and one for results, of `Pieces.first_bytes` each. A result is written only when all
                ranks have begun its piece, so none still reads the result before it.
            memories: of all ranks, `arena` among them.
            in_view: in the view, whose tag is on the board of `arena`.
            ring: rings the doorbell of a rank.
            pieces: into which operations are cut.
            adding: sums on devices.
        """
        self._pieces, self._memories, self._adding = pieces, memories, adding
        self._arena, (self._inputs, self._result), self._in_view = arena, slots, in_view
        self._exchange = Exchange(memories, in_view, ring, digest=xxhash.xxh3_128_digest)
        self.progress = self._exchange.progress
        self._reducer = cache(reducer)
        self.outgoing: list[tuple[int, Outgoing]] = []
        self._runs: list[SharedRun] = []
        self._queue: deque[SharedRun] = deque()
        self._is_open = False
        self._piece_bytes = pieces.first_bytes
        self.announced: Finished | None = None
        self.is_broken = False

    # The operations of a step (`step.runner.Runner`).

    def start(self, index: int, task: SharedTask) -> None:
        """Carry `task` out after those before it."""
        self.enqueue(
            SharedRun(
                task.program,
                task.fingerprint,
                task.input,
                task.result,
                task.reduction,
                weight=task.weight,
                checked=task.turn,
            )
        )

    def enqueue(self, run: SharedRun) -> None:
        """Carry `run` out after those before it."""
        self._runs.append(run)
        self._queue.append(run)

    def receive(self, index: int, segment: object) -> None:
        """Refuse a frame: none carries data of a shared operation."""
        raise ValueError(f"operation {index} came as a frame, and is one of shared memory")

    def is_complete(self, index: int) -> bool:
        return self._runs[index].done

    def digest(self, index: int) -> bytes:
        return self._runs[index].digest()

    def missing(self, index: int) -> tuple[MissingSegment, ...]:
        """Ranks that are waited for; none before the turn of the operation."""
        run = self._runs[index]
        is_first = bool(self._queue) and self._queue[0] is run and self._is_open
        return run.missing(self.progress.late(), self._pieces.first_bytes) if is_first else ()

    def end_step(self) -> None:
        self._runs.clear()
        self._queue.clear()

    def stop(self) -> None:
        """Stop all operations; afterwards, memory lent or written by them may be reused."""
        self.is_broken = True
        if self._adding is not None:
            self._adding.drain()

    def advance(self) -> RunState:
        """Go on with the first operation, by one piece at most.

        Raises:
            Interrupted: a rank has left this view; nothing more runs.
            Differs: a rank calls something else; nothing more runs.
            RemoteProtocolError: a rank lends what it does not have; nothing more runs.
            DeviceLost: the own device has failed; nothing more runs.
        """
        if self.is_broken:
            return IDLE
        if not self._queue:
            is_waiting = self.announced is not None and not self.progress.is_over()
            return WAITING if is_waiting else IDLE
        try:
            return self._advance(self._queue[0])
        except BaseException:
            self.stop()
            raise

    def _advance(self, run: SharedRun) -> RunState:
        if not self._is_open:
            self._begin(run)
        if not self._exchange.advance():
            if not self.progress.is_over():
                return WAITING
            return UNDER_WAY if self._exchange.is_under_way else BUSY
        self._is_open = False
        run.end_piece(self._exchange.digests)
        if run.done:
            self._queue.popleft()
        self._piece_bytes = self._pieces.first_bytes if run.done else self._exchange.ahead_bytes()
        return BUSY

    def _begin(self, run: SharedRun) -> None:
        program, of_input, result, places = run.piece(self._piece_bytes)
        input = run.input[of_input]
        lent_input = self._arena.region_of(input) if run.is_raw else None
        is_long = program.lends_results and lent_input is not None
        if lent_input is None:
            lent_input = self._inputs.take(input.nbytes)
            run.fill(of_input, self._arena.array(lent_input, input.dtype))
        lent_result: Region | None = None
        into: Array | None = result
        if program.lends_results:
            lent_result = self._arena.region_of(result)
            into = None if lent_result is not None else result
            lent_result = lent_result or Region(self._result.offset, result.nbytes)
        ahead_bytes = self._pieces.long_bytes if is_long and into is None else self._pieces.first_bytes
        mine = OwnOperands(run.fingerprint, lent_input, input.dtype, lent_result, into, ahead_bytes, places)
        reduce = self._reducer(run.reduction, run.dtype)
        on_device = None
        if self._adding is not None and program.lends_results:  # else all ranks add up all: with one NaN or another
            on_device = self._adding.sum_of(self._memories, run.reduction, run.dtype)
        self._exchange.begin(program, mine, reduce, checked=run.checked, digest_of=run.digest_of, on_device=on_device)
        self._is_open = True

    # What is finished.

    def announce(self, step: int, digests: bytes) -> None:
        """Show all that `step` is finished here, with these digests, as `Finished` has them."""
        self.announced = Finished(step, self._in_view.tag, digests)
        self._exchange.announce(self.announced)

    def all_finished(self) -> tuple[bytes, list[tuple[int, bytes]]] | None:
        """The digests that were announced, and what the other ranks show of the same step.

        Once, when all show it; without those that are in another view. None: not yet.
        """
        if (announced := self.announced) is None or not self.progress.is_over():
            return None
        self.announced = None
        return announced.digests, self._exchange.finished(announced.step)

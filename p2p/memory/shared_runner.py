"""The operations of a view whose members all read each other's memory. Belongs to the loop.

They run one after the other, in the order in which they were submitted, each in *pieces*, cut alike on all ranks. What
does not lie in the arena of this peer is copied there, piece by piece, into *slots* that take turns: a slot is written
again only after all ranks have begun the piece after the one that it was for, and nobody reads it any more. So
operations of any length need little of the arena. The first piece has `Pieces.first_bytes`, and with it each rank says
how long the next may be: `Pieces.long_bytes` where nothing has to be copied anywhere. A piece of a gather is the same
part of the input of each rank.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final, NamedTuple

import xxhash

from collectives import Reduction, carried, reducer, scale
from collectives.execution import Awaited
from collectives.program import Program
from collectives.programs import all_gather_program, all_reduce_program

from .arena import Arena, Array, Memory, Region, Slots
from .board import Finished
from .exchange import DigestFunction, Exchange
from .operands import OwnOperands, RankInView


@dataclass(frozen=True, slots=True)
class Pieces:
    """How long pieces are: the same at all members of a view."""

    first_bytes: int = 4 << 20
    """The first one of an operation, and any of which something has to be copied into a slot, or out of one."""

    long_bytes: int = 64 << 20


PIECES: Final = Pieces()
"""Of the protocol (PROTOCOL.md)."""


class RunState(Enum):
    """What is to be done next."""

    IDLE = auto()
    BUSY = auto()
    """Go on at once, as soon as others were heard."""
    WAITING = auto()
    """Others have to do something first."""


class Piece(NamedTuple):
    """What is done of an operation in one go.

    Attributes:
        program: of this rank.
        of_input: the part of the input.
        result: where the result of the piece lies.
        places: of the ranks' inputs in `result`, for a gather.
    """

    program: Program
    of_input: slice
    result: Array
    places: tuple[slice, ...] | None


class SharedRun:
    """One operation over shared memory.

    Attributes:
        done: the result is complete.
        fingerprint: what all ranks must have in common; 16 bytes.
        digest_of: digests each chunk of the next piece, if not each for itself: of a gather, whose chunks are the
            inputs of the ranks, together with the pieces before.
    """

    def __init__(
        self,
        program_of: Callable[[int], Program],
        fingerprint: bytes,
        input: Array,
        result: Array,
        reduction: Reduction,
        *,
        weight: float | None = None,
        checked: int = 0,
    ) -> None:
        """Nothing is read or written before the first piece.

        Args:
            program_of: a program of this rank for so many bytes.
            fingerprint: as above.
            input: one-dimensional, contiguous; only read.
            result: likewise, memory of its own; for a gather `input` of each rank, one behind the other.
            reduction: what becomes of the inputs.
            weight: the input is multiplied by it first; 0 makes zeros of anything.
            checked: of the chunks, in turns, which one this rank digests as it holds it.
        """
        self.fingerprint = fingerprint
        self.done = False
        self.checked = checked
        self._program_of, self._weight = program_of, weight
        self.reduction, self.dtype = reduction, input.dtype
        self._raw, self.input, self.result = input, carried(input), carried(result)
        self._start = self._stop = 0
        self._digests: list[bytes] = []
        is_gather = self.input.size < self.result.size
        self._inputs = range(0, self.result.size, self.input.size) if is_gather else None
        self.digest_of: list[DigestFunction] | None = None
        if self._inputs is not None:
            self.digest_of = [_running_digest() for _ in self._inputs]

    def piece(self, num_bytes: int) -> Piece:
        """The next piece, of so many bytes of the input at most."""
        self._stop = min(self._start + num_bytes // self.input.itemsize, self.input.size)
        of_input = slice(self._start, self._stop)
        program = self._program_of((self._stop - self._start) * self.input.itemsize)
        if self._inputs is None:
            return Piece(program, of_input, self.result[of_input], None)
        places = tuple([slice(start + self._start, start + self._stop) for start in self._inputs])
        return Piece(program, of_input, self.result, places)

    def fill(self, of_input: slice, slot: Array) -> None:
        """Write a piece of what this rank adds into `slot`."""
        if self._weight is None:
            slot[:] = self.input[of_input]
        elif self._weight == 0:
            slot.fill(0)  # not 0 x input, which may be NaN
        else:
            scale(self._raw[of_input], self._weight, slot.view(self._raw.dtype))

    @property
    def is_raw(self) -> bool:
        """Whether what this rank adds is its input as it is."""
        return self._weight is None

    def end_piece(self, digests: Sequence[bytes]) -> None:
        """The piece is complete, with these digests of its chunks."""
        if self._inputs is not None:
            self._digests.clear()  # they cover the pieces before, too
        self._digests += digests
        self._start = self._stop
        self.done = self._stop == self.input.size

    def digest(self) -> bytes:
        """The digests of all chunks of the result, in order.

        A sum has the chunks of each piece, so beyond the first piece they depend on the pieces; by messages it has
        those of the whole. A gather has the input of each rank, as by messages, however long it is.
        """
        return b"".join(self._digests)

    def missing(self, late: Sequence[int], piece_bytes: int) -> tuple[Awaited, ...]:
        """Who is waited for, with which of the pieces, if all were of `piece_bytes`."""
        piece, num_pieces = (-(-size * self.input.itemsize // piece_bytes) for size in (self._start, self.input.size))
        return tuple(Awaited(rank, 0, piece, max(1, num_pieces)) for rank in late)


class Sharing:
    """The operations of one view."""

    def __init__(
        self,
        arena: Arena,
        slots: tuple[Slots, Region],
        memories: Sequence[Memory],
        in_view: RankInView,
        ring: Callable[[int], None],
        pieces: Pieces = PIECES,
    ) -> None:
        """Nothing runs.

        Args:
            arena: of this peer.
            slots: for inputs, and one for results, of `Pieces.first_bytes` each. A result is only written when all
                have begun the piece that it is of, so nobody reads the one before any more.
            memories: of all ranks, `arena` among them.
            in_view: in the view, whose tag is on the board of `arena`.
            ring: rings the doorbell of a rank.
            pieces: into which operations are cut.
        """
        self._pieces = pieces
        self._arena, (self._inputs, self._result), self._in_view = arena, slots, in_view
        self._world_size = len(memories)
        self._exchange = Exchange(memories, in_view, ring, digest=xxhash.xxh3_128_digest)
        self._reducer = cache(reducer)
        self._queue: deque[SharedRun] = deque()
        self._is_open = False
        self._piece_bytes = pieces.first_bytes
        self._announced: Finished | None = None
        self.is_broken = False

    # What runs.

    def all_reduce(self, algorithm: str) -> Callable[[int], Program]:
        """The programs of this rank for an algorithm."""
        rank, world_size = self._in_view.rank, self._world_size  # with `self` a cycle would keep the memory of the dead
        return lambda num_bytes: all_reduce_program(algorithm, rank, world_size, num_bytes)

    def all_gather(self) -> Callable[[int], Program]:
        """The program of this rank that gathers a piece of each rank."""
        rank, world_size = self._in_view.rank, self._world_size
        return lambda _: all_gather_program(rank, world_size)

    def enqueue(self, run: SharedRun) -> None:
        """Carry `run` out after those before it."""
        self._queue.append(run)

    def advance(self) -> RunState:
        """Go on with the first operation, by one piece at most.

        Raises:
            Interrupted: a rank has left this view; nothing more runs.
            Differs: a rank calls something else; nothing more runs.
            RemoteProtocolError: a rank lends what it does not have; nothing more runs.
        """
        if self.is_broken:
            return RunState.IDLE
        if not self._queue:
            return RunState.WAITING if self._announced is not None and self._exchange.late() else RunState.IDLE
        try:
            return self._advance(self._queue[0])
        except BaseException:
            self.is_broken = True
            raise

    def _advance(self, run: SharedRun) -> RunState:
        if not self._is_open:
            self._begin(run)
        if not self._exchange.advance():
            return RunState.WAITING if self._exchange.late() else RunState.BUSY
        self._is_open = False
        run.end_piece(self._exchange.digests)
        if run.done:
            self._queue.popleft()
        self._piece_bytes = self._pieces.first_bytes if run.done else self._exchange.ahead_bytes()
        return RunState.BUSY

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
        self._exchange.begin(program, mine, reduce, checked=run.checked, digest_of=run.digest_of)
        self._is_open = True

    def missing(self, run: SharedRun) -> tuple[Awaited, ...]:
        """Who is waited for in `run`; nobody before its turn."""
        is_first = bool(self._queue) and self._queue[0] is run and self._is_open
        return run.missing(self._exchange.late(), self._pieces.first_bytes) if is_first else ()

    # What is finished.

    def announce(self, step: int, digests: bytes) -> None:
        """Show all that `step` is finished here, with these digests, as `Finished` has them."""
        self._announced = Finished(step, self._in_view.tag, digests)
        self._exchange.announce(self._announced)

    def all_finished(self) -> list[tuple[int, bytes]]:
        """What the others show of the announced step, once, when all do; without those that are in another view."""
        if self._announced is None or self._exchange.late():
            return []
        step, self._announced = self._announced.step, None
        return self._exchange.finished(step)

    # Waiting.

    @property
    def spins(self) -> bool:
        """Whether to look again before sleeping."""
        return self._exchange.spins

    def is_over(self) -> bool:
        """Whether what is waited for has come."""
        return not self._exchange.late()

    def waited(self, *, is_long: bool) -> None:
        """A wait is over, or longer than a spin."""
        self._exchange.waited(is_long=is_long)

    def doze(self) -> bool:
        """Have the others ring; False if there is nothing to wait for any more."""
        return self._exchange.doze()

    def wake(self) -> None:
        """Nobody needs to ring."""
        self._exchange.wake()


def _running_digest() -> DigestFunction:
    """Digests what it was given so far, as if it had come in one go."""
    digest = xxhash.xxh3_128()

    def add(data: memoryview) -> bytes:
        digest.update(data)
        return digest.digest()

    return add

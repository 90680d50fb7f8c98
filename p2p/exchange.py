"""Runs programs (collectives/program.py) over the memory of those members of a view that share a host.

No message is needed: what a rank lends and how far it is stand in its arena. Waiting is a spin that yields the core at
each turn, of 200 us at most; then the rank says on its board what it waits for, looks once more, and sleeps until its
doorbell rings. Whoever publishes rings only for those who say that they sleep.

What is read of another rank counts only if its tag is right *after* the read (PROTOCOL.md, R10). Whatever goes
wrong, inputs are untouched, and what is half written lies in the result: the operation can be done again.

Left out: who allocates regions and when they are free again; members on other hosts; what a doorbell is.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collectives.program import Copy, Program, Publish, Reduce, Wait

from .arena import Array, Memory
from .board import fence
from .lending import DIGEST_BYTES, Call, Interrupted, Operands, Seat

SPIN_S: Final = 200e-6
NET_S: Final = 20e-3
"""Who sleeps looks again after this long, rung for or not."""

_VIEW_SHIFT: Final = 40
_SPINS_GIVEN_UP: Final = 4

Reduction = Callable[[Sequence[Array], Array], None]
"""Writes the sum of the first, in their order, into the second."""

DigestFunction = Callable[[memoryview], bytes]


@dataclass(frozen=True, slots=True)
class Signals:
    """How a rank hears of others, and they of it, other than through memory.

    Attributes:
        ring: rings the doorbell of a rank. Never blocks.
        wait_doorbell: waits for the own one, so many seconds; whether it rang. What rings between two waits is kept.
        is_interrupted: whether to give up. Whoever makes it true rings the own doorbell afterwards.
    """

    ring: Callable[[int], None]
    wait_doorbell: Callable[[float], bool]
    is_interrupted: Callable[[], bool]


class Exchange:
    """The operations of one group in one view, one after the other. One thread at a time; after an error no more.

    Attributes:
        num_sleeps: waits that were too long for a spin.
        num_caught: sleepers that no doorbell woke, though one should have. Must stay 0.
    """

    def __init__(
        self,
        memories: Sequence[Memory],
        seat: Seat,
        signals: Signals,
        *,
        reduction: Reduction | None = None,
        digest: DigestFunction | None = None,
        spin_s: float = SPIN_S,
    ) -> None:
        """Nothing is written before the first operation.

        Args:
            memories: of all ranks; the own arena among them, whose board has the tag of the view.
            seat: in the view.
            signals: to and from outside.
            reduction: None: `add_in_order`.
            digest: of a chunk, 16 bytes; called by whoever adds it up, while it is in the cache.
            spin_s: how long to look before sleeping.
        """
        self._memories, self._seat, self._signals = memories, seat, signals
        self._reduction, self._digest = reduction or add_in_order, digest
        boards = [memory.board for memory in memories]
        self._progress = [board.progress(seat.group) for board in boards]
        self._sleeping = boards[seat.rank].sleeping(seat.group)
        self._others = [(rank, board.sleeping(seat.group)) for rank, board in enumerate(boards) if rank != seat.rank]
        self._published = seat.view_number << _VIEW_SHIFT
        self._turn = 0
        self._spin_s, self._num_long_waits = spin_s, 0
        self._deadline = 0.0
        self.num_sleeps = self.num_caught = 0

    @property
    def spins(self) -> bool:
        """Whether the next wait begins with a spin: not after several that would all have been in vain."""
        return self._num_long_waits < _SPINS_GIVEN_UP

    def run(self, program: Program, call: Call, timeout_s: float) -> bytes:
        """Carry out one operation; the digests of all chunks of its result, if there is a digest function.

        Raises:
            Interrupted: this view ends.
            Differs: a rank calls something else.
            RemoteProtocolError: a rank lends what it does not have.
            TimeoutError: others do not come, and nobody said why.
        """
        self._deadline = time.monotonic() + timeout_s
        operands = Operands(program, call, self._memories, self._seat, self._turn)
        digests = [b""] * program.num_chunks
        self._turn ^= 1
        base = self._published
        for instruction in program.instructions:
            match instruction:
                case Publish():
                    self._publish()
                case Wait(peers, progress):
                    self._wait(peers, base + progress)
                case Reduce(chunk, peers):
                    self._reduce(operands, chunk, peers, digests)
                case Copy(chunk, peer):
                    self._copy(operands, chunk, peer, digests)
        return b"".join(digests)

    # Data.

    def _reduce(self, operands: Operands, chunk: int, peers: Sequence[int], digests: list[bytes]) -> None:
        where, bounds = operands.bounds[chunk], operands.input_bounds[chunk]
        result = (operands.result if operands.lent is None else operands.lent)[where]
        self._reduction([operands.input(peer)[bounds] for peer in peers], result)
        operands.check_tags(peers)
        if self._digest is not None:
            digests[chunk] = self._digest(result.view(np.uint8).data)
        if operands.lent is not None:
            if operands.lent is not operands.result:
                operands.result[where] = result
            if digests[chunk]:
                place = chunk * DIGEST_BYTES
                operands.digests(self._seat.rank)[place : place + DIGEST_BYTES] = digests[chunk]

    def _copy(self, operands: Operands, chunk: int, peer: int, digests: list[bytes]) -> None:
        where = operands.bounds[chunk]
        operands.result[where] = operands.lent_result(peer)[where]
        if self._digest is not None:
            place = chunk * DIGEST_BYTES
            digests[chunk] = bytes(operands.digests(peer)[place : place + DIGEST_BYTES])
        operands.check_tags((peer,))

    # Progress.

    def _publish(self) -> None:
        fence()  # a large copy may have been made with stores that the processor does not keep in order
        self._published += 1
        self._progress[self._seat.rank][0] = self._published
        fence()
        for rank, sleeping in self._others:
            if 0 < sleeping[0] <= self._published:
                self._signals.ring(rank)

    def _wait(self, ranks: Sequence[int], target: int) -> None:
        late = self._late(ranks, target)
        if not late:
            return
        began = time.monotonic()
        if self.spins:
            late = self._spin(late, target)
        if late:
            self._sleep(late, target)
        is_long = time.monotonic() - began > self._spin_s
        self._num_long_waits = self._num_long_waits + 1 if is_long else 0

    def _late(self, ranks: Sequence[int], target: int) -> list[int]:
        return [rank for rank in ranks if self._progress[rank][0] < target]

    def _spin(self, late: list[int], target: int) -> list[int]:
        """Look again and again, for a while; who is still late."""
        limit = time.monotonic() + self._spin_s
        while late and time.monotonic() < limit:
            self._check_interrupt()
            os.sched_yield()  # there may be more peers than cores
            late = self._late(late, target)
        return late

    def _sleep(self, late: list[int], target: int) -> None:
        """Until nobody is late any more."""
        self.num_sleeps += 1
        self._sleeping[0] = target
        fence()
        try:
            while late := self._late(late, target):
                self._check_interrupt()
                if (left_s := self._deadline - time.monotonic()) <= 0:
                    raise TimeoutError(f"ranks {', '.join(map(str, late))} do not come")
                if not self._signals.wait_doorbell(min(NET_S, left_s)) and not self._late(late, target):
                    # Either the bell is about to ring, or nobody had seen that we sleep.
                    self.num_caught += not self._signals.wait_doorbell(NET_S)
        finally:
            self._sleeping[0] = 0

    def _check_interrupt(self) -> None:
        if self._signals.is_interrupted():
            raise Interrupted("another view is installed")


@np.errstate(over="ignore", invalid="ignore")  # infinities are for the caller to find, as in torch
def add_in_order(sources: Sequence[Array], result: Array) -> None:
    """Add up in the given order, as `collectives.Execution` does: the bits are the same."""
    if len(sources) == 1:
        result[:] = sources[0]
        return
    np.add(sources[0], sources[1], out=result)
    for source in sources[2:]:
        np.add(result, source, out=result)

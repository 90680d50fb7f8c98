"""Executes one rank's schedule without tables: the reference that `MessageRun` and programs are compared with.

Segments go in, segments to be sent come out, lent as by `MessageRun`. It takes any schedule, also one whose SENDs wait
for several transfers, or for one of another chunk.
"""

from collections.abc import Callable

import numpy as np

from collectives.elements import TYPES, Array, as_bits, is_half
from collectives.layout import Operand, Send, Summand, Write, compile_layout
from collectives.message_run import Buffer, MissingSegment, Outgoing
from collectives.reduction import SUM, Reduction
from collectives.schedule import Schedule
from collectives.widening import Widening


class Execution:
    """One operation on one rank.

    Call `start` once, and `receive` with each segment from another rank, in any order; send what they return. The
    schedules of all ranks must pass `verify`, and all ranks must agree on length, type and `segment_bytes`.

    Args:
        schedule: of `rank`.
        rank: of this peer.
        input: one-dimensional, contiguous, of one of `TYPES`; only read.
        result: same type, separate memory; written from now on, complete when `done`.
        segment_bytes: the largest segment; a multiple of the element's size.
        reduction: applied by a REDUCE; allowed by `check_reduction`.
        own_chunk: the only chunk that the input consists of, for a gather; None: it has all chunks.
        digest: applied to the bytes of each chunk of the result once it is complete.

    Raises:
        ValueError: the arrays or `segment_bytes` do not fit.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        input: Array,
        result: Array,
        *,
        segment_bytes: int,
        reduction: Reduction = SUM,
        own_chunk: int | None = None,
        digest: Callable[[memoryview], bytes] | None = None,
    ) -> None:
        _check_arrays(input, result, segment_bytes)
        self._reduction = reduction
        self._widening: Widening | None = None
        self._dtype = result.dtype
        self._writes_runs = is_half(result.dtype)
        if not self._writes_runs:
            self._combine = reduction.combine(result.dtype)
        input, result = as_bits(input), as_bits(result)
        self._segment_length = segment_bytes // result.itemsize
        layout = compile_layout(schedule, rank, result.size, self._segment_length)
        place = slice(0, result.size) if own_chunk is None else layout.regions[own_chunk].bounds
        if input.size != place.stop - place.start:
            raise ValueError(f"the input must have {place.stop - place.start} elements, got {input.size}")
        if own_chunk is not None:
            result[place] = input
        self._layout = layout
        self._input = input if own_chunk is None else result
        self._result = result
        self._turns = [0] * sum(len(region.spans) for region in layout.regions)
        self._parked: dict[tuple[int, int], Array] = {}  # by slot and turn: arrived early, or held
        self._num_unfinished = list(layout.num_segments)
        self._num_waits = list(layout.num_waits)
        self._num_open = [len(region.spans) for region in layout.regions]
        self._num_open_chunks = len(layout.regions)
        self._digest_chunk = digest
        self._digests = [b""] * len(layout.regions)
        self._undigested: list[int] = []
        self._close_chunks_without_writes()

    @property
    def done(self) -> bool:
        """Whether the result is complete, and (after `start`) all segments to be sent have been returned."""
        return self._num_open_chunks == 0

    def digest(self) -> bytes:
        """The digests of all chunks of the result, in order; empty without a digest function."""
        if not self.done:
            raise ValueError("the result is not complete yet, so it has no digest")
        self.digest_chunks()
        return b"".join(self._digests)

    def digest_chunks(self) -> None:
        """Digest chunks that were completed since the last call: after they were sent, while they are in the cache."""
        while self._digest_chunk is not None and self._undigested:
            chunk = self._undigested.pop()
            data = self._result[self._layout.regions[chunk].bounds].view(np.uint8).data
            self._digests[chunk] = self._digest_chunk(data)

    def missing(self) -> tuple[MissingSegment, ...]:
        """Segments that have not arrived yet, in the order in which they will be written."""
        return tuple(
            MissingSegment(write.peer, write.number, segment, len(region.spans))
            for region, turns in zip(self._layout.regions, self._layout.turns, strict=True)
            for write in turns
            for segment in range(len(region.spans))
            if not self._has_arrived(write, region.first_slot + segment)
        )

    def start(self) -> list[Outgoing]:
        """Segments that can be sent before any has arrived."""
        return self._send(list(self._layout.first_sends))

    def receive(self, source: int, transfer: int, segment: int, payload: Buffer) -> list[Outgoing]:
        """Take one segment from another rank, write what is next in order, return the segments that can be sent then.

        Args:
            source: a rank.
            transfer: which of the SENDs from `source` to this rank, counted from 0.
            segment: its number within the chunk.
            payload: its bytes, aligned or not. Kept, not copied, until it is its turn.

        Raises:
            ValueError: no such segment is awaited. The state is unchanged.
        """
        write, slot, arrived = self._accept(source, transfer, segment, payload)
        self._parked[slot, write.turn] = arrived
        return self._write_in_order(write.chunk, segment, slot)

    def _accept(self, source: int, transfer: int, segment: int, payload: Buffer) -> tuple[Write, int, Array]:
        """The write that a segment belongs to, its slot, and its elements."""
        write = self._layout.writes.get((source, transfer))
        if write is None:
            raise ValueError(f"rank {source} has no transfer {transfer} to this rank")
        region = self._layout.regions[write.chunk]
        if not 0 <= segment < len(region.spans):
            name = f"transfer {transfer} from rank {source}"
            raise ValueError(f"{name} has {len(region.spans)} segments, got number {segment}")
        arrived = np.frombuffer(payload, self._result.dtype)
        span = region.spans[segment]
        if arrived.size != span.stop - span.start:
            name = f"segment {segment} of transfer {transfer} from rank {source}"
            raise ValueError(f"{name} has {span.stop - span.start} elements, got {arrived.size}")
        slot = region.first_slot + segment
        if self._has_arrived(write, slot):
            raise ValueError(f"segment {segment} of transfer {transfer} from rank {source} came twice")
        return write, slot, arrived

    def _has_arrived(self, write: Write, slot: int) -> bool:
        return write.turn < self._turns[slot] or (slot, write.turn) in self._parked

    def _write_in_order(self, chunk: int, segment: int, slot: int) -> list[Outgoing]:
        """Write what is next in one slot; returns the segments that waited for it, each with its value at its turn."""
        turns = self._layout.turns[chunk]
        outgoing: list[Outgoing] = []
        while (arrived := self._parked.pop((slot, self._turns[slot]), None)) is not None:
            write = turns[self._turns[slot]]
            self._write(write, segment, slot, arrived)
            self._turns[slot] += 1
            outgoing += self._send([each for transfer in write.transfers for each in self._finish(transfer, segment)])
        if self._turns[slot] == len(turns):
            self._num_open[chunk] -= 1
            if self._num_open[chunk] == 0:
                self._close(chunk)
        return outgoing

    @np.errstate(all="ignore")  # whatever the script has set: infinities are for it to find, as in torch
    def _write(self, write: Write, segment: int, slot: int, arrived: Array) -> None:
        span = self._layout.regions[write.chunk].spans[segment]
        region = self._result[span]
        if self._writes_runs:
            self._write_run(write, span, slot, arrived)
            return
        held = self._parked.pop((slot, write.turn - 1), arrived)
        if write.replaces:
            region[:] = arrived
        elif not write.sums:
            self._parked[slot, write.turn] = arrived
        operands = (self._input[span], region, arrived, held)
        for left, right in write.sums:
            self._combine(operands[left], operands[right], out=region)
        if write.completes:
            self._reduction.complete(region)

    def _write_run(self, write: Write, span: slice, slot: int, arrived: Array) -> None:
        """Hold arrived segments until all that are reduced together are present, so that the result is rounded once."""
        region = self._result[span]
        if write.replaces:
            region[:] = arrived
        else:
            self._parked[slot, write.turn] = arrived
        if write.run:
            arrays = [self._summand(summand, span, slot) for summand in write.run]
            self._widening = self._widening or Widening(self._dtype, min(self._result.size, self._segment_length))
            self._widening.reduce(self._reduction, arrays, region, completes=write.completes)

    def _summand(self, summand: Summand, span: slice, slot: int) -> Array:
        if summand.operand is Operand.ARRIVED:
            return self._parked.pop((slot, summand.turn))
        return (self._result if summand.operand is Operand.RESULT else self._input)[span]

    def _close(self, chunk: int) -> None:
        """Note that this chunk is complete."""
        self._num_open_chunks -= 1
        self._undigested.append(chunk)

    def _close_chunks_without_writes(self) -> None:
        """Complete chunks that are empty, or that no rank sends here: their result is the input."""
        for chunk, (region, turns) in enumerate(zip(self._layout.regions, self._layout.turns, strict=True)):
            if not region.spans or not turns:
                if self._input is not self._result:
                    self._result[region.bounds] = self._input[region.bounds]
                self._close(chunk)

    def _finish(self, transfer: int, segment: int) -> list[tuple[Send, int]]:
        """Note that one segment of a transfer is finished; returns the segments to be sent that become ready."""
        followers = self._layout.followers.get(transfer)
        if followers is None:
            return []
        ready = [(send, segment) for send in followers.by_segment]
        self._num_unfinished[transfer] -= 1
        if self._num_unfinished[transfer] == 0:
            ready += [(send, each) for send in followers.as_a_whole for each in range(len(send.spans))]
        return [each for each in ready if self._count_down(*each)]

    def _count_down(self, send: Send, segment: int) -> bool:
        """Count one finished transfer for a segment to be sent; whether it is ready now."""
        cell = send.first_cell + segment
        self._num_waits[cell] -= 1
        return self._num_waits[cell] == 0

    def _send(self, ready: list[tuple[Send, int]]) -> list[Outgoing]:
        """Send segments, and those that become ready by that."""
        outgoing = []
        for send, segment in ready:  # grows meanwhile
            source = self._result if send.from_result else self._input
            payload = source[send.spans[segment]]
            outgoing.append(Outgoing(send.peer, send.number, segment, payload.copy() if send.is_copied else payload))
            ready += self._finish(send.transfer, segment)
        return outgoing


def _check_arrays(input: Array, result: Array, segment_bytes: int) -> None:
    for name, array in (("input", input), ("result", result)):
        if array.ndim != 1 or not array.flags.c_contiguous or array.dtype not in TYPES:
            raise ValueError(
                f"{name} must be one-dimensional, contiguous and one of {', '.join(TYPES.values())}, "
                f"got shape {array.shape}, strides {array.strides}, {array.dtype}"
            )
    if input.dtype != result.dtype or np.may_share_memory(input, result):
        raise ValueError(f"result must have the type of input, {input.dtype}, and memory of its own")
    if segment_bytes <= 0 or segment_bytes % result.itemsize:
        raise ValueError(f"segment_bytes must be a multiple of {result.itemsize}, got {segment_bytes}")

"""Executes one rank's schedule by messages, with little work per segment, by lookups in tables.

The state of a segment of the result is one counter: how many of its writes are done. A segment that arrives early is
kept until its turn, so the order of additions does not depend on that of arrivals.

Payloads are lent, not copied: a payload is a view of the input or the result, and a transport may still hold it while
the operation continues. The input is never written. The result may be: a ring writes the final sum of a chunk over the
partial sum that it sent earlier. The final sum, however, exists only because the receiver has added that partial sum,
and so had all of its bytes. `verify` proves this for every schedule: a write that overwrites a chunk depends on the
receipt of everything that was sent from it, except if a SEND copies: its payload is a separate copy.

A weighted input is stored, multiplied, in the result, if it is sent once from there and then replaced by the complete
sum: that exists only because the receiver had all of its bytes. Chunks that are not sent are multiplied segment by
segment. A third array is needed only if a chunk is sent to several ranks, as for small inputs.

Left out: a SEND that waits for several transfers, or for one of another chunk; no algorithm has any.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collectives.elements import Array, as_bits, is_half
from collectives.layout import ChunkSpan, Layout, Operand, Send, Summand, Write, compile_layout
from collectives.reduction import SUM, Reduction
from collectives.schedule import Schedule
from collectives.widening import Widening, scale

Buffer = bytes | bytearray | memoryview | Array
"""A contiguous buffer."""


class Outgoing(NamedTuple):
    """Effect: send one segment to `peer`, a rank."""

    peer: int
    transfer: int
    """Which of the SENDs to that peer, counted from 0."""

    segment: int
    payload: Array
    """Lent until the end of the operation."""


class MissingSegment(NamedTuple):
    """A segment that has not arrived yet."""

    peer: int
    transfer: int
    segment: int
    num_segments: int


class Row(NamedTuple):
    """A write, and what all of its segments share."""

    chunk: int
    turn: int
    is_last: bool
    spans: tuple[slice, ...]
    lengths: tuple[int, ...]
    first_slot: int
    replaces: bool
    sums: tuple[tuple[Operand, Operand], ...]
    adds_own: bool
    run: tuple[Summand, ...]
    completes: bool
    sends: tuple[Send, ...]
    """SENDs whose segments can be sent once those of this write are done."""


class Tables(NamedTuple):
    """The tables of a run; shared by equal runs."""

    layout: Layout
    rows: dict[tuple[int, int], Row]
    """By source and number on the wire."""

    turns: tuple[tuple[Row, ...], ...]
    """Per chunk, in order."""

    sent: tuple[int, ...]
    """The chunks whose input is sent."""

    fits_result: bool
    """Whether each of these is sent once, and later written once, by a RECV."""

    num_slots: int
    num_open: tuple[int, ...]
    """Segments to be written, per chunk; 0 if the result of a chunk is the input."""


@lru_cache(maxsize=1024)
def compile_tables(schedule: Schedule, rank: int, length: int, segment_length: int) -> Tables:
    """The tables for `length` elements in segments of `segment_length`; the same object each time.

    Raises:
        ValueError: a SEND waits for more than one transfer of its chunk.
    """
    layout = compile_layout(schedule, rank, length, segment_length)
    assert not any(send.from_result for send, _ in layout.first_sends), "a SEND of a result that waits for nothing"
    is_written = {transfer for turns in layout.turns for write in turns for transfer in write.transfers}
    if max(layout.num_waits, default=0) > 1 or any(
        followers.as_a_whole or transfer not in is_written for transfer, followers in layout.followers.items()
    ):
        raise ValueError(f"rank {rank} has a SEND that waits for more than one transfer of its chunk")
    turns = tuple(
        tuple(_row(layout, region, write, len(writes)) for write in writes)
        for region, writes in zip(layout.regions, layout.turns, strict=True)
    )
    rows = {
        (write.peer, write.number): row
        for writes, chunk in zip(layout.turns, turns, strict=True)
        for write, row in zip(writes, chunk, strict=True)
    }
    sent = [schedule.transfers[transfer].chunk for transfer in {send.transfer for send, _ in layout.first_sends}]
    num_slots = sum(len(region.spans) for region in layout.regions)
    num_open = tuple(
        len(region.spans) if writes else 0 for region, writes in zip(layout.regions, layout.turns, strict=True)
    )
    fits = all(
        sent.count(chunk) == 1 and [(row.replaces, row.sums) for row in turns[chunk]] == [(True, ())] for chunk in sent
    )
    return Tables(layout, rows, turns, tuple(sent), fits, num_slots, num_open)


def _row(layout: Layout, region: ChunkSpan, write: Write, num_turns: int) -> Row:
    followers = (layout.followers.get(transfer) for transfer in write.transfers)
    return Row(
        chunk=write.chunk,
        turn=write.turn,
        is_last=write.turn == num_turns - 1,
        spans=region.spans,
        lengths=tuple(span.stop - span.start for span in region.spans),
        first_slot=region.first_slot,
        replaces=write.replaces,
        sums=write.sums,
        adds_own=any(Operand.OWN in operands for operands in write.sums),
        run=write.run,
        completes=write.completes,
        sends=tuple(send for each in followers if each is not None for send in each.by_segment),
    )


class MessageRun:
    """One operation on one rank.

    Call `start` once, and `receive` with each segment from another rank, in any order; send what they return. The
    schedules of all ranks must pass `verify`, and all ranks must agree on length, type and `segment_bytes`.

    Args:
        schedule: of `rank`.
        rank: of this peer.
        input: one-dimensional, contiguous, of one of `TYPES`; only read.
        result: same type, separate memory, which is not checked; written from now on, complete when `done`.
        segment_bytes: of one segment at most; a multiple of the element's size.
        reduction: what a REDUCE computes; allowed by `check_reduction`.
        own_chunk: the one chunk that the input has, for a gather; otherwise it has all chunks.
        digest: applied to the bytes of each chunk of the result once it is complete.
        weight: the input is multiplied by it first; 0 gives zeros, even for NaN. Not for a gather.
        is_needed: whether a chunk of the result that no transfer writes needs the input; None: all do.

    Attributes:
        done: the result is complete, and (after `start`) all segments to be sent have been returned.
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
        weight: float | None = None,
        digest: Callable[[memoryview], bytes] | None = None,
        is_needed: Callable[[int], bool] | None = None,
    ) -> None:
        self._reduction, self._is_needed = reduction, is_needed
        self._dtype = result.dtype
        self._is_half = is_half(result.dtype)
        if not self._is_half:
            self._combine = reduction.combine(result.dtype)
        else:
            input, result = as_bits(input), as_bits(result)
            self._widening: Widening | None = None
        self._segment_length = segment_bytes // result.itemsize
        self._tables = tables = compile_tables(schedule, rank, result.size, self._segment_length)
        if own_chunk is not None:
            result[tables.layout.regions[own_chunk].bounds] = input
            input = result
        assert input.size == result.size and input.dtype == result.dtype, "the input does not fit the result"
        self._input, self._result, self._weight = input, result, weight
        self._lent = input if weight is None else self._lend_weighted()
        self._turns = [0] * tables.num_slots
        self._kept: dict[tuple[int, int], Array] = {}  # by slot and turn: arrived early, or held
        self._num_open = list(tables.num_open)
        self._num_open_chunks = len(tables.num_open)
        self._digest_chunk = digest
        self._digests = [b""] * len(tables.num_open)
        self._undigested: list[int] = []
        self.done = False
        for chunk, num_open in enumerate(tables.num_open):
            if num_open == 0:
                self._close_as_it_is(chunk)

    def _close_as_it_is(self, chunk: int) -> None:
        """Complete a chunk that is empty, or that no rank sends here: its result is the input."""
        bounds = self._tables.layout.regions[chunk].bounds
        if self._input is not self._result and (self._is_needed is None or self._is_needed(chunk)):
            self._write_own(bounds, self._result[bounds])
        self._close(chunk)

    def _lend_weighted(self) -> Array:
        """An array with the weighted chunks of the input that are sent."""
        tables = self._tables
        lent = self._result if tables.fits_result else np.empty_like(self._result)
        for chunk in tables.sent:
            bounds = tables.layout.regions[chunk].bounds
            self._write_own(bounds, lent[bounds])
        return lent

    def _own(self, where: slice) -> Array:
        """A part of the weighted input."""
        if self._weight is None:
            return self._input[where]
        own = np.empty_like(self._input[where])
        self._write_own(where, own)
        return own

    def _write_own(self, where: slice, out: Array) -> None:
        if self._weight is None:
            out[:] = self._input[where]
        elif self._weight == 0:
            out.fill(0)  # not 0 x input, which may be NaN
        else:
            scale(self._input[where].view(self._dtype), self._weight, out.view(self._dtype))

    def _close(self, chunk: int) -> None:
        """Note that this chunk is complete."""
        self._num_open_chunks -= 1
        self.done = self._num_open_chunks == 0
        self._undigested.append(chunk)

    def start(self) -> list[Outgoing]:
        """Segments that can be sent before any has arrived."""
        return [
            Outgoing(send.peer, send.number, segment, self._lent[send.spans[segment]])
            for send, segment in self._tables.layout.first_sends
        ]

    def receive(self, source: int, transfer: int, segment: int, payload: Buffer) -> Sequence[Outgoing]:
        """Take one segment from another rank, write what is next in order, return the segments that can be sent then.

        Args:
            source: a rank.
            transfer: which of the SENDs from `source` to this rank, counted from 0.
            segment: its number within the chunk.
            payload: its bytes, aligned or not. Kept, not copied, until it is its turn.

        Raises:
            ValueError: no such segment is awaited. The state is unchanged.
        """
        row = self._tables.rows.get((source, transfer))
        if row is None:
            raise ValueError(f"rank {source} has no transfer {transfer} to this rank")
        if not 0 <= segment < len(row.lengths):
            name = f"transfer {transfer} from rank {source}"
            raise ValueError(f"{name} has {len(row.lengths)} segments, got number {segment}")
        arrived = np.frombuffer(payload, self._result.dtype)
        if arrived.size != row.lengths[segment]:
            name = f"segment {segment} of transfer {transfer} from rank {source}"
            raise ValueError(f"{name} has {row.lengths[segment]} elements, got {arrived.size}")
        slot = row.first_slot + segment
        turn = self._turns[slot]
        if turn != row.turn:
            if turn > row.turn or (slot, row.turn) in self._kept:
                raise ValueError(f"segment {segment} of transfer {transfer} from rank {source} came twice")
            self._kept[slot, row.turn] = arrived
            return ()
        return self._write_in_order(row, segment, slot, arrived)

    @np.errstate(all="ignore")  # whatever the script has set: infinities are for it to find, as in torch
    def _write_in_order(self, row: Row, segment: int, slot: int, arrived: Array) -> Sequence[Outgoing]:
        """Write the arrived segment, and kept ones that are next; returns the segments that can be sent then."""
        outgoing: list[Outgoing] = []
        while True:
            span = row.spans[segment]
            if self._is_half:
                self._write_run(row, span, slot, arrived)
            else:
                self._write(row, span, slot, arrived)
            self._turns[slot] = turn = row.turn + 1
            for send in row.sends:
                payload = self._result[span]
                outgoing.append(
                    Outgoing(send.peer, send.number, segment, payload.copy() if send.is_copied else payload)
                )
            if row.is_last:
                self._num_open[row.chunk] -= 1
                if self._num_open[row.chunk] == 0:
                    self._close(row.chunk)
                return outgoing
            following = self._kept.pop((slot, turn), None) if self._kept else None
            if following is None:
                return outgoing
            row, arrived = self._tables.turns[row.chunk][turn], following

    def _write(self, row: Row, span: slice, slot: int, arrived: Array) -> None:
        region = self._result[span]
        if row.replaces:
            region[:] = arrived
        if row.sums:
            held = self._kept.pop((slot, row.turn - 1), arrived) if row.turn else arrived
            own = self._own(span) if row.adds_own else arrived
            operands = (own, region, arrived, held)
            for left, right in row.sums:
                self._combine(operands[left], operands[right], out=region)
        elif not row.replaces:
            self._kept[slot, row.turn] = arrived
        if row.completes:
            self._reduction.complete(region)

    def _write_run(self, row: Row, span: slice, slot: int, arrived: Array) -> None:
        """Hold arrived segments until all that are reduced together are present, so that the result is rounded once."""
        region = self._result[span]
        if row.replaces:
            region[:] = arrived
        else:
            self._kept[slot, row.turn] = arrived
        if row.run:
            arrays = [self._summand(summand, span, slot) for summand in row.run]
            self._widening = self._widening or Widening(self._dtype, min(self._result.size, self._segment_length))
            self._widening.reduce(self._reduction, arrays, region, completes=row.completes)

    def _summand(self, summand: Summand, span: slice, slot: int) -> Array:
        if summand.operand is Operand.ARRIVED:
            return self._kept.pop((slot, summand.turn))
        return self._result[span] if summand.operand is Operand.RESULT else self._own(span)

    def missing(self) -> tuple[MissingSegment, ...]:
        """Segments that have not arrived yet, in the order in which they will be written."""
        layout = self._tables.layout
        return tuple(
            MissingSegment(write.peer, write.number, segment, len(region.spans))
            for region, turns in zip(layout.regions, layout.turns, strict=True)
            for write in turns
            for segment in range(len(region.spans))
            if write.turn >= self._turns[slot := region.first_slot + segment] and (slot, write.turn) not in self._kept
        )

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
            data = self._result[self._tables.layout.regions[chunk].bounds].view(np.uint8).data
            self._digests[chunk] = self._digest_chunk(data)

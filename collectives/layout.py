"""A schedule compiled into tables for one bucket length and segment size, for `MessageRun`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from collectives.partition import split_by_weight
from collectives.schedule import Kind, Schedule, Transfer, wire_numbers


class Operand(IntEnum):
    """The location of a summand."""

    OWN = 0
    """In the input of this rank."""

    RESULT = 1
    ARRIVED = 2
    """In the segment that is written now."""

    HELD = 3
    """In the segment before it: the first of a sum is not copied, but kept until the second has arrived."""


class Summand(NamedTuple):
    """One of the arrays that are reduced together."""

    operand: Operand
    turn: int = 0
    """Of an operand that has arrived: the turn of its write."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The place of a chunk in the bucket, in elements."""

    bounds: slice
    spans: tuple[slice, ...]
    """Its segments; none if it is empty."""

    first_slot: int
    """Index of the chunk's first segment among the segments of all chunks."""


@dataclass(frozen=True, slots=True)
class Write:
    """A RECV or REDUCE from another rank, together with the REDUCE of the own input if that is next."""

    peer: int
    number: int
    chunk: int
    turn: int
    """Number of earlier writes of the chunk."""

    replaces: bool
    sums: tuple[tuple[Operand, Operand], ...]
    """Pairs that are added into the result, after replacing. If neither happens, the segment is held."""

    transfers: tuple[int, ...]
    """The entries of the schedule that this write executes."""

    run: tuple[Summand, ...] = ()
    """For half types, which are rounded once: all summands since the chunk was last sent or received, in order, if the
    chunk is sent, replaced or final after this write."""

    completes: bool = False
    """Whether this is a REDUCE and the last write of its chunk, so that the chunk is the result of all ranks."""


@dataclass(frozen=True, slots=True)
class Send:
    """A SEND, and its number on the wire."""

    transfer: int
    peer: int
    number: int
    from_result: bool
    spans: tuple[slice, ...]
    first_cell: int
    """Index of its first segment among the segments of all SENDs."""

    is_copied: bool
    """Whether the result may be written again before the segments have arrived."""


@dataclass(slots=True)
class Followers:
    """The SENDs that wait for a transfer."""

    by_segment: list[Send] = field(default_factory=list)
    """SENDs of the same chunk."""

    as_a_whole: list[Send] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one rank."""

    regions: tuple[ChunkSpan, ...]
    turns: tuple[tuple[Write, ...], ...]
    """Per chunk, its writes in order."""

    writes: Mapping[tuple[int, int], Write]
    """All writes, by source and number on the wire."""

    first_sends: tuple[tuple[Send, int], ...]
    """Segments that wait for nothing."""

    followers: Mapping[int, Followers]
    """By transfer."""

    num_segments: tuple[int, ...]
    """Per transfer; 0: it is finished from the start."""

    num_waits: tuple[int, ...]
    """Per segment of a SEND, how many transfers it waits for."""


@lru_cache(maxsize=1024)
def compile_layout(schedule: Schedule, rank: int, length: int, segment_length: int) -> Layout:
    """The tables for `length` elements in segments of `segment_length`; the same object each time."""
    regions = _regions(schedule, length, segment_length)
    compiler = _Compiler(schedule, rank, regions)
    for index, number in enumerate(wire_numbers(schedule.transfers)):
        compiler.add(index, number)
    compiler.end()
    return Layout(
        regions=regions,
        turns=tuple(map(tuple, compiler.turns)),
        writes={(write.peer, write.number): write for turns in compiler.turns for write in turns},
        first_sends=tuple(compiler.first_sends),
        followers=dict(compiler.followers),
        num_segments=tuple(compiler.num_segments),
        num_waits=tuple(compiler.num_waits),
    )


def _regions(schedule: Schedule, length: int, segment_length: int) -> tuple[ChunkSpan, ...]:
    chunks = split_by_weight(length, schedule.chunks)
    spans = [_cut(chunk, segment_length) for chunk in chunks]
    return tuple(map(ChunkSpan, chunks, spans, accumulate(map(len, spans), initial=0)))


def _cut(chunk: slice, segment_length: int) -> tuple[slice, ...]:
    starts = range(chunk.start, chunk.stop, segment_length)
    return tuple(slice(start, min(start + segment_length, chunk.stop)) for start in starts)


class _Compiler:
    """Compiles a schedule entry by entry, and tracks the location of each chunk's value."""

    def __init__(self, schedule: Schedule, rank: int, regions: tuple[ChunkSpan, ...]) -> None:
        self._transfers, self._partial = schedule.transfers, schedule.partial
        self._rank = rank
        self._regions = regions
        starts_empty = {transfer.chunk for transfer in schedule.transfers if transfer.peer == rank}
        self._values = [None if chunk in starts_empty else Operand.OWN for chunk in range(len(regions))]
        self._runs: list[list[Summand]] = [[] for _ in regions]
        self.turns: list[list[Write]] = [[] for _ in regions]
        self.first_sends: list[tuple[Send, int]] = []
        self.followers: defaultdict[int, Followers] = defaultdict(Followers)
        self.num_segments: list[int] = []
        self.num_waits: list[int] = []

    def add(self, index: int, number: int) -> None:
        transfer = self._transfers[index]
        num_segments = len(self._regions[transfer.chunk].spans)
        if transfer.kind is Kind.SEND:
            self._add_send(index, transfer, number)
        elif transfer.peer != self._rank:
            self._add_write(index, transfer, number)
        elif self.turns[transfer.chunk]:
            self._add_own_input(index, transfer.chunk)
        else:
            self._values[transfer.chunk] = Operand.OWN
            num_segments = 0  # the input is present from the start
        self.num_segments.append(num_segments)

    def end(self) -> None:
        """Finish the tables, after all transfers were added."""
        for chunk, turns in enumerate(self.turns):
            self._end_run(chunk)
            if turns:
                last = turns[-1]
                is_sum = self._transfers[last.transfers[-1]].kind is Kind.REDUCE and chunk not in self._partial
                turns[-1] = replace(last, completes=is_sum)

    def _end_run(self, chunk: int) -> None:
        """End the run of a chunk, whose value is used now, or replaced."""
        if self._runs[chunk]:
            self.turns[chunk][-1] = replace(self.turns[chunk][-1], run=tuple(self._runs[chunk]))
            self._runs[chunk] = []

    def _add_send(self, index: int, transfer: Transfer, number: int) -> None:
        self._end_run(transfer.chunk)
        spans = self._regions[transfer.chunk].spans
        from_result = self._values[transfer.chunk] is Operand.RESULT
        is_copied = transfer.is_copied and from_result  # an input is never written
        send = Send(index, transfer.peer, number, from_result, spans, len(self.num_waits), is_copied)
        awaited = [earlier for earlier in transfer.after if self.num_segments[earlier] > 0]
        self.num_waits += [len(awaited)] * len(spans)
        if not awaited:
            self.first_sends += [(send, segment) for segment in range(len(spans))]
        for earlier in awaited:
            same_chunk = self._transfers[earlier].chunk == transfer.chunk
            followers = self.followers[earlier]
            (followers.by_segment if same_chunk else followers.as_a_whole).append(send)

    def _add_write(self, index: int, transfer: Transfer, number: int) -> None:
        chunk, value = transfer.chunk, self._values[transfer.chunk]
        replaces = transfer.kind is Kind.RECV
        sums = () if replaces or value is None else ((value, Operand.ARRIVED),)
        turn = len(self.turns[chunk])
        if replaces:
            self._end_run(chunk)
        else:
            self._extend_run(chunk, Summand(Operand.ARRIVED, turn))
        self.turns[chunk].append(Write(transfer.peer, number, chunk, turn, replaces, sums, (index,)))
        self._values[chunk] = Operand.RESULT if replaces or sums else Operand.HELD

    def _add_own_input(self, index: int, chunk: int) -> None:
        """Append to the write before: the own input needs no arrival."""
        last, value = self.turns[chunk][-1], self._values[chunk]
        left = Operand.RESULT if value is Operand.RESULT else Operand.ARRIVED
        sums = (*last.sums, (left, Operand.OWN))
        self._extend_run(chunk, Summand(Operand.OWN))
        self.turns[chunk][-1] = replace(last, sums=sums, transfers=(*last.transfers, index))
        self._values[chunk] = Operand.RESULT

    def _extend_run(self, chunk: int, summand: Summand) -> None:
        run, value = self._runs[chunk], self._values[chunk]
        if not run and value is not None:
            run.append(Summand(value))
        run.append(summand)

"""The flight recorder: the last actions of a peer, as fixed-size records in memory that outlives its process.

A *half* is a ring of 2,048 records of 64 bytes, written by one thread at a time: one half by the thread that drives the
loop, one by the training thread. Record n, counted from 1, goes into slot n % 2,048. Little-endian:

    0   n (8 bytes)
    8   monotonic nanoseconds (8); one clock for all processes of a host
    16  kind (2), how (2), size (4)
    24  step, with a sign (8); -1: none
    32  number of a view (8), peer_id as a number (8); 0: none
    48  a value, float64 (8)
    56  n again (8)

A writer stores these in this order, with one `pack_into`. A reader reads the last number, then the whole record, then
the first number: the record is complete if the two are equal, even if the writer was killed while writing. That relies
on a processor that keeps stores in order, and loads, as x86-64 does.
"""

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple, Protocol

NUM_RECORDS: Final = 2048
"""Records per half."""
RECORD_BYTES: Final = 64
RING_BYTES: Final = NUM_RECORDS * RECORD_BYTES

_RECORD: Final = struct.Struct("<QQHHIqQQdQ")
_NUMBER: Final = struct.Struct("<Q")
assert _RECORD.size == RECORD_BYTES

Memory = memoryview


class Kind(IntEnum):
    """The kind of a record. The numbers are stored in pages, so they never change."""

    # The half of the training thread.
    BEGUN = 1
    """A step was opened: its first operation follows."""
    SUBMITTED = 2
    """The step is submitted completely: the script waits."""
    RECEIVED = 3
    """The script has the results; `size`: steps that counted this peer so far; `value`: its samples in these."""
    BUCKET = 4
    """A training step has a sum of `value` bytes: a record for each of `size` buckets, when they change."""
    # The half of the thread that drives the loop.
    FINISHED = 16
    """All operations of the step are complete here."""
    COMMITTED = 17
    """With `value` samples of this peer."""
    FOLLOWED = 18
    """Committed by the members, and applied by this peer, an observer."""
    REDO = 19
    """The step is redone, in this view; `how`: why views have changed since it was begun, as of INSTALLED."""
    GIVEN_UP = 20
    ASKED = 32
    """This peer has asked for a seat."""
    STATE = 33
    """The transfer of the state after this step to this peer begins."""
    LOADED = 34
    GIVES = 35
    """This peer is asked to give the peer in the record the state after this step, or a later one."""
    WHOLE = 36
    """The state after this step is complete here: `value` bytes, from `size` donors."""
    COMING = 37
    """Progress of the transfer of the state after this step: `value` bytes, or `size` percent; a record per 5 %."""
    INSTALLED = 48
    """A view of `size` members is installed; `how`: why it differs from the one before (`Why`)."""
    ACTIVE = 49
    """The view is active: all its members have done the same steps, up to this one."""
    IN = 50
    """The peer in the record has a seat in the installed view, and had none before."""
    OUT = 51
    """The peer in the record has lost its seat; `how`: it said LEAVE, is dead, or was silent (for `value` s)."""
    PROPOSED = 52
    """This peer asks the others to accept this view, of `size` members; a record per ballot."""
    GONE = 64
    """The peer in the record is dead, or has left; `how`: the source of that."""
    PAUSED = 65
    """Too few members are reachable to continue."""
    RESUMED = 66
    LEAVES = 67
    """This peer has said that it starts no further step."""
    LEFT = 68
    REMOVED = 69
    """The others continue without this peer."""
    DIVERGED = 70
    SUSPECTED = 71
    """The peer in the record is suspected to be dead; `how`: by a probe of this peer, or by the word of another."""
    CLEARED = 72
    """The peer in the record has refuted the suspicion."""
    LOST = 73
    """The peer in the record has not refuted the suspicion in time."""
    # Records of the script, in the half of the training thread.
    LOGGED = 80
    """`peer.log` after this step: `value`; view and peer hold the name (logged.py), `size` is the index in the call."""
    # Rounds, in the same half.
    SENT = 81
    """In this round this peer has sent `value` bytes of SEGMENTs, including headers."""
    RESIDUAL_LOST = 82
    """This peer leaves with an unsent residual: `value` is its norm, relative to that of the last delta."""


COMMITS: Final = (Kind.COMMITTED, Kind.FOLLOWED)
"""A step was committed, with this peer or by the members."""

ADVANCES: Final = (*COMMITS, Kind.LOADED)
"""This peer has reached the state after a step, by any way."""


class How(IntEnum):
    """How it is known that a peer is gone or suspected; and why it has lost its seat."""

    UNKNOWN = 0
    KERNEL = 1
    LAUNCHER = 2
    OWN_PROBE = 3
    HEARSAY = 4
    LEAVE = 5
    DEATH = 6
    SILENCE = 7


class Why(IntFlag):
    """Changes since the view before, as far as this peer knows."""

    FIRST = 1
    """This peer had no view before."""
    CAME = 2
    LEFT = 4
    DIED = 8
    SILENT = 16
    """A member that no other could hear has lost its seat."""
    AGAIN = 32
    """The same members start over."""

    @property
    def words(self) -> str:
        """The flags in words: `came, died`."""
        return ", ".join(each.name.lower() for each in Why if each in self and each.name) or "unknown"


class Record(NamedTuple):
    """One record, as read.

    Attributes:
        number: in its half, from 1.
        time_ns: by the host's monotonic clock.
        kind: a number that is not a `Kind` is of a later version.
        peer_id: 16 hex digits; empty: none.
    """

    number: int
    time_ns: int
    kind: int
    how: int
    size: int
    step: int
    view: int
    peer_id: str
    value: float


class Note(Protocol):
    """Writes one record, in under 0.5 us. Raises `struct.error` if an argument does not fit into its field."""

    def __call__(
        self,
        kind: int,
        step: int = -1,
        view: int = 0,
        peer: int = 0,
        how: int = 0,
        size: int = 0,
        value: float = 0.0,
    ) -> None: ...


def _writer(memory: Memory, clock: Callable[[], int]) -> tuple[Note, Callable[[], int]]:
    """A function that writes records into `memory`, and one that returns the number of the last.

    They are closures, since the processor's caches are cold between steps, and each attribute would cost a miss.
    """
    pack_into, number = _RECORD.pack_into, 0

    def note(
        kind: int, step: int = -1, view: int = 0, peer: int = 0, how: int = 0, size: int = 0, value: float = 0.0
    ) -> None:
        nonlocal number
        number = own = number + 1
        pack_into(memory, own % 2048 * 64, own, clock(), kind, how, size, step, view, peer, value, own)

    return note, lambda: number


assert (NUM_RECORDS, RECORD_BYTES) == (2048, 64), "as in `note`, where they are not looked up"


class RecordRing:
    """The records of one writing thread, in its part of a page.

    Attributes:
        note: writes a record.
    """

    def __init__(self, memory: Memory, clock: Callable[[], int]) -> None:
        """An empty half.

        Args:
            memory: `RING_BYTES` of zeros.
            clock: monotonic nanoseconds.
        """
        self._memory = memory
        self.note, self._last = _writer(memory, clock)

    def latest(self, number: int = 512) -> list[Record]:
        """The last records, at most `number`, oldest first. For the writing process, where all of them are complete."""
        last = self._last()
        numbers = range(max(1, last - number + 1), last + 1)
        found = [_RECORD.unpack_from(self._memory, each % NUM_RECORDS * RECORD_BYTES) for each in numbers]
        return [_record(values) for values, each in zip(found, numbers, strict=True) if values[0] == each]


def peer_number(peer_id: str) -> int:
    """A peer_id as stored in a record."""
    return int(peer_id, 16)


def read_ring(memory: Memory) -> list[Record]:
    """The complete records of a half, oldest first. Records that are written during the call may be left out."""
    return sorted(_whole_records(memory))


def read_raw(memory: Memory, slot: int) -> tuple[int, bytes]:
    """Last number in a slot, and the bytes of the record; empty: the record is not complete."""
    offset = slot * RECORD_BYTES
    (last,) = _NUMBER.unpack_from(memory, offset + RECORD_BYTES - _NUMBER.size)
    raw = bytes(memory[offset : offset + RECORD_BYTES])
    (first,) = _NUMBER.unpack_from(memory, offset)
    return last, raw if first == last else b""


def is_written(memory: Memory, number: int) -> bool:
    """Whether the slot holds the complete record of this number, or a later one."""
    (last,) = _NUMBER.unpack_from(memory, number % NUM_RECORDS * RECORD_BYTES + RECORD_BYTES - _NUMBER.size)
    return int(last) >= number


def unpack_record(buffer: bytes, offset: int = 0) -> Record:
    """The record at `offset`."""
    return _record(_RECORD.unpack_from(buffer, offset))


def unpack_records(buffer: bytes) -> list[Record]:
    """All records in `buffer`."""
    return [_record(values) for values in _RECORD.iter_unpack(buffer)]


def _whole_records(memory: Memory) -> Iterator[Record]:
    for slot in range(NUM_RECORDS):
        last, raw = read_raw(memory, slot)
        if raw and last and last % NUM_RECORDS == slot:
            yield unpack_record(raw)


def _record(values: tuple[Any, ...]) -> Record:
    number, time_ns, kind, how, size, step, view, peer, value, _ = values
    return Record(number, time_ns, kind, how, size, step, view, f"{peer:016x}" if peer else "", value)

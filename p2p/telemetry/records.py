"""The flight recorder: the last things that a peer did, as fixed records in memory that outlives its process.

A *half* is a ring of 2,048 records of 64 bytes, written by one thread at a time: one by whoever drives the loop, one by
the training thread. Record n, counted from 1, goes into slot n % 2,048. Little-endian:

    0   n (8 bytes)
    8   monotonic nanoseconds (8); one clock for all processes of a host
    16  kind (2), how (2), size (4)
    24  step, with a sign (8); -1: none
    32  number of a view (8), peer_id as a number (8); 0: none
    48  a value, float64 (8)
    56  n again (8)

A writer stores these in this order, with one `pack_into`. A reader takes the last number, then all, then the first: the
record is whole if the two are equal, also where the writer was killed in the middle of it. That relies on a processor
that keeps stores in order, and loads, as x86-64 does.
"""

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple, Protocol

NUM_RECORDS: Final = 2048
"""Of a half."""
RECORD_BYTES: Final = 64
HALF_BYTES: Final = NUM_RECORDS * RECORD_BYTES

_RECORD: Final = struct.Struct("<QQHHIqQQdQ")
_NUMBER: Final = struct.Struct("<Q")
assert _RECORD.size == RECORD_BYTES

Memory = memoryview


class Kind(IntEnum):
    """What happened. The numbers are in pages, so they stay."""

    # The training thread's.
    BEGUN = 1
    """A step was opened: its first operation comes."""
    SUBMITTED = 2
    """All of it is submitted: the script waits."""
    RECEIVED = 3
    """The script has its results; `size` and `value`: in so many steps, with so many samples, it was counted."""
    BUCKET = 4
    """A training step has a sum of `value` bytes: one record for each of `size` such, where they are not as before."""
    # Of whoever drives the loop.
    FINISHED = 16
    """All operations of the step are complete here."""
    COMMITTED = 17
    FOLLOWED = 18
    """Committed by the members, and taken over by this peer, an observer."""
    REDO = 19
    """It is done over, in this view; `how`: what has become of the views since it was begun, as of INSTALLED."""
    GIVEN_UP = 20
    ASKED = 32
    """For a seat."""
    STATE = 33
    """The state after this step begins to come."""
    LOADED = 34
    GIVES = 35
    """The state after this step, or a later one, is to be given to this peer."""
    WHOLE = 36
    """All of the state after this step is here: `value` bytes, of `size` donors."""
    COMING = 37
    """So much of the state after this step has come: `value` bytes, or `size` percent; a record per twentieth."""
    INSTALLED = 48
    """A view, of `size` members; `how`: why there is another one (`Why`)."""
    ACTIVE = 49
    """All its members have done the same steps, this one the last of them."""
    IN = 50
    """This peer is a member of the view that is installed now, and was none before."""
    OUT = 51
    """This peer is a member no more; `how`: because it has said LEAVE, is dead, or cannot be heard."""
    PROPOSED = 52
    """This peer asks the others to accept this view, of `size` members; a record per ballot."""
    GONE = 64
    """This peer is dead, or has left; `how` says who says so."""
    PAUSED = 65
    """Too few members can be heard to go on."""
    RESUMED = 66
    LEAVES = 67
    """This peer has said that it starts no further step."""
    LEFT = 68
    REMOVED = 69
    """The others go on without this peer."""
    DIVERGED = 70
    SUSPECTED = 71
    """This peer is suspected to be dead; `how` says whether by a probe of whoever writes this, or by another's word."""
    CLEARED = 72
    """It has denied that."""
    LOST = 73
    """It has not, in the time that it had."""
    # The script's own, in the half of the training thread.
    LOGGED = 80
    """`peer.log` after this step: `value`; view and peer are its name (logged.py), `size` is its place in the call."""
    # Of rounds, in the same half.
    SENT = 81
    """Of this round this peer has sent `value` bytes of SEGMENTs, with their headers."""
    RESIDUAL_LOST = 82
    """This peer leaves with what a codec has left out: `value`, its norm over that of the last delta."""


COMMITS: Final = (Kind.COMMITTED, Kind.FOLLOWED)
"""A step was committed, with this peer or by the members."""

ADVANCES: Final = (*COMMITS, Kind.LOADED)
"""This peer has come to the state after a step, however."""


class How(IntEnum):
    """By whom it is known that a peer is gone, or is suspected to be; and why it is out."""

    UNKNOWN = 0
    KERNEL = 1
    LAUNCHER = 2
    OWN_PROBE = 3
    HEARSAY = 4
    LEAVE = 5
    DEATH = 6
    SILENCE = 7


class Why(IntFlag):
    """What has changed since the view before, as this peer knows it."""

    FIRST = 1
    """There was none here."""
    CAME = 2
    LEFT = 4
    DIED = 8
    SILENT = 16
    """Somebody that nobody could hear is out."""
    AGAIN = 32
    """The same members start over."""

    @property
    def words(self) -> str:
        """`came, died`."""
        return ", ".join(each.name.lower() for each in Why if each in self and each.name) or "unknown"


class Record(NamedTuple):
    """One record, as it is read.

    Attributes:
        number: in its half, from 1 on.
        time_ns: of the host's monotonic clock.
        kind: a number that is no `Kind` is of a later version.
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
    """Writes one record: under half a microsecond. Arguments that do not fit into their fields raise `struct.error`."""

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
    """What writes records into `memory`, and the number of the last one.

    A closure, since between steps nothing of this is in the processor's caches: each attribute costs a look there.
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


class Half:
    """The records of one writing thread, in its part of a page.

    Attributes:
        note: writes one.
    """

    def __init__(self, memory: Memory, clock: Callable[[], int]) -> None:
        """Nothing is written.

        Args:
            memory: `HALF_BYTES` of zeros.
            clock: monotonic nanoseconds.
        """
        self._memory = memory
        self.note, self._last = _writer(memory, clock)

    def latest(self, number: int = 512) -> list[Record]:
        """The last records, so many at most, oldest first. For the process that writes: there each is whole."""
        last = self._last()
        numbers = range(max(1, last - number + 1), last + 1)
        found = [_RECORD.unpack_from(self._memory, each % NUM_RECORDS * RECORD_BYTES) for each in numbers]
        return [_record(values) for values, each in zip(found, numbers, strict=True) if values[0] == each]


def peer_number(peer_id: str) -> int:
    """A peer_id as it is in a record."""
    return int(peer_id, 16)


def read_half(memory: Memory) -> list[Record]:
    """The whole records of a half, oldest first. Its writer may be at it; what it writes meanwhile may be left out."""
    return sorted(_whole_records(memory))


def read_raw(memory: Memory, slot: int) -> tuple[int, bytes]:
    """Number of the record that is in a slot, or comes to be there, and its bytes; empty: it is not whole."""
    offset = slot * RECORD_BYTES
    (last,) = _NUMBER.unpack_from(memory, offset + RECORD_BYTES - _NUMBER.size)
    raw = bytes(memory[offset : offset + RECORD_BYTES])
    (first,) = _NUMBER.unpack_from(memory, offset)
    return last, raw if first == last else b""


def is_written(memory: Memory, number: int) -> bool:
    """Whether the record of this number is there, whole, or a later one."""
    (last,) = _NUMBER.unpack_from(memory, number % NUM_RECORDS * RECORD_BYTES + RECORD_BYTES - _NUMBER.size)
    return int(last) >= number


def unpack_record(buffer: bytes, offset: int = 0) -> Record:
    """One record of these bytes."""
    return _record(_RECORD.unpack_from(buffer, offset))


def unpack_records(buffer: bytes) -> list[Record]:
    """All of these bytes."""
    return [_record(values) for values in _RECORD.iter_unpack(buffer)]


def _whole_records(memory: Memory) -> Iterator[Record]:
    for slot in range(NUM_RECORDS):
        last, raw = read_raw(memory, slot)
        if raw and last and last % NUM_RECORDS == slot:
            yield unpack_record(raw)


def _record(values: tuple[Any, ...]) -> Record:
    number, time_ns, kind, how, size, step, view, peer, value, _ = values
    return Record(number, time_ns, kind, how, size, step, view, f"{peer:016x}" if peer else "", value)

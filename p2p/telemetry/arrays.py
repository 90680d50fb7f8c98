"""Records read in bulk, as numpy arrays: for a reader that polls many pages."""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from .records import NUM_RECORDS, RECORD_BYTES, Memory, Record, unpack_records

FIELDS: Final = np.dtype(
    [
        *(("first", "<u8"), ("time_ns", "<u8"), ("kind", "<u2"), ("how", "<u2"), ("size", "<u4"), ("step", "<i8")),
        *(("view", "<u8"), ("peer", "<u8"), ("value", "<f8"), ("last", "<u8")),
    ]
)
"""The layout in records.py."""
assert FIELDS.itemsize == RECORD_BYTES


Records = npt.NDArray[np.void]
"""An array with dtype `FIELDS`."""

WINDOW: Final = 256
"""Slots that are read first; only if more are new is the whole half read."""

_NUM_WORDS: Final = RECORD_BYTES // 8
_LAST_AT: Final = RECORD_BYTES - 8
_NUMBER: Final = struct.Struct("<Q")


def new_records(half: Memory, after: int) -> Records:
    """The complete records of a half with numbers above `after`, in order; read as described in records.py.

    Costs almost nothing if there is none, and little if there are few.
    """
    begin = (after + 1) % NUM_RECORDS
    if not _is_beyond(half, begin, after):
        return _NONE  # records are written in order
    end = begin + WINDOW
    if end <= NUM_RECORDS and not _is_beyond(half, end - 1, after):
        return _whole(half, begin, WINDOW, after)
    found = _whole(half, 0, NUM_RECORDS, after)  # more may be new, or the window wraps around
    return found[np.argsort(found["first"])]


def _is_beyond(half: Memory, slot: int, after: int) -> bool:
    (last,) = _NUMBER.unpack_from(half, slot * RECORD_BYTES + _LAST_AT)
    return bool(last > after)


def _whole(half: Memory, begin: int, number: int, after: int) -> Records:
    """The complete new records of `number` slots.

    Last numbers are read before the records, first numbers after them, so they differ if a record changes meanwhile.
    """
    shared = np.frombuffer(half, "<u8", number * _NUM_WORDS, begin * RECORD_BYTES).reshape(number, _NUM_WORDS)
    lasts = shared[:, -1].copy()
    copied = shared.copy()
    firsts = shared[:, 0]
    found: Records = copied[(lasts == firsts) & (lasts > after)].view(FIELDS).reshape(-1)
    return found


_NONE: Final[Records] = np.empty(0, FIELDS)


def as_records(found: Records) -> list[Record]:
    """The same records as a list of `Record`."""
    return unpack_records(found.tobytes())

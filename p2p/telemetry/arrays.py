"""Many records at once, as an array of numpy: for who looks at many pages again and again."""

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
"""As in records.py."""
assert FIELDS.itemsize == RECORD_BYTES


Records = npt.NDArray[np.void]
"""Of `FIELDS`."""

WINDOW: Final = 256
"""So many slots are looked at first."""

_NUM_WORDS: Final = RECORD_BYTES // 8
_LAST_AT: Final = RECORD_BYTES - 8
_NUMBER: Final = struct.Struct("<Q")


def new_records(half: Memory, after: int) -> Records:
    """The whole records of a half with numbers beyond `after`, in order; each is read as records.py has it.

    Costs next to nothing where there is none, and little where there are few.
    """
    begin = (after + 1) % NUM_RECORDS
    if not _is_beyond(half, begin, after):
        return _NONE  # they are written in order
    end = begin + WINDOW
    if end <= NUM_RECORDS and not _is_beyond(half, end - 1, after):
        return _whole(half, begin, WINDOW, after)
    found = _whole(half, 0, NUM_RECORDS, after)  # there may be more, or it begins anew behind the last slot
    return found[np.argsort(found["first"])]


def _is_beyond(half: Memory, slot: int, after: int) -> bool:
    (last,) = _NUMBER.unpack_from(half, slot * RECORD_BYTES + _LAST_AT)
    return bool(last > after)


def _whole(half: Memory, begin: int, number: int, after: int) -> Records:
    """Of so many slots. Last numbers are read before the records, first ones behind: what changes meanwhile differs."""
    shared = np.frombuffer(half, "<u8", number * _NUM_WORDS, begin * RECORD_BYTES).reshape(number, _NUM_WORDS)
    lasts = shared[:, -1].copy()
    copied = shared.copy()
    firsts = shared[:, 0]
    found: Records = copied[(lasts == firsts) & (lasts > after)].view(FIELDS).reshape(-1)
    return found


_NONE: Final[Records] = np.empty(0, FIELDS)


def as_records(found: Records) -> list[Record]:
    """One by one."""
    return unpack_records(found.tobytes())

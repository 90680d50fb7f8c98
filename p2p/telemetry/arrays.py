"""Many records at once, as an array of numpy: for who looks at many pages again and again."""

from typing import Final

import numpy as np
import numpy.typing as npt

from .records import NUM_RECORDS, RECORD_BYTES, Memory, Record

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


def new_records(half: Memory, after: int) -> Records:
    """The whole records of a half with numbers beyond `after`, in order; each is read as records.py has it."""
    shared = np.frombuffer(half, FIELDS, NUM_RECORDS)
    slots = np.arange(after + 1, after + 1 + WINDOW) % NUM_RECORDS
    if shared["last"][slots[-1]] > after:  # there may be more
        slots = np.arange(after + 1, after + 1 + NUM_RECORDS) % NUM_RECORDS
    lasts = shared["last"][slots]
    copied = shared[slots]
    firsts = shared["first"][slots]
    found: Records = copied[(lasts == firsts) & (lasts > after)]
    return found[np.argsort(found["first"])]


def as_records(found: Records) -> list[Record]:
    """One by one."""
    return [
        Record(first, time_ns, kind, how, size, step, view, f"{peer:016x}" if peer else "", value)
        for first, time_ns, kind, how, size, step, view, peer, value, _ in found.tolist()
    ]

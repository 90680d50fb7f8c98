"""Traces: all records of a peer, copied from its page to a file while it runs.

The launcher or experiment that started the peer does this from outside, at no cost for the peer: it keeps the page
mapped, so the last records stay readable after the peer was killed, or has left and removed the page. Otherwise the
peer writes the trace itself, beside its receipts; then its last records before a kill are only in its page. A *trace*
is a file:

    0   magic `SHTR`, version (4 bytes), length (4) of the identity, then the identity, as JSON
    ..  records of 64 bytes, as in the page; those of one half in order

A file that was cut off, as on a full disk, is read up to its last complete record.
"""

import json
import struct
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..host.folders import create_private
from .page import map_page, read_identity, read_snapshot, ring_offsets
from .records import NUM_RECORDS, RECORD_BYTES, RING_BYTES, Record, is_written, read_raw, unpack_record
from .snapshot import IDENTITY_FIELDS, Identity, Snapshot, to_json

TRACES: Final = "traces"
"""Folder beside receipts."""
SUFFIX: Final = ".trace"
BATCH: Final = NUM_RECORDS // 4
"""New records in a half after which a peer writes its own trace."""
VERSION: Final = 1

_MAGIC: Final = b"SHTR"
_HEADER: Final = struct.Struct("<4sII")
_BEGINNING: Final = struct.Struct("<4sI")
"""The part of a header that is equal in all traces."""


class Tail:
    """Follows one page.

    Attributes:
        identity: of the page's peer.
        num_missed: records that were overwritten before they were read.
    """

    def __init__(self, path: Path) -> None:
        """Map the page.

        Raises:
            OSError: the file is gone, or is not a private file of this user.
            RemoteProtocolError: the page is being created, or is of another version.
        """
        self._memory = map_page(path)
        self.identity = read_identity(path, self._memory)
        self.num_missed = 0
        self._halves = [self._memory[start : start + RING_BYTES] for start in ring_offsets()]
        self._next = [1] * len(self._halves)

    def snapshot(self) -> Snapshot | None:
        """The last snapshot; None: there is none yet, or this is closed."""
        return read_snapshot(self._memory) if self._memory else None

    def close(self) -> None:
        """Release the mapping, which holds a descriptor. `read` finds no more records."""
        self._memory, self._halves, self._next = memoryview(b""), [], []

    def read(self) -> list[bytes]:
        """New records, as bytes of the page; those of one half in order."""
        return [raw for index in range(len(self._halves)) for raw in self._read_half(index)]

    def has_batch(self) -> bool:
        """Whether either half has at least `BATCH` new records."""
        return any(is_written(half, first + BATCH - 1) for half, first in zip(self._halves, self._next, strict=True))

    def _read_half(self, index: int) -> list[bytes]:
        half, number, found = self._halves[index], self._next[index], list[bytes]()
        while True:
            last, raw = read_raw(half, number % NUM_RECORDS)
            if last < number or (last == number and not raw):  # not written yet, or just being written
                break
            if last == number:
                found.append(raw)
            else:
                self.num_missed += 1
            number += 1
        self._next[index] = number
        return found


class OwnTrace:
    """The trace of this peer, written by itself."""

    def __init__(self, page: Path, path: Path) -> None:
        """Write the identity. OSError: the file cannot be written."""
        self._tail, self._path = Tail(page), path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_trace(path, self._tail.identity, [])

    def is_due(self) -> bool:
        return self._tail.has_batch()

    def write(self) -> None:
        """Append new records. OSError: the file cannot be written; then no more can be added."""
        write_trace(self._path, self._tail.identity, self._tail.read())


def trace_path(folder: Path, peer_id: str) -> Path:
    """The trace of a peer, in the subfolder `TRACES` of `folder`."""
    return folder / TRACES / f"{peer_id}{SUFFIX}"


def write_trace(path: Path, identity: Identity, raw: list[bytes]) -> None:
    """Append records; the file begins with the identity."""
    with open(path, "ab", opener=create_private) as file:
        if not file.tell():
            text = to_json(asdict(identity))
            file.write(_HEADER.pack(_MAGIC, VERSION, len(text)) + text)
        file.write(b"".join(raw))


def read_trace(path: Path) -> tuple[Identity | None, list[Record]]:
    """The identity (None: the file is cut off before its end), and all records in the order of their times.

    Raises:
        OSError: the file cannot be read.
        RemoteProtocolError: the file is not a trace of this version.
    """
    content = path.read_bytes()
    beginning = content[: _BEGINNING.size]
    if not _BEGINNING.pack(_MAGIC, VERSION).startswith(beginning):
        magic, version = _BEGINNING.unpack(beginning.ljust(_BEGINNING.size, b"\0"))
        raise RemoteProtocolError(f"{path} has magic {magic!r}, version {version}; we read traces of version {VERSION}")
    start = _HEADER.size + int.from_bytes(content[_BEGINNING.size : _HEADER.size], "little")
    if len(content) < max(start, _HEADER.size):
        return None, []
    values = json.loads(content[_HEADER.size : start])
    identity = Identity(**{name: values[name] for name in IDENTITY_FIELDS & values.keys()})
    number = (len(content) - start) // RECORD_BYTES
    records = [unpack_record(content, start + index * RECORD_BYTES) for index in range(number)]
    return identity, sorted(records, key=attrgetter("time_ns"))

"""All records of a peer: its page is followed while it runs, and what is new kept in a file.

By whoever has started it, from outside: a page is mapped once, so what a peer did last can be read after it was killed,
and after it has left and removed the page. The peer does nothing for that. Or, where nobody does, by the peer itself,
beside its receipts; what it did last before it was killed is only in its page then. A *trace* is a file:

    0   magic `SHTR`, version (4 bytes), length (4) of the identity, then that, as JSON
    ..  records of 64 bytes as they are in the page, those of one half in order

Cut short, as on a full disk, it is read as far as it is whole.
"""

import json
import struct
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..host.folders import create_private
from .page import halves, map_page, read_identity, read_snapshot
from .records import HALF_BYTES, NUM_RECORDS, RECORD_BYTES, Record, is_written, read_raw, unpack_record
from .snapshot import IDENTITY_FIELDS, Identity, Snapshot, to_json

TRACES: Final = "traces"
"""Folder beside receipts."""
SUFFIX: Final = ".trace"
BATCH: Final = NUM_RECORDS // 4
"""So many new records of a half are much: a peer writes them down itself."""
VERSION: Final = 1

_MAGIC: Final = b"SHTR"
_HEADER: Final = struct.Struct("<4sII")
_BEGINNING: Final = struct.Struct("<4sI")
"""Of a header: what is equal in all traces."""


class Tail:
    """Follows one page.

    Attributes:
        identity: whose page it is.
        num_missed: records that were overwritten before they were read.
    """

    def __init__(self, path: Path) -> None:
        """Map the page.

        Raises:
            OSError: it is gone, or no private file of this user.
            RemoteProtocolError: it is being made, or is of another version.
        """
        self._memory = map_page(path)
        self.identity = read_identity(path, self._memory)
        self.num_missed = 0
        self._halves = [self._memory[start : start + HALF_BYTES] for start in halves()]
        self._next = [1] * len(self._halves)

    def snapshot(self) -> Snapshot | None:
        """The last one; None: there is none yet, or no page any more."""
        return read_snapshot(self._memory) if self._memory else None

    def close(self) -> None:
        """Let go of the page, of whose memory each map takes a descriptor. Nothing is new from now on."""
        self._memory, self._halves, self._next = memoryview(b""), [], []

    def read(self) -> list[bytes]:
        """What is new, each as it is in the page; those of one half in order."""
        return [raw for index in range(len(self._halves)) for raw in self._read_half(index)]

    def has_batch(self) -> bool:
        """Whether a batch is new of a half, at least."""
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
    """The trace of this peer, which nobody else writes."""

    def __init__(self, page: Path, path: Path) -> None:
        """Say whose it is. OSError: it cannot be written."""
        self._tail, self._path = Tail(page), path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_trace(path, self._tail.identity, [])

    def is_due(self) -> bool:
        return self._tail.has_batch()

    def write(self) -> None:
        """All that is new. OSError: it cannot be written; no more can then be added."""
        write_trace(self._path, self._tail.identity, self._tail.read())


def trace_path(folder: Path, peer_id: str) -> Path:
    """`folder`: of receipts."""
    return folder / TRACES / f"{peer_id}{SUFFIX}"


def write_trace(path: Path, identity: Identity, raw: list[bytes]) -> None:
    """Append records; the file begins with the identity."""
    with open(path, "ab", opener=create_private) as file:
        if not file.tell():
            text = to_json(asdict(identity))
            file.write(_HEADER.pack(_MAGIC, VERSION, len(text)) + text)
        file.write(b"".join(raw))


def read_trace(path: Path) -> tuple[Identity | None, list[Record]]:
    """Whose it is (None: it is cut short before that is said), and all records in the order of their times.

    Raises:
        OSError: it cannot be read.
        RemoteProtocolError: it is no trace of this version.
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

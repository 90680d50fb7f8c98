"""The page of a peer: its identity, a snapshot of its state, and its flight recorder. One mapped file of 320 KiB.

The file `<peer_id>.page`, mode 0600, lies beside the peer's entry in the registry's folder, and is the same for all
incarnations of the peer. The process itself stores the content, which therefore stays readable while the process hangs
or is stopped, and after SIGKILL. The file is not synced, so its content does not survive a reboot.

    0        magic `SHPG`, version (4 bytes), length (4) and xxh3-64 (8) of the identity, then the identity, as JSON
    4096     two slots of 30 KiB: number of the snapshot (8), length (4), xxh3-64 (8) of the text, seeded with the
             number, then the text
    65536    the half of the thread that drives the loop (records.py)
    196608   the half of the training thread

Snapshot n goes into slot n % 2, so a write that is in progress, or was cut short, leaves the previous one intact.
"""

import json
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import xxhash

from ..errors import RegistryError, RemoteProtocolError
from ..host.folders import open_private
from .records import RING_BYTES, Record, RecordRing, read_ring
from .snapshot import IDENTITY_FIELDS, MOST_BYTES, Identity, Snapshot, to_json

VERSION: Final = 4
SUFFIX: Final = ".page"

_MAGIC: Final = b"SHPG"
_HEADER: Final = struct.Struct("<4sIIQ")
_SLOTS_AT: Final = 4096
_SLOT: Final = struct.Struct("<QIQ")
_SLOT_BYTES: Final = 30 << 10
_HALVES_AT: Final = 64 << 10
PAGE_BYTES: Final = _HALVES_AT + 2 * RING_BYTES
assert _SLOT.size + MOST_BYTES <= _SLOT_BYTES


class Page:
    """The page of this peer.

    Attributes:
        path: of the file.
        identity: as stored in the file.
        now: the monotonic clock, in ns.
        shown: the last snapshot, packed; empty: there was none yet.
        loop: the half of the thread that drives the loop.
        training: the half of the training thread.
    """

    def __init__(self, folder: Path, identity: Identity, clock: Callable[[], int]) -> None:
        """Create the file with its space allocated, so that no later write finds the disk full.

        Args:
            folder: of the registry.
            identity: of this peer.
            clock: monotonic nanoseconds, for the records.

        Raises:
            RegistryError: the file cannot be created.
        """
        self.path = page_path(folder, identity.peer_id)
        self.identity = identity
        self.now = clock
        self.shown = b""
        self._pid = os.getpid()
        self._number = 0
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, PAGE_BYTES)
                self._memory = memoryview(mmap.mmap(fd, PAGE_BYTES))
            except OSError:  # the file may have filled the disk
                self.path.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise RegistryError(
                f"cannot make the page {self.path}: {error.strerror}; make space there, or set SHOAL_HOME to another "
                "folder, and start this peer again"
            ) from error
        self.loop, self.training = (
            RecordRing(self._memory[start : start + RING_BYTES], clock) for start in ring_offsets()
        )
        text = to_json(asdict(identity))
        self._memory[_HEADER.size : _HEADER.size + len(text)] = text
        _HEADER.pack_into(self._memory, 0, _MAGIC, VERSION, len(text), xxhash.xxh3_64_intdigest(text))

    def show(self, snapshot: Snapshot) -> None:
        """Publish `snapshot` in the page. One thread at a time."""
        text = self.shown = snapshot.pack()
        self._number = number = self._number + 1
        at = _SLOTS_AT + number % 2 * _SLOT_BYTES
        self._memory[at + _SLOT.size : at + _SLOT.size + len(text)] = text
        _SLOT.pack_into(self._memory, at, number, len(text), _checksum(number, text))

    def latest(self) -> list[Record]:
        """The last records of both halves, at most 512 of each, in the order of their times. Any thread."""
        return sorted([*self.loop.latest(), *self.training.latest()], key=_time)

    def remove(self) -> None:
        """Unlink the file; mappings stay valid. No-op in a forked child."""
        if self._pid == os.getpid():
            with suppress(OSError):  # the folder may be read-only by now
                self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page.

    Attributes:
        snapshot: the last one; None: there was none yet.
        records: of both halves, in the order of their times.
    """

    identity: Identity
    snapshot: Snapshot | None
    records: tuple[Record, ...]


def page_path(folder: Path, peer_id: str) -> Path:
    return folder / f"{peer_id}{SUFFIX}"


def read_page(path: Path) -> PageContent:
    """Read a page, whose peer may be writing to it, hang, or be dead.

    Raises:
        OSError: the file is gone, or is not a private file of this user.
        RemoteProtocolError: the page is being created, or is of another version.
    """
    memory = map_page(path)
    records = [record for start in ring_offsets() for record in read_ring(memory[start : start + RING_BYTES])]
    identity, snapshot = read_identity(path, memory), read_snapshot(memory)
    return PageContent(identity, snapshot, tuple(sorted(records, key=_time)))


def map_page(path: Path) -> memoryview:
    """Map a page; the mapping stays valid after the file is gone. Errors as of `read_page`."""
    fd = open_private(str(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != PAGE_BYTES:
            raise RemoteProtocolError(f"{path} is not a page of this version, or is still being made")
        return memoryview(mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


_time = attrgetter("time_ns")


def ring_offsets() -> tuple[int, int]:
    return _HALVES_AT, _HALVES_AT + RING_BYTES


def _checksum(number: int, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(text, seed=number)


def read_identity(path: Path, memory: memoryview) -> Identity:
    magic, version, length, checksum = _HEADER.unpack_from(memory)
    text = bytes(memory[_HEADER.size : _HEADER.size + min(length, _SLOTS_AT)])
    if magic != _MAGIC or version != VERSION:
        raise RemoteProtocolError(f"{path} has magic {magic!r}, version {version}; we read version {VERSION}")
    if xxhash.xxh3_64_intdigest(text) != checksum:
        raise RemoteProtocolError(f"{path} does not say whose it is: it is damaged")
    values: dict[str, Any] = json.loads(text)
    return Identity(**{name: values[name] for name in IDENTITY_FIELDS})


def read_snapshot(memory: memoryview) -> Snapshot | None:
    text = latest_text(memory)
    return Snapshot.parse(text) if text else None


def latest_text(memory: memoryview) -> bytes:
    """The last complete snapshot, packed; empty: there was none yet."""
    found: list[tuple[int, bytes]] = []
    for at in (_SLOTS_AT, _SLOTS_AT + _SLOT_BYTES):
        number, length, checksum = _SLOT.unpack_from(memory, at)
        text = bytes(memory[at + _SLOT.size : at + _SLOT.size + min(length, MOST_BYTES)])
        if number and _checksum(number, text) == checksum:
            found.append((number, text))
    return max(found)[1] if found else b""

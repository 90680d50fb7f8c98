"""Acceptor records: the page that holds a peer's promised and accepted votes, and outlives its process.

With the policy `live` a dead member still answers phase 1 of the agreement, through this page (PROTOCOL.md, R13).
Each member keeps one file beside its entry in the registry's folder, `<peer_id>-<incarnation, 16 hex digits>.record`.

The file has two slots of 192 KiB. Record n, counted from 1, goes into slot n % 2, so a death in the middle of a write
leaves record n - 1 readable; no message based on n had been sent yet. A slot, little-endian: magic `SHRC`, version
(4 bytes), boot id (16), n (8), length of the payload (4), xxh3-128 over all of these and the payload (16), payload (the
record, as encoded by the caller's `encode`).

Writes are not synced: the kernel keeps them when the process dies, and after a reboot no record is valid, since the
boot id differs.
"""

import errno
import logging
import os
import re
import struct
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Final, Self

import xxhash

from gossip import Member
from gossip.messages import AcceptorRecord

from ..errors import RegistryError, RemoteProtocolError
from ..version import VERSION
from .folders import open_private

logger = logging.getLogger(__name__)

SLOT_BYTES: Final = 192 * 1024
PAGE_BYTES: Final = 2 * SLOT_BYTES
FILE_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.record")

_MAGIC = b"SHRC"
_HEAD = struct.Struct("<4sI16sQI")
HEADER_BYTES: Final = _HEAD.size + 16

NOTHING: Final = "nothing has been written there yet"
"""The reason that `RecordReader.why` gives for the page of a peer that has only just come."""

Encode = Callable[[AcceptorRecord], bytes]
Decode = Callable[[bytes], object]


class RecordPage:
    """The page of this peer as `member`. Used by the loop only."""

    def __init__(self, folder: Path, member: Member, encode: Encode) -> None:
        """Create the file and allocate its space, for no later write to find the disk full, or raise RegistryError."""
        self.path = record_path(folder, member)
        self._boot_id = read_boot_id()
        self._pid = os.getpid()
        self._number = 0
        self._encode = encode
        try:
            self._file = self.path.open("xb", buffering=0)
        except OSError as error:
            raise self._failure("create", error) from error
        try:
            os.fchmod(self._file.fileno(), 0o600)
            os.posix_fallocate(self._file.fileno(), 0, PAGE_BYTES)
        except OSError as error:
            self.close()
            self.remove()
            raise self._failure("allocate", error) from error

    def write(self, record: AcceptorRecord) -> None:
        """Write `record`, which readers find after this peer's death. One system call; encoding takes longer.

        Raises:
            ValueError: the record does not fit into a slot.
            RegistryError: the write failed and the previous record is valid: send no message that depends on `record`.
        """
        number = self._number + 1
        slot = pack_slot(number, self._boot_id, self._encode(record))
        try:
            num_written = os.pwrite(self._file.fileno(), slot, number % 2 * SLOT_BYTES)
            if num_written < len(slot):
                raise OSError(errno.ENOSPC, f"{num_written} of {len(slot)} bytes were written")
        except OSError as error:
            raise self._failure("write", error) from error
        self._number = number

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        self._file.close()

    def remove(self) -> None:
        """Unlink the file; open descriptors of it can still be read. Does nothing in a forked child."""
        if self._pid == os.getpid():
            self.path.unlink(missing_ok=True)

    def _failure(self, verb: str, error: OSError) -> RegistryError:
        advice = "make space there, or set SHOAL_HOME to another folder, and start this peer again"
        return RegistryError(f"cannot {verb} the acceptor record {self.path}: {error.strerror}; {advice}")


class RecordReader:
    """The page of another member, kept open. While its process runs, `read` may return an older record, or None."""

    def __init__(self, file: FileIO, decode: Decode) -> None:
        self._file, self._decode = file, decode
        self._boot_id = read_boot_id()
        self.why = ""  # reason, if the last `read` found no record

    @classmethod
    def open(cls, folder: Path, member: Member, decode: Decode) -> Self | None:
        """Open the page of a living member; None, and a log line, on failure.

        Compare the member's process with its entry *after* this call.
        """
        try:
            return cls(FileIO(record_path(folder, member), opener=open_private), decode)
        except FileNotFoundError:
            logger.info("peer %s has no acceptor record any more: it has left", member)
        except (OSError, ValueError) as error:
            logger.warning("the acceptor record of peer %s cannot be opened: %s", member, error)
        return None

    def read(self) -> AcceptorRecord | None:
        """Return the newest record; None if this boot has none, and `why` gives the reason."""
        self.why = ""
        try:
            record = self._decode(unpack_page(os.pread(self._file.fileno(), PAGE_BYTES, 0), self._boot_id))
        except (OSError, RemoteProtocolError) as error:
            self.why = str(error)
            return None
        assert isinstance(record, AcceptorRecord), "the codec knows no other type"
        return record

    def close(self) -> None:
        self._file.close()


def record_path(folder: Path, member: Member) -> Path:
    """Path of the page of `member`. Raises ValueError if its peer_id or incarnation has the wrong format."""
    name = f"{member.peer_id}-{member.incarnation:016x}.record"
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"a peer_id has 16 hex digits and an incarnation 64 bits: {member!r}")
    return folder / name


def read_boot_id() -> bytes:
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


def pack_slot(number: int, boot_id: bytes, payload: bytes) -> bytes:
    """The bytes of a slot for the record of this number. Raises ValueError if they exceed a slot."""
    if HEADER_BYTES + len(payload) > SLOT_BYTES:
        raise ValueError(f"the acceptor record takes {len(payload)} bytes, a slot holds {SLOT_BYTES - HEADER_BYTES}")
    head = _HEAD.pack(_MAGIC, VERSION, boot_id, number, len(payload))
    return head + xxhash.xxh3_128_digest(head + payload) + payload


def unpack_page(page: bytes, boot_id: bytes) -> bytes:
    """The payload in the newest complete slot; RemoteProtocolError if this boot has none.

    The older slot counts only if the newest is incomplete: messages based on a complete one may have been sent.
    """
    if len(page) != PAGE_BYTES:
        raise RemoteProtocolError(f"the page has {len(page)} bytes and should have {PAGE_BYTES}")
    if not any(page[index * SLOT_BYTES :][: _HEAD.size].strip(b"\0") for index in range(2)):
        raise RemoteProtocolError(NOTHING)
    slots, reasons = [], []
    for index in range(2):
        try:
            slots.append(_unpack_slot(page[index * SLOT_BYTES : (index + 1) * SLOT_BYTES], index))
        except RemoteProtocolError as error:
            reasons.append(f"slot {index} {error}")
    if not slots:
        raise RemoteProtocolError("; ".join(reasons))
    number, written_in, payload = max(slots, key=lambda slot: slot[0])
    if written_in != boot_id:
        raise RemoteProtocolError(f"record {number} is of boot {written_in.hex()}, this is boot {boot_id.hex()}")
    return payload


def _unpack_slot(slot: bytes, index: int) -> tuple[int, bytes, bytes]:
    """Number, boot id and payload."""
    magic, version, boot_id, number, length = _HEAD.unpack_from(slot)
    if magic != _MAGIC or version != VERSION:
        raise RemoteProtocolError(f"has magic {magic!r}, version {version}; we read version {VERSION}")
    head, checksum = slot[: _HEAD.size], slot[_HEAD.size : HEADER_BYTES]
    payload = slot[HEADER_BYTES : HEADER_BYTES + length]
    if length > SLOT_BYTES - HEADER_BYTES or number % 2 != index or xxhash.xxh3_128_digest(head + payload) != checksum:
        raise RemoteProtocolError(f"does not hold record {number} to its end")
    return number, boot_id, payload

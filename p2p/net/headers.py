"""The headers of data frames: four kinds, each with a layout of its own (PROTOCOL.md, "Data frames").

All have the same length, and begin with magic, version and kind, so that what follows is read as what it is. A frame of
another version is told from garbage, in which nothing is looked for.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..errors import RemoteProtocolError
from ..version import VERSION, OtherVersion

NO_DIGEST: Final = bytes(16)
"""In a header: nothing is said of it."""

_MAGIC: Final = b"SHOL"
_SEGMENT_KIND, _FINISHED_KIND, _PARCEL_KIND, _TAKEN_KIND = 1, 2, 3, 4

# Little-endian. All begin with magic, version and kind; "x" is a byte that is not used: sent as 0, and not looked at.
_START: Final = struct.Struct("<4sIB")
_SEGMENT: Final = struct.Struct("<4sIBxHH2x16s16sQQII16s16s8x")
_FINISHED: Final = struct.Struct("<4sIBxHI16s16sQQ16s16s16s")
_PARCEL: Final = struct.Struct("<4sIB???I8sQQqI4x16s40x")
_TAKEN: Final = struct.Struct("<4sIB7x8sQQQ64x")
HEADER_BYTES: Final = 112
assert {layout.size for layout in (_SEGMENT, _FINISHED, _PARCEL, _TAKEN)} == {HEADER_BYTES}


class SegmentHeader(NamedTuple):
    """Of a segment of an operation, whose elements are the payload.

    Attributes:
        source: rank of the sender.
        group: 0. Several groups of ranks that do different operations at once are what torch's engines will want.
        lineage, view_hash, view_number: of the view that the sender has installed.
        operation: how many operations came before it since that view became active.
        transfer: i: the i-th SEND to the receiver in the sender's schedule.
        segment: its number in the transfer.
        fingerprint: what all ranks must have in common who call this operation.
        digest: xxh3-128 of the payload; `NO_DIGEST`: its sender has not looked.
    """

    source: int
    group: int
    lineage: bytes
    view_hash: bytes
    view_number: int
    operation: int
    transfer: int
    segment: int
    fingerprint: bytes
    digest: bytes = NO_DIGEST

    def pack(self) -> bytes:
        digests = self.lineage, self.view_hash, self.fingerprint, self.digest
        return _pack(_SEGMENT, _SEGMENT_KIND, self, fits=set(map(len, digests)) == {16})


class FinishedHeader(NamedTuple):
    """FINISHED: all operations of a step are complete at the sender. No payload.

    Attributes:
        source: rank of the sender.
        num_operations: of the step; 0: not said.
        lineage, view_hash, view_number: of the view that the sender has installed, and in which it has finished.
        step: the step.
        results: digest over those of its operations; `NO_DIGEST`: it has none.
        chain: digest of the chain of steps before it.
        parameters: digest of those that it was computed with; `NO_DIGEST`: there are none.
    """

    source: int
    num_operations: int
    lineage: bytes
    view_hash: bytes
    view_number: int
    step: int
    results: bytes
    chain: bytes
    parameters: bytes

    def pack(self) -> bytes:
        digests = self.lineage, self.view_hash, self.results, self.chain, self.parameters
        return _pack(_FINISHED, _FINISHED_KIND, self, fits=set(map(len, digests)) == {16})


class ParcelHeader(NamedTuple):
    """Of a segment of a state, or of a committed step, for a peer without a seat; its bytes are the payload.

    Attributes:
        is_state: of a state; if not, of a step.
        is_last: the last segment of its part.
        is_final: the last segment of the parcel.
        part: of the parcel; 0 is its record.
        peer_id, incarnation: who sends it: the receiver is in no view, and has no ranks.
        stream: all that this sender sends to this receiver in a row.
        step: the one that was committed, or after which the state is; -1: before the first.
        segment: its number in the part.
        digest: xxh3-128 of the payload.
    """

    is_state: bool
    is_last: bool
    is_final: bool
    part: int
    peer_id: bytes
    incarnation: int
    stream: int
    step: int
    segment: int
    digest: bytes

    def pack(self) -> bytes:
        return _pack(_PARCEL, _PARCEL_KIND, self, fits=len(self.peer_id) == 8 and len(self.digest) == 16)


class TakenHeader(NamedTuple):
    """TAKEN: so many segments of a stream have come. No payload.

    Attributes:
        peer_id, incarnation: who says so.
        stream: of the receiver of this frame to its sender.
        num_segments: of it, from the first on.
    """

    peer_id: bytes
    incarnation: int
    stream: int
    num_segments: int

    def pack(self) -> bytes:
        return _pack(_TAKEN, _TAKEN_KIND, self, fits=len(self.peer_id) == 8)


Header = SegmentHeader | FinishedHeader | ParcelHeader | TakenHeader

_KINDS: Final[dict[int, tuple[struct.Struct, Callable[[Any], Header]]]] = {
    _SEGMENT_KIND: (_SEGMENT, SegmentHeader._make),
    _FINISHED_KIND: (_FINISHED, FinishedHeader._make),
    _PARCEL_KIND: (_PARCEL, ParcelHeader._make),
    _TAKEN_KIND: (_TAKEN, TakenHeader._make),
}


def unpack_header(buffer: bytes | memoryview) -> Header:
    """Read a header that came from a peer. Its version is read before anything else.

    Raises:
        OtherVersion: a peer of another version made it.
        RemoteProtocolError: it is none: wrong magic, kind or length.
    """
    try:
        magic, version, kind = _START.unpack_from(buffer)
        if magic != _MAGIC:
            raise RemoteProtocolError(f"data header: magic {magic!r}")
        if version != VERSION:
            raise OtherVersion(version)
        if kind not in _KINDS:
            raise RemoteProtocolError(f"data header: kind {kind} is none of {', '.join(map(str, _KINDS))}")
        layout, make = _KINDS[kind]
        return make(layout.unpack(buffer)[3:])
    except struct.error as error:
        raise RemoteProtocolError(f"data header: {error}") from None


def _pack(layout: struct.Struct, kind: int, header: Header, *, fits: bool) -> bytes:
    if not fits:  # struct would pad or cut
        raise ValueError(f"a digest has 16 bytes, and a peer_id 8: {header}")
    try:
        return layout.pack(_MAGIC, VERSION, kind, *header)
    except struct.error as error:
        raise ValueError(f"{error}: {header}") from None

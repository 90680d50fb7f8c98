"""The headers of data frames: seven kinds, each with a layout of its own (PROTOCOL.md, "Data frames").

All have the same length, and begin with magic, version and kind, so that what follows is read as what it is. A frame of
another version is told from garbage, in which nothing is looked for.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gossip import Stamp

from ..errors import RemoteProtocolError
from ..version import VERSION, OtherVersion

NO_DIGEST: Final = bytes(16)
"""In a header: nothing is said of it."""

_MAGIC: Final = b"SHOL"
_START: Final = struct.Struct("<4sIB")  # magic, version, kind
_SEGMENT_START, _FINISHED_START, _PARCEL_START, _TAKEN_START, _PROBE_START, _SHARE_START, _CHUNKS_START = (
    _START.pack(_MAGIC, VERSION, kind) for kind in range(1, 8)
)

# What follows, little-endian; "x" is a byte that is not used: sent as 0, and not looked at.
_SEGMENT: Final = struct.Struct("<xH4x40sQII16s16s8x")
_FINISHED: Final = struct.Struct("<xHI40sQ16s16s16s")
_PARCEL: Final = struct.Struct("<???I8sQQqI?3x16s40x")
_TAKEN: Final = struct.Struct("<7x8sQQQ64x")
_PROBE: Final = struct.Struct("<103x")
_SHARE: Final = struct.Struct("<7x8sQ8sQqIHH16s32x")
_CHUNKS: Final = struct.Struct("<7x8sQq72x")
_STAMP: Final = struct.Struct("<16s16sQ")
HEADER_BYTES: Final = 112
assert {_START.size + layout.size for layout in (_SEGMENT, _FINISHED, _PARCEL, _TAKEN, _PROBE, _SHARE, _CHUNKS)} == {
    HEADER_BYTES
}


class SegmentHeader(NamedTuple):
    """Of a segment of an operation, whose elements are the payload.

    Attributes:
        source: rank of the sender.
        view: `pack_stamp` of the one that the sender has installed.
        operation: how many operations came before it since that view became active.
        transfer: i: the i-th SEND to the receiver in the sender's schedule.
        segment: its number in the transfer.
        fingerprint: what all ranks must have in common who call this operation.
        digest: xxh3-128 of the payload; `NO_DIGEST`: its sender has not looked.
    """

    source: int
    view: bytes
    operation: int
    transfer: int
    segment: int
    fingerprint: bytes
    digest: bytes = NO_DIGEST

    def pack(self) -> bytes:
        fits = len(self.view) == _STAMP.size and len(self.fingerprint) == len(self.digest) == 16
        return _SEGMENT_START + _pack(_SEGMENT, self, fits=fits)


class FinishedHeader(NamedTuple):
    """FINISHED: all operations of a step are complete at the sender. No payload.

    Attributes:
        source: rank of the sender.
        num_operations: of the step; 0: not said.
        view: `pack_stamp` of the one that the sender has installed, and in which it has finished.
        step: the step.
        results: digest over those of its operations; `NO_DIGEST`: it has none.
        chain: digest of the chain of steps before it.
        parameters: digest of those that it was computed with; `NO_DIGEST`: there are none.
    """

    source: int
    num_operations: int
    view: bytes
    step: int
    results: bytes
    chain: bytes
    parameters: bytes

    def pack(self) -> bytes:
        digests = self.results + self.chain + self.parameters
        fits = len(self.view) == _STAMP.size and len(digests) == 3 * 16
        return _FINISHED_START + _pack(_FINISHED, self, fits=fits)


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
        is_share: of a share of a state, whose parts other donors send, too.
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
    is_share: bool
    digest: bytes

    def pack(self) -> bytes:
        return _PARCEL_START + _pack(_PARCEL, self, fits=len(self.peer_id) == 8 and len(self.digest) == 16)


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
        return _TAKEN_START + _pack(_TAKEN, self, fits=len(self.peer_id) == 8)


class ShareHeader(NamedTuple):
    """SHARE?: give a share of a state to an observer, which asked the sender for it. No payload.

    Attributes:
        peer_id, incarnation: who says so, the first donor.
        observer, observer_incarnation: who is to get it.
        step: after this very one.
        chunk_bytes: of a chunk.
        number, num_shares: every `num_shares`-th chunk, from that number on.
        frozen: digest of the frozen parameters that the observer has, which have no chunks; `NO_DIGEST`: it has said
            nothing of any.
    """

    peer_id: bytes
    incarnation: int
    observer: bytes
    observer_incarnation: int
    step: int
    chunk_bytes: int
    number: int
    num_shares: int
    frozen: bytes = NO_DIGEST

    def pack(self) -> bytes:
        fits = len(self.peer_id) == len(self.observer) == 8 and len(self.frozen) == 16
        return _SHARE_START + _pack(_SHARE, self, fits=fits)


class ChunksHeader(NamedTuple):
    """CHUNKS?: I need these chunks of the state after `step` from you, its first donor; none: nothing any more.

    The payload is part and index of each, 4 bytes each.
    """

    peer_id: bytes
    incarnation: int
    step: int

    def pack(self) -> bytes:
        return _CHUNKS_START + _pack(_CHUNKS, self, fits=len(self.peer_id) == 8)


class ProbeHeader(NamedTuple):
    """Of bytes that nobody looks at: how fast they arrive is what their sender wants to know."""

    def pack(self) -> bytes:
        return _PROBE_START + _pack(_PROBE, self, fits=True)


Header = SegmentHeader | FinishedHeader | ParcelHeader | TakenHeader | ProbeHeader | ShareHeader | ChunksHeader

_KINDS: Final[dict[bytes, tuple[struct.Struct, Callable[[Any], Header]]]] = {
    _SEGMENT_START: (_SEGMENT, SegmentHeader._make),
    _FINISHED_START: (_FINISHED, FinishedHeader._make),
    _PARCEL_START: (_PARCEL, ParcelHeader._make),
    _TAKEN_START: (_TAKEN, TakenHeader._make),
    _PROBE_START: (_PROBE, ProbeHeader._make),
    _SHARE_START: (_SHARE, ShareHeader._make),
    _CHUNKS_START: (_CHUNKS, ChunksHeader._make),
}


# The header of a segment once more, without an object: what those of one peer have in common in a view, and the rest.
SEGMENT_KIND: Final = _SEGMENT_START
_SEGMENT_REST: Final = struct.Struct("<QII16s24x")
_WHOLE_SEGMENT: Final = struct.Struct("<9sxH4x40sQII16s16s8x")
assert _WHOLE_SEGMENT.size == HEADER_BYTES
pack_rest = _SEGMENT_REST.pack
"""Of operation, transfer, segment and fingerprint."""

unpack_segment = _WHOLE_SEGMENT.unpack
"""Magic, version and kind in one, then the fields of `SegmentHeader`."""


def segment_start(source: int, view: bytes) -> bytes:
    """What stands before `pack_rest`."""
    return SegmentHeader(source, view, 0, 0, 0, bytes(16)).pack()[: -_SEGMENT_REST.size]


def pack_stamp(stamp: Stamp) -> bytes:
    """The stamp of a view, as it stands in headers: lineage, hash, number."""
    if not len(stamp.lineage) == len(stamp.hash) == 16:
        raise ValueError(f"lineage and hash of a view have 16 bytes each: {stamp}")
    return _STAMP.pack(stamp.lineage, stamp.hash, stamp.number)


def unpack_header(buffer: bytes | memoryview) -> Header:
    """Read a header that came from a peer.

    Raises:
        OtherVersion: a peer of another version made it; nothing else of it was read.
        RemoteProtocolError: it is none: wrong magic, kind or length.
    """
    known = _KINDS.get(bytes(buffer[: _START.size]))
    if known is None or len(buffer) != HEADER_BYTES:
        raise _objection(buffer)
    layout, make = known
    return make(layout.unpack_from(buffer, _START.size))


def _objection(buffer: bytes | memoryview) -> RemoteProtocolError:
    """What is wrong with a header, the version first."""
    if len(buffer) < _START.size:
        return RemoteProtocolError(f"a data header of {len(buffer)} bytes")
    magic, version, kind = _START.unpack_from(buffer)
    if magic != _MAGIC:
        return RemoteProtocolError(f"a data header that starts with {magic!r}")
    if version != VERSION:
        return OtherVersion(version)
    return RemoteProtocolError(f"a data header of kind {kind} with {len(buffer)} bytes")


def _pack(layout: struct.Struct, header: Header, *, fits: bool) -> bytes:
    if not fits:  # struct would pad or cut
        raise ValueError(f"a digest has 16 bytes, a view 40 and a peer_id 8: {header}")
    try:
        return layout.pack(*header)
    except struct.error as error:
        raise ValueError(f"{error}: {header}") from None

"""The headers of data frames: seven kinds, each with a layout of its own (PROTOCOL.md, "Data frames").

All have the same length, and begin with magic, version and kind, which decide how the rest is read. A frame of another
version is distinguished from garbage; neither is read any further.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gossip import Stamp

from ..errors import RemoteProtocolError
from ..version import VERSION, OtherVersion

NO_DIGEST: Final = bytes(16)
"""In a header: no digest given."""

_MAGIC: Final = b"SHOL"
_START: Final = struct.Struct("<4sIB")  # magic, version, kind
_SEGMENT_START, _FINISHED_START, _PARCEL_START, _TAKEN_START, _PROBE_START, _SHARE_START, _CHUNKS_START = (
    _START.pack(_MAGIC, VERSION, kind) for kind in range(1, 8)
)

# The fields that follow, little-endian; "x" is an unused byte: sent as 0, and ignored.
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
    """Header of a segment of an operation; its elements are the payload.

    Attributes:
        source: rank of the sender.
        view: `pack_stamp` of the view that the sender has installed.
        operation: index of the operation since that view became active.
        transfer: i: the i-th SEND to the receiver in the sender's schedule.
        segment: index in the transfer.
        fingerprint: digest of all that must be equal on all ranks that call this operation.
        digest: xxh3-128 of the payload; `NO_DIGEST`: not computed by the sender.
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
        num_operations: of the step; 0: not given.
        view: `pack_stamp` of the view that the sender has installed and finished the step in.
        step: the step.
        results: digest over the results of its operations; `NO_DIGEST`: the step has no operations.
        chain: digest of the chain of steps before this one.
        parameters: digest of the parameters that the step was computed with; `NO_DIGEST`: none.
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
    """Header of a segment of a state or of a committed step, for a peer without a seat; its bytes are the payload.

    Attributes:
        is_state: the parcel is a state; otherwise a step.
        is_last: the last segment of its part.
        is_final: the last segment of the parcel.
        part: index in the parcel; 0 is its record.
        peer_id, incarnation: the sender: the receiver is in no view, and knows no ranks.
        stream: number of the sequence of frames from this sender to this receiver.
        step: the committed step, or the last one before the state; -1: no step yet.
        segment: index in the part.
        is_share: the parcel is one share of a state; other donors send the other shares.
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
    """TAKEN: acknowledges the first `num_segments` segments of a stream. No payload.

    Attributes:
        peer_id, incarnation: the sender of this frame.
        stream: the stream from the receiver of this frame to its sender.
        num_segments: number acknowledged, from the first on.
    """

    peer_id: bytes
    incarnation: int
    stream: int
    num_segments: int

    def pack(self) -> bytes:
        return _TAKEN_START + _pack(_TAKEN, self, fits=len(self.peer_id) == 8)


class ShareHeader(NamedTuple):
    """SHARE?: asks the receiver to send a share of a state to an observer, which asked the sender for it. No payload.

    Attributes:
        peer_id, incarnation: the sender, which is the first donor.
        observer, observer_incarnation: the receiver of the share.
        step: the state is the one after exactly this step.
        chunk_bytes: size of a chunk.
        number, num_shares: every `num_shares`-th chunk, from that number on.
        frozen: digest of the frozen parameters that the observer has, which have no chunks; `NO_DIGEST`: not given.
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
    """CHUNKS?: asks the first donor for these chunks of the state after `step`; no chunks: none are missing any more.

    The payload has part and index of each chunk, 4 bytes each.
    """

    peer_id: bytes
    incarnation: int
    step: int

    def pack(self) -> bytes:
        return _CHUNKS_START + _pack(_CHUNKS, self, fits=len(self.peer_id) == 8)


class ProbeHeader(NamedTuple):
    """Header of a bandwidth probe: the payload is discarded; the sender measures how fast it arrives."""

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


# The header of a segment again, without an object: the start that all segments of one peer in a view share, and the
# rest.
SEGMENT_KIND: Final = _SEGMENT_START
_SEGMENT_REST: Final = struct.Struct("<QII16s24x")
_WHOLE_SEGMENT: Final = struct.Struct("<9sxH4x40sQII16s16s8x")
assert _WHOLE_SEGMENT.size == HEADER_BYTES
pack_rest = _SEGMENT_REST.pack
"""Packs operation, transfer, segment and fingerprint."""

unpack_segment = _WHOLE_SEGMENT.unpack
"""Unpacks magic, version and kind as one field, then the fields of `SegmentHeader`."""


def segment_start(source: int, view: bytes) -> bytes:
    """The part of a segment's header before `pack_rest`."""
    return SegmentHeader(source, view, 0, 0, 0, bytes(16)).pack()[: -_SEGMENT_REST.size]


def pack_stamp(stamp: Stamp) -> bytes:
    """The stamp of a view as packed in headers: lineage, hash, number."""
    if not len(stamp.lineage) == len(stamp.hash) == 16:
        raise ValueError(f"lineage and hash of a view have 16 bytes each: {stamp}")
    return _STAMP.pack(stamp.lineage, stamp.hash, stamp.number)


def unpack_header(buffer: bytes | memoryview) -> Header:
    """Parse a header received from a peer.

    Raises:
        OtherVersion: a peer of another version made it; the rest was not read.
        RemoteProtocolError: not a header: wrong magic, kind or length.
    """
    known = _KINDS.get(bytes(buffer[: _START.size]))
    if known is None or len(buffer) != HEADER_BYTES:
        raise _objection(buffer)
    layout, make = known
    return make(layout.unpack_from(buffer, _START.size))


def _objection(buffer: bytes | memoryview) -> RemoteProtocolError:
    """The error for an invalid header; the version is checked first."""
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

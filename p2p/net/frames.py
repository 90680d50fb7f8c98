"""Conversion between this peer's messages and frames, in both directions. Belongs to the loop.

Control frames carry envelopes. Data frames carry segments of operations and FINISHED: every step has one, it is as
urgent as data, and a fixed layout makes it cheap. Data frames of any view but the installed one are dropped here.
Parcels go to peers that are in no view yet, and these acknowledge them: instead of a view, their frames name the sender
and its *stream*, the sequence of all that it sends to one peer.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

import xxhash

from collectives import Outgoing
from gossip import NO_VIEW, Envelope, Member, Stamp, View
from gossip import messages as m
from gossip.effects import Send
from gossip.progress import Finish, Progress

from ..errors import RemoteProtocolError
from .headers import (
    HEADER_BYTES,
    NO_DIGEST,
    SEGMENT_KIND,
    ChunksHeader,
    FinishedHeader,
    ParcelHeader,
    ProbeHeader,
    SegmentHeader,
    ShareHeader,
    TakenHeader,
    pack_rest,
    pack_stamp,
    segment_start,
    unpack_header,
    unpack_segment,
)
from .parcels import Chunk, ParcelSegment, ShareRequest
from .transport import Transport
from .wire import Codec


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """STATUS?: asks for a status. Sent by a process that is no peer, and answered on the same connection."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """STATUS: the result of `telemetry.snapshot.Snapshot.pack`, at most a second old.

    Attributes:
        now_ns: the sender's monotonic clock, which the times in the snapshot refer to.
    """

    now_ns: int
    snapshot: bytes


CONTROL_TYPES = (Envelope, StatusQuery)
"""Types of control frames."""

ANSWER_CODEC = Codec([StatusAnswer])
"""For answers to processes that are no peers."""

RECORD_CODEC = Codec([m.AcceptorRecord])
"""For acceptor pages, which outlive their peers."""


class Segment(NamedTuple):
    """One received segment of an operation of the installed view."""

    sequence: int
    source: int
    transfer: int
    segment: int
    fingerprint: bytes
    payload: bytes | memoryview


class Delivery(NamedTuple):
    """A received segment of a parcel, with its sender."""

    source: Member
    stream: int
    segment: ParcelSegment


class Taken(NamedTuple):
    """Acknowledgement: `source` has processed this many segments of our `stream` to it."""

    source: Member
    stream: int
    num_segments: int


class ChunkQuery(NamedTuple):
    """`source` needs these chunks of the state after `step` from us, its first donor; empty: no more."""

    source: Member
    step: int
    chunks: tuple[Chunk, ...]


_CHUNK: Final = struct.Struct("<II")


class Frames:
    """The frames of one peer, in the view that it has installed.

    Attributes:
        num_sent_bytes: bytes sent for operations so far, headers included.
    """

    def __init__(self, me: Member, transport: Transport) -> None:
        self._me = me
        self._transport = transport
        self._codec = Codec(CONTROL_TYPES)
        self._encoded: tuple[m.Body, Stamp, bytes] | None = None
        self._members: tuple[Member, ...] = ()
        self._stamp, self._view = NO_VIEW, b""
        self._rank = 0
        self._is_mixed = False
        self._segment_start = b""
        self.num_sent_bytes = 0

    def install(self, view: View) -> None:
        """Send all further messages in `view`."""
        self._members = view.members
        self._stamp, self._view = view.stamp, pack_stamp(view.stamp)
        self._rank = view.members.index(self._me)
        self._is_mixed = view.is_mixed
        self._segment_start = segment_start(self._rank, self._view)
        self._encoded = None

    # Out.

    def send(self, effect: Send) -> None:
        """Send a message to a peer, in the view of the effect. Encoded once if sent to several peers in a row."""
        target, body, stamp = effect.target, effect.body, effect.stamp or NO_VIEW
        if isinstance(body, Progress) and body.finish is not None:
            if stamp == self._stamp:  # else no receiver is in that view any more
                self._transport.send_data(target.peer_id, self._finished(body, body.finish).pack(), b"")
            return
        if self._encoded is None or self._encoded[0] is not body or self._encoded[1] is not stamp:
            self._encoded = body, stamp, self._codec.encode(Envelope(self._me, stamp, body))
        self._transport.send_control(target.peer_id, self._encoded[2])

    def encode(self, body: m.Body) -> bytes:
        """The control frame with `body`, in the installed view."""
        return self._codec.encode(Envelope(self._me, self._stamp, body))

    def _finished(self, progress: Progress, finish: Finish) -> FinishedHeader:
        return FinishedHeader(
            source=self._rank,
            num_operations=progress.submitted,
            view=self._view,
            step=finish.step,
            results=finish.digest or NO_DIGEST,
            chain=progress.digest,
            parameters=finish.state_digest or NO_DIGEST,
        )

    def send_segment(self, view_number: int, sequence: int, fingerprint: bytes, outgoing: Outgoing) -> None:
        """Send a segment of an operation to a rank of that view; no effect if another view is installed."""
        if view_number != self._stamp.number:
            return
        peer, transfer, segment, payload = outgoing
        header = self._segment_start + pack_rest(sequence, transfer, segment, fingerprint)
        self.num_sent_bytes += len(header) + payload.nbytes
        self._transport.send_data(self._members[peer].peer_id, header, payload)

    def send_parcel(self, target: Member, stream: int, segment: ParcelSegment) -> None:
        """Send a segment of a parcel, whatever the view of `target`."""
        header = ParcelHeader(
            is_state=segment.is_state,
            is_last=segment.is_last,
            is_final=segment.is_final,
            part=segment.part,
            peer_id=bytes.fromhex(self._me.peer_id),
            incarnation=self._me.incarnation,
            stream=stream,
            step=segment.step,
            segment=segment.index,
            is_share=segment.is_share,
            digest=segment.digest,
        )
        self._transport.send_data(target.peer_id, header.pack(), segment.payload)

    def send_taken(self, target: Member, stream: int, num_segments: int) -> None:
        """Acknowledge `num_segments` segments of the `stream` from `target`."""
        header = TakenHeader(bytes.fromhex(self._me.peer_id), self._me.incarnation, stream, num_segments)
        self._transport.send_data(target.peer_id, header.pack(), b"")

    def send_share_request(self, target: Member, wish: ShareRequest) -> None:
        """Ask another donor for a share of a state."""
        assert wish.first == self._me
        observer = wish.observer
        header = ShareHeader(
            bytes.fromhex(self._me.peer_id),
            self._me.incarnation,
            bytes.fromhex(observer.peer_id),
            observer.incarnation,
            wish.step,
            wish.chunk_bytes,
            wish.number,
            wish.num_shares,
            wish.frozen or NO_DIGEST,
        )
        self._transport.send_data(target.peer_id, header.pack(), b"")

    def send_chunk_query(self, target: Member, step: int, chunks: Sequence[Chunk]) -> None:
        """Ask the first donor of a state for chunks of it."""
        header = ChunksHeader(bytes.fromhex(self._me.peer_id), self._me.incarnation, step)
        self._transport.send_data(target.peer_id, header.pack(), b"".join([_CHUNK.pack(*chunk) for chunk in chunks]))

    def send_probe(self, peer_id: str, num_bytes: int) -> None:
        """Send `num_bytes` for a bandwidth measurement; receivers discard them."""
        self._transport.send_data(peer_id, ProbeHeader().pack(), bytes(num_bytes))

    # In.

    def read_control(self, frame: bytes) -> Envelope | StatusQuery:
        """The envelope of a peer, or a status query.

        Raises:
            RemoteProtocolError: it is neither.
        """
        message = self._codec.decode(frame)
        assert isinstance(message, Envelope | StatusQuery)
        return message

    def read_data(
        self, frame: memoryview, payload: memoryview
    ) -> Envelope | Segment | Delivery | Taken | ShareRequest | ChunkQuery | None:
        """FINISHED, a segment of an operation or of a parcel, an acknowledgement, or a request for parts of a state.

        Returns:
            None for frames of another view, and for probes.

        Raises:
            RemoteProtocolError: it is none of these.
        """
        if len(frame) == HEADER_BYTES and frame[: len(SEGMENT_KIND)] == SEGMENT_KIND:
            return self._read_segment(frame, payload)
        header = unpack_header(frame)
        assert not isinstance(header, SegmentHeader)
        match header:
            case FinishedHeader():
                return self._read_finished(header, payload)
            case ParcelHeader():
                return _read_parcel(header, payload)
            case TakenHeader(peer_id, incarnation, stream, num_segments):
                _check_empty(payload)
                return Taken(Member(peer_id.hex(), incarnation), stream, num_segments)
            case ShareHeader():
                _check_empty(payload)
                return _read_wish(header)
            case ChunksHeader(peer_id, incarnation, step):
                if len(payload) % _CHUNK.size:
                    raise RemoteProtocolError(f"{len(payload)} bytes are no list of chunks")
                chunks = tuple([Chunk(*chunk) for chunk in _CHUNK.iter_unpack(payload)])
                return ChunkQuery(Member(peer_id.hex(), incarnation), step, chunks)
            case ProbeHeader():
                return None
            case _:
                assert_never(header)

    def _read_segment(self, frame: memoryview, payload: memoryview) -> Segment | None:
        _, source, view, operation, transfer, segment, fingerprint, digest = unpack_segment(frame)
        if view != self._view:
            return None
        if source >= len(self._members):
            self._check_rank(source)
        if digest != NO_DIGEST and digest != xxhash.xxh3_128_digest(payload):
            raise RemoteProtocolError(
                f"segment {segment} of operation {operation}, of rank {source}: it was damaged on the way"
            )
        return Segment(operation, source, transfer, segment, fingerprint, payload)

    def _read_finished(self, header: FinishedHeader, payload: memoryview) -> Envelope | None:
        _check_empty(payload)
        if header.view != self._view:
            return None
        self._check_rank(header.source)
        results, parameters = (b"" if each == NO_DIGEST else each for each in (header.results, header.parameters))
        finish = Finish(header.step, results, parameters, self._stamp.number, self._is_mixed)
        progress = Progress(header.step - 1, header.chain, finish, header.num_operations)
        return Envelope(self._members[header.source], self._stamp, progress)

    def _check_rank(self, rank: int) -> None:
        if rank >= len(self._members):
            raise RemoteProtocolError(f"data frame of rank {rank} in a view of {len(self._members)}")


def _read_parcel(header: ParcelHeader, payload: memoryview) -> Delivery:
    segment = ParcelSegment(
        header.step,
        header.is_state,
        header.part,
        header.segment,
        header.is_last,
        header.is_final,
        header.digest,
        payload,
        header.is_share,
    )
    return Delivery(Member(header.peer_id.hex(), header.incarnation), header.stream, segment)


def _read_wish(header: ShareHeader) -> ShareRequest:
    first = Member(header.peer_id.hex(), header.incarnation)
    observer = Member(header.observer.hex(), header.observer_incarnation)
    if not header.number < header.num_shares or not header.chunk_bytes:
        raise RemoteProtocolError(
            f"share {header.number} of {header.num_shares} of a state, in chunks of {header.chunk_bytes} bytes"
        )
    frozen = b"" if header.frozen == NO_DIGEST else header.frozen
    return ShareRequest(first, observer, header.step, header.number, header.num_shares, header.chunk_bytes, frozen)


def _check_empty(payload: memoryview) -> None:
    if len(payload):
        raise RemoteProtocolError(f"{len(payload)} bytes behind a header that says everything")

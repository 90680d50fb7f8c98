"""What this peer says, as frames, and the frames of others as what they say. Belongs to the loop.

Control frames carry envelopes. Data frames carry segments of operations and FINISHED: there is one in every step, it
is as urgent as data, and a fixed layout makes it cheap. A data frame of another view than the installed one is dropped
here. Parcels go to who is in no view yet, and are acknowledged from there: instead of a view, their frames name the
sender and its *stream*, all that it sends to one peer in a row.
"""

from typing import NamedTuple

from collectives import Outgoing
from gossip import NO_VIEW, Envelope, Member, Stamp, View
from gossip import messages as m
from gossip.effects import Send

from ..errors import RemoteProtocolError
from .parcels import ParcelSegment
from .transport import Transport
from .wire import (
    FLAG_FED,
    FLAG_FINAL,
    FLAG_FINISHED,
    FLAG_LAST,
    FLAG_STATE,
    FLAG_TAKEN,
    Codec,
    DataHeader,
    DType,
)

NO_DIGEST = bytes(16)
"""Of a step without operations."""

RECORD_CODEC = Codec([m.AcceptorRecord])
"""Of the pages that outlive their peers."""


class Segment(NamedTuple):
    """One segment as it came from the wire: which operation of this view, and whose."""

    sequence: int
    source: int
    transfer: int
    segment: int
    fingerprint: bytes
    payload: bytes | memoryview


class Delivery(NamedTuple):
    """A segment of a parcel, and where it comes from."""

    source: Member
    stream: int
    segment: ParcelSegment


class Taken(NamedTuple):
    """`source` has taken so many segments of our `stream` to it."""

    source: Member
    stream: int
    num_segments: int


class Frames:
    """The frames of one peer, in the view that it has installed."""

    def __init__(self, me: Member, transport: Transport) -> None:
        self._me = me
        self._transport = transport
        self._codec = Codec([Envelope])
        self._encoded: tuple[m.Body, Stamp, bytes] | None = None
        self._members: tuple[Member, ...] = ()
        self._stamp = NO_VIEW
        self._rank = 0

    def install(self, view: View) -> None:
        """From now on everything is said in `view`."""
        self._members, self._stamp = view.members, view.stamp
        self._rank = view.members.index(self._me)
        self._encoded = None

    # Out.

    def send(self, effect: Send) -> None:
        """Say something to a peer, in the view in which it was made. Encoded once if it is said to many in a row."""
        target, body, stamp = effect.target, effect.body, effect.stamp or NO_VIEW
        if isinstance(body, m.Progress) and body.finish is not None:
            if stamp != self._stamp:
                return  # nobody is in that view any more who could hear it
            header = self._header(body.finish.step, body.submitted, 0, body.finish.digest or NO_DIGEST, FLAG_FINISHED)
            self._transport.send_data(target.peer_id, header.pack(), body.digest + body.finish.state_digest)
            return
        if self._encoded is None or self._encoded[0] is not body or self._encoded[1] is not stamp:
            self._encoded = body, stamp, self._codec.encode(Envelope(self._me, stamp, body))
        self._transport.send_control(target.peer_id, self._encoded[2])

    def encode(self, body: m.Body) -> bytes:
        """The control frame that says `body`, in the installed view."""
        return self._codec.encode(Envelope(self._me, self._stamp, body))

    def send_segment(self, sequence: int, fingerprint: bytes, outgoing: Outgoing) -> None:
        """Send a segment of an operation to a rank."""
        header = self._header(sequence, outgoing.transfer, outgoing.segment, fingerprint)
        self._transport.send_data(self._members[outgoing.peer].peer_id, header.pack(), outgoing.payload)

    def send_parcel(self, target: Member, stream: int, segment: ParcelSegment) -> None:
        """Send a segment of a parcel, in whatever view `target` is."""
        flags = FLAG_STATE if segment.is_state else FLAG_FED
        flags |= (FLAG_LAST if segment.is_last else 0) | (FLAG_FINAL if segment.is_final else 0)
        place = segment.step + 1, segment.part, segment.index
        self._transport.send_data(
            target.peer_id, self._outside(stream, *place, segment.digest, flags).pack(), segment.payload
        )

    def send_taken(self, target: Member, stream: int, num_segments: int) -> None:
        """Say how many segments of its `stream` have come."""
        header = self._outside(stream, num_segments, 0, 0, NO_DIGEST, FLAG_TAKEN)
        self._transport.send_data(target.peer_id, header.pack(), b"")

    def _outside(
        self, stream: int, sequence: int, transfer: int, segment: int, digest: bytes, flags: int
    ) -> DataHeader:
        """Of a frame that belongs to no view."""
        me = bytes.fromhex(self._me.peer_id) + self._me.incarnation.to_bytes(8, "little")
        return DataHeader(NO_DIGEST, stream, me, sequence, transfer, segment, 0, 0, DType.UINT8, flags, digest)

    def _header(self, sequence: int, transfer: int, segment: int, digest: bytes, flags: int = 0) -> DataHeader:
        stamp = self._stamp
        return DataHeader(
            stamp.lineage,
            stamp.number,
            stamp.hash,
            sequence,
            transfer,
            segment,
            0,
            self._rank,
            DType.UINT8,
            flags,
            digest,
        )

    # In.

    def read_control(self, frame: bytes) -> Envelope:
        """What a peer says.

        Raises:
            RemoteProtocolError: it is no envelope.
        """
        envelope = self._codec.decode(frame)
        assert isinstance(envelope, Envelope)
        return envelope

    def read_data(self, frame: memoryview, payload: memoryview) -> Envelope | Segment | Delivery | Taken | None:
        """FINISHED, a segment of an operation or of a parcel, or that some have come; None: of another view.

        Raises:
            RemoteProtocolError: it is none of these.
        """
        header = DataHeader.unpack(frame)
        if header.flags & (FLAG_STATE | FLAG_FED | FLAG_TAKEN):
            return _read_outside(header, payload)
        if (header.view_hash, header.view_number, header.lineage) != (
            self._stamp.hash,
            self._stamp.number,
            self._stamp.lineage,
        ):
            return None
        if header.source >= len(self._members):
            raise RemoteProtocolError(f"data frame of rank {header.source} in a view of {len(self._members)}")
        if header.flags & FLAG_FINISHED:
            return self._read_finished(header, bytes(payload))
        return Segment(header.sequence, header.source, header.transfer, header.segment, header.digest, payload)

    def _read_finished(self, header: DataHeader, payload: bytes) -> Envelope:
        if len(payload) not in (16, 32):
            raise RemoteProtocolError(f"FINISHED of rank {header.source} with {len(payload)} bytes")
        digest = b"" if header.digest == NO_DIGEST else header.digest
        finish = m.Finish(header.sequence, digest, payload[16:], header.view_number)
        stamp = Stamp(header.lineage, header.view_number, header.view_hash)
        progress = m.Progress(header.sequence - 1, payload[:16], finish, header.transfer)
        return Envelope(self._members[header.source], stamp, progress)


def _read_outside(header: DataHeader, payload: memoryview) -> Delivery | Taken:
    """A frame that names its sender instead of a view."""
    source = Member(header.view_hash[:8].hex(), int.from_bytes(header.view_hash[8:], "little"))
    if header.flags & FLAG_TAKEN:
        return Taken(source, header.view_number, header.sequence)
    flags = header.flags
    segment = ParcelSegment(
        header.sequence - 1,
        bool(flags & FLAG_STATE),
        header.transfer,
        header.segment,
        bool(flags & FLAG_LAST),
        bool(flags & FLAG_FINAL),
        header.digest,
        payload,
    )
    return Delivery(source, header.view_number, segment)

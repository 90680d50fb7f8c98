"""Frames over real sockets: the other peer reads them, unless they are of another view, or damaged."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import xxhash

from collectives import Outgoing
from gossip import Envelope, Member, Policy, Seat, View
from gossip.effects import Send
from gossip.progress import Finish, Progress
from p2p.errors import RemoteProtocolError
from p2p.net.frames import ChunkQuery, Delivery, Frames, Segment, Taken
from p2p.net.headers import (
    NO_DIGEST,
    ChunksHeader,
    FinishedHeader,
    SegmentHeader,
    ShareHeader,
    TakenHeader,
    pack_stamp,
)
from p2p.net.parcels import Chunk, ParcelSegment, ShareRequest
from p2p.net.transport import Polled, Transport

A, B, C = (Member(16 * name, 2**63 + 1) for name in "abc")
VIEW = View(bytes(range(16)), 3, 1, (Seat(A, 1), Seat(B, 2)), b"", Policy.LIVE, A.peer_id)
PRINT, CHAIN, RESULTS, PARAMETERS = (16 * letter for letter in (b"f", b"c", b"r", b"p"))
Said = Envelope | Segment | Delivery | Taken | ShareRequest | ChunkQuery | None
Readable = SegmentHeader | FinishedHeader | TakenHeader | ShareHeader | ChunksHeader


class Pair:
    """A and B, each with its frames; A sends to B."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        places = {name: (f"ipc://{folder}/{name}.control", f"ipc://{folder}/{name}.data") for name in "ab"}
        self.transport, self._reader = (Transport(*places[name]) for name in "ab")
        for transport in (self.transport, self._reader):
            stack.callback(transport.close)
        self.a, self.b = Frames(A, self.transport), Frames(B, self._reader)
        self.transport.connect(B.peer_id, *places["b"])

    def install(self, view: View = VIEW) -> None:
        self.a.install(view)
        self.b.install(view)

    def arrived(self) -> Said:
        """The next data frame that B reads."""
        while self._reader.poll(10.0) != Polled(False, False, ()):
            for header, payload in self._reader.receive_data():
                return self.b.read_data(header, payload)
        raise AssertionError("nothing came in time")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with TemporaryDirectory(prefix="shoal") as name, ExitStack() as stack:
        yield Pair(stack, Path(name))


SEGMENT = SegmentHeader(0, pack_stamp(VIEW.stamp), 7, 1, 2, PRINT)
FINISHED = FinishedHeader(0, 2, pack_stamp(VIEW.stamp), 9, RESULTS, CHAIN, PARAMETERS)
TAKEN = TakenHeader(bytes.fromhex(C.peer_id), C.incarnation, 4, 250)


def read(pair: Pair, header: Readable, payload: bytes = b"") -> Said:
    return pair.b.read_data(memoryview(header.pack()), memoryview(payload))


@pytest.mark.parametrize("length", [0, 10, 100_000])
def test_a_segment_arrives_with_its_operation_and_elements(pair: Pair, length: int) -> None:
    pair.install()
    elements = np.arange(length, dtype=np.float32).view(np.uint8)
    pair.a.send_segment(VIEW.number, 7, PRINT, Outgoing(1, 3, 2, elements))
    segment = pair.arrived()
    assert isinstance(segment, Segment)
    assert segment[:5] == (7, 0, 3, 2, PRINT)
    assert bytes(segment.payload) == elements.tobytes()


def test_a_segment_of_a_view_that_is_over_is_not_sent(pair: Pair) -> None:
    pair.install()
    for number in (VIEW.number - 1, VIEW.number):
        pair.a.send_segment(number, number, PRINT, Outgoing(1, 3, 2, np.zeros(1, np.uint8)))
    segment = pair.arrived()
    assert isinstance(segment, Segment) and segment.sequence == VIEW.number


def finish(results: bytes = RESULTS, parameters: bytes = PARAMETERS) -> Finish:
    return Finish(9, results, parameters, 3)


@pytest.mark.parametrize("said", [finish(), finish(results=b""), finish(parameters=b""), finish(b"", b"")])
def test_finished_goes_the_way_of_data_and_arrives_as_what_was_said(pair: Pair, said: Finish) -> None:
    pair.install()
    progress = Progress(8, CHAIN, said, 2)
    pair.a.send(Send(B, progress, VIEW.stamp))
    assert pair.arrived() == Envelope(A, VIEW.stamp, progress)


def test_what_has_no_finish_is_a_control_frame(pair: Pair) -> None:
    pair.install()
    body = Progress(8, CHAIN, None, 2)
    assert pair.b.read_control(pair.a.encode(body)) == Envelope(A, VIEW.stamp, body)


@pytest.mark.parametrize("step", [-1, 0, 2**40])
def test_a_parcel_and_its_receipt_need_no_view(pair: Pair, step: int) -> None:
    for is_share in (False, True):
        segment = ParcelSegment(step, True, 6, 2, True, False, xxhash.xxh3_128_digest(b"state"), b"state", is_share)
        pair.a.send_parcel(B, 4, segment)
        assert pair.arrived() == Delivery(A, 4, segment)
    pair.a.send_taken(B, 5, 250)
    assert pair.arrived() == Taken(A, 5, 250)


def test_what_is_asked_of_a_state_needs_no_view(pair: Pair) -> None:
    wish = ShareRequest(A, C, 9, 2, 3, 1 << 20)
    pair.a.send_share_request(B, wish)
    assert pair.arrived() == wish
    for chunks in ((), (Chunk(2, 0), Chunk(2**32 - 1, 7))):
        pair.a.send_chunk_query(B, 9, chunks)
        assert pair.arrived() == ChunkQuery(A, 9, chunks)


def test_a_share_that_is_none_and_half_a_chunk_are_refused(pair: Pair) -> None:
    name = bytes.fromhex(C.peer_id)
    for number, num_shares, chunk_bytes in ((3, 3, 1), (0, 0, 1), (1, 2, 0)):
        with pytest.raises(RemoteProtocolError, match=f"share {number} of {num_shares}"):
            read(pair, ShareHeader(name, 1, name, 2, 9, chunk_bytes, number, num_shares))
    with pytest.raises(RemoteProtocolError, match="9 bytes are no list of chunks"):
        read(pair, ChunksHeader(name, 1, 9), bytes(9))


def test_data_of_another_view_is_none_of_ours(pair: Pair) -> None:
    assert read(pair, SEGMENT) is None and read(pair, FINISHED) is None, "no view is installed"
    pair.install()
    for change in ({"lineage": bytes(16)}, {"hash": bytes(16)}, {"number": 4}):
        other = pack_stamp(replace(VIEW.stamp, **change))
        assert read(pair, SEGMENT._replace(view=other)) is None
        assert read(pair, FINISHED._replace(view=other)) is None


def test_a_rank_that_the_view_does_not_have_says_nothing(pair: Pair) -> None:
    pair.install()
    for header in (SEGMENT._replace(source=2), FINISHED._replace(source=2)):
        with pytest.raises(RemoteProtocolError, match="rank 2 in a view of 2"):
            read(pair, header)


def test_a_digest_of_a_segment_is_compared_if_it_is_said(pair: Pair) -> None:
    pair.install()
    right = xxhash.xxh3_128_digest(b"elements")
    for digest in (NO_DIGEST, right):
        assert isinstance(read(pair, SEGMENT._replace(digest=digest), b"elements"), Segment)
    with pytest.raises(RemoteProtocolError, match="segment 2 of operation 7, of rank 0: it was damaged on the way"):
        read(pair, SEGMENT._replace(digest=right), b"elementz")
    assert read(pair, SEGMENT._replace(digest=right, view=bytes(40)), b"elementz") is None


def test_what_says_everything_in_its_header_has_no_payload(pair: Pair) -> None:
    pair.install()
    for header in (FINISHED, TAKEN):
        assert read(pair, header) is not None
        with pytest.raises(RemoteProtocolError, match="3 bytes behind a header"):
            read(pair, header, b"abc")

"""Law: headers survive a round trip, and all other bytes are refused. The layouts are those of PROTOCOL.md."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Stamp
from p2p.errors import RemoteProtocolError
from p2p.net.headers import (
    HEADER_BYTES,
    NO_DIGEST,
    ChunksHeader,
    FinishedHeader,
    Header,
    ParcelHeader,
    ProbeHeader,
    SegmentHeader,
    ShareHeader,
    TakenHeader,
    pack_stamp,
    unpack_header,
)
from p2p.version import VERSION, OtherVersion
from tests.p2p.net.damage import MUTATIONS, mutate

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
i64 = st.integers(-(2**63), 2**63 - 1)
eight, sixteen = (st.binary(min_size=size, max_size=size) for size in (8, 16))
flags = st.booleans()
stamps = st.builds(Stamp, sixteen, u64, sixteen).map(pack_stamp)
headers = (
    st.builds(SegmentHeader, u16, stamps, u64, u32, u32, sixteen, sixteen)
    | st.builds(FinishedHeader, u16, u32, stamps, u64, sixteen, sixteen, sixteen)
    | st.builds(ParcelHeader, flags, flags, flags, u32, eight, u64, u64, i64, u32, flags, sixteen)
    | st.builds(TakenHeader, eight, u64, u64, u64)
    | st.just(ProbeHeader())
    | st.builds(ShareHeader, eight, u64, eight, u64, i64, u32, u16, u16, sixteen)
    | st.builds(ChunksHeader, eight, u64, i64)
)

START = b"SHOL" + VERSION.to_bytes(4, "little")
LINEAGE, HASH, PRINT, DIGEST = b"l" * 16, b"h" * 16, b"p" * 16, b"d" * 16
VIEW = pack_stamp(Stamp(LINEAGE, 3, HASH))
SEGMENT = SegmentHeader(5, VIEW, 7, 1, 2, PRINT, DIGEST)
FINISHED = FinishedHeader(5, 4, VIEW, 7, b"r" * 16, b"c" * 16, b"s" * 16)
PARCEL = ParcelHeader(True, False, True, 6, b"\xaa" * 8, 9, 3, -1, 2, False, DIGEST)
SHARE = PARCEL._replace(is_share=True)
TAKEN = TakenHeader(b"\xaa" * 8, 9, 3, 250)
WISH = ShareHeader(b"\xaa" * 8, 9, b"\xbb" * 8, 8, 7, 1 << 20, 2, 3, b"f" * 16)
CHUNKS = ChunksHeader(b"\xaa" * 8, 9, 7)


def le(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=number < 0)


@pytest.mark.parametrize(
    ("header", "layout"),
    [
        (
            SEGMENT,
            [
                b"\1\0",
                le(5, 2),
                bytes(4),
                LINEAGE,
                HASH,
                le(3, 8),
                le(7, 8),
                le(1, 4),
                le(2, 4),
                PRINT,
                DIGEST,
            ],
        ),
        (
            FINISHED,
            [b"\2\0", le(5, 2), le(4, 4), LINEAGE, HASH, le(3, 8), le(7, 8), b"r" * 16, b"c" * 16, b"s" * 16],
        ),
        (
            PARCEL,
            [b"\3", b"\1\0\1", le(6, 4), b"\xaa" * 8, le(9, 8), le(3, 8), le(-1, 8), le(2, 4), bytes(4), DIGEST],
        ),
        (
            SHARE,
            [b"\3", b"\1\0\1", le(6, 4), b"\xaa" * 8, le(9, 8), le(3, 8), le(-1, 8), le(2, 4), b"\1\0\0\0", DIGEST],
        ),
        (TAKEN, [b"\4", bytes(7), b"\xaa" * 8, le(9, 8), le(3, 8), le(250, 8)]),
        (ProbeHeader(), [b"\5"]),
        (
            WISH,
            [
                b"\6",
                bytes(7),
                b"\xaa" * 8,
                le(9, 8),
                b"\xbb" * 8,
                le(8, 8),
                le(7, 8),
                le(1 << 20, 4),
                le(2, 2),
                le(3, 2),
                b"f" * 16,
            ],
        ),
        (CHUNKS, [b"\7", bytes(7), b"\xaa" * 8, le(9, 8), le(7, 8)]),
    ],
    ids=["segment", "finished", "parcel", "share", "taken", "probe", "wish", "chunks"],
)
def test_each_kind_has_its_layout(header: Header, layout: list[bytes]) -> None:
    assert header.pack() == (START + b"".join(layout)).ljust(HEADER_BYTES, b"\0")


@settings(deadline=None)
@given(headers)
def test_a_header_comes_back_as_it_was(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 112
    for arrived in (unpack_header(packed), unpack_header(memoryview(packed))):
        assert (type(arrived), arrived) == (type(header), header)


@settings(deadline=None)
@given(st.binary(max_size=150))
def test_random_bytes_are_no_header(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_header(raw)


@settings(deadline=None)
@given(headers, MUTATIONS)
def test_a_damaged_header_is_a_header_or_refused(header: Header, changes: list[tuple[int, int]]) -> None:
    with suppress(RemoteProtocolError):
        arrived = unpack_header(mutate(header.pack(), changes))
        assert unpack_header(arrived.pack()) == arrived


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(0, b"X", "starts with b'XHOL'"), (8, b"\0", "kind 0"), (8, b"\x08", "kind 8 with 112 bytes")],
)
def test_a_refused_header_says_why(offset: int, value: bytes, reason: str) -> None:
    raw = bytearray(SEGMENT.pack())
    raw[offset : offset + 1] = value
    with pytest.raises(RemoteProtocolError, match=reason):
        unpack_header(bytes(raw))


@pytest.mark.parametrize("size", [0, 8, 9, 88, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_a_header_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"a data header .*{size} bytes"):
        unpack_header(SEGMENT.pack().ljust(size, b"\0")[:size])


@pytest.mark.parametrize("version", [1, VERSION + 1, 2**32 - 1])
@pytest.mark.parametrize("rest", [b"\0", bytes(80), bytes(500)])
def test_of_a_header_of_another_version_only_that_is_read(version: int, rest: bytes) -> None:
    with pytest.raises(
        OtherVersion, match=f"version {version} of the wire, and this one version {VERSION}: run the same"
    ):
        unpack_header(b"SHOL" + version.to_bytes(4, "little") + rest)


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (SEGMENT, {"view": b"short"}),
        (SEGMENT, {"digest": bytes(17)}),
        (SEGMENT, {"source": 2**16}),
        (SEGMENT, {"segment": -1}),
        (FINISHED, {"chain": b""}),
        (FINISHED, {"step": -1}),
        (PARCEL, {"peer_id": bytes(7)}),
        (PARCEL, {"step": 2**63}),
        (TAKEN, {"peer_id": bytes(16)}),
        (TAKEN, {"num_segments": 2**64}),
    ],
)
def test_a_header_that_does_not_fit_is_the_callers_mistake(header: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        header._replace(**wrong).pack()


def test_a_segment_says_nothing_of_its_payload_unless_it_is_told_to() -> None:
    assert SegmentHeader(5, VIEW, 7, 1, 2, PRINT).digest == NO_DIGEST


def test_a_stamp_that_does_not_fit_is_the_callers_mistake() -> None:
    for stamp in (Stamp(b"short", 3, HASH), Stamp(LINEAGE, 3, b"")):
        with pytest.raises(ValueError, match="16 bytes each"):
            pack_stamp(stamp)

"""Law: any bytes from a peer are decoded to a valid value, or raise a RemoteProtocolError."""

import gc
import math
import weakref
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Envelope, Member, Policy, Seat, View
from gossip.messages import AcceptorRecord, Ballot, Decide, Promise, Report, ReportKind, ViewQuery, Vote
from p2p.errors import RemoteProtocolError
from p2p.net.bounds import MAX_ARRAY_LEN, MAX_BYTES_LEN, MAX_STR_LEN
from p2p.net.wire import MAX_CONTROL_BYTES, MOST_VIEWS, Codec
from p2p.version import VERSION, OtherVersion
from tests.p2p.net.damage import INTS, LEAVES, MUTATIONS, mutate


class Color(Enum):
    RED = 1
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float

    def __post_init__(self) -> None:
        if self.x == 13:
            raise ValueError("13 is no place")


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Everything:
    flag: bool
    name: str
    raw: bytes
    color: Color
    points: tuple[Point, ...]
    pair: tuple[int, str]
    maybe: "Point | None"
    either: Point | Nothing
    perhaps: Point | Nothing | None


CODEC = Codec([Nothing, Point, Everything])
START = b"\x92%c" % VERSION
"""Beginning of a frame of this version."""

points = st.builds(Point, INTS.filter(lambda x: x != 13), st.floats(allow_nan=False, allow_infinity=False))
either = points | st.just(Nothing())
everythings = st.builds(
    Everything,
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=50),
    st.sampled_from(Color),
    st.lists(points, max_size=5).map(tuple),
    st.tuples(INTS, st.text(max_size=5)),
    st.none() | points,
    either,
    st.none() | either,
)
messages = either | everythings
SAMPLE = Everything(True, "a", b"b", Color.BLUE, (Point(1, 2.0),), (3, "c"), None, Nothing(), Point(4, 5.0))


def assert_decoded_or_refused(frame: bytes) -> None:
    try:
        message = CODEC.decode(frame)
    except RemoteProtocolError:
        return
    assert CODEC.decode(CODEC.encode(message)) == message


@settings(deadline=None)
@given(messages)
def test_a_message_comes_back_as_it_was(message: object) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message
    assert CODEC.decode(memoryview(CODEC.encode(message))) == message


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    assert_decoded_or_refused(frame)


@settings(deadline=None)
@given(messages, MUTATIONS)
def test_a_damaged_frame_is_a_message_or_refused(message: object, changes: list[tuple[int, int]]) -> None:
    assert_decoded_or_refused(mutate(CODEC.encode(message), changes))


@settings(deadline=None)
@given(st.recursive(LEAVES, lambda children: st.lists(children, max_size=6), max_leaves=30))
def test_any_msgpack_value_is_a_message_or_refused(value: Any) -> None:
    assert_decoded_or_refused(msgpack.packb(value))
    assert_decoded_or_refused(msgpack.packb([VERSION, 2, value]))
    assert_decoded_or_refused(msgpack.packb([VERSION, 1, value, value]))


@pytest.mark.parametrize(
    "values",
    [
        [True, 0],
        [2**7 + VERSION, 0],
        [VERSION] * 16,
        [VERSION, 9],
        [VERSION, -1],
        [VERSION, True],
        [VERSION, 0, "one too many"],
        [VERSION, 1, 1],
        [VERSION, 1, True, 1.0],
        [VERSION, 1, 1, 1],
        [VERSION, 1, 1, math.nan],
        [VERSION, 1, 1, math.inf],
        [VERSION, 1, 13, 1.0],
        {VERSION: 0},
        [VERSION, 1, msgpack.Timestamp(1), 1.0],
        [VERSION, 1, msgpack.ExtType(5, b""), 1.0],
        [VERSION, 1, {}, 1.0],
    ],
)
def test_what_only_looks_like_a_message_is_refused(values: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        CODEC.decode(msgpack.packb(values))


@pytest.mark.parametrize("position", range(len(fields(SAMPLE))))
@pytest.mark.parametrize("value", [2**70, "x" * (MAX_STR_LEN + 1), b"x" * (MAX_BYTES_LEN + 1), 7, [7, 7], 1.5])
def test_both_sides_refuse_the_same_field_values(position: int, value: Any) -> None:
    names = [field.name for field in fields(SAMPLE)]
    wrong = Everything(**{**{name: getattr(SAMPLE, name) for name in names}, names[position]: value})
    with pytest.raises(ValueError, match=f"{names[position]}|is not a"):
        CODEC.encode(wrong)
    if value != 2**70:
        good = msgpack.unpackb(CODEC.encode(SAMPLE))
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(msgpack.packb([*good[: 2 + position], value, *good[3 + position :]]))


def test_too_long_a_tuple_is_refused_on_both_sides() -> None:
    codec = Codec([Points])
    longest = Points((0,) * MAX_ARRAY_LEN)
    assert codec.decode(codec.encode(longest)) == longest
    with pytest.raises(ValueError, match="numbers"):
        codec.encode(Points((0,) * (MAX_ARRAY_LEN + 1)))
    with pytest.raises(RemoteProtocolError):
        codec.decode(msgpack.packb([VERSION, 0, [0] * (MAX_ARRAY_LEN + 1)]))


@dataclass(frozen=True, slots=True)
class Points:
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blobs:
    blobs: tuple[bytes, ...]


def test_a_frame_that_is_too_long_is_neither_sent_nor_read() -> None:
    with pytest.raises(ValueError, match="Blobs takes"):
        Codec([Blobs]).encode(Blobs((b"x" * MAX_BYTES_LEN,) * 4))
    with pytest.raises(RemoteProtocolError, match="we accept"):
        CODEC.decode(START + bytes(MAX_CONTROL_BYTES))


@pytest.mark.parametrize("header", [b"\x91", b"\xdc\x0f\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x81\x01"])
def test_a_bomb_of_nested_arrays_is_refused(header: bytes) -> None:
    for bomb in (header * 100, header * 1000, header * (1 << 20)):
        for frame in (bomb, START + bomb):
            with pytest.raises(RemoteProtocolError):
                CODEC.decode(frame[:MAX_CONTROL_BYTES])


@pytest.mark.parametrize("prefix", [b"", b"\x92", START, START + b"\x01", b"\x9b%c\x02" % VERSION])
def test_deep_nesting_is_refused_wherever_it_is(prefix: bytes) -> None:
    for depth in (900, 1000, 1020, 5000):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(prefix + b"\x91" * depth + b"\x00" * 10)
        well_formed = prefix + b"\x91" * depth + b"\x00" * (1 if prefix in (b"", START) else 2)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(well_formed)


# Versions


@pytest.mark.parametrize("version", [1, VERSION + 1, 127])
@pytest.mark.parametrize("rest", [b"", b"\x00\x92\xb0ffffffffffffffff\x01", b"\xc1", b"\x91" * 5000])
def test_what_a_peer_of_another_version_says_is_not_read_but_for_the_version(version: int, rest: bytes) -> None:
    for start in (0x91, 0x95, 0x9F):
        with pytest.raises(
            OtherVersion, match=f"version {version} of the wire, and this one version {VERSION}: run"
        ) as e:
            CODEC.decode(bytes([start, version]) + rest)
        assert e.value.version == version


def test_the_version_of_every_frame_is_its_second_byte() -> None:
    assert {CODEC.encode(message)[1] for message in (Nothing(), Point(1, 2.0), SAMPLE)} == {VERSION}
    wide: Any = dataclass(type("Wide", (), {"__annotations__": {f"field_{i}": int for i in range(14)}}))
    with pytest.raises(TypeError, match="13 fields at most"):
        Codec([wide])


# Views

A, B = Member("a" * 16, 1), Member("b" * 16, 2)
ENVELOPES = Codec([Envelope])


def view_of(number: int, *, lineage: bytes = b"l" * 16) -> View:
    return View(lineage, number, 2, (Seat(A, 1), Seat(B, number)), b"p" * 16, Policy.LIVE, A.peer_id)


def sent(view: View) -> Envelope:
    """A message with the view in three places, after a round trip."""
    record = AcceptorRecord(view, Ballot(3, 0), Vote(Ballot(3, 0), view))
    envelope = Envelope(A, view.stamp, Report(ReportKind.PROVEN, A, 7, record))
    arrived = ENVELOPES.decode(ENVELOPES.encode(envelope))
    assert arrived == envelope and isinstance(arrived, Envelope)
    return arrived


def test_the_messages_of_gossip_can_be_sent() -> None:
    view = view_of(1)
    for body in (ViewQuery(), Decide(view), Promise(Ballot(0, -1), Vote(Ballot(3, 0), view))):
        envelope = Envelope(A, view.stamp, body)
        assert ENVELOPES.decode(ENVELOPES.encode(envelope)) == envelope


def test_a_view_that_was_heard_before_is_the_same_object() -> None:
    view = view_of(5)  # another view may not fit into the cache, whatever its contents
    bodies = [sent(view).body for _ in range(2)]
    records = [body.record for body in bodies if isinstance(body, Report) and body.record is not None]
    assert all(record.vote is not None and record.vote.view is record.view for record in records)
    assert records[0].view is records[1].view


def packed_view(**changes: Any) -> bytes:
    names = [field.name for field in fields(View)]
    values = ENVELOPES.encode(Envelope(A, view_of(1).stamp, Decide(view_of(2))))
    packed = msgpack.unpackb(values, use_list=False)[4][1]
    row = dict(zip(names, msgpack.unpackb(packed, use_list=False), strict=True))
    whole: bytes = msgpack.packb(tuple({**row, **changes}.values()))
    return whole


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"garbage",
        b"\xc1",
        b"\x91" * 1500,
        msgpack.packb([1, 2]),
        packed_view() + b"\x00",
        packed_view(number=0),
        packed_view(number="2"),
        packed_view(number=2**24),
        packed_view(seats=()),
        packed_view(seats=packed_view()),
        packed_view(lineage="l" * 16),
        packed_view(policy=9),
        packed_view(founder="f" * (MAX_STR_LEN + 1)),
        packed_view(founder="../../etc/passwd"),
        [1, 2],
        None,
    ],
)
def test_bytes_that_are_no_view_are_refused_every_time(packed: Any) -> None:
    number = msgpack.unpackb(ENVELOPES.encode(Envelope(A, view_of(1).stamp, Decide(view_of(2)))))[4][0]
    frame = msgpack.packb([VERSION, 0, [A.peer_id, 1], [b"l", 1, b"h"], [number, packed]])
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="control frame"):
            ENVELOPES.decode(frame)


@settings(deadline=None)
@given(MUTATIONS)
def test_a_damaged_view_is_a_view_or_refused(changes: list[tuple[int, int]]) -> None:
    frame = mutate(ENVELOPES.encode(Envelope(A, view_of(1).stamp, Decide(view_of(2)))), changes)
    with suppress(RemoteProtocolError):
        envelope = ENVELOPES.decode(frame)
        assert ENVELOPES.decode(ENVELOPES.encode(envelope)) == envelope


def test_a_view_that_no_peer_would_accept_is_not_sent_either_time() -> None:
    wrong: Any = "text, and no bytes"
    message = Envelope(A, view_of(1).stamp, Decide(view_of(1, lineage=wrong)))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"View\.lineage"):
            ENVELOPES.encode(message)


def test_views_of_long_ago_are_forgotten() -> None:
    body = sent(view_of(1)).body
    assert isinstance(body, Report) and body.record is not None and body.record.view is not None
    first = weakref.ref(body.record.view)
    del body
    gc.collect()
    assert first() is not None
    for number in range(2, MOST_VIEWS + 3):
        sent(view_of(number))
    gc.collect()
    assert first() is None


def test_only_listed_types_are_encoded() -> None:
    with pytest.raises(ValueError, match="int has no number"):
        CODEC.encode(1)


class Odd(Enum):
    HALF = 0.5


@pytest.mark.parametrize("annotation", [complex, list[int], dict[str, int], int | str, Odd, Any, tuple])
def test_an_annotation_that_cannot_be_sent_is_refused_at_once(annotation: Any) -> None:
    wrong: Any = dataclass(type("Wrong", (), {"__annotations__": {"field": annotation}}))
    with pytest.raises(TypeError, match=r"Wrong\.field"):
        Codec([wrong])

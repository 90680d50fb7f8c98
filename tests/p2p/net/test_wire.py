"""Law: whatever comes from a peer is decoded to a valid value or becomes a RemoteProtocolError."""

import math
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Envelope, Member, Seat, View
from gossip.messages import Ballot, Decide, Promise, ViewQuery, Vote
from p2p.errors import RemoteProtocolError
from p2p.net.wire import (
    MAX_ARRAY_LEN,
    MAX_BYTES_LEN,
    MAX_FRAME_BYTES,
    MAX_STR_LEN,
    MAX_TREE_BYTES,
    MAX_TREE_DEPTH,
    VERSION,
    Codec,
    DataHeader,
    DType,
    Slot,
    pack_tree,
    unpack_tree,
)


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

ints = st.integers(-(2**63), 2**64 - 1)
points = st.builds(Point, ints.filter(lambda x: x != 13), st.floats(allow_nan=False, allow_infinity=False))
either = points | st.just(Nothing())
everythings = st.builds(
    Everything,
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=50),
    st.sampled_from(Color),
    st.lists(points, max_size=5).map(tuple),
    st.tuples(ints, st.text(max_size=5)),
    st.none() | points,
    either,
    st.none() | either,
)
messages = either | everythings
SAMPLE = Everything(True, "a", b"b", Color.BLUE, (Point(1, 2.0),), (3, "c"), None, Nothing(), Point(4, 5.0))

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
sixteen = st.binary(min_size=16, max_size=16)
headers = st.builds(
    DataHeader, sixteen, u64, sixteen, u64, u32, u32, u16, u16, st.sampled_from(DType), st.integers(0, 7), sixteen
)
HEADER = DataHeader(b"l" * 16, 3, b"h" * 16, 7, 1, 2, 0, 5, DType.FLOAT32, 2, b"d" * 16)

leaves = st.none() | st.booleans() | ints | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
trees = st.recursive(
    leaves | st.builds(Slot, u32),
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | ints, children, max_size=4)
    ),
    max_leaves=20,
)
mutations = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)


def mutate(frame: bytes, changes: list[tuple[int, int]]) -> bytes:
    mutant = bytearray(frame)
    for place, value in changes:
        mutant[place % len(mutant)] = value
    return bytes(mutant)


def assert_decoded_or_refused(frame: bytes) -> None:
    try:
        message = CODEC.decode(frame)
    except RemoteProtocolError:
        return
    assert CODEC.decode(CODEC.encode(message)) == message


# Data headers.


@settings(deadline=None)
@given(headers)
def test_a_header_comes_back_as_it_was(header: DataHeader) -> None:
    assert len(header.pack()) == 88
    assert DataHeader.unpack(memoryview(header.pack())) == header


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_are_no_header(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        DataHeader.unpack(raw)


@settings(deadline=None)
@given(headers, mutations)
def test_a_damaged_header_is_a_header_or_refused(header: DataHeader, changes: list[tuple[int, int]]) -> None:
    raw = mutate(header.pack(), changes)
    with suppress(RemoteProtocolError):
        assert DataHeader.unpack(raw).pack() == raw


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(0, b"X", "magic"), (4, b"\x02", "version 2"), (68, b"\xff", "dtype 255"), (70, b"\x80", "flags 0x80")],
)
def test_a_refused_header_says_why(offset: int, value: bytes, reason: str) -> None:
    raw = bytearray(HEADER.pack())
    raw[offset : offset + 1] = value
    with pytest.raises(RemoteProtocolError, match=reason):
        DataHeader.unpack(bytes(raw))


def test_a_header_that_does_not_fit_is_the_callers_mistake() -> None:
    for wrong in ({"lineage": b"short"}, {"source": 2**16}, {"segment": -1}):
        with pytest.raises(ValueError, match="source="):
            HEADER._replace(**wrong).pack()


# Control messages.


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
@given(messages, mutations)
def test_a_damaged_frame_is_a_message_or_refused(message: object, changes: list[tuple[int, int]]) -> None:
    assert_decoded_or_refused(mutate(CODEC.encode(message), changes))


@settings(deadline=None)
@given(st.recursive(leaves, lambda children: st.lists(children, max_size=6), max_leaves=30))
def test_any_msgpack_value_is_a_message_or_refused(value: Any) -> None:
    assert_decoded_or_refused(msgpack.packb(value))
    assert_decoded_or_refused(msgpack.packb([VERSION, 2, value]))
    assert_decoded_or_refused(msgpack.packb([VERSION, 1, value, value]))


@pytest.mark.parametrize(
    "values",
    [
        [VERSION + 1, 0],
        [True, 0],
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
        CODEC.decode(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("header", [b"\x91", b"\xdc\x0f\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x81\x01"])
def test_a_bomb_of_nested_arrays_is_refused(header: bytes) -> None:
    for bomb in (header * 100, header * 1000, header * (1 << 20)):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(bomb[:MAX_FRAME_BYTES])
        with pytest.raises(RemoteProtocolError):
            unpack_tree(bomb)


@pytest.mark.parametrize("prefix", [b"", b"\x92", b"\x92\x01", b"\x93\x01\x01", b"\x9b\x01\x02"])
def test_deep_nesting_is_refused_wherever_it_is(prefix: bytes) -> None:
    for depth in (900, 1000, 1020, 5000):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(prefix + b"\x91" * depth + b"\x00" * 10)
        with pytest.raises(RemoteProtocolError):
            unpack_tree(prefix + b"\x91" * depth + b"\x00" * 10)
        well_formed = prefix + b"\x91" * depth + b"\x00" * (1 if prefix in (b"", b"\x92\x01") else 2)
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(well_formed)
    with pytest.raises(RemoteProtocolError, match="deeper"):
        unpack_tree(b"\x91" * (MAX_TREE_DEPTH + 1) + b"\x00")


def test_the_messages_of_gossip_can_be_sent() -> None:
    member = Member("a", 1)
    view = View(b"l" * 16, 1, 2, (Seat(member, 1),), b"")
    for body in (ViewQuery(), Decide(view), Promise(Ballot(0, -1), Vote(Ballot(3, 0), view))):
        envelope = Envelope(member, view.stamp, body)
        codec = Codec([Envelope])
        assert codec.decode(codec.encode(envelope)) == envelope


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


# Trees.


def typed(tree: Any) -> Any:
    """`tree` with the type beside each value, so that equality sees it."""
    if isinstance(tree, list | tuple):
        return type(tree), [typed(item) for item in tree]
    if isinstance(tree, dict):
        return dict, [(typed(key), typed(item)) for key, item in tree.items()]
    return type(tree), tree


@settings(deadline=None)
@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    assert typed(unpack_tree(pack_tree(tree))) == typed(tree)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_tree_or_refused(packed: bytes) -> None:
    with suppress(RemoteProtocolError):
        pack_tree(unpack_tree(packed))


@settings(deadline=None)
@given(trees, mutations)
def test_a_damaged_tree_is_a_tree_or_refused(tree: Any, changes: list[tuple[int, int]]) -> None:
    with suppress(RemoteProtocolError):
        pack_tree(unpack_tree(mutate(pack_tree(tree), changes)))


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"optimizer": {"state": [{"foo": 1j}]}}, r"^optimizer\.state\[0\]\.foo: complex is not allowed$"),
        (1j, "^the tree: complex is not allowed$"),
        ({"a": ({0: {1, 2}},)}, r"^a\[0\]\[0\]: set is not allowed$"),
        ({"color": Color.RED}, "^color: Color is not allowed$"),
        ([DType.INT8], r"^\[0\]: DType is not allowed$"),
        ({"a": {(1, 2): 3}}, "^a: tuple is not allowed as a key$"),
        ({True: 3}, "^the tree: bool is not allowed as a key$"),
    ],
)
def test_another_type_is_refused_by_name_and_path(tree: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        pack_tree(tree)


def test_a_tree_beyond_the_limits_is_not_packed() -> None:
    deep: Any = 1
    for _ in range(MAX_TREE_DEPTH):
        deep = (deep,)
    assert unpack_tree(pack_tree(deep)) == deep
    for tree in ([deep], [2**64], {2**64: 1}, [None] * (1 << 20), bytes(MAX_TREE_BYTES)):
        with pytest.raises(ValueError, match=r"the tree|deeper"):
            pack_tree(tree)


@pytest.mark.parametrize(
    "values",
    [
        [1, msgpack.ExtType(2, b"")],
        msgpack.ExtType(2, b""),
        {"a": msgpack.ExtType(1, b"123")},
        msgpack.ExtType(3, b""),
        msgpack.Timestamp(1),
        {b"key": 1},
        {1.5: 1},
        {None: 1},
        {(): 1},
    ],
)
def test_what_only_looks_like_a_tree_is_refused(values: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_tree(msgpack.packb(values))


def test_too_long_a_tree_is_not_read() -> None:
    with pytest.raises(RemoteProtocolError, match="we accept"):
        unpack_tree(bytes(MAX_TREE_BYTES + 1))


def test_a_slot_has_an_index_of_32_bits() -> None:
    for index in (-1, 2**32):
        with pytest.raises(ValueError, match="32 bits"):
            Slot(index)

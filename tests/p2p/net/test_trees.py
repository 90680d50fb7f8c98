"""Law: trees survive a round trip, and all other bytes are refused."""

from contextlib import suppress
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.errors import RemoteProtocolError
from p2p.net.trees import MAX_TREE_BYTES, MAX_TREE_DEPTH, Slot, pack_tree, unpack_tree
from tests.p2p.net.damage import INTS, LEAVES, MUTATIONS, mutate


class Color(Enum):
    RED = 1


class Number(int):
    pass


trees = st.recursive(
    LEAVES | st.builds(Slot, st.integers(0, 2**32 - 1)),
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | INTS, children, max_size=4)
    ),
    max_leaves=20,
)


def typed(tree: Any) -> Any:
    """`tree` with the type beside each value, so that equality includes types."""
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
@given(trees, MUTATIONS)
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
        ([Number(8)], r"^\[0\]: Number is not allowed$"),
        ({"a": {(1, 2): 3}}, "^a: tuple is not allowed as a key$"),
        ({True: 3}, "^the tree: bool is not allowed as a key$"),
        ({"seed": [2**64]}, r"^seed\[0\]: an int of more than 64 bits is not allowed$"),
        ([-(2**63) - 1], r"^\[0\]: an int of more than 64 bits is not allowed$"),
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
    for tree in ([deep], {2**64: 1}, [None] * (1 << 20), bytes(MAX_TREE_BYTES)):
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


@pytest.mark.parametrize("header", [b"\x91", b"\xdc\x0f\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x81\x01"])
def test_a_bomb_of_nested_arrays_is_refused(header: bytes) -> None:
    for bomb in (header * 100, header * 1000, header * (1 << 20)):
        with pytest.raises(RemoteProtocolError):
            unpack_tree(bomb)


@pytest.mark.parametrize("prefix", [b"", b"\x92", b"\x92\x01", b"\x93\x01\x01", b"\x9b\x01\x02"])
def test_deep_nesting_is_refused_wherever_it_is(prefix: bytes) -> None:
    for depth in (900, 1000, 1020, 5000):
        with pytest.raises(RemoteProtocolError):
            unpack_tree(prefix + b"\x91" * depth + b"\x00" * 10)
    with pytest.raises(RemoteProtocolError, match="deeper"):
        unpack_tree(b"\x91" * (MAX_TREE_DEPTH + 1) + b"\x00")

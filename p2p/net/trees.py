"""Trees of plain values as bytes: a state whose tensors are replaced by slots. Packed with msgpack.

Unpacked bytes come from other peers. They are validated and never executed; all errors become `RemoteProtocolError`.
"""

import struct
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

import msgpack

from ..errors import RemoteProtocolError

MAX_TREE_BYTES: Final = 64 << 20
MAX_TREE_LEN: Final = 1 << 20
MAX_TREE_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a tree for the tensor of this index."""

    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < 2**32:
            raise ValueError(f"a slot's index has 32 bits, got {self.index}")


_SLOT = struct.Struct("<I")
_SLOT_CODE = 1
_TUPLE = msgpack.ExtType(2, b"")
"""First in an array that was a tuple. (A tuple packed *inside* an extension would be parsed once per level.)"""


def pack_tree(tree: object) -> bytes:
    """Encode None, bool, int, float, str, bytes, `Slot`, and list, tuple, dict (str or int keys) of such.

    Raises:
        TypeError: another type, subclasses included, or an int beyond 64 bits; names it and its path in the tree.
        ValueError: too deep, too long, or a key beyond 64 bits.
    """
    try:
        packed: bytes = msgpack.packb(_lower(tree, "", MAX_TREE_DEPTH))
    except OverflowError as error:
        raise ValueError(f"the tree: {error}") from None
    if len(packed) > MAX_TREE_BYTES:
        raise ValueError(f"the tree takes {len(packed)} bytes, peers accept {MAX_TREE_BYTES}")
    return packed


def unpack_tree(packed: bytes | memoryview) -> Any:
    """The tree in bytes that came from a peer.

    Raises:
        RemoteProtocolError: not a result of `pack_tree`.
    """
    if len(packed) > MAX_TREE_BYTES:
        raise RemoteProtocolError(f"tree: {len(packed)} bytes, we accept {MAX_TREE_BYTES}")
    try:
        values = msgpack.unpackb(
            packed,
            strict_map_key=False,  # it would refuse ints; `_restore` checks keys
            max_str_len=MAX_TREE_BYTES,
            max_bin_len=MAX_TREE_BYTES,
            max_array_len=MAX_TREE_LEN,
            max_map_len=MAX_TREE_LEN,
            max_ext_len=_SLOT.size,
        )
        return _restore(values, MAX_TREE_DEPTH)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a key that cannot be hashed
        raise RemoteProtocolError(f"tree: {str(error) or 'nested too deeply'}") from None


_LEAVES: Final = (NoneType, bool, int, float, str, bytes)


def _lower(node: Any, path: str, depth: int) -> Any:
    """`node` in msgpack's own types, at most `depth` levels of it."""
    kind = type(node)
    if kind is int and not -(2**63) <= node < 2**64:
        raise TypeError(f"{path or 'the tree'}: an int of more than 64 bits is not allowed")
    if kind in _LEAVES:
        return node
    if kind is Slot:
        return msgpack.ExtType(_SLOT_CODE, _SLOT.pack(node.index))
    if kind not in (list, tuple, dict):
        raise TypeError(f"{path or 'the tree'}: {kind.__name__} is not allowed")
    if depth == 0 or len(node) >= MAX_TREE_LEN:
        raise ValueError(f"{path or 'the tree'}: deeper than {MAX_TREE_DEPTH} levels or as long as {MAX_TREE_LEN}")
    if kind is dict:
        return {key: _lower(item, _below(path, key), depth - 1) for key, item in node.items()}
    items = [_lower(item, f"{path}[{i}]", depth - 1) for i, item in enumerate(node)]
    return items if kind is list else [_TUPLE, *items]


def _below(path: str, key: object) -> str:
    if type(key) is str:
        return f"{path}.{key}" if path else key
    if type(key) is int:
        return f"{path}[{key}]"
    raise TypeError(f"{path or 'the tree'}: {type(key).__name__} is not allowed as a key")


def _restore(node: Any, depth: int) -> Any:
    """The inverse of `_lower`."""
    kind = type(node)
    if kind in _LEAVES:
        return node
    if depth == 0 and kind in (list, dict):
        raise ValueError(f"deeper than {MAX_TREE_DEPTH} levels")
    if kind is list:
        is_tuple = bool(node) and node[0] == _TUPLE
        items = [_restore(item, depth - 1) for item in node[is_tuple:]]
        return tuple(items) if is_tuple else items
    if kind is dict and all(type(key) in (str, int) for key in node):
        return {key: _restore(item, depth - 1) for key, item in node.items()}
    if kind is msgpack.ExtType and node.code == _SLOT_CODE and len(node.data) == _SLOT.size:
        return Slot(*_SLOT.unpack(node.data))
    raise ValueError(f"{kind.__name__} out of place")

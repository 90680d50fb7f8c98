"""What travels: the binary header of data frames, and msgpack for control messages and for trees of plain values.

Everything that is decoded here comes from somebody else. It is checked before it is used, it never runs anything,
and whatever is wrong with it becomes a `RemoteProtocolError`. Leaves out: versions other than `VERSION`.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, IntEnum
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgpack

from ..errors import RemoteProtocolError

VERSION: Final = 1
MAX_FRAME_BYTES: Final = 4 << 20
MAX_STR_LEN: Final = 1024
MAX_BYTES_LEN: Final = 1 << 20
MAX_ARRAY_LEN: Final = 4096
MAX_TREE_BYTES: Final = 64 << 20
MAX_TREE_LEN: Final = 1 << 20
MAX_TREE_DEPTH: Final = 64


class DType(IntEnum):
    """Element types by their number on the wire, as `collectives.type_name` has it in lower case."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9


FLAG_STATE, FLAG_FED, FLAG_TAKEN = 1, 32, 64  # part of a state or a step to who has no seat; so many of these came
FLAG_LAST: Final = 2  # the last segment of its part of a state, or of a fed step
FLAG_FINAL: Final = 4  # the last segment of everything
FLAG_FINISHED: Final = 8  # says FINISHED: the digest is the step's, the payload the chain's and the parameters'

_MAGIC = b"SHOL"
_HEADER = struct.Struct("<4sI16sQ16sQIIHHHH16s")
HEADER_BYTES: Final = _HEADER.size
_DTYPES = {int(dtype): dtype for dtype in DType}


class DataHeader(NamedTuple):
    """The first part of a data frame, 88 bytes, little-endian; the second part is the payload.

    | offset | bytes | field | |
    |---|---|---|---|
    | 0 | 4 | magic | `SHOL` |
    | 4 | 4 | version | 1 |
    | 8 | 16 | lineage | |
    | 24 | 8 | view_number | |
    | 32 | 16 | view_hash | |
    | 48 | 8 | sequence | of the operation, in its group and view; the step of a FINISHED, the one after a state |
    | 56 | 4 | transfer | the i-th from this source |
    | 60 | 4 | segment | |
    | 64 | 2 | group | |
    | 66 | 2 | source | rank of the sender |
    | 68 | 2 | dtype | a `DType` |
    | 70 | 2 | flags | `FLAG_STATE` and the others |
    | 72 | 16 | digest | |
    """

    lineage: bytes
    view_number: int
    view_hash: bytes
    sequence: int
    transfer: int
    segment: int
    group: int
    source: int
    dtype: DType
    flags: int
    digest: bytes

    def pack(self) -> bytes:
        if not len(self.lineage) == len(self.view_hash) == len(self.digest) == 16:  # struct would pad or cut
            raise ValueError(f"lineage, view_hash and digest have 16 bytes each: {self}")
        try:
            return _HEADER.pack(
                _MAGIC, VERSION, self.lineage, self.view_number, self.view_hash, self.sequence, self.transfer,
                self.segment, self.group, self.source, self.dtype, self.flags, self.digest,
            )  # fmt: skip
        except struct.error as error:
            raise ValueError(f"{error}: {self}") from None

    @classmethod
    def unpack(cls, buffer: bytes | memoryview) -> "DataHeader":
        """Read a header that came from a peer.

        Raises:
            RemoteProtocolError: wrong length, magic or version, unknown dtype or flags.
        """
        try:
            (
                magic, version, lineage, view_number, view_hash, sequence, transfer,
                segment, group, source, code, flags, digest,
            ) = _HEADER.unpack(buffer)  # fmt: skip
        except struct.error as error:
            raise RemoteProtocolError(f"data header: {error}") from None
        if magic != _MAGIC or version != VERSION:
            raise RemoteProtocolError(f"data header: magic {magic!r}, version {version}; we speak version {VERSION}")
        dtype = _DTYPES.get(code)
        if dtype is None or flags >= 2 * FLAG_TAKEN:
            raise RemoteProtocolError(f"data header: dtype {code} or flags {flags:#x} unknown")
        return cls(lineage, view_number, view_hash, sequence, transfer, segment, group, source, dtype, flags, digest)


# Control messages. Every annotation has two *converters*, an encoder and a decoder. Each checks a value, returns it
# changed where that is needed, and raises ValueError, in words that do not repeat what a stranger sent.

_Converter = Callable[[Any], Any]


class Codec:
    """Turns dataclasses into frames and back; the annotations of their fields are the schema.

    A frame is the msgpack array `[VERSION, number of the type, *fields]`. A field is an int (64 bits), bool, str,
    bytes, finite float, Enum (by value), `tuple[X, ...]`, `tuple[X, Y]`, `X | None`, a dataclass (array of its
    fields), or one of several dataclasses, `A | B` (array of the number within the union, then the fields).
    """

    def __init__(self, types: Sequence[type]) -> None:
        """The position in `types` is a type's number on the wire.

        Raises:
            TypeError: a field has an annotation that is not listed above.
        """
        self._encode, self._decode = _union(types, "message")

    def encode(self, message: object) -> bytes:
        """The frame of `message`.

        Raises:
            ValueError: not one of our types, or a field that no peer would accept.
        """
        frame: bytes = msgpack.packb((VERSION, *self._encode(message)))
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"{type(message).__name__} takes {len(frame)} bytes, peers accept {MAX_FRAME_BYTES}")
        return frame

    def decode(self, frame: bytes | memoryview) -> object:
        """The message in a frame that came from a peer.

        Raises:
            RemoteProtocolError: too long, not msgpack, or not of the shape and types that our dataclasses have.
        """
        if len(frame) > MAX_FRAME_BYTES:
            raise RemoteProtocolError(f"control frame: {len(frame)} bytes, we accept {MAX_FRAME_BYTES}")
        try:
            values = msgpack.unpackb(
                frame,
                use_list=False,
                max_str_len=4 * MAX_STR_LEN,  # in bytes; the converter counts characters
                max_bin_len=MAX_BYTES_LEN,
                max_array_len=MAX_ARRAY_LEN,
                max_map_len=0,
                max_ext_len=0,  # an empty one, or a timestamp, has no type that a converter takes
            )
            version = values[0] if type(values) is tuple and values else None
            if type(version) is not int or version != VERSION:
                raise ValueError(f"not an array that starts with version {VERSION}")
            return self._decode(values[1:])
        except (ValueError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(f"control frame: {str(error) or 'nested too deeply'}") from None


def _compile(annotation: Any, where: str) -> tuple[_Converter, _Converter]:
    """Encoder and decoder for values of `annotation`; `where` names the field in their errors."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        convert = _scalar(annotation, *_SCALARS[annotation], where)
        return convert, convert
    if origin is tuple and args[-1:] == (Ellipsis,):
        encode, decode = _compile(args[0], where)
        return _array(encode, where), _array(decode, where)
    if origin is tuple and args:
        pairs = [_compile(arg, f"{where}[{i}]") for i, arg in enumerate(args)]
        return _row([encode for encode, _ in pairs], where), _row([decode for _, decode in pairs], where)
    if origin in (Union, UnionType):
        present = [arg for arg in args if arg is not NoneType]
        encode, decode = _compile(present[0], where) if len(present) == 1 else _union(present, where)
        return (encode, decode) if len(present) == len(args) else (_optional(encode), _optional(decode))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation, where)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _record(annotation)
    raise TypeError(f"{where}: {annotation!r} cannot be sent")


_SCALARS: Final[dict[Any, tuple[str, Callable[[Any], bool]]]] = {
    int: ("an int of 64 bits", lambda value: -(2**63) <= value < 2**64),
    bool: ("a bool", lambda value: True),
    float: ("a finite float", math.isfinite),
    str: (f"a str of at most {MAX_STR_LEN}", lambda value: len(value) <= MAX_STR_LEN),
    bytes: (f"bytes, at most {MAX_BYTES_LEN}", lambda value: len(value) <= MAX_BYTES_LEN),
}


def _scalar(expected: type, rule: str, holds: Callable[[Any], bool], where: str) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not expected or not holds(value):  # a bool is no int here
            raise ValueError(f"{where} is not {rule}")
        return value

    return convert


def _optional(convert: _Converter) -> _Converter:
    return lambda value: None if value is None else convert(value)


def _array(convert: _Converter, where: str) -> _Converter:
    def convert_all(values: Any) -> Any:
        if type(values) is not tuple or len(values) > MAX_ARRAY_LEN:
            raise ValueError(f"{where} is not a tuple of at most {MAX_ARRAY_LEN}")
        return tuple([convert(value) for value in values])

    return convert_all


def _row(converters: Sequence[_Converter], where: str) -> _Converter:
    def convert_each(values: Any) -> Any:
        if type(values) is not tuple or len(values) != len(converters):
            raise ValueError(f"{where} is not a tuple of {len(converters)}")
        return tuple([convert(value) for convert, value in zip(converters, values, strict=True)])

    return convert_each


def _enum(cls: type[Enum], where: str) -> tuple[_Converter, _Converter]:
    members = {member.value: member for member in cls}
    if not all(type(value) in (int, str) for value in members):
        raise TypeError(f"{where}: {cls.__name__} has a value that is no int and no str")

    def encode(member: Any) -> Any:
        if type(member) is not cls:
            raise ValueError(f"{where} is not a {cls.__name__}")
        return member.value

    def decode(value: Any) -> Any:
        if type(value) not in (int, str) or value not in members:
            raise ValueError(f"{where} is not a {cls.__name__}")
        return members[value]

    return encode, decode


def _record(cls: type) -> tuple[_Converter, _Converter]:
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    pairs = [_compile(hints[name], f"{cls.__name__}.{name}") for name in names]
    encoders = [(name, encode) for name, (encode, _) in zip(names, pairs, strict=True)]
    decode_row = _row([decode for _, decode in pairs], cls.__name__)

    def encode(message: Any) -> Any:
        if type(message) is not cls:
            raise ValueError(f"{type(message).__name__} is not a {cls.__name__}")
        return tuple([encode(getattr(message, name)) for name, encode in encoders])

    return encode, lambda values: cls(*decode_row(values))


def _union(types: Sequence[Any], where: str) -> tuple[_Converter, _Converter]:
    if not all(is_dataclass(cls) for cls in types):
        raise TypeError(f"{where}: only dataclasses can be told apart, not {types}")
    pairs = [_record(cls) for cls in types]
    encoders = {cls: (number, encode) for number, (cls, (encode, _)) in enumerate(zip(types, pairs, strict=True))}
    decoders = [decode for _, decode in pairs]

    def encode(message: Any) -> Any:
        if type(message) not in encoders:
            raise ValueError(f"{where}: {type(message).__name__} has no number")
        number, encode_fields = encoders[type(message)]
        return (number, *encode_fields(message))

    def decode(values: Any) -> Any:
        number = values[0] if type(values) is tuple and values else None
        if type(number) is not int or not 0 <= number < len(decoders):
            raise ValueError(f"{where} does not start with the number of a type")
        return decoders[number](values[1:])

    return encode, decode


# Trees: the plain values of a state, its tensors replaced by slots.


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
        TypeError: another type, subclasses included; names it and its path in the tree.
        ValueError: too deep, too long, or an int beyond 64 bits.
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
        RemoteProtocolError: nothing that `pack_tree` makes.
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
    """What `_lower` was given."""
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

"""Control messages and records as bytes: dataclasses, packed with msgpack.

Decoded bytes come from other peers. They are validated before use and never executed; all errors become
`RemoteProtocolError`. Leaves out: data frames, whose headers have fixed layouts (headers.py), and states (trees.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgpack

from gossip import View

from ..errors import RemoteProtocolError
from ..version import VERSION, OtherVersion
from .bounds import MAX_ARRAY_LEN, MAX_BYTES_LEN, MAX_STR_LEN, MOST, PLAIN, TEXTS, bound_of

MAX_CONTROL_BYTES: Final = 4 << 20

# Control messages. Every annotation has two *converters*, an encoder and a decoder. Each checks a value, returns it
# converted if necessary, and raises ValueError, with a message that does not repeat received text.

_Converter = Callable[[Any], Any]

_MOST_FIELDS: Final = 13
"""For types that are frames by themselves: msgpack arrays of up to 15 start with one byte, 0x90 or more, and the
version comes next."""


class Codec:
    """Turns dataclasses into frames and back; the annotations of their fields are the schema.

    A frame is the msgpack array `[VERSION, number of the type, *fields]`. A field is an int (64 bits), bool, str,
    bytes, finite float, Enum (by value), `tuple[X, ...]`, `tuple[X, Y]`, `X | None`, a dataclass (array of its
    fields), or one of several dataclasses, `A | B` (array of the number within the union, then the fields). A `View`
    is bytes, in which the array of its fields is.
    """

    def __init__(self, types: Sequence[type], *, is_bounded: bool = True) -> None:
        """The position in `types` is a type's number on the wire.

        Args:
            types: dataclasses.
            is_bounded: False: check only the types of fields.

        Raises:
            TypeError: a field has an annotation not listed above, or a type has too many fields.
        """
        self._encode, self._decode = _union(types, "message", is_bounded)
        if any(len(fields(cls)) > _MOST_FIELDS for cls in types):
            raise TypeError(f"the version is found only in frames of {_MOST_FIELDS} fields at most: {types}")

    def encode(self, message: object) -> bytes:
        """The frame of `message`.

        Raises:
            ValueError: not one of our types, or a field beyond the limits that peers accept.
        """
        frame: bytes = msgpack.packb((VERSION, *self._encode(message)))
        if len(frame) > MAX_CONTROL_BYTES:
            raise ValueError(f"{type(message).__name__} takes {len(frame)} bytes, peers accept {MAX_CONTROL_BYTES}")
        return frame

    def decode(self, frame: bytes | memoryview) -> object:
        """The message in a frame received from a peer. The version is read first.

        Raises:
            OtherVersion: a peer of another version made it.
            RemoteProtocolError: too long, not msgpack, or not of the shape and types that our dataclasses have.
        """
        if len(frame) < 2 or frame[0] & 0xF0 != 0x90 or frame[1] > 0x7F:
            raise RemoteProtocolError("control frame: not an array that starts with a version")
        if frame[1] != VERSION:
            raise OtherVersion(frame[1])
        if len(frame) > MAX_CONTROL_BYTES:
            raise RemoteProtocolError(f"control frame: {len(frame)} bytes, we accept {MAX_CONTROL_BYTES}")
        try:
            return self._decode(_unpack(frame)[1:])
        except (ValueError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(f"control frame: {str(error) or 'nested too deeply'}") from None


def _unpack(packed: bytes | memoryview) -> Any:
    return msgpack.unpackb(
        packed,
        use_list=False,
        max_str_len=4 * MAX_STR_LEN,  # in bytes; the converter counts characters
        max_bin_len=MAX_BYTES_LEN,
        max_array_len=MAX_ARRAY_LEN,
        max_map_len=0,
        max_ext_len=0,  # an empty one, or a timestamp, is refused by every converter
    )


class _Field(NamedTuple):
    """Conversion of a value in one direction. Plain values stay as they are: a call for each would be most of the cost.

    Attributes:
        kind: type of plain values, whose value or length lies in `fits`; None: no values are plain.
        convert: converter of all other values.
    """

    kind: Any
    is_sized: bool
    fits: range
    convert: _Converter


def _compile(annotation: Any, where: str, is_bounded: bool) -> tuple[_Field, _Field]:
    """Encoder and decoder for values of `annotation`; `where` names the field in their errors."""
    if is_bounded and where in TEXTS:
        field = _Field(None, False, range(0), _text(*TEXTS[where], where))
        return field, field
    if annotation in PLAIN:
        rule, is_sized, fits = bound_of(annotation, where) if is_bounded else PLAIN[annotation]
        field = _Field(annotation, is_sized, fits, _refuse(f"{where} is not {rule}"))
        return field, field
    encode, decode = _compile_converters(annotation, where, is_bounded)
    return _Field(None, False, range(0), encode), _Field(None, False, range(0), decode)


def _compile_converters(annotation: Any, where: str, is_bounded: bool) -> tuple[_Converter, _Converter]:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is float:
        return _finite(where), _finite(where)
    if origin is tuple and args[-1:] == (Ellipsis,):
        encode, decode = _compile(args[0], where, is_bounded)
        most = MOST.get(where, MAX_ARRAY_LEN) if is_bounded else MAX_ARRAY_LEN
        return _array(encode, where, most), _array(decode, where, most)
    if origin is tuple and args:
        pairs = [_compile(arg, f"{where}[{i}]", is_bounded) for i, arg in enumerate(args)]
        return _row([encode for encode, _ in pairs], where), _row([decode for _, decode in pairs], where)
    if origin in (Union, UnionType):
        present = [arg for arg in args if arg is not NoneType]
        if len(present) == len(args):
            return _union(present, where, is_bounded)
        encode, decode = _compile(reduce(or_, present), where, is_bounded)
        return _optional(encode), _optional(decode)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation, where)
    if annotation is View:
        views = _views(is_bounded)
        return views.encode, views.decode
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _record(annotation, is_bounded)
    raise TypeError(f"{where}: {annotation!r} cannot be sent")


def _refuse(why: str) -> _Converter:
    def refuse(value: Any) -> Any:
        raise ValueError(why)

    return refuse


def _text(rule: str, fits: Callable[[str], object], where: str) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not str or not fits(value):
            raise ValueError(f"{where} is not {rule}")
        return value

    return convert


def _finite(where: str) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not float or not math.isfinite(value):
            raise ValueError(f"{where} is not a finite float")
        return value

    return convert


def _optional(field: _Field) -> _Converter:
    kind, is_sized, fits, convert = field

    def convert_present(value: Any) -> Any:
        if value is None or (type(value) is kind and (len(value) if is_sized else value) in fits):
            return value
        return convert(value)

    return convert_present


def _array(field: _Field, where: str, most: int) -> _Converter:
    kind, is_sized, fits, convert = field

    def convert_all(values: Any) -> Any:
        if type(values) is not tuple or len(values) > most:
            raise ValueError(f"{where} is not a tuple of at most {most}")
        converted = []
        for value in values:
            is_plain = type(value) is kind and (len(value) if is_sized else value) in fits
            converted.append(value if is_plain else convert(value))
        return tuple(converted)

    return convert_all


def _row(row: Sequence[_Field], where: str, make: Callable[..., Any] | None = None) -> _Converter:
    """Converter of a tuple with one value per field; `make` receives them as arguments."""

    def convert_each(values: Any) -> Any:
        if type(values) is not tuple or len(values) != len(row):
            raise ValueError(f"{where} is not a tuple of {len(row)}")
        converted = []
        for value, (kind, is_sized, fits, convert) in zip(values, row, strict=True):
            is_plain = type(value) is kind and (len(value) if is_sized else value) in fits
            converted.append(value if is_plain else convert(value))
        return tuple(converted) if make is None else make(*converted)

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


def _record(cls: type, is_bounded: bool) -> tuple[_Converter, _Converter]:
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    pairs = [_compile(hints[name], f"{cls.__name__}.{name}", is_bounded) for name in names]
    encoders = [(name, *encode) for name, (encode, _) in zip(names, pairs, strict=True)]

    def encode(message: Any) -> Any:
        if type(message) is not cls:
            raise ValueError(f"{type(message).__name__} is not a {cls.__name__}")
        converted = []
        for name, kind, is_sized, fits, convert in encoders:
            value = getattr(message, name)
            is_plain = type(value) is kind and (len(value) if is_sized else value) in fits
            converted.append(value if is_plain else convert(value))
        return converted

    return encode, _row([decode for _, decode in pairs], cls.__name__, cls)


def _union(types: Sequence[Any], where: str, is_bounded: bool) -> tuple[_Converter, _Converter]:
    if not all(is_dataclass(cls) for cls in types):
        raise TypeError(f"{where}: only dataclasses can be told apart, not {types}")
    pairs = [_record(cls, is_bounded) for cls in types]
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


MOST_VIEWS: Final = 64
"""Size of the cache. Each view that members propose, decide and record after a death is sent many times."""


class _Views:
    """Views as bytes, cached: each is encoded once, and its bytes are decoded and checked once. For any thread."""

    def __init__(self, is_bounded: bool) -> None:
        self._encode, self._decode = _record(View, is_bounded)
        self._packed: dict[int, tuple[View, bytes]] = {}
        self._views: dict[bytes, View] = {}

    def encode(self, view: Any) -> bytes:
        known = self._packed.get(id(view))  # no other object has this id while the view is cached
        if known is not None:
            return known[1]
        packed: bytes = msgpack.packb(self._encode(view))
        self._remember(view, packed)
        return packed

    def decode(self, packed: Any) -> View:
        if type(packed) is not bytes:
            raise ValueError("a view is not bytes")
        view = self._views.get(packed)
        if view is None:
            view = self._decode(_unpack(packed))
            self._remember(view, packed)
        return view

    def _remember(self, view: View, packed: bytes) -> None:
        if len(self._packed) >= MOST_VIEWS:
            self._packed, self._views = {}, {}
        self._packed[id(view)] = view, packed
        self._views.setdefault(packed, view)


@cache
def _views(is_bounded: bool) -> _Views:
    return _Views(is_bounded)

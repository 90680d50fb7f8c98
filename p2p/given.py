"""Arguments given by scripts: type checks, and conversion to settings of `p2p.join`."""

import os
from collections.abc import Callable, Collection
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final


def _is_number(value: object, kind: type = Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def check_whole(**values: object) -> None:
    """Raise TypeError unless all of these, by the names of the arguments, are whole numbers; None: not given."""
    for name, value in values.items():
        if value is not None and not _is_number(value, Integral):
            raise TypeError(f"{name} must be a whole number, is {value!r}")


def check_numbers(**values: object) -> None:
    """Raise TypeError unless all of these, by the names of the arguments, are numbers; None: not given."""
    for name, value in values.items():
        if value is not None and not _is_number(value):
            raise TypeError(f"{name} must be a number, is {value!r}")


def _are_words(value: Any) -> bool:
    is_list = isinstance(value, Collection) and not isinstance(value, str)
    return is_list and all(isinstance(each, str) for each in value)


_Kind = tuple[str, Callable[[object], bool], Callable[[Any], object]]
_TEXT: Final[_Kind] = "text", lambda value: isinstance(value, str), str
_FLAG: Final[_Kind] = "True or False", lambda value: isinstance(value, bool), bool
_WHOLE: Final[_Kind] = "a whole number", lambda value: _is_number(value, Integral), int
_NUMBER: Final[_Kind] = "a number", _is_number, float
_PATH: Final[_Kind] = "a path", lambda value: isinstance(value, str | os.PathLike), Path
_ADDRESSES: Final[_Kind] = (
    "`host:port,host:port`, or a list of these",
    lambda value: isinstance(value, str) or _are_words(value),
    lambda value: value if isinstance(value, str) else ",".join(value),
)
_KINDS: Final[dict[str, _Kind]] = {
    "home": _PATH,
    "min_peers": _WHOLE,
    "receipts": _PATH,
    "join_timeout_s": _NUMBER,
    "step_timeout_s": _NUMBER,
    "leave_timeout_s": _NUMBER,
    "arena_bytes": _WHOLE,
    "rejoin": _FLAG,
    "seeds": _ADDRESSES,
    "key": _PATH,
    "insecure": _FLAG,
    "may_differ": ("a list of names", _are_words, tuple),
    "slow_factor": _NUMBER,
}
"""For each argument that is not text: the type in words, its check, and the conversion to a setting."""


def setting(name: str, value: Any) -> Any:
    """Convert `value`, given to `p2p.join` as `name`, to a setting; raise TypeError if it has another type."""
    expected, is_one, make = _KINDS.get(name, _TEXT)
    if not is_one(value):
        raise TypeError(f"`{name}` of p2p.join must be {expected}, is {value!r}")
    return make(value)

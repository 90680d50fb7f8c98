"""Limits on the fields of control messages and records: length, magnitude, characters.

Decoding a frame checks them, so that later code never sees a number that some field, file or page of this peer cannot
hold, or a malformed name. Encoders check them, too, so that no peer sends what others would drop.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gossip.acceptor import MAX_ROUND
from gossip.progress import LAST_STEP
from gossip.view import LAST_VIEW, MOST_MEMBERS, NO_NUMERICS

MAX_STR_LEN: Final = 1024
MAX_BYTES_LEN: Final = 1 << 20
MAX_ARRAY_LEN: Final = 4096
MAX_HOST_LEN: Final = 64
MAX_SOCKET_LEN: Final = 113
"""`ipc://` and the path of a socket."""
MAX_ADDRESS_LEN: Final = 265
"""`tcp://`, a host name and a port."""
MAX_DIGEST_LEN: Final = 64
MAX_COUNT: Final = 1 << 32


class Bound(NamedTuple):
    """Limit of a plain value: the rule in words, whether it applies to the length, and the range of length or value."""

    rule: str
    is_sized: bool
    fits: range


def _numbers(first: int, last: int) -> Bound:
    return Bound(f"an int from {first} to {last}", False, range(first, last + 1))


def _bytes(fewest: int, most: int) -> Bound:
    return Bound(f"{fewest} to {most} bytes" if fewest < most else f"{most} bytes", True, range(fewest, most + 1))


def _str(most: int) -> Bound:
    return Bound(f"a str of at most {most}", True, range(most + 1))


PLAIN: Final[dict[Any, Bound]] = {
    int: Bound("an int of 64 bits", False, range(-(2**63), 2**64)),
    bool: Bound("a bool", False, range(2)),
    str: _str(MAX_STR_LEN),
    bytes: Bound(f"bytes, at most {MAX_BYTES_LEN}", True, range(MAX_BYTES_LEN + 1)),
}
"""Default limits by type."""


def _utf8(most: int) -> tuple[str, Callable[[str], object]]:
    return f"a str of at most {most} bytes", lambda text: len(text.encode()) <= most


TEXTS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "Member.peer_id": ("16 hex digits", re.compile("[0-9a-f]{16}").fullmatch),
    "View.founder": ("16 hex digits or empty", re.compile("([0-9a-f]{16})?").fullmatch),
    "Contact.host": _utf8(MAX_HOST_LEN),
    **dict.fromkeys(("Contact.control", "Contact.data"), _utf8(MAX_SOCKET_LEN)),
    **dict.fromkeys(("Contact.remote_control", "Contact.remote_data"), _utf8(MAX_ADDRESS_LEN)),
}
"""By field: the rule for a str, in words, and the test. Names become paths and keys; an acceptor record must hold two
views of `MOST_MEMBERS` with their addresses."""

_STEP, _VIEW, _COUNT = _numbers(-1, LAST_STEP), _numbers(0, LAST_VIEW), _numbers(0, MAX_COUNT - 1)
_BELOW_LAST: Final = Bound(f"below {LAST_VIEW + 1}", False, range(LAST_VIEW + 1))

_BY_FIELD: Final = {
    "View.number": _BELOW_LAST,
    "Stamp.number": _BELOW_LAST,
    "View.lineage": _bytes(16, 16),
    "View.parent": _bytes(0, 16),
    "Stamp.lineage": _bytes(0, 16),
    "Stamp.hash": _bytes(0, 16),
    "LineageAnswer.lineage": _bytes(0, 16),
    "Choice.lineage": _bytes(16, 16),
    "Held.lineage": _bytes(16, 16),
    "Member.incarnation": _numbers(0, 2**64 - 1),
    "Contact.process_start": _numbers(0, 2**64 - 1),
    "Ballot.round": _numbers(0, MAX_ROUND),
    "Ballot.rank": _numbers(-1, MOST_MEMBERS - 1),
    **dict.fromkeys(
        (f"Contact.{n}" for n in ("control", "data", "remote_control", "remote_data")), _str(MAX_ADDRESS_LEN)
    ),
}
_BY_NAME: Final = {
    **dict.fromkeys(("step", "done", "outvoted"), _STEP),
    **dict.fromkeys(("view_number", "absent_since", "founded_in", "since", "void_until"), _VIEW),
    **dict.fromkeys(("operation", "submitted"), _COUNT),
    **dict.fromkeys(("digest", "digests", "state_digest", "previous"), _bytes(0, MAX_DIGEST_LEN)),
    "numerics": _bytes(len(NO_NUMERICS), len(NO_NUMERICS)),
}
"""By field name, in any class."""

MOST: Final = {"View.seats": MOST_MEMBERS}
"""Maximum lengths of arrays that are bounded below `MAX_ARRAY_LEN`."""


def bound_of(annotation: Any, where: str) -> Bound:
    """The limit for the field `where` (`Class.field`), whose values are plain ones of this type."""
    return _BY_FIELD.get(where) or _BY_NAME.get(where.rpartition(".")[2]) or PLAIN[annotation]

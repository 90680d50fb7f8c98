"""Settings of lines and pairs, and their text form: `delay=20ms,jitter=1ms,loss=0.1%`. Pure."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ..errors import LabError
from .units import (
    parse_mtu,
    parse_rate,
    parse_share,
    parse_time,
    show_mtu,
    show_rate,
    show_share,
    show_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """The connection of a host to all others.

    Attributes:
        up_bit_per_s, down_bit_per_s: None: no limit.
        queue_ns: a frame that would have to wait longer than this, in either direction, is dropped.
    """

    up_bit_per_s: int | None = None
    down_bit_per_s: int | None = None
    queue_ns: int = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """The path from one host to another, in one direction.

    Attributes:
        rate_bit_per_s: in addition to the lines of both hosts; None: no limit.
        delay_ns: one way.
        jitter_ns: the delay is uniform within this much of `delay_ns`; frames stay in order.
        loss: the probability that a packet is lost, independent of the others.
        mtu_bytes: longer packets are dropped silently (RFC 2923, 2.1: a path MTU black hole); None: no limit.
        cut: no packet arrives.
    """

    rate_bit_per_s: int | None = None
    delay_ns: int = 0
    jitter_ns: int = 0
    loss: float = 0.0
    mtu_bytes: int | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        if self.jitter_ns > self.delay_ns:
            raise LabError(
                f"jitter={show_time(self.jitter_ns)} is above delay={show_time(self.delay_ns)}, "
                "so that some would arrive before they are sent: set a longer delay, or less jitter"
            )


Changes = Mapping[str, Any]
"""New values by field of the settings."""

_Field = tuple[str, Callable[[str, str], Any], Callable[[Any], str]]
"""Name of the field, and the functions that parse and format its value."""
_PAIR: Final[Mapping[str, _Field]] = {
    "rate": ("rate_bit_per_s", parse_rate, show_rate),
    "delay": ("delay_ns", parse_time, show_time),
    "jitter": ("jitter_ns", parse_time, show_time),
    "loss": ("loss", parse_share, show_share),
    "mtu": ("mtu_bytes", parse_mtu, show_mtu),
}
_LINE: Final[Mapping[str, _Field]] = {
    "up": ("up_bit_per_s", parse_rate, show_rate),
    "down": ("down_bit_per_s", parse_rate, show_rate),
    "queue": ("queue_ns", parse_time, show_time),
}
_WORDS: Final = {"cut": True, "heal": False}
_UNSET: Final = {
    "delay": "0",
    "jitter": "0",
    "loss": "0",
    "queue": "0",
    **dict.fromkeys(("rate", "up", "down", "mtu"), "none"),
}
"""The text form of the values that `show` leaves out."""


def parse_pair(text: str) -> Changes:
    """Parse changes of a pair: `rate`, `delay`, `jitter`, `loss`, `mtu`, `cut` and `heal`, separated by commas.

    Raises:
        LabError: an unknown key or unit, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for key, value in _split(text):
        if key in _WORDS and not value:
            changes["cut"] = _WORDS[key]
        elif key in _PAIR:
            field, parse, _ = _PAIR[key]
            changes[field] = parse(key, value)
        elif key in _LINE:
            raise LabError(
                f"{key} belongs to the line of a host, not to a pair: name one host, as in `set 2 {key}={value}`"
            )
        else:
            raise _unknown(key, value, (*_PAIR, *_WORDS))
    return changes


def parse_net(text: str) -> tuple[Changes, Changes]:
    """Parse changes of a host, or of all: of the line, where `rate` means both up and down, and of the pairs."""
    line: dict[str, Any] = {}
    rest = []
    for key, value in _split(text):
        if key == "rate":
            line |= dict.fromkeys(("up_bit_per_s", "down_bit_per_s"), parse_rate(key, value))
        elif key in _LINE:
            field, parse, _ = _LINE[key]
            line[field] = parse(key, value)
        elif key in _PAIR or (key in _WORDS and not value):
            rest.append(f"{key}={value}" if value else key)
        else:
            raise _unknown(key, value, ("rate", *_LINE, *_PAIR, *_WORDS))
    return line, parse_pair(",".join(rest))


def changed_line(line: LineSettings, changes: Changes) -> LineSettings:
    return replace(line, **changes)


def changed_pair(pair: PairSettings, changes: Changes) -> PairSettings:
    """Apply changes; LabError if the resulting values contradict each other."""
    return replace(pair, **changes)


def show(settings: LineSettings | PairSettings) -> dict[str, str]:
    """The text form of each value by key, without those that are not set."""
    fields = asdict(settings)
    shown = {}
    for key, (field, _, write) in {**_LINE, **_PAIR}.items():
        if value := fields.get(field):
            shown[key] = write(value)
    return shown | ({"cut": "cut"} if fields.get("cut") else {})


def _split(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _unknown(key: str, value: str, known: tuple[str, ...]) -> LabError:
    what = f"{key}={value}" if value else repr(key)
    close = next((f", did you mean {name}?" for name in difflib.get_close_matches(key, known, 1, 0.5)), ";")
    return LabError(f"{what}: nothing of that name can be set{close} known are {', '.join(dict.fromkeys(known))}")


def as_it_was(pair: Mapping[str, str], changes: Changes) -> str:
    """The text that resets the fields in `changes` to their values in `pair`, an earlier result of `show`."""
    words = [f"{key}={pair.get(key, _UNSET[key])}" for key, (field, *_) in _PAIR.items() if field in changes]
    return ",".join([*words, *(["cut" if "cut" in pair else "heal"] if "cut" in changes else [])])


def line_as_it_was(line: Mapping[str, str], changes: Changes) -> str:
    """As `as_it_was`, for the line of a host."""
    return ",".join(f"{key}={line.get(key, _UNSET[key])}" for key, (field, *_) in _LINE.items() if field in changes)

"""Text forms of rates, delays and shares: `200mbit`, `20ms`, `0.1%`. Pure."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

from ..errors import LabError

RATES: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
"""Bits per second. 1 kbit is 1000 bit, as usual for lines."""
TIMES: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
NO_LIMIT: Final = "none"
MTU_MIN_BYTES: Final = 68
"""The packet size that any path has to carry (RFC 791)."""

_NUMBER: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([^\s\d.]*)\s*")


def parse_rate(key: str, text: str) -> int | None:
    """Parse bits per second; None for `none`: no limit.

    Raises:
        LabError: the text is invalid; the message suggests what was meant. The same holds for all of this module.
    """
    if text == NO_LIMIT:
        return None
    rate = _parse(key, text.removesuffix("/s"), RATES, "mbit")
    if rate < 1:
        raise LabError(f"{key}={text} carries nothing: write cut, or {key}={NO_LIMIT} for no limit")
    return rate


def parse_time(key: str, text: str) -> int:
    """Parse a duration into nanoseconds."""
    return 0 if text == "0" else _parse(key, text, TIMES, "ms")


def parse_share(key: str, text: str) -> float:
    """Parse a share from 0 to 1; `1%` is 0.01."""
    number, is_percent = text.removesuffix("%"), text.endswith("%")
    try:
        share = float(number) / 100 if is_percent else float(number)
    except ValueError:
        raise LabError(f"{key}={text} is not a share: write {key}=0.01 or {key}=1%") from None
    if not 0 <= share <= 1:
        hint = f"; did you mean {key}={number}%?" if not is_percent and 1 < share <= 100 else ""
        raise LabError(f"{key}={text} is not between 0 and 1, nor between 0% and 100%{hint}")
    return share


def parse_mtu(key: str, text: str) -> int | None:
    """Parse bytes of a packet, with its IP header; None for `none`: no limit."""
    if text == NO_LIMIT:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < MTU_MIN_BYTES:
        hint = f"write bytes, {MTU_MIN_BYTES} or more, such as {key}=1400, or {key}={NO_LIMIT}"
        raise LabError(f"{key}={text} is not a size of a packet: {hint}")
    return int(text)


def show_share(share: float) -> str:
    """The inverse of `parse_share`."""
    return repr(float(share)).removesuffix(".0")


def show_mtu(num_bytes: int | None) -> str:
    """The inverse of `parse_mtu`."""
    return NO_LIMIT if num_bytes is None else str(num_bytes)


def show_rate(bit_per_s: int | None) -> str:
    """The inverse of `parse_rate`."""
    return NO_LIMIT if bit_per_s is None else _show(bit_per_s, RATES)


def show_time(time_ns: int) -> str:
    """The inverse of `parse_time`."""
    return _show(time_ns, TIMES) if time_ns else "0"


def _show(value: int, units: Mapping[str, int]) -> str:
    name, size = max(((name, size) for name, size in units.items() if size <= value), key=lambda unit: unit[1])
    return f"{value / size:.15g}{name}"


def _parse(key: str, text: str, units: Mapping[str, int], usual: str) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise LabError(f"{key}={text} is not a number with a unit: write, for example, {key}=20{usual}")
    number, unit = found[1], found[2].lower()
    if unit not in units:
        meant = next(iter(difflib.get_close_matches(unit, units, 1)), usual) if unit else usual
        what = f"unknown unit {found[2]!r}" if unit else "no unit"
        raise LabError(f"{what} in {key}={text}; did you mean {number}{meant}? Units are {', '.join(units)}")
    return round(float(number) * units[unit])

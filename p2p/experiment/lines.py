"""Checks of TOML tables against the fields of a class, with the line of each error. Pure."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, Final, cast, get_args

from ..errors import ExperimentError

_NUL: Final = "has a NUL character, which no process can be given"


class Lines:
    """Line numbers of tables and keys, which tomllib does not provide."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def number(self, table: str, index: int, key: str = "") -> int:
        """Line of a key, else of its table, counted from 1; 0: neither is found."""
        seen, within = -1, table == ""
        found = 0
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[+\s*([\w.\"-]+)\s*\]+", line):
                within = False
                if header.group(1) == table:
                    seen += 1
                    within = seen == index
                    found = number if within else found
            if within and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        return found

    def where(self, table: str, index: int = 0, key: str = "") -> str:
        """The line number as the beginning of a message; empty: not found."""
        number = self.number(table, index, key)
        return f"line {number}: " if number else ""


def nearest(word: str, known: Sequence[str]) -> str:
    """A suggestion for a message: the known word most similar to `word`, else all known words."""
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f", did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def check_keys(
    values: Mapping[str, Any], known: Sequence[str], lines: Lines, table: str, index: int, within: str = ""
) -> None:
    """ExperimentError: a key is unknown. `within`: the key of `table` whose value, an inline table, `values` is."""
    for key in values:
        if key not in known:
            where = lines.where(table, index, within or key) or lines.where(key)
            place = f" in [{table}]" if table == "run" else f" in [[{table}]]" if table else ""
            place = f" in {within}" if within else place
            raise ExperimentError(f"{where}unknown key {key}{place}{nearest(key, known)}")


def read_table(kind: type[Any], values: Any, lines: Lines, table: str, index: int, within: str = "") -> Any:
    """Create an instance of a config class, with the type of each value checked; `within`: as in `check_keys`.

    Raises:
        ExperimentError: a key is unknown, or a value has the wrong type.
    """
    if not isinstance(values, dict):
        raise ExperimentError(f"{lines.where(table, index, within)}{within or table} is a table, got {values!r}")
    known = {entry.name: entry for entry in fields(kind) if entry.name != "line"}
    check_keys(values, tuple(known), lines, table, index, within)
    checked = {}
    for key, value in values.items():
        if inner := next((each for each in _kinds(known[key]) if is_dataclass(each)), None):
            checked[key] = read_table(inner, value, lines, table, index, key)
            continue
        try:
            checked[key] = _value(known[key], value)
        except ValueError as error:
            where = lines.where(table, index, within or key)
            raise ExperimentError(f"{where}{f'{within}: ' * bool(within)}{key} {error}, got {value!r}") from None
    return kind(**checked)


def _kinds(entry: Field[Any]) -> tuple[type[Any], ...]:
    """The types that a value may have."""
    return get_args(entry.type) if isinstance(entry.type, UnionType) else (cast("type[Any]", entry.type),)


def _value(entry: Field[Any], value: Any) -> Any:
    """`value` converted to the type of its field. ValueError says what the field accepts."""
    kinds = _kinds(entry)
    if entry.name in ("command", "args", "imports"):
        if not isinstance(value, list) or not all(isinstance(word, str | int | float) for word in value):
            raise ValueError("is a list of words")
        if any("\0" in str(word) for word in value):
            raise ValueError(_NUL)
        return tuple(map(str, value))
    if entry.default is MISSING:
        if not isinstance(value, dict):
            raise ValueError("is a table")
        return {name: str(each) for name, each in value.items()}
    if (bool in kinds) != isinstance(value, bool):
        raise ValueError("is true or false" if bool in kinds else "cannot be true or false")
    if isinstance(value, bool):
        return value
    if float in kinds and isinstance(value, int | float):
        if not 0 <= value < math.inf:
            raise ValueError("is a number from 0 on")
        return float(value)
    if int in kinds and isinstance(value, int) and value >= 0:
        return value
    if str in kinds and isinstance(value, str):
        if "\0" in value:
            raise ValueError(_NUL)
        return value
    words = {float: "a number", int: "a whole number from 0 on", str: "a text"}
    raise ValueError("is " + " or ".join(words[kind] for kind in kinds if kind in words))

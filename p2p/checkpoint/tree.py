"""A packed state, by `pack` of training/state/replica_state.py, as JSON and named tensors.

The tree of plain values becomes JSON; each of its slots, which stand for tensors, gets a name by its position in the
tree: `model.` and the tensor's own name, `optimizer.state.0.exp_avg`, `extra.0.` and so on.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..net.trees import Slot

Row = tuple[list[int], str, list[int] | None]
"""Shape, dtype and strides of a slot; strides: None: memory order is index order."""

PREFIXES: Final = (("tensors.", "model."), ("parts.0.", "optimizer."))


def name_slots(tree: Mapping[str, Any]) -> list[str]:
    """A unique name for each slot, in the order of their indices."""
    found: dict[int, str] = {}
    _walk({key: value for key, value in tree.items() if key != "slots"}, "", found)
    names: dict[str, None] = {}
    for index in range(len(tree["slots"])):
        name = _in_words(found[index])
        names[name if name not in names else f"{name}#{index}"] = None
    return list(names)


def _walk(node: Any, path: str, found: dict[int, str]) -> None:
    if isinstance(node, Slot):
        found[node.index] = path
    elif isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _walk(value, f"{path}.{key}" if path else str(key), found)


def _in_words(path: str) -> str:
    for start, name in PREFIXES:
        if path.startswith(start):
            return name + path.removeprefix(start)
    if path.startswith("parts."):
        number, _, rest = path.removeprefix("parts.").partition(".")
        return f"extra.{int(number) - 1}.{rest}"
    return path


def to_json(node: Any, names: Sequence[str]) -> Any:
    """Convert to JSON values; a value that JSON lacks becomes a dict with one key, which begins with `$`."""
    match node:
        case Slot(index):
            return {"$tensor": names[index]}
        case bytes():
            return {"$bytes": base64.b64encode(node).decode()}
        case float() if not math.isfinite(node):
            return {"$float": str(node)}
        case tuple():
            return {"$tuple": [to_json(each, names) for each in node]}
        case list():
            return [to_json(each, names) for each in node]
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in node):
            return {key: to_json(value, names) for key, value in node.items()}
        case dict():
            return {"$dict": [[key, to_json(value, names)] for key, value in node.items()]}
        case _:
            return node


def from_json(node: Any, index_of: Mapping[str, int]) -> Any:
    """The inverse of `to_json`.

    Raises:
        KeyError, ValueError, TypeError: not an output of `to_json`.
    """
    if isinstance(node, list):
        return [from_json(each, index_of) for each in node]
    if not isinstance(node, dict):
        return node
    key = next(iter(node), "")
    if not key.startswith("$"):
        return {name: from_json(value, index_of) for name, value in node.items()}
    value = node[key]
    match key:
        case "$tensor":
            return Slot(index_of[value])
        case "$bytes":
            return base64.b64decode(value)
        case "$float":
            return float(value)
        case "$tuple":
            return tuple(from_json(each, index_of) for each in value)
        case "$dict":
            return {each: from_json(item, index_of) for each, item in value}
    raise ValueError(f"unknown key {key}")

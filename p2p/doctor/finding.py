"""The result of one check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the check, the same on all machines.
        says: the result in words, with advice if `is_well` is False.
        is_well: no limit for peers was found.
        facts: machine-readable values.
    """

    name: str
    says: str
    is_well: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


def size(num_bytes: float) -> str:
    """`num_bytes` in words, in units of 1000, with three digits."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if num_bytes < 999.5 or unit == "TB":
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError(unit)

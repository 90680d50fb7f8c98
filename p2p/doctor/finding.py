"""What was looked at, and found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        name: of what was looked at, the same on all machines.
        says: a sentence for people, with what to do where it is not well.
        is_well: nothing keeps peers from what they could do.
        facts: for programs.
    """

    name: str
    says: str
    is_well: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


def size(num_bytes: float) -> str:
    """In units of 1000, with three digits."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if num_bytes < 999.5 or unit == "TB":
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError(unit)

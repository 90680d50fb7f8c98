"""How the events of a failed run are printed: short enough to read sixty of them."""

from dataclasses import fields, is_dataclass
from enum import Enum

from gossip import Member, Stamp, View


def brief(value: object) -> str:
    """Like repr, without what every event repeats."""
    match value:
        case Member():
            return f"{value.peer_id}/{value.incarnation}"
        case Stamp():
            return f"@{value.number}:{value.hash.hex()[:4]}"
        case View():
            seats = " ".join(f"{brief(seat.member)}+{seat.since}" for seat in value.seats)
            return f"View({brief(value.stamp)} {seats})"
        case bytes():
            return value.hex()[:6] or "-"
        case Enum():
            return value.name
        case tuple() | list():
            return f"({', '.join(brief(item) for item in value)})"
        case _ if is_dataclass(value) and not isinstance(value, type):
            return f"{type(value).__name__}({', '.join(brief(getattr(value, field.name)) for field in fields(value))})"
        case float():
            return f"{value:.4f}"
        case _:
            return str(value)

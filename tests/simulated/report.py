"""Reports of failed runs, short enough to read eighty of their events."""

from dataclasses import fields, is_dataclass
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING

from gossip import Member, Stamp, View
from gossip.messages import Sync, SyncReply

if TYPE_CHECKING:
    from tests.simulation import Simulation


def brief(value: object) -> str:
    """Like repr, without the parts that every event repeats."""
    match value:
        case Sync() | SyncReply():
            return type(value).__name__
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
        case MethodType():
            return f"{brief(value.__self__)}.{value.__name__}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            return f"{type(value).__name__}({', '.join(brief(getattr(value, field.name)) for field in fields(value))})"
        case float():
            return f"{value:.4f}"
        case _:
            return str(value)


def describe(world: "Simulation", error: Exception) -> str:
    """The plan, the state of each peer, and the last events."""
    plan = world.plan
    clock, hosts = world.clock, world.hosts
    drawn = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in ("config", "faults")}
    lines = [f"seed={world.seed} at {clock.now:.3f} s: {type(error).__name__} {error}"]
    lines += ["  " + ", ".join(f"{name}={brief(value)}" for name, value in drawn.items())]
    lines += [f"  launchers silent {sorted(hosts.silent)}, hosts destroyed {sorted(hosts.destroyed)}"]
    for lineage in world.invariants.lineages.values():
        lines.append(f"  latest {brief(lineage.latest)}, last committed {lineage.last_committed}")
    for peer in world.alive():
        view = peer.view and peer.view.number
        lines.append(
            f"  {brief(peer.member)} on host {peer.host}: {brief(peer.core.phase)}, view {view}, done {peer.done}, "
            f"{'active' if peer.active else 'waits'}{', leaving' if peer.leaving else ''}, "
            f"paused until {peer.paused_until:.3f}: {peer.core.reason} {peer.waits}"
        )
    lines += [f"  last events (of {clock.num_events}):"]
    lines += [f"    {now:9.4f} {brief(who):>6} {what}: {brief(detail)}" for now, who, what, detail in world.recent]
    return "\n".join(lines)

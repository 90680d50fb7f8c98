"""Status of a peer, as a script shows it. A snapshot of what the loop's thread writes."""

from typing import Any

from gossip import Member

from ..errors import TooSlow
from ..loop.loop import Loop
from ..step.stragglers import Straggler


def describe(loop: Loop, swarm: str, slowest: Straggler | None) -> dict[str, Any]:
    """See `Peer.status`."""
    core, view = loop.core, loop.core.view
    return {
        "peer_id": loop.peer_id,
        "swarm": swarm,
        "phase": core.phase.name,
        "view": None if view is None else view.number,
        "members": [] if view is None else [member.peer_id for member in view.members],
        "done": core.done,
        "reason": core.reason,
        "slowest": None if slowest is None else named(slowest),
        "dropped_frames": loop.dropped_frames,
    }


def too_slow(slowest: Straggler | None, me: Member, slow_peers: str) -> TooSlow | None:
    """The error of `me` if it is the slowest peer, and is configured to leave then."""
    if slow_peers != "leave" or slowest is None or slowest.who != (me.peer_id, me.incarnation):
        return None
    return TooSlow(str(slowest))


def named(slowest: Straggler) -> str:
    """Message about the slowest peer."""
    return f"peer {slowest.who[0]} is the slowest: {slowest}"

"""Where a peer stands and why, as a script shows it to people. Reads what the loop's thread writes: a snapshot."""

from typing import Any

from ..loop.loop import Loop


def describe(loop: Loop, swarm: str) -> dict[str, Any]:
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
        "dropped_frames": loop.dropped_frames,
    }

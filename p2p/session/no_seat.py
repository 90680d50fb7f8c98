"""Explanation why this peer has no seat yet."""

from ..config import PeerConfig
from ..loop.loop import Loop
from ..step.waiting import explain_no_seat


def why_no_seat(loop: Loop, config: PeerConfig, waited_s: float) -> str:
    """Message for a peer that has waited `waited_s`."""
    swarm = repr(config.swarm)
    nobody = f"is another peer of swarm {swarm} stuck?" if config.may_found else f"no run of {swarm} to join"
    return explain_no_seat(loop.core, waited_s, loop.seeds.explain() or nobody)

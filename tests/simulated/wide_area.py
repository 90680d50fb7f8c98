"""Distant members: all are healthy, but the links are slow, and stall at times."""

from gossip import CoreConfig
from tests.simulation import Simulation

from .network import Cut, LinkConditions
from .plan import Plan, Scripted

WEATHER = LinkConditions(loss=0.01, delay_s=0.25, data_delay_s=0.25, least_s=0.15)
"""150 ms one way, up to 100 ms of jitter, and 1 % of the control messages lost for good."""

SETTLED_S = 30.0
STALL_EVERY_S = 10.0


def removed(size: int, config: CoreConfig, *, seed: int, stall_s: float = 0.0, for_s: float = 180.0) -> int:
    """Number of healthy members that were removed from a view in `for_s`.

    Args:
        size: number of members, each on a host of its own.
        config: timers.
        seed: of the run.
        stall_s: repeatedly all frames from one member are held for this long, then delivered, as with TCP.
        for_s: simulated time.

    Raises:
        Failure: an invariant broke, or the swarm was not whole and training in the end.
    """
    end_s = SETTLED_S + for_s
    script = (Scripted(at=1e6, fault="pause", peer_id="nobody"),)  # so that removals are counted instead of failing
    plan = Plan(
        num_peers=size,
        most_peers=size,
        num_hosts=size,
        founding_size=size,
        weather=WEATHER,
        config=config,
        compute_s=0.5,
        script=script,
        calm_s=end_s,
        end_s=end_s + 40.0,
    )
    simulation = Simulation(seed, plan)
    if stall_s:
        for turn in range(int(for_s / STALL_EVERY_S)):
            at = SETTLED_S + turn * STALL_EVERY_S
            simulation.clock.at(at, None, "stall", _stall, simulation, f"p{1 + turn % size}", stall_s)
    simulation.run()
    return simulation.invariants.seen["removed"]


def _stall(simulation: Simulation, name: str, for_s: float) -> None:
    others = {peer.member.peer_id for peer in simulation.alive()} - {name}
    cut = Cut({(name, other) for other in others}, holds_control=True, holds_data=True)
    simulation.network.add(cut)
    simulation.clock.after(for_s, None, "flows again", simulation.network.remove, cut)

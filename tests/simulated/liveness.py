"""Liveness: whether a run could continue, and whether it did (PROTOCOL.md: L1, I13 to I15 and I17).

A lineage is *lost* where the protocol guarantees nothing any more. It is not lost if the last decided view can still
decide, and so can each view before it, back to the first that one of its living members has installed: by a majority,
or under `live` by all living members if each other's death is proven and its record can be read. Also a member of the
last view that has the state must be alive.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from gossip import Member, State, View, is_quorum
from gossip.progress import NOTHING_DONE
from gossip.view import Policy

from .invariants import Lineage, Violation
from .plan import PACE
from .report import brief

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

JOINS_S = 8.0
"""A joiner has a seat within this time, on links that mostly work."""
SILENT = "silent"
"""The name of the joiner of the plot of that name."""
MOST_ITEMS = 2000
"""Limit of each collection of each core at the end of a run."""


def why_lost(world: "Simulation", lineage: Lineage, survivors: "Collection[Peer]") -> str:
    """Why the survivors alone can never have another view; empty if they can."""
    living = {peer.member: peer for peer in survivors}
    view = lineage.latest
    assert view is not None
    seated = [m for m in view.members if m in living and world.invariants.was_active(view.lineage, m)]
    if not seated and lineage.last_committed != NOTHING_DONE:
        return f"nobody of {brief(view)} has the state"
    while True:
        if reason := _why_undecided(world, view, living):
            return reason
        if any(m in living and _number(living[m]) >= view.number for m in view.members) or view.number == 1:
            break
        view = lineage.views[view.number - 1]
    return "" if seated or view.number == 1 else f"nobody of {brief(view)} completed a barrier"


def _number(peer: "Peer") -> int:
    return 0 if peer.view is None else peer.view.number


def _why_undecided(world: "Simulation", view: View, living: "dict[Member, Peer]") -> str:
    here = [member for member in view.members if member in living]
    if is_quorum(here, view):
        return ""
    if not here:
        return f"nobody of {brief(view)} is left"
    if view.policy is Policy.MAJORITY:
        return f"{brief(here)} are no majority of {brief(view)}"
    unread = [m for m in view.members if m not in living and not _is_witnessed(world, m, view)]
    return f"{brief(unread)} of {brief(view)} left no record that can be read" if unread else ""


def _is_witnessed(world: "Simulation", member: Member, view: View) -> bool:
    """Whether all peers will get the record of `member`, which is gone.

    Not if its process continued as another member: no peer watches the former one any more. It was removed from a
    view, so that matters only if it took part in another swarm than this one.
    """
    dead = world.peers[member]
    is_about_to_die = dead.alive and (dead.view is None or dead.view.lineage == view.lineage)
    is_dead = dead.ended_at is not None or is_about_to_die
    return is_dead and not dead.came_back and world.hosts.proves(dead) and member in world.hosts.records


def judge(world: "Simulation") -> None:
    """Check liveness at the end of a run, long after its faults."""
    alive = world.alive()
    lost: set[bytes] = set()
    for name, lineage in world.invariants.lineages.items():
        members = [peer for peer in alive if peer.view is None or peer.view.lineage == name]
        if lineage.latest is None or why_lost(world, lineage, members):
            world.invariants.seen["state lost"] += 1
            lost.add(name)
    whole = [name for name in world.invariants.lineages if name not in lost]
    if not whole:
        world.invariants.seen["runs without a verdict"] += 1
        return
    without = [peer for peer in alive if peer.view is None]
    if world.invariants.damaged or world.plan.founding == "two":  # damage is found, and operations missed, at any time
        without = [peer for peer in without if peer.began_at < world.clock.now - JOINS_S]
    if without:
        raise Violation("L1", f"{brief([p.member for p in without])} got no seat: {without[0].core.reason}")
    for name in whole:
        _judge_lineage(world, name, [peer for peer in alive if peer.view and peer.view.lineage == name])
    for peer in alive:
        _judge_news(world, peer, [p for p in alive if p is not peer and p.view == peer.view])
        _judge_size(peer)
    _judge_strangers(world, whole)
    if world.plan.plot == "silent joiner":
        _judge_delay(world, whole)


def _judge_lineage(world: "Simulation", name: bytes, alive: "list[Peer]") -> None:
    """Check that all living peers are in one view, at most one step apart, and that steps commit."""
    lineage = world.invariants.lineages[name]
    latest = lineage.latest
    assert latest is not None
    lagging = [peer for peer in alive if not peer.active or peer.view != latest]
    if lagging or sorted(peer.member for peer in alive) != sorted(latest.members):
        raise Violation("L1", f"not everybody is active in {brief(latest)}: {brief([p.member for p in lagging])}")
    if len(alive) < latest.founding_size and lineage.last_committed == NOTHING_DONE:
        world.invariants.seen["step 0 held"] += 1
        return
    done = [peer.done for peer in alive]
    before = world.done_at_calm.get(name, NOTHING_DONE)
    if max(done) - min(done) > 1 or min(done) <= before:
        raise Violation("L1", f"done is {done} and was {before} when the faults ended")


def suspicions(world: "Simulation") -> set[tuple[Member, Member, int]]:
    """All suspicions: the suspecting member, the suspect, and its refutation."""
    return {
        (peer.member, claim.member, claim.refutation)
        for peer in world.alive()
        for claim in peer.core.bootstrap_claims()
        if claim.state is State.SUSPECT
    }


def _judge_news(world: "Simulation", peer: "Peer", others: "list[Peer]") -> None:
    """I15: each living peer is finally alive at all others, or soon refutes. I17: at most one record per name."""
    claims = {claim.member.peer_id: claim for claim in peer.core.bootstrap_claims()}
    for other in others:
        claim = claims.get(other.member.peer_id)
        is_right = claim is not None and claim.member == other.member and claim.state <= State.SUSPECT
        if claim is None or not is_right or (peer.member, claim.member, claim.refutation) in world.suspicions:
            raise Violation("I15", f"{brief(peer.member)} has {brief(claim)}, {brief(other.member)} is alive")
    if len(claims) > len({member.peer_id for member in world.peers}):
        raise Violation("I17", f"{brief(peer.member)} knows {len(claims)} peers, there never were so many")


def _judge_strangers(world: "Simulation", whole: list[bytes]) -> None:
    """Check that two swarms that exist side by side know of each other, and each names both founders."""
    if len(whole) < 2:
        return
    founders = sorted({lineage.views[1].members[0].peer_id for lineage in world.invariants.lineages.values()})
    for name in whole:
        said = [reason for member, (own, reason) in sorted(world.met_strangers.items()) if own == name]
        others = [f for f in founders if f != world.invariants.lineages[name].views[1].members[0].peer_id]
        if not any(all(founder in reason.split() or f"{founder}," in reason for founder in others) for reason in said):
            raise Violation("strangers", f"nobody of {name!r} names the founders {founders}: {said}")


def _judge_delay(world: "Simulation", whole: list[bytes]) -> None:
    """S10: a joiner that falls silent delays others no longer than its detection takes, and not at all before its seat.

    Others may join meanwhile: slower joiners take longer for the steps by which they lag.
    """
    config, behind_s = world.plan.config, world.plan.config.admission.lag_s
    lag_s = behind_s * max(1.0, PACE * world.plan.slowness)
    for name in whole:
        lineage = world.invariants.lineages[name]
        had_seat = any(m.peer_id == SILENT for view in lineage.views.values() for m in view.members)
        noticed_s = 2 * config.reports.silent_s + config.reports.stable_s if had_seat else 0.0
        most_s = noticed_s + lag_s + 5 * world.plan.compute_s
        if lineage.gap_s > most_s:
            reason = f"of a silent joiner {'with' if had_seat else 'without'} a seat; {most_s:.2f} s at most"
            raise Violation("S10", f"no step for {lineage.gap_s:.2f} s, because {reason}")


def _judge_size(peer: "Peer") -> None:
    """I17: no collection of a core grows with its running time."""
    pending: list[tuple[str, Any]] = [("core", peer.core)]
    known: set[int] = set()
    while pending:
        path, value = pending.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, dict | list | set | tuple | frozenset | bytes) or hasattr(value, "maxlen"):
            if len(value) > MOST_ITEMS:
                raise Violation("I17", f"{path} of {brief(peer.member)} has {len(value)} items")
            if not isinstance(value, bytes):
                pending += [(path, item) for item in value]
                pending += [(path, item) for item in value.values()] if isinstance(value, dict) else []
        elif type(value).__module__.startswith("gossip"):
            names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
            pending += [(f"{path}.{name}", getattr(value, name, None)) for name in names]

"""Whether the flight recorders of killed peers hold all that other peers heard from them. Pure."""

from ...telemetry.records import Kind
from ..folder import PeerHistory, Run

ENDS = ("kill", "kill_host", "restart_all")


def unrecorded(run: Run) -> list[tuple[str, int]]:
    """(peer_id, step) that others have committed with a killed peer whose trace has no FINISHED record of the step.

    No member commits a step before all its members have said that they finished it, and each records that before it
    says so. So the result is empty as long as a page keeps what a process did last. Only peers without missed records
    are checked, from their first FINISHED record on. Steps that others have committed after a view without the victim
    are left out: if all of them had finished such a step, the barrier commits it, with every member that had sent all
    of its part.
    """
    victims = {
        peer_id
        for event in (() if run.log is None else run.log.events)
        if event.do in ENDS and event.time_ns
        for peer_id in event.victims
    }
    lossy = {each.peer_id for each in (() if run.log is None else run.log.processes) if each.missed}
    found = []
    for peer_id in sorted(victims & run.tracks.keys() - lossy):
        finished = {each.step for each in run.tracks[peer_id].records if each.kind == Kind.FINISHED}
        heard: set[int] = set()
        for track in (each for other, each in run.tracks.items() if other != peer_id):
            named = {each.step for each in track.receipts if any(c.peer_id == peer_id for c in each.contributions)}
            heard |= named - _committed_without(track, peer_id)
        first = min(finished, default=1)
        found += [(peer_id, step) for step in sorted(heard - finished) if step >= first and step > 0]
    return found


def _committed_without(track: PeerHistory, peer_id: str) -> set[int]:
    """Steps that this peer has committed since it installed a view without `peer_id`."""
    out_ns = min(
        (each.time_ns for each in track.records if (each.kind, each.peer_id) == (Kind.OUT, peer_id)), default=0
    )
    return {each.step for each in track.records if each.kind == Kind.COMMITTED and 0 < out_ns <= each.time_ns}

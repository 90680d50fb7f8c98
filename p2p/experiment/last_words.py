"""Whether the flight recorder of who was killed has all that the others heard of it. Pure."""

from ..telemetry.records import Kind
from .folder import Run

ENDS = ("kill", "kill_host", "restart_all")


def unrecorded(run: Run) -> list[tuple[str, int]]:
    """(peer_id, step) that others have committed with a peer which was killed, and that its trace does not finish.

    Nobody commits a step before all its members have said that they have finished it, and each writes that down before
    it says so. So this is empty as long as a page keeps what a process did last. Of peers whose trace is whole, since
    their first record of a finished step.
    """
    victims = {
        peer_id
        for event in (() if run.account is None else run.account.events)
        if event.do in ENDS and event.time_ns
        for peer_id in event.victims
    }
    lossy = {each.peer_id for each in (() if run.account is None else run.account.processes) if each.missed}
    found = []
    for peer_id in sorted(victims & run.tracks.keys() - lossy):
        finished = {each.step for each in run.tracks[peer_id].records if each.kind == Kind.FINISHED}
        heard = {
            receipt.step
            for other, track in run.tracks.items()
            for receipt in (track.receipts if other != peer_id else ())
            if any(entry.peer_id == peer_id for entry in receipt.contributions)
        }
        first = min(finished, default=1)
        found += [(peer_id, step) for step in sorted(heard - finished) if step >= first and step > 0]
    return found

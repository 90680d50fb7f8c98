"""Who waits for whom, in words: what a member can tell of a step that does not commit."""

from gossip import Core

from .operations import Operations


def explain_waiting(core: Core, operations: Operations, now: float) -> str:
    """What the open step waits for, at this member; a snapshot.

    Members that have submitted less of the step than others, or not finished it, are the root of the waiting: everybody
    else waits for them. Where all have submitted as much, what is missing is on its way.
    """
    view = core.view
    if view is None:
        return core.reason
    counts = {member: core.num_submitted(member) for member in view.members}
    unfinished = {member: count for member, count in counts.items() if count is not None}
    is_finished_by_some = len(unfinished) < len(counts)
    most = max(unfinished.values(), default=0)
    parts = [operations.explain_missing(view.members)]
    for member, count in unfinished.items():
        if is_finished_by_some or count < most:
            heard = "this one" if member == core.me else f"last heard {core.silence_s(now, member):.1f} s ago"
            parts.append(f"peer {member} ({heard}) has submitted {count} operations of step {core.done + 1}")
    return "; ".join(part for part in parts if part) or core.reason

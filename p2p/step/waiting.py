"""Who waits for whom, in words: what a member can tell of a step that does not commit."""

from gossip import Core

from .open_step import OpenStep


def explain_waiting(core: Core, open_step: OpenStep, now: float) -> str:
    """What the open step waits for, at this member; a snapshot.

    Members that have submitted less of the step than others, or not finished it, are the root of the waiting: everybody
    else waits for them. Where all have submitted as much, what is missing is on its way.
    """
    view = core.view
    if view is None:
        return core.reason
    standings = [(member, *core.standing(now, member)) for member in view.members]
    counts = [count for _, count, _ in standings if count is not None]
    is_finished_by_some = len(counts) < len(standings)
    parts = [open_step.explain_missing(view.members)]
    for member, count, silence_s in standings:
        if count is not None and (is_finished_by_some or count < max(counts)):
            heard = "this one" if member == core.me else f"last heard {silence_s:.1f} s ago"
            parts.append(f"peer {member} ({heard}) has submitted {count} operations of step {core.done + 1}")
    return "; ".join(part for part in parts if part) or core.reason


def explain_no_seat(core: Core, waited_s: float, advice: str) -> str:
    """Why this peer has waited so long for a seat, or for step 0; `advice` is for who has found no view."""
    view = core.view
    if view is None:
        return f"no seat after {waited_s:g} s: {core.reason}; {advice}"
    here = f"{len(view.members)} of {view.founding_size} peers are here"
    return f"no start after {waited_s:g} s: {here} ({', '.join(map(str, view.members))}); start the others"

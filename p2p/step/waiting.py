"""Which members wait for which, in words: what a member can tell about a step that does not commit."""

import math

from gossip import Core, Member

from .open_step import OpenStep


def explain_waiting(core: Core, open_step: OpenStep, now: float) -> str:
    """What the open step waits for, at this member; a snapshot.

    Members that have submitted less of the step than others, or not finished it, are the cause: all others wait for
    them, and whatever else is missing follows from that. If all have submitted the same, what is missing is in flight.
    """
    view = core.view
    if view is None:
        return core.reason
    barrier = core.barrier_awaits(now)
    if barrier:
        names = ", ".join(_in_barrier(core, now, member) for member in barrier)
        return f"view {view.number} begins once all of its members have come, and waits for {names}"
    behind = awaited(core, now)
    is_for_others = behind and core.me not in behind
    parts = ["" if is_for_others else open_step.explain_missing(view.members)]
    parts += [
        f"{_heard(core, now, each)} has called {_called(count, core.done + 1)}" for each, (count, _) in behind.items()
    ]
    return "; ".join(part for part in parts if part) or core.reason


def _called(count: int, step: int) -> str:
    if not count:
        return f"no operation of step {step} yet"
    return f"{count} operation{'s' if count != 1 else ''} of step {step} so far"


def _in_barrier(core: Core, now: float, member: Member) -> str:
    """What the barrier waits for: a member, or a state that this one was not given yet."""
    state = core.awaited_state() if member == core.me else None
    if state is None:
        return _heard(core, now, member)
    step, donors = state
    asked = ", ".join(_heard(core, now, donor) for donor in donors)
    return f"the state after step {step}" + (f", asked of {asked}" if asked else "")


def _heard(core: Core, now: float, member: Member) -> str:
    _, silence_s = core.member_progress(now, member)
    return f"peer {member} ({'this one' if member == core.me else f'last heard {silence_s:.1f} s ago'})"


def awaited(core: Core, now: float) -> dict[Member, tuple[int, float]]:
    """The members that the open step waits for: operations that each has submitted, and its silence in s."""
    standings = {} if core.view is None else {member: core.member_progress(now, member) for member in core.view.members}
    counts = [count for count, _ in standings.values() if count is not None]
    limit = math.inf if len(counts) < len(standings) else max(counts, default=0)  # some have finished it
    return {member: (count, s) for member, (count, s) in standings.items() if count is not None and count < limit}


def explain_no_seat(core: Core, waited_s: float, advice: str) -> str:
    """Why this peer has waited so long for a seat, or for step 0; `advice` is for who has found no view."""
    view = core.view
    if view is None:
        return f"no seat after {waited_s:g} s: {core.reason}; {advice}"
    here = f"{len(view.members)} of {view.founding_size} peers are here"
    return f"no start after {waited_s:g} s: {here} ({', '.join(map(str, view.members))}); start the others"

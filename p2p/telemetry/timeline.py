"""The meaning of a peer's records: its pace, the cost of the last change of its view, and its activity. Pure."""

from collections.abc import Sequence
from typing import Final

from .records import ADVANCES, COMMITS, How, Kind, Record
from .snapshot import Change, Pace

WINDOW_NS: Final = 5_000_000_000
"""The pace is measured over this time; if steps take longer, over the last two."""

_NS: Final = 1e9


def pace(records: Sequence[Record], now_ns: int) -> Pace:
    """How fast steps were committed recently. `records`: in the order of their times."""
    commits = [record.time_ns for record in records if record.kind in COMMITS]
    since = min((record.time_ns for record in records if record.kind == Kind.SUBMITTED), default=0)  # the oldest kept
    recent = [time_ns for time_ns in commits if time_ns > now_ns - WINDOW_NS]
    known = [time_ns for time_ns in recent if time_ns >= since]
    recent = known if len(known) > 2 else recent
    commits = recent if len(recent) > 2 else commits[-3:]
    if len(commits) < 2:
        return Pace()
    first, number = commits[0], len(commits) - 1
    elapsed = commits[-1] - first
    elapsed = max(elapsed, now_ns - first - elapsed // number)  # the rate falls if no step commits any more
    submitted = finished = begun = 0
    parts = [0, 0, 0]
    for record in records:
        if record.time_ns <= first:
            begun = first
        elif record.kind == Kind.SUBMITTED:
            submitted = finished = record.time_ns
        elif record.kind == Kind.FINISHED:
            finished = record.time_ns
        elif record.kind in COMMITS:
            if submitted > begun:
                finished = max(finished, submitted)
                for index, part in enumerate((submitted - begun, finished - submitted, record.time_ns - finished)):
                    parts[index] += part
            begun = record.time_ns
    compute_s, exchange_s, wait_s = (round(part / number / _NS, 6) for part in parts)
    rate = round(number * _NS / max(elapsed, 1), 3)
    return Pace(steps_per_s=rate, compute_s=compute_s, exchange_s=exchange_s, wait_s=wait_s)


def last_change(records: Sequence[Record], view: int = 0) -> Change | None:
    """The change to the view that became active last; None: none did in these records.

    `view`: a number, of which later ones do not count; 0: all count.
    """
    actives = [
        index for index, record in enumerate(records) if record.kind == Kind.ACTIVE and not 0 < view < record.view
    ]
    if not actives:
        return None
    end = actives[-1]
    start = actives[-2] + 1 if len(actives) > 1 else 0
    active, during = records[end], records[start:end]
    out = {record.peer_id: record for record in during if record.kind == Kind.OUT}
    signs = [
        record.time_ns
        for record in during
        if record.kind == Kind.INSTALLED or (record.kind == Kind.GONE and record.peer_id in out)
    ]
    silent = [record for record in out.values() if record.how == How.SILENCE]
    signs += [record.time_ns - round(record.value * _NS) for record in silent]
    training = next((record for record in reversed(during) if record.kind < Kind.FINISHED), None)
    if training is not None and training.kind == Kind.SUBMITTED:
        paused = [record for record in during if record.kind == Kind.PAUSED and record.time_ns >= training.time_ns]
        signs += [training.time_ns] * bool(silent or paused)  # waited for since then, though not known to be silent yet
    redone = next((each.step for each in records[end:] if each.kind == Kind.REDO and each.view == active.view), -1)
    done = max((record.step for record in during if record.kind in ADVANCES), default=active.step)
    waited_s = (active.time_ns - min(signs, default=active.time_ns)) / _NS
    lost = max(0, done - active.step)
    return Change(view=active.view, step=active.step, waited_s=round(waited_s, 6), redone=redone, num_lost=lost)


def activity(records: Sequence[Record]) -> tuple[str, int]:
    """The activity of the peer, in words ("computing step 7"), and since when (ns); the last one if it is dead."""
    training = next((record for record in reversed(records) if record.kind < Kind.FINISHED), None)
    own = next((record for record in reversed(records) if record.kind in _LOOP), None)
    if training is None and own is None:
        return "starting", 0
    if own is not None and own.kind in _STANDINGS and (training is None or own.time_ns >= training.time_ns):
        return _STANDINGS[Kind(own.kind)].format(record=own), own.time_ns
    if training is None:
        assert own is not None
        return f"continuing after step {own.step}", own.time_ns
    if training.kind == Kind.RECEIVED:
        return f"computing step {training.step + 1}", training.time_ns
    if training.kind == Kind.BEGUN:
        return f"computing step {training.step}, part of which is under way", training.time_ns
    if own is not None and own.time_ns >= training.time_ns:
        if own.kind == Kind.FINISHED:
            return f"waiting for the others to finish step {own.step}", own.time_ns
        if own.kind in COMMITS:
            return f"taking the results of step {own.step}", own.time_ns
    return f"exchanging step {training.step} with the others", training.time_ns


_STANDINGS: Final = {
    Kind.ASKED: "waiting for a seat",
    Kind.STATE: "taking the state after step {record.step}",
    Kind.COMING: "taking the state after step {record.step}, {record.size} % of which are here",
    Kind.INSTALLED: "waiting for the other members of view {record.view}",
    Kind.PAUSED: "waiting until more members can be reached",
    Kind.LEAVES: "leaving",
    Kind.LEFT: "gone: it has left",
    Kind.REMOVED: "removed: the others continued without it",
    Kind.DIVERGED: "stopped: its bits differ from those of the others",
}
_LOOP: Final = {*_STANDINGS, *COMMITS, Kind.FINISHED, Kind.ACTIVE, Kind.LOADED}

"""Whether what a removal has cost adds up: the parts of each survivor, by records of its own, against the whole. Pure.

The phases of a report lie between times that are picked over all survivors, one after the other, so they add up to the
whole whatever was recorded. Here each survivor's parts are taken by themselves, with no regard to which end is later:
until it knows, until it has the view, until all have it, until that is active, until the step is done over, until all
have finished that, until it has committed it. A record at a wrong time makes these go forth and back, and the sum
exceeds the time that has passed by twice as much. A step that all had finished before is committed by the barrier: the
view may become active behind that.
"""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from ...telemetry.records import Kind, Record
from ..happened import Happened
from .timeline import Timeline, find, ms


def off_ms(event: Happened, timeline: Timeline, installed: Mapping[str, int], resumed_ns: int) -> tuple[float, str]:
    """By how much the sum of the parts is off the whole, for the survivor of whom that is most, and who that is.

    Args:
        event: what was done to whom.
        timeline: of the run.
        installed: when each survivor had a view without the victims.
        resumed_ns: when the last of them had committed the first step that each has committed since.
    """
    step, ends = _ends(event, timeline, installed, resumed_ns)
    if not ends:
        return 0.0, ""
    installed_ns = max(installed[peer_id] for peer_id in ends)
    finished_ns = max(_last(timeline, peer_id, Kind.FINISHED, step, event, ends[peer_id][1]) for peer_id in ends)
    off = list[tuple[float, str]]()
    for peer_id, (end_ns, next_ns) in ends.items():
        records, own_ns = timeline.run.tracks[peer_id].records, installed[peer_id]
        gone = find(records, 0, partial(_is_gone, event.victims[0]))
        active = find(records, own_ns, lambda each: each.kind == Kind.ACTIVE)
        redo_ns = _last(timeline, peer_id, Kind.REDO, step, event, next_ns)
        points = [event.time_ns]
        points += [gone.time_ns] if gone is not None and gone.time_ns <= own_ns else []
        points += [own_ns, installed_ns]
        points += [active.time_ns] if active is not None and (redo_ns or active.time_ns <= end_ns) else []
        points += [redo_ns] if redo_ns else []
        points += [finished_ns] if redo_ns and finished_ns else []  # else it was finished before
        parts_ns = sum(abs(later - earlier) for earlier, later in pairwise([*points, end_ns]))
        off.append((ms(parts_ns - (end_ns - event.time_ns)), peer_id))
    return max(off)


def _ends(
    event: Happened, timeline: Timeline, installed: Mapping[str, int], resumed_ns: int
) -> tuple[int, dict[str, tuple[int, int]]]:
    """The step with which all went on, and when each who was a member before has committed it, and the one after it."""
    commits = timeline.commits
    step = next((step for peer_id in installed for at, step in commits[peer_id] if at == resumed_ns), -1)
    ends: dict[str, tuple[int, int]] = {}
    for peer_id, since_ns in installed.items():
        own = commits[peer_id]
        index = next((index for index, (at, each) in enumerate(own) if each == step and at >= since_ns), None)
        if index is not None and own[0][0] < event.time_ns:
            ends[peer_id] = own[index][0], own[index + 1][0] if index + 1 < len(own) else 1 << 63
    return step, ends


def _is_gone(peer_id: str, record: Record) -> bool:
    return record.kind == Kind.GONE and record.peer_id == peer_id


def _last(timeline: Timeline, peer_id: str, kind: Kind, step: int, event: Happened, until_ns: int) -> int:
    """When it has recorded that of this step for the last time, since the event; 0: it has not."""
    return max(
        (
            each.time_ns
            for each in timeline.run.tracks[peer_id].records
            if each.kind == kind and each.step == step and event.time_ns <= each.time_ns < until_ns
        ),
        default=0,
    )

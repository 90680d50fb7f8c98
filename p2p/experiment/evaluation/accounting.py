"""A check that the parts of a removal's cost, by each survivor's own records, add up to the elapsed time. Pure.

The phases of a report lie between times that are picked over all survivors, in order, so they add up to the whole
whatever was recorded. Here the parts of each survivor are measured separately, as absolute differences: until it knows
of the death, until it installs the view, until all have, until the view is active, until the step is redone, until all
have finished the step, until it commits it. A record with a wrong time makes this path go back and forth, so the sum
exceeds the elapsed time by twice the detour. A step that all had finished before is committed by the barrier: the view
may become active after that.
"""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from ...telemetry.records import Kind, Record
from ..run_log import EventOutcome
from .timeline import Timeline, find, ms


def off_ms(event: EventOutcome, timeline: Timeline, installed: Mapping[str, int], resumed_ns: int) -> tuple[float, str]:
    """The largest difference, over all survivors, between the sum of the parts and the whole, and that survivor.

    Args:
        event: the removal.
        timeline: of the run.
        installed: when each survivor installed a view without the victims.
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
        points += [finished_ns] if redo_ns and finished_ns else []  # else the step was finished before
        parts_ns = sum(abs(later - earlier) for earlier, later in pairwise([*points, end_ns]))
        off.append((ms(parts_ns - (end_ns - event.time_ns)), peer_id))
    return max(off)


def _ends(
    event: EventOutcome, timeline: Timeline, installed: Mapping[str, int], resumed_ns: int
) -> tuple[int, dict[str, tuple[int, int]]]:
    """The step with which all continued; by survivor that was a member before, its commit of that step and the next."""
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


def _last(timeline: Timeline, peer_id: str, kind: Kind, step: int, event: EventOutcome, until_ns: int) -> int:
    """The time of the peer's last record of this kind and step between the event and `until_ns`; 0: there is none."""
    return max(
        (
            each.time_ns
            for each in timeline.run.tracks[peer_id].records
            if each.kind == kind and each.step == step and event.time_ns <= each.time_ns < until_ns
        ),
        default=0,
    )

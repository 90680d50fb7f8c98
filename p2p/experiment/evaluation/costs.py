"""The cost of each event, from receipts and records alone. Pure.

Times are milliseconds after the event; *phases* are parts of the time until all continue, and add up to it. Undefined
values are absent, and `why` gives the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Final

from ...step.receipts import Receipt
from ...telemetry.records import How, Kind, Record
from ..folder import PeerHistory, Run
from ..run_log import EventOutcome
from .accounting import off_ms
from .cost import Cost, phases
from .receipt_check import ReceiptCheck
from .timeline import ROUNDED_NS, Timeline, changes, find, ms, victim_activity

NUM_BESIDE: Final = 40
"""Steps on each side of a change of links that are compared."""
LATE_NS: Final = 1_000_000_000
"""For so long after a pause peers may still take its victim out for it: their reports of its silence last."""
BY_SILENCE: Final = "silence"
BY: Final = {How.KERNEL: "the kernel", How.LAUNCHER: "its launcher", How.UNKNOWN: "its peers"}
SILENCE: Final = "by silence: no peer recorded a suspicion before the new view"
SILENT: Final = ("pause", "cut", "kill_host", "gone")
OVERWRITTEN: Final = (
    "receipts show that the others continued without it; the records of when were overwritten before they were read"
)
UNRECORDED: Final = "receipts of other runs do not show it: only a trace does"


def costs(run: Run, chain: ReceiptCheck) -> list[Cost]:
    """The costs of all events; for a run without an account, of all changes of its members."""
    timeline = Timeline(run, chain)
    events = list(run.log.events) if run.log is not None else changes(timeline)
    return [_cost(event, timeline) for event in events]


def _cost(event: EventOutcome, timeline: Timeline) -> Cost:
    cost = Cost(event=event)
    if event.why_not:
        cost.why["resumed"] = event.why_not
        return cost
    match event.do:
        case "kill" | "leave" | "gone" | "kill_host":
            _removal(cost, timeline)
        case "pause" | "cut" if event.until_ns or event.do == "pause":
            _pause(cost, timeline)
        case "cut" if event.victims:
            _removal(cost, timeline)
        case "cut" | "heal" | "link":
            _change(cost, timeline)
        case "join" | "came":
            _join(cost, timeline)
        case _:
            _restart(cost, timeline)
    cost.at = victim_activity(event, timeline)
    cost.step_ms = timeline.step_ms(event.time_ns)
    if cost.step_ms is None and event.do in ("kill", "leave"):
        cost.why["beyond"] = "the members at that time had not committed two steps before it"
    if event.do == "leave" and (track := timeline.run.tracks.get(event.victims[0])) is not None:
        left = find(track.records, event.time_ns, lambda each: each.kind == Kind.LEFT)
        cost.times_ms |= {} if left is None else {"left": ms(left.time_ns - event.time_ns)}
    end_ns = event.time_ns + round(cost.times_ms.get("resumed", cost.times_ms.get("back", 0.0)) * 1e6)
    end_ns += ROUNDED_NS  # include the commit that ends the event
    is_open = bool(event.until_ns) and event.do != "restart_all"
    end_ns = event.until_ns if is_open else end_ns
    cost.gap_ms = timeline.gap_ms(event.time_ns, end_ns, to_next=is_open or "resumed" not in cost.times_ms)
    if timeline.chain.has_positions:
        keys = [key for key in timeline.keys_between(event.time_ns, end_ns) if not timeline.is_of_others(key, event)]
        cost.recounted = sum(timeline.chain.recounted.get(key, 0) for key in keys)
    else:
        cost.why["recounted"] = "samples come from no peer.loader, so receipts do not name them"
    return cost


# Removals.


def _removal(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    installed = {
        peer_id: record.time_ns
        for peer_id, track in _others(event, timeline).items()
        if (record := _without(track, event.victims, event.time_ns)) is not None
    }
    if not installed:
        cost.why["agreed"] = "it had no seat yet, so no peer had to continue without it"
        seated = [victim for victim in event.victims if timeline.commits.get(victim, True)]
        if seated and all(_is_out(victim, event, timeline) for victim in seated):
            cost.why["agreed"] = "it had no seat then, so no peer had to continue without it"
        elif seated and timeline.run.num_missed and not set(seated) & _last_members(timeline):
            cost.why["agreed"] = OVERWRITTEN
        elif seated:
            cost.why["agreed"] = cost.why["resumed"] = "no peer installed a view without it: the run ended, or all wait"
        return
    _detect(cost, timeline, installed)
    resumed = _resume(cost, timeline, installed)
    if resumed is None:
        cost.why["resumed"] = "no step was committed after it"
        return
    _split_up(cost)
    cost.off_ms, cost.off_by = off_ms(event, timeline, installed, resumed)
    cost.redone = sorted(
        {
            record.step
            for peer_id in installed
            for record in timeline.run.tracks[peer_id].records
            if record.kind == Kind.REDO and installed[peer_id] <= record.time_ns <= resumed
        }
    )


def _last_members(timeline: Timeline) -> set[str]:
    """peer_ids of the members on the last receipt."""
    return {each.peer_id for receipt in list(timeline.run.receipts())[-1:] for each in receipt.contributions}


def _others(event: EventOutcome, timeline: Timeline) -> dict[str, PeerHistory]:
    """The peers that may have removed a victim: all that are no victims, or all peers if every one is a victim."""
    tracks = timeline.run.tracks
    return {peer_id: track for peer_id, track in tracks.items() if peer_id not in event.victims} or tracks


def _without(track: PeerHistory, victims: Sequence[str], since_ns: int) -> Record | None:
    """The record of its view without the last victim; without a trace, of any view, if it was a member before."""
    if not track.has_trace:
        if not any(each.kind == Kind.COMMITTED and each.time_ns < since_ns for each in track.records):
            return None
        return find(track.records, since_ns, lambda each: each.kind == Kind.INSTALLED)
    outs = {
        record.peer_id: record
        for record in reversed(track.records)
        if record.kind == Kind.OUT and record.peer_id in victims and record.time_ns >= since_ns
    }
    return max(outs.values(), key=lambda record: record.time_ns, default=None)


def _is_out(victim: str, event: EventOutcome, timeline: Timeline) -> bool:
    """Whether the last that others had recorded of its seat before the event is that it lost it."""
    seats = [
        record
        for track in _others(event, timeline).values()
        for record in track.records
        if record.kind in (Kind.IN, Kind.OUT) and record.peer_id == victim and record.time_ns < event.time_ns
    ]
    return bool(seats) and max(seats, key=lambda record: record.time_ns).kind == Kind.OUT


def _is_about(kind: Kind, victims: Sequence[str], record: Record) -> bool:
    return record.kind == kind and record.peer_id in victims


def _detect(cost: Cost, timeline: Timeline, installed: Mapping[str, int]) -> None:
    """Set by what, and when first and last, the removal was detected."""
    event, agreed, victim = cost.event, max(installed.values()), cost.event.victims[0]
    if event.do in ("leave", "gone") and victim in timeline.run.tracks:
        said = find(timeline.run.tracks[victim].records, event.time_ns, lambda each: each.kind == Kind.LEAVES)
        if said is not None and said.time_ns <= agreed:
            cost.times_ms["detected"], cost.by = ms(said.time_ns - event.time_ns), "its own word"
            return
    gone: list[Record] = []
    for kind in (Kind.GONE, Kind.SUSPECTED) if event.do in SILENT else (Kind.GONE,):
        for peer_id in () if gone else installed:
            records = timeline.run.tracks[peer_id].records
            found = find(records, event.time_ns, partial(_is_about, kind, event.victims))
            if found is not None and found.time_ns <= agreed:
                gone.append(found)
    if not gone:
        cost.why["detected"] = SILENCE if event.do in SILENT else "no peer recorded it before the new view"
        return
    first = min(gone, key=lambda record: record.time_ns)
    cost.times_ms["detected"] = ms(first.time_ns - event.time_ns)
    cost.times_ms["detected_last"] = ms(max(record.time_ns for record in gone) - event.time_ns)
    is_known = timeline.run.tracks[next(iter(installed))].has_trace
    cost.by = BY_SILENCE if first.kind == Kind.SUSPECTED else BY.get(How(first.how), "") if is_known else ""
    if not is_known:
        cost.why["by"] = UNRECORDED


def _resume(cost: Cost, timeline: Timeline, installed: Mapping[str, int]) -> int | None:
    """When the last survivor had committed the first step that all have committed since their views; None: never."""
    t0 = cost.event.time_ns
    cost.times_ms["agreed"] = ms(max(installed.values()) - t0)
    firsts, actives = [], []
    for peer_id, since_ns in installed.items():
        step = next((step for time_ns, step in timeline.commits[peer_id] if time_ns >= since_ns), None)
        if step is None:
            continue  # this peer has ended meanwhile
        firsts.append(step)
        records = timeline.run.tracks[peer_id].records
        active = find(records, since_ns, lambda each: each.kind == Kind.ACTIVE)
        if active is not None:
            actives.append(active.time_ns)
    if not firsts:
        return None
    step = max(firsts)
    ends = [
        time_ns
        for peer_id, since_ns in installed.items()
        for time_ns, own in timeline.commits[peer_id]
        if own == step and time_ns >= since_ns
    ]
    resumed = max(ends)
    if actives and max(actives) <= resumed:
        cost.times_ms["active"] = ms(max(actives) - t0)
    else:
        cost.why["first step"] = "the step was finished before, and committed as the view became active"
    cost.times_ms["resumed"] = ms(resumed - t0)
    return resumed


def _split_up(cost: Cost) -> None:
    names = {"detected": "detection", "agreed": "agreement", "active": "barrier", "resumed": "first step"}
    cost.phases_ms = phases(cost.times_ms, names)


# Pauses.


def _pause(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    if not event.victims:
        cost.why["resumed"] = "there was no such peer"
        return
    until_ns = event.until_ns or max((record.time_ns for record in _all_records(timeline)), default=event.time_ns)
    found = (_without(track, event.victims, event.time_ns) for track in _others(event, timeline).values())
    late_ns = _late_ns(event, until_ns, timeline)
    noticed = [
        record.time_ns
        for record in found
        if record is not None
        and record.time_ns <= (late_ns if record.how == How.SILENCE else until_ns)  # it may leave soon afterwards
    ]
    if noticed:
        _removal(cost, timeline)
    else:
        said = f": {'; '.join(event.said)}" if event.said else ", since it ended before any peer would have"
        cost.why["detected"] = f"no peer removed it{said}"
        cost.why["resumed"] = "no peer was removed, so its cost is the longest gap"
    back_ns = max([until_ns, *noticed])
    firsts = {victim: _back(timeline, victim, back_ns) for victim in event.victims}
    known = [time_ns for time_ns in firsts.values() if time_ns is not None]
    if not event.until_ns or len(known) < len(firsts):
        away = {victim for victim, time_ns in firsts.items() if time_ns is None}
        was_ended = bool(event.until_ns) and away <= timeline.ended
        cost.why["returned" if was_ended else "back"] = (
            "it did not commit a step afterwards" + ", since it was ended before" * was_ended
        )
    else:
        back = max(known)
        cost.times_ms["back"] = ms(back - event.time_ns)
        cost.phases_ms |= {"back after it went on": ms(back - until_ns)} if not cost.phases_ms else {}
        cost.times_ms["back_after_it_went_on"] = ms(back - until_ns)


def _late_ns(event: EventOutcome, until_ns: int, timeline: Timeline) -> int:
    """Until when a victim is taken out because of this pause: others may agree on that just as it ends."""
    events = timeline.run.log.events if timeline.run.log is not None else ()
    later = [each.time_ns for each in events if each.time_ns > until_ns and {*each.victims} & {*event.victims}]
    return min([until_ns + LATE_NS, *later])


def _back(timeline: Timeline, victim: str, until_ns: int) -> int | None:
    """The victim's first commit of a step that no peer committed until then; older commits may reach it late."""
    new = {(lineage, step) for time_ns, lineage, step in timeline.first_commits if time_ns > until_ns}
    if (track := timeline.run.tracks.get(victim)) is None:
        return None
    commits = timeline.commits[victim]
    keys = track.lineages(step for _, step in commits)
    return next((at for (at, _), key in zip(commits, keys, strict=True) if at > until_ns and key in new), None)


def _all_records(timeline: Timeline) -> Iterable[Record]:
    return (record for track in timeline.run.tracks.values() for record in track.records)


def _change(cost: Cost, timeline: Timeline) -> None:
    """A change of links: the median step time before and after, up to the adjacent events."""
    account, at = timeline.run.log, cost.event.time_ns
    assert account is not None, "the event is from it"
    begin, end = account.adjacent_ns(at)
    commits = [time_ns for time_ns, *_ in timeline.first_commits if begin < time_ns < end]
    before, after = [each for each in commits if each <= at], [each for each in commits if each > at]
    for name, times in (("step_before", before[-NUM_BESIDE:]), ("step_after", after[:NUM_BESIDE])):
        if len(times) > 1:
            cost.times_ms[name] = ms(median(later - earlier for earlier, later in pairwise(times)))


# Joins.


def _join(cost: Cost, timeline: Timeline) -> None:
    """The times of the slowest joiner of this event."""
    event = cost.event
    processes = {each.index: each for each in timeline.processes.values()}
    peers = [processes[index].peer_id for index in event.peers if index in processes] or event.victims
    if len(peers) < len(event.peers) or not peers:
        cost.why["resumed"] = "not all have joined: the run was over before, or their output says why"
        return
    each = {peer_id: _steps_of_join(timeline, peer_id, event.time_ns) for peer_id in peers}
    slowest = max(
        peers, key=lambda peer_id: (each[peer_id].get("resumed", float("inf")), peer_id not in timeline.ended)
    )
    cost.times_ms = each[slowest]
    if "resumed" not in cost.times_ms:
        was_ended = slowest in timeline.ended
        cost.why["counted" if was_ended else "resumed"] = (
            "it was counted in no step" + ", since it was ended before" * was_ended
        )
        return
    if event.do == "came":
        cost.why["joined"] = UNRECORDED
    names = {"joined": "process start", "asked": "p2p.join", "state": "until a state came", "loaded": "state"}
    cost.phases_ms = phases(cost.times_ms, {**names, "seated": "catching up", "resumed": "first step"})
    records = timeline.run.tracks[slowest].records
    until_ns = event.time_ns + round(cost.times_ms["resumed"] * 1e6)
    cost.followed = sum(
        record.kind == Kind.FOLLOWED and event.time_ns <= record.time_ns <= until_ns for record in records
    )
    states = [each for each in records if each.kind == Kind.WHOLE and each.time_ns >= event.time_ns]
    if states:
        cost.state_bytes, cost.donors = int(states[0].value), states[0].size


def _steps_of_join(timeline: Timeline, peer_id: str, t0: int) -> dict[str, float]:
    times: dict[str, float] = {}
    if (process := timeline.processes.get(peer_id)) is not None:
        times["joined"] = ms(process.joined_ns - t0)
    track = timeline.run.tracks.get(peer_id)
    kinds = {
        Kind.ASKED: "asked",
        Kind.STATE: "state",
        Kind.WHOLE: "whole",
        Kind.LOADED: "loaded",
        Kind.ACTIVE: "seated",
    }
    for record in track.records if track is not None else ():
        name = kinds.get(Kind(record.kind)) if record.kind in set(Kind) else None
        if name is not None and name not in times and record.time_ns >= t0:
            times[name] = ms(record.time_ns - t0)
    commits = timeline.commits.get(peer_id, ())
    counted = next((time_ns for time_ns, step in commits if step > 0 and time_ns >= t0), None)
    if counted is not None:
        times["resumed"] = ms(counted - t0)
    return times


# Restarts of all peers.


def _restart(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    processes = {each.index: each for each in timeline.processes.values()}
    new = [processes[index].peer_id for index in event.peers if index in processes]
    ended = [timeline.processes[peer_id].ended_ns for peer_id in event.victims if peer_id in timeline.processes]
    if ended:
        cost.times_ms["ended"] = ms(max(ended) - event.time_ns)
    joined = [timeline.processes[peer_id].joined_ns for peer_id in new]
    if joined:
        cost.times_ms["joined"] = ms(max(joined) - event.time_ns)
    firsts = [next((t for t, step in timeline.commits.get(peer_id, ()) if step > 0), None) for peer_id in new]
    known = [time_ns for time_ns in firsts if time_ns is not None]
    if len(known) < len(event.peers) or not known:
        cost.why["resumed"] = "not all that were started again have committed a step"
        return
    cost.times_ms["resumed"] = ms(max(known) - event.time_ns)
    cost.phases_ms = phases(
        cost.times_ms, {"ended": "until all were dead", "joined": "process start", "resumed": "founding, first step"}
    )
    if not timeline.chain.has_positions:
        cost.why["lost"] = "samples come from no peer.loader, so receipts do not say where the run resumed"
    lineages = {receipt.lineage for peer_id in event.victims for receipt in _receipts(timeline, peer_id)}
    cost.lost = sum(lineage in lineages for lineage, _ in timeline.chain.lost)


def _receipts(timeline: Timeline, peer_id: str) -> Sequence[Receipt]:
    track = timeline.run.tracks.get(peer_id)
    return () if track is None else track.receipts

"""What each event has cost, from receipts and records alone. Pure.

Times are milliseconds after the event; *phases* are parts of the time until all go on, and add up to it. What is not
defined is not there, and `why` says why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ..step.receipts import Receipt
from ..telemetry.records import How, Kind, Record
from .chain import Chain
from .folder import Run, Track
from .happened import Happened, Process

BY: Final = {How.KERNEL: "the kernel", How.LAUNCHER: "its launcher", How.UNKNOWN: "its peers"}
SILENCE: Final = "by silence, which has no record of its own: it is part of the agreement"
UNRECORDED: Final = "receipts of another run say nothing of it: only a trace does"


@dataclass(slots=True, kw_only=True)
class Cost:
    """Of one event.

    Attributes:
        event: what was done; its times are of the same clock as all records.
        times_ms: after the event, by name.
        phases_ms: consecutive, in order.
        by: who said that somebody is gone.
        gap_ms: the longest time in which nobody committed anything, from the event until all go on.
        redone: steps that were done over.
        lost: steps.
        recounted: samples that were handed out, and handed out again, as no receipt had them.
        followed: steps that a joiner was fed before it had its seat.
    """

    event: Happened
    times_ms: dict[str, float] = field(default_factory=dict)
    phases_ms: dict[str, float] = field(default_factory=dict)
    by: str = ""
    gap_ms: float | None = None
    redone: list[int] = field(default_factory=list)
    lost: int = 0
    recounted: int | None = None
    followed: int = 0
    why: dict[str, str] = field(default_factory=dict)


class Timeline:
    """All tracks of a run, made ready for questions."""

    def __init__(self, run: Run, chain: Chain) -> None:
        self.run, self.chain = run, chain
        self.processes: Mapping[str, Process] = (
            {each.peer_id: each for each in run.account.processes if each.peer_id} if run.account is not None else {}
        )
        first: dict[tuple[str, int], int] = {}
        self.commits: dict[str, list[tuple[int, int]]] = {}
        for peer_id, track in run.tracks.items():
            own = [(record.time_ns, record.step) for record in track.records if record.kind == Kind.COMMITTED]
            self.commits[peer_id] = own
            lineages = {receipt.step: receipt.lineage for receipt in track.receipts}
            for time_ns, step in own:
                if step in lineages:
                    key = lineages[step], step
                    first[key] = min(time_ns, first.get(key, time_ns))
        self.first_commits = sorted((time_ns, *key) for key, time_ns in first.items())

    def gap_ms(self, start_ns: int, end_ns: int) -> float | None:
        """The longest between two commits, of those that reach into this time."""
        times = [time_ns for time_ns, _, _ in self.first_commits]
        gaps = [later - earlier for earlier, later in pairwise(times) if later > start_ns and earlier < end_ns]
        return _ms(max(gaps)) if gaps else None

    def keys_between(self, start_ns: int, end_ns: int) -> list[tuple[str, int]]:
        """Steps that were first committed in this time."""
        return [(lineage, step) for time_ns, lineage, step in self.first_commits if start_ns <= time_ns <= end_ns]


def costs(run: Run, chain: Chain) -> list[Cost]:
    """Of all events; of a run of which nobody has said what was done, of all changes of its members."""
    timeline = Timeline(run, chain)
    events = list(run.account.events) if run.account is not None else changes(timeline)
    return [_cost(event, timeline) for event in events]


def changes(timeline: Timeline) -> list[Happened]:
    """Who came and went, by the receipts; when, by the first record of it."""
    found: list[Happened] = []
    receipts = timeline.run.receipts()
    for before, after in pairwise(receipts):
        if before.view_number == after.view_number or before.lineage != after.lineage or not before.step:
            continue
        old, new = ({entry.peer_id for entry in each.contributions} for each in (before, after))
        for peer_id in sorted(old - new):
            found.append(_change("gone", peer_id, before.step, _first_sign(timeline, peer_id, after.view_number)))
        for peer_id in sorted(new - old):
            track = timeline.run.tracks.get(peer_id)
            time_ns = track.records[0].time_ns if track is not None and track.records else 0
            found.append(_change("came", peer_id, before.step, time_ns))
    for number, event in enumerate(found, 1):
        event.number = number
    return found


def _change(do: str, peer_id: str, step: int, time_ns: int) -> Happened:
    why_not = "" if time_ns else "nobody has recorded when"
    who = f"peer {peer_id[:8]} {'is gone' if do == 'gone' else 'has come'}"
    return Happened(
        number=0, do=do, planned="", who=who, at_step=step, time_ns=time_ns, victims=[peer_id], why_not=why_not
    )


def _first_sign(timeline: Timeline, peer_id: str, view: int) -> int:
    """That a member is gone: of its death, or of the view without it."""
    return min(
        (
            record.time_ns
            for track in timeline.run.tracks.values()
            for record in track.records
            if (record.kind == Kind.GONE and record.peer_id == peer_id)
            or (record.kind == Kind.INSTALLED and record.view == view)
        ),
        default=0,
    )


def _cost(event: Happened, timeline: Timeline) -> Cost:
    cost = Cost(event=event)
    if event.why_not:
        cost.why["resumed"] = event.why_not
        return cost
    match event.do:
        case "kill" | "leave" | "gone":
            _removal(cost, timeline)
        case "pause":
            _pause(cost, timeline)
        case "join" | "came":
            _join(cost, timeline)
        case _:
            _restart(cost, timeline)
    end_ns = event.time_ns + round(cost.times_ms.get("resumed", cost.times_ms.get("back", 0.0)) * 1e6)
    end_ns = max(end_ns, event.until_ns)
    cost.gap_ms = timeline.gap_ms(event.time_ns, end_ns)
    if timeline.chain.has_positions:
        keys = timeline.keys_between(event.time_ns, end_ns)
        cost.recounted = sum(timeline.chain.recounted.get(key, 0) for key in keys)
    else:
        cost.why["recounted"] = "samples come from no peer.loader, so receipts do not name them"
    return cost


# Members that go.


def _removal(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    (victim,) = event.victims
    installed = {
        peer_id: record.time_ns
        for peer_id, track in timeline.run.tracks.items()
        if peer_id != victim and (record := _without(track, victim, event.time_ns)) is not None
    }
    if not installed:
        cost.why["agreed"] = cost.why["resumed"] = "nobody installed a view without it: the run ended, or all wait"
        return
    _detect(cost, timeline, victim, installed)
    resumed = _resume(cost, timeline, installed)
    if resumed is None:
        cost.why["resumed"] = "no step was committed after it"
        return
    _split_up(cost)
    cost.redone = sorted(
        {
            record.step
            for peer_id in installed
            for record in timeline.run.tracks[peer_id].records
            if record.kind == Kind.REDO and installed[peer_id] <= record.time_ns <= resumed
        }
    )


def _without(track: Track, victim: str, since_ns: int) -> Record | None:
    """When it installed a view without the victim; without a trace, any view."""
    kind = Kind.OUT if track.is_whole else Kind.INSTALLED
    return _first(track.records, since_ns, lambda each: each.kind == kind and each.peer_id in ("", victim))


def _detect(cost: Cost, timeline: Timeline, victim: str, installed: Mapping[str, int]) -> None:
    """By whom, and when first and last."""
    event, agreed = cost.event, max(installed.values())
    if event.do == "leave" and victim in timeline.run.tracks:
        said = _first(timeline.run.tracks[victim].records, event.time_ns, lambda each: each.kind == Kind.LEAVES)
        if said is not None:
            cost.times_ms["detected"], cost.by = _ms(said.time_ns - event.time_ns), "its own word"
            return
    gone = []
    for peer_id in installed:
        records = timeline.run.tracks[peer_id].records
        found = _first(records, event.time_ns, lambda each: each.kind == Kind.GONE and each.peer_id == victim)
        if found is not None and found.time_ns <= agreed:
            gone.append(found)
    if not gone:
        cost.why["detected"] = SILENCE if event.do == "pause" else "nobody recorded it before the new view"
        return
    first = min(gone, key=lambda record: record.time_ns)
    cost.times_ms["detected"] = _ms(first.time_ns - event.time_ns)
    cost.times_ms["detected_last"] = _ms(max(record.time_ns for record in gone) - event.time_ns)
    is_known = timeline.run.tracks[next(iter(installed))].is_whole
    cost.by = BY.get(How(first.how), "") if is_known else ""
    if not is_known:
        cost.why["by"] = UNRECORDED


def _resume(cost: Cost, timeline: Timeline, installed: Mapping[str, int]) -> int | None:
    """When the last of them had committed the first step that each has committed since its view came."""
    t0 = cost.event.time_ns
    cost.times_ms["agreed"] = _ms(max(installed.values()) - t0)
    firsts, actives = [], []
    for peer_id, since_ns in installed.items():
        step = next((step for time_ns, step in timeline.commits[peer_id] if time_ns >= since_ns), None)
        if step is None:
            continue  # it has ended meanwhile
        firsts.append(step)
        records = timeline.run.tracks[peer_id].records
        active = _first(records, since_ns, lambda each: each.kind == Kind.ACTIVE)
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
        cost.times_ms["active"] = _ms(max(actives) - t0)
    else:
        cost.why["first step"] = "the step was finished before, and committed as the view became active"
    cost.times_ms["resumed"] = _ms(resumed - t0)
    return resumed


def _split_up(cost: Cost) -> None:
    names = {"detected": "detection", "agreed": "agreement", "active": "barrier", "resumed": "first step"}
    cost.phases_ms = _phases(cost.times_ms, names)


def _phases(times_ms: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """Between those of these times that are known, and not before the one before."""
    before, phases = 0.0, {}
    for name, phase in names.items():
        if name in times_ms:
            end = max(before, times_ms[name])
            phases[phase], before = round(end - before, 3), end
    return phases


# Pauses.


def _pause(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    (victim,) = event.victims
    until_ns = event.until_ns or max((record.time_ns for record in _all_records(timeline)), default=event.time_ns)
    others = [track for peer_id, track in timeline.run.tracks.items() if peer_id != victim]
    found = (_without(track, victim, event.time_ns) for track in others)
    noticed = [record.time_ns for record in found if record is not None]
    if noticed and min(noticed) <= until_ns:
        _removal(cost, timeline)
    else:
        said = f": {'; '.join(event.said)}" if event.said else ", since it was over before anybody would have"
        cost.why["detected"] = f"nobody took it out{said}"
        cost.why["resumed"] = "nobody was taken out, so the longest gap is what it cost"
    back = next((time_ns for time_ns, _ in timeline.commits.get(victim, ()) if time_ns > until_ns), None)
    if not event.until_ns or back is None:
        cost.why["back"] = "it did not commit a step afterwards"
    else:
        cost.times_ms["back"] = _ms(back - event.time_ns)
        cost.phases_ms |= {"back after it went on": _ms(back - until_ns)} if not cost.phases_ms else {}
        cost.times_ms["back_after_it_went_on"] = _ms(back - until_ns)


def _all_records(timeline: Timeline) -> Iterable[Record]:
    return (record for track in timeline.run.tracks.values() for record in track.records)


# Members that come.


def _join(cost: Cost, timeline: Timeline) -> None:
    """The slowest of those that were started."""
    event = cost.event
    processes = {each.index: each for each in timeline.processes.values()}
    peers = [processes[index].peer_id for index in event.peers if index in processes] or event.victims
    if len(peers) < len(event.peers) or not peers:
        cost.why["resumed"] = "not all have joined a swarm: their output says why"
        return
    each = {peer_id: _steps_of_join(timeline, peer_id, event.time_ns) for peer_id in peers}
    slowest = max(peers, key=lambda peer_id: each[peer_id].get("resumed", float("inf")))
    cost.times_ms = each[slowest]
    if "resumed" not in cost.times_ms:
        cost.why["resumed"] = "it was counted in no step"
        return
    if event.do == "came":
        cost.why["joined"] = UNRECORDED
    cost.why["state"] = "its size is in no record"
    names = {"joined": "process start", "asked": "p2p.join", "state": "until a state came", "loaded": "state"}
    cost.phases_ms = _phases(cost.times_ms, {**names, "seated": "catching up", "resumed": "first step"})
    records = timeline.run.tracks[slowest].records
    cost.followed = sum(record.kind == Kind.FOLLOWED for record in records)


def _steps_of_join(timeline: Timeline, peer_id: str, t0: int) -> dict[str, float]:
    times: dict[str, float] = {}
    if (process := timeline.processes.get(peer_id)) is not None:
        times["joined"] = _ms(process.joined_ns - t0)
    track = timeline.run.tracks.get(peer_id)
    kinds = {Kind.ASKED: "asked", Kind.STATE: "state", Kind.LOADED: "loaded", Kind.ACTIVE: "seated"}
    for record in track.records if track is not None else ():
        name = kinds.get(Kind(record.kind)) if record.kind in set(Kind) else None
        if name is not None and name not in times and record.time_ns >= t0:
            times[name] = _ms(record.time_ns - t0)
    counted = next((time_ns for time_ns, step in timeline.commits.get(peer_id, ()) if step > 0), None)
    if counted is not None:
        times["resumed"] = _ms(counted - t0)
    return times


# All at once.


def _restart(cost: Cost, timeline: Timeline) -> None:
    event = cost.event
    processes = {each.index: each for each in timeline.processes.values()}
    new = [processes[index].peer_id for index in event.peers if index in processes]
    ended = [timeline.processes[peer_id].ended_ns for peer_id in event.victims if peer_id in timeline.processes]
    if ended:
        cost.times_ms["ended"] = _ms(max(ended) - event.time_ns)
    joined = [timeline.processes[peer_id].joined_ns for peer_id in new]
    if joined:
        cost.times_ms["joined"] = _ms(max(joined) - event.time_ns)
    firsts = [next((t for t, step in timeline.commits.get(peer_id, ()) if step > 0), None) for peer_id in new]
    known = [time_ns for time_ns in firsts if time_ns is not None]
    if len(known) < len(event.peers) or not known:
        cost.why["resumed"] = "not all that were started again have committed a step"
        return
    cost.times_ms["resumed"] = _ms(max(known) - event.time_ns)
    cost.phases_ms = _phases(
        cost.times_ms, {"ended": "until all were dead", "joined": "process start", "resumed": "founding, first step"}
    )
    if not timeline.chain.has_positions:
        cost.why["lost"] = "samples come from no peer.loader, so receipts do not say where the run went on"
    lineages = {receipt.lineage for peer_id in event.victims for receipt in _receipts(timeline, peer_id)}
    cost.lost = sum(lineage in lineages for lineage, _ in timeline.chain.lost)


def _receipts(timeline: Timeline, peer_id: str) -> Sequence[Receipt]:
    track = timeline.run.tracks.get(peer_id)
    return () if track is None else track.receipts


def _first(records: Sequence[Record], since_ns: int, is_wanted: Callable[[Record], bool]) -> Record | None:
    return next((record for record in records if record.time_ns >= since_ns and is_wanted(record)), None)


def _ms(time_ns: int) -> float:
    return round(time_ns / 1e6, 3)

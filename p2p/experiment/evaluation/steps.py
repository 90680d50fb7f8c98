"""How long steps take, the parts of that time, and the peers that others wait for; also the data of charts. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ...telemetry.records import Kind, Record
from ..folder import PeerHistory, Run
from ..run_log import EventOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed step.

    Attributes:
        time_ns: of its first commit.
        took_ms: since the first commit of the step before; None: nobody has recorded that, or the lineage begins.
    """

    lineage: str
    number: int
    time_ns: int
    took_ms: float | None
    num_members: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """The mean step time of one peer, in ms, and its parts, which add up to it.

    Attributes:
        compute: until the peer had submitted all of the step.
        exchange: until its operations were complete.
        wait: until all others had finished the step, too.
        last: share of its steps that it was the last to submit, so that others waited for it.
        error: relative difference between the sum of the parts and the time between its commits.
    """

    step: float
    compute: float
    exchange: float
    wait: float
    last: float
    error: float


def steps(run: Run) -> list[Step]:
    """All committed steps, in order."""
    first: dict[tuple[str, int], int] = {}
    for track in run.tracks.values():
        lineages = {receipt.step: receipt.lineage for receipt in track.receipts}
        for record in track.records:
            if record.kind == Kind.COMMITTED and record.step in lineages:
                key = lineages[record.step], record.step
                first[key] = min(record.time_ns, first.get(key, record.time_ns))
    found: list[Step] = []
    before: tuple[str, int] = "", 0
    for receipt in run.receipts():
        time_ns = first.get((receipt.lineage, receipt.step))
        if time_ns is None:
            before = "", 0
            continue
        took_ms = (time_ns - before[1]) / 1e6 if before[0] == receipt.lineage else None
        before = receipt.lineage, time_ns
        if receipt.step:
            found.append(
                Step(
                    lineage=receipt.lineage,
                    number=receipt.step,
                    time_ns=time_ns,
                    took_ms=took_ms,
                    num_members=len(receipt.contributions),
                    num_samples=receipt.num_samples,
                )
            )
    return found


def splits(run: Run) -> dict[str, StepBreakdown]:
    """Splits by peer_id, for peers with a trace and at least two committed steps."""
    parts = {peer_id: _parts(track) for peer_id, track in run.tracks.items() if track.has_trace}
    last = Counter[str]()
    submitted: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for peer_id, own in parts.items():
        for key, (at_ns, *_) in own.items():
            submitted.setdefault(key, []).append((at_ns, peer_id))
    for peers in submitted.values():
        if len(peers) > 1:
            last[max(peers)[1]] += 1
    found = {}
    for peer_id, own in parts.items():
        if own:
            step, compute, exchange, wait = (
                round(fmean(times[index] for times in own.values()) / 1e6, 3) for index in range(1, 5)
            )
            share = round(last[peer_id] / len(own), 3)
            between = sum(commit.time_ns - before.time_ns for before, commit in _pairs(run.tracks[peer_id]))
            error = round(abs(sum(sum(times[2:]) for times in own.values()) - between) / between, 5)
            found[peer_id] = StepBreakdown(
                step=step, compute=compute, exchange=exchange, wait=wait, last=share, error=error
            )
    return found


def _parts(track: PeerHistory) -> dict[tuple[str, int], tuple[int, int, int, int, int]]:
    """For each step: when it was submitted, how long it took, and its three parts, which add up to that; in ns."""
    lineages = {receipt.step: receipt.lineage for receipt in track.receipts}
    begins = {commit.time_ns: before.time_ns for before, commit in _pairs(track)}
    found = {}
    submitted = finished = 0
    for record in track.records:
        if record.kind == Kind.SUBMITTED:
            submitted = record.time_ns
        elif record.kind == Kind.FINISHED:
            finished = record.time_ns
        elif record.kind == Kind.COMMITTED:
            end = record.time_ns
            begun = begins.get(end, end)
            if begun < submitted <= end:
                done = min(max(finished, submitted), end)
                times = submitted, end - begun, submitted - begun, done - submitted, end - done
                found[lineages[record.step], record.step] = times
    return found


def _pairs(track: PeerHistory) -> list[tuple[Record, Record]]:
    """Pairs of commits of consecutive steps, the second with a receipt, without missed records in between.

    So the peer was a member all the time in between, and received no state.
    """
    known = {receipt.step for receipt in track.receipts}
    gaps, index, until_ns, found = track.missed(), 0, 0, list[tuple[Record, Record]]()
    commits = [record for record in track.records if record.kind == Kind.COMMITTED]
    for before, commit in pairwise(commits):
        while index < len(gaps) and gaps[index].since_ns < commit.time_ns:
            until_ns, index = max(until_ns, gaps[index].until_ns), index + 1
        if commit.step == before.step + 1 and commit.step in known and until_ns <= before.time_ns:
            found.append((before, commit))
    return found


@dataclass(frozen=True, slots=True)
class Lane:
    """One peer over time: spans (state, from, to) in ns; states are `starting`, `observing`, `counting`, `paused`."""

    name: str
    spans: tuple[tuple[str, int, int], ...]
    end: str


def lanes(run: Run, events: Sequence[EventOutcome]) -> list[Lane]:
    """The lanes of all peers, in the order of starts; without an account, of peer_ids."""
    if run.log is None:
        return [_lane(peer_id[:8], track, 0, 0, "") for peer_id, track in sorted(run.tracks.items())]
    found = []
    for process in run.log.processes:
        track = run.tracks.get(process.peer_id)
        ends = {None: "", -9: "killed", 0: "ended", 143: "left", -15: "left"}
        end = ends.get(process.code, f"ended with {process.code}")
        lane = _lane(f"peer {process.index}", track, process.began_ns, process.ended_ns, end)
        pauses = tuple(
            ("paused", event.time_ns, event.until_ns or process.ended_ns)
            for event in events
            if event.do in ("pause", "cut") and event.time_ns and process.index in event.peers
        )
        found.append(Lane(lane.name, (*lane.spans, *pauses), lane.end))
    return found


def _lane(name: str, track: PeerHistory | None, began_ns: int, ended_ns: int, end: str) -> Lane:
    records = () if track is None else track.records
    commits = [record.time_ns for record in records if record.kind == Kind.COMMITTED and record.step > 0]
    begins = began_ns or (records[0].time_ns if records else 0)
    joined = records[0].time_ns if records else ended_ns
    stops = ended_ns or (records[-1].time_ns if records else begins)
    counted = commits[0] if commits else stops
    spans = (("starting", begins, joined), ("observing", joined, counted), ("counting", counted, stops))
    return Lane(name, tuple(span for span in spans if span[2] > span[1]), end)


def rates(found: Sequence[Step], window: int = 20) -> list[tuple[int, float]]:
    """Samples per second over the last `window` steps whose times are known, at the end of each step: (ns, rate)."""
    rates: list[tuple[int, float]] = []
    begin = 0
    for index, step in enumerate(found):
        if step.took_ms is None:
            begin = index
        first = max(begin, index - window)
        elapsed_s = (step.time_ns - found[first].time_ns) / 1e9
        if elapsed_s > 0:
            rates.append((step.time_ns, sum(each.num_samples for each in found[first + 1 : index + 1]) / elapsed_s))
    return rates

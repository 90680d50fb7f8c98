"""The tracks of a run, indexed for queries; and changes of members by receipts alone. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise, takewhile
from operator import itemgetter
from statistics import median
from typing import Final

from ...telemetry.records import How, Kind, Record
from ...telemetry.timeline import activity
from ..folder import Run
from ..run_log import EventOutcome, Process
from .receipt_check import ReceiptCheck

ENDS: Final = ("kill", "leave", "kill_host", "restart_all")
"""Events that end their victims."""

ROUNDED_NS: Final = 1_000
"""The resolution of `ms`."""

NUM_BEFORE: Final = 20
"""Steps before an event that its usual step time is taken from."""


class Timeline:
    """All tracks of a run, indexed for queries.

    Attributes:
        processes: by peer_id.
        ended: peer_ids of all that an event has killed or asked to leave.
        commits: by peer_id: (time, step) of each commit.
        first_commits: (time, lineage, step) of the first commit of each step, in order.
    """

    def __init__(self, run: Run, chain: ReceiptCheck) -> None:
        self.run, self.chain = run, chain
        self.processes: Mapping[str, Process] = (
            {each.peer_id: each for each in run.log.processes if each.peer_id} if run.log is not None else {}
        )
        events = run.log.events if run.log is not None else ()
        self._victims = {victim for each in events if each.time_ns for victim in each.victims}
        self.ended = {victim for each in events if each.do in ENDS and each.time_ns for victim in each.victims}
        first: dict[tuple[str, int], int] = {}
        self.commits: dict[str, list[tuple[int, int]]] = {}
        for peer_id, track in run.tracks.items():
            own = [(record.time_ns, record.step) for record in track.records if record.kind == Kind.COMMITTED]
            self.commits[peer_id] = own
            for (time_ns, _), key in zip(own, track.lineages(step for _, step in own), strict=True):
                if key[0]:
                    first[key] = min(time_ns, first.get(key, time_ns))
        self.first_commits = sorted((time_ns, *key) for key, time_ns in first.items())
        self._members = {
            (receipt.lineage, receipt.step): frozenset(entry.peer_id for entry in receipt.contributions)
            for receipt in run.receipts()
        }

    def step_ms(self, time_ns: int) -> float | None:
        """The median time of the last steps before this time with the same members; None: there were not two."""
        end = bisect_left(self.first_commits, time_ns, key=itemgetter(0))
        before = ((at, step, self._members.get((key, step))) for at, key, step in reversed(self.first_commits[:end]))
        known = [(at, step, members) for at, step, members in islice(before, NUM_BEFORE + 2) if members is not None]
        same = [*takewhile(lambda each: each[2] == known[0][2], known)][: NUM_BEFORE + 1]
        took = [later[0] - earlier[0] for later, earlier in pairwise(same) if later[1] == earlier[1] + 1]
        return ms(median(took)) if took else None

    def gap_ms(self, start_ns: int, end_ns: int, *, to_next: bool) -> float | None:
        """The longest gap between two commits that ends in this interval; `to_next`: or begins in it.

        Gaps with steps in them whose commits are not recorded are left out.
        """
        gaps = [
            later - earlier
            for (earlier, lineage, step), (later, *of_later) in pairwise(self.first_commits)
            if later > start_ns and (later <= end_ns or (to_next and earlier < end_ns))
            if of_later[0] != lineage or of_later[1] == step + 1
        ]
        return ms(max(gaps)) if gaps else None

    def keys_between(self, start_ns: int, end_ns: int) -> list[tuple[str, int]]:
        """Steps whose first commit lies in this interval."""
        return [(lineage, step) for time_ns, lineage, step in self.first_commits if start_ns <= time_ns <= end_ns]

    def is_of_others(self, key: tuple[str, int], event: EventOutcome) -> bool:
        """Whether the members that the step lost, compared with the one before, were victims of other events only."""
        lineage, step = key
        lost = self._members.get((lineage, step - 1), frozenset()) - self._members.get(key, frozenset())
        return not lost.isdisjoint(self._victims) and lost.isdisjoint(event.victims)


def changes(timeline: Timeline) -> list[EventOutcome]:
    """Changes of members, by the receipts; the time is that of the first sign of each."""
    found: list[EventOutcome] = []
    first = {(lineage, step): time_ns for time_ns, lineage, step in timeline.first_commits}
    for before, after in pairwise(timeline.run.receipts()):
        if before.view_number == after.view_number or before.lineage != after.lineage or not before.step:
            continue
        old, new = ({entry.peer_id for entry in each.contributions} for each in (before, after))
        views = range(before.view_number + 1, after.view_number + 1)
        until_ns = first.get((after.lineage, after.step), 1 << 63)
        for peer_id in sorted(old - new):
            found.append(_change("gone", peer_id, before.step, _first_sign(timeline, peer_id, views, until_ns)))
        for peer_id in sorted(new - old):
            found.append(_change("came", peer_id, before.step, _asked(timeline, peer_id, until_ns)))
    for number, event in enumerate(found, 1):
        event.number = number
    return found


def _change(do: str, peer_id: str, step: int, time_ns: int) -> EventOutcome:
    why_not = "" if time_ns else "no peer recorded when"
    who = f"peer {peer_id[:8]} {'is gone' if do == 'gone' else 'has come'}"
    return EventOutcome(
        number=0, do=do, planned="", who=who, at_step=step, time_ns=time_ns, victims=[peer_id], why_not=why_not
    )


def _first_sign(timeline: Timeline, peer_id: str, views: Sequence[int], until_ns: int) -> int:
    """The first sign, until then, that the last seat of a member ends, in one of these views; 0: there is none.

    It is the member's own word, the beginning of its silence, a suspicion that was not cleared, the word of its death,
    or a view.
    """
    signs = list[int]()
    for own_id, track in timeline.run.tracks.items():
        records = [each for each in track.records if each.time_ns <= until_ns]
        if own_id == peer_id:
            last = next((each for each in reversed(records) if each.kind in (Kind.COMMITTED, Kind.LEAVES)), None)
            signs += [last.time_ns] if last is not None and last.kind == Kind.LEAVES else []
            continue
        for record in reversed(records):
            if record.kind == Kind.INSTALLED and record.view in views:
                signs.append(record.time_ns)
            elif record.peer_id == peer_id and record.kind in (Kind.CLEARED, Kind.IN):
                break
            elif record.peer_id == peer_id and record.kind in (Kind.GONE, Kind.SUSPECTED):
                signs.append(record.time_ns)
            elif record.peer_id == peer_id and (record.kind, record.how) == (Kind.OUT, How.SILENCE):
                signs.append(record.time_ns - round(record.value * 1e9))
    return min(signs, default=0)


def _asked(timeline: Timeline, peer_id: str, until_ns: int) -> int:
    """When a peer first asked for the seat that it has then; 0: it has left no records."""
    track = timeline.run.tracks.get(peer_id)
    records = [each for each in track.records if each.time_ns < until_ns] if track is not None else []
    seats = [each.time_ns for each in records if each.kind == Kind.COMMITTED]
    asked = find(records, seats[-1], lambda each: each.kind == Kind.ASKED) if seats else None
    return asked.time_ns if asked is not None else records[0].time_ns if records else 0


def victim_activity(event: EventOutcome, timeline: Timeline) -> str:
    """The victim's activity, by its own last records: for a kill all, else those before the event; empty: unknown."""
    track = timeline.run.tracks.get(event.victims[0]) if len(event.victims) == 1 else None
    if track is None or not track.has_trace:
        return ""
    records = [each for each in track.records if event.do == "kill" or each.time_ns <= event.time_ns]
    return activity(records)[0]


def find(records: Sequence[Record], since_ns: int, is_wanted: Callable[[Record], bool]) -> Record | None:
    return next((record for record in records if record.time_ns >= since_ns and is_wanted(record)), None)


def ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 3)

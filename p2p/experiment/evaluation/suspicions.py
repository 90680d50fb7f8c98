"""Suspicions and their outcomes, from the records of the peers that held them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...telemetry.records import How, Kind
from ..folder import Run

ENDS: Final[Mapping[int, str]] = {
    Kind.CLEARED: "it denied that",
    Kind.LOST: "it did not deny that",
    Kind.GONE: "it was dead",
    Kind.OUT: "the others continued without it",
    Kind.IN: "it had come back",
}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One peer's suspicion that another one is dead.

    Attributes:
        peer_id: of the suspect.
        by: peer_id of the peer that suspected it.
        is_own: by its own probe; else another peer told it.
        end: the outcome, in words; empty: `by` has recorded none.
        lasted_s: time until the outcome; 0: unknown.
    """

    peer_id: str
    by: str
    time_ns: int
    is_own: bool
    end: str = ""
    lasted_s: float = 0.0


def suspicions(run: Run) -> list[Suspicion]:
    """All suspicions of a run, in order of time."""
    return sorted((each for by in run.tracks for each in _of(run, by)), key=lambda each: (each.time_ns, each.by))


def _of(run: Run, by: str) -> Iterator[Suspicion]:
    records = run.tracks[by].records
    for index, record in enumerate(records):
        if record.kind != Kind.SUSPECTED:
            continue
        ends = (each for each in records[index + 1 :] if each.peer_id == record.peer_id and each.kind in ENDS)
        end = next(ends, None)
        is_own = record.how == How.OWN_PROBE
        if end is None:
            yield Suspicion(record.peer_id, by, record.time_ns, is_own)
        else:
            lasted_s = (end.time_ns - record.time_ns) / 1e9
            yield Suspicion(record.peer_id, by, record.time_ns, is_own, ENDS[end.kind], lasted_s)

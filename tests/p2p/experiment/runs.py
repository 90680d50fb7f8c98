"""Runs as hand-made receipts and records; times in milliseconds from 1 s on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from p2p.experiment.folder import PeerHistory, Run
from p2p.experiment.run_log import EventOutcome, Process, RunLog
from p2p.step.receipts import Contribution, Ledger, Receipt
from p2p.telemetry.records import How, Kind, Record

A, B, C = "a" * 16, "b" * 16, "c" * 16
START_NS = 10**9


def ns(time_ms: float) -> int:
    return START_NS + round(time_ms * 1e6)


def record(time_ms: float, kind: Kind, step: int = -1, view: int = 0, peer: str = "", how: int = How.UNKNOWN) -> Record:
    return Record(0, ns(time_ms), kind, how, 0, step, view, peer, 0.0)


def receipt(
    step: int, members: Sequence[str], samples: Sequence[tuple[int, int]] = (), view: int = 1, lineage: str = "1"
) -> Receipt:
    """`samples`: one range per member."""
    ranges = samples or [(-1, 0)] * len(members)
    contributions = tuple(
        Contribution(peer_id, 1, (part,) if part[1] else (), part[1], part[1])
        for peer_id, part in zip(members, ranges, strict=True)
    )
    return Receipt(
        lineage=lineage * 32,
        view_number=view,
        step=step,
        contributions=contributions,
        algorithms=(),
        digest="00",
        state_digest="00",
    )


def write_receipts(folder: Path, lineage: str = "1", peer_id: str = A) -> None:
    """Write receipts of two steps that this peer has committed alone."""
    ledger = Ledger(folder / "receipts", peer_id, pytest.fail)
    for step in (1, 2):
        ledger.record(receipt(step, [peer_id], [(10 * step - 10, 10)], lineage=lineage))
    ledger.close()


def event(do: str, time_ms: float, victim: str = "", **changes: object) -> EventOutcome:
    values: dict[str, object] = {"number": 1, "planned": "", "who": do, "victims": [victim] if victim else []}
    return EventOutcome(do=do, time_ns=ns(time_ms), **{**values, **changes})  # type: ignore[arg-type]


def account(events: Sequence[EventOutcome], peers: Sequence[str] = ()) -> RunLog:
    processes = tuple(
        Process(
            index=index,
            peer_id=peer_id,
            pid=1,
            began_ns=START_NS,
            joined_ns=ns(1),
            ended_ns=ns(10_000),
            code=0,
            missed=0,
            ended_by_experiment=False,
            last_line="",
        )
        for index, peer_id in enumerate(peers)
    )
    return RunLog(
        name="x",
        seed=0,
        began_ns=START_NS,
        first_step_ns=ns(10),
        ended_ns=ns(10_000),
        ended_by="script",
        processes=processes,
        events=tuple(events),
        losses=(),
        environment={},
    )


def run(
    receipts: Mapping[str, Sequence[Receipt]],
    records: Mapping[str, Sequence[Record]],
    events: Sequence[EventOutcome] | None = None,
    *,
    is_whole: bool = True,
) -> Run:
    tracks = {
        peer_id: PeerHistory(peer_id, own, records.get(peer_id, ()), is_whole) for peer_id, own in receipts.items()
    }
    return Run(tracks, None if events is None else account(events, sorted(receipts)))


def killed(redone_ms: tuple[float, float] = (128, 130)) -> Run:
    """A is killed at 105 ms, in step 3: B detects it after 5 ms, C after 8; view 2 begins after 15; then a redo."""
    members, left = [A, B, C], [B, C]
    first = [receipt(step, members, [(30 * (step - 1) + 10 * i, 10) for i in range(3)]) for step in (1, 2)]
    third = [receipt(3, left, [(70, 10), (80, 10)], view=2), receipt(4, left, [(60, 10), (90, 10)], view=2)]
    commits = [record(50.0 * step, Kind.COMMITTED, step) for step in (1, 2)]

    def survivor(gone_ms: float, installed_ms: float, committed_ms: float) -> list[Record]:
        return [
            *commits,
            record(gone_ms, Kind.GONE, peer=A, how=How.KERNEL),
            record(installed_ms, Kind.INSTALLED, 2, 2),
            record(installed_ms, Kind.OUT, view=2, peer=A),
            record(installed_ms + 1, Kind.ACTIVE, 2, 2),
            record(installed_ms + 1, Kind.REDO, 3, 2),
            record(committed_ms, Kind.COMMITTED, 3),
            record(committed_ms + 50, Kind.COMMITTED, 4),
        ]

    return run(
        {A: first, B: [*first, *third], C: [*first, *third]},
        {A: commits, B: survivor(110, 119, redone_ms[0]), C: survivor(113, 120, redone_ms[1])},
        [event("kill", 105, A)],
    )

"""A run with many deaths: the cost of its report."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.experiment.evaluation.drawing import MANY, Row, draw, shared_rows
from p2p.experiment.evaluation.page import MOST_SPLITS, About, page
from p2p.experiment.evaluation.report import evaluate
from p2p.experiment.folder import Run
from p2p.experiment.run_log import EventOutcome
from p2p.telemetry.records import How, Kind, Record
from tests.p2p.experiment.runs import event, ns, receipt, record, run
from tests.p2p.experiment.test_report import checked

NUM_CYCLES, NUM_JOINED = 40, 5
STEP_MS, BETWEEN_MS = 50, 500


def many_deaths() -> Run:
    """40 times five peers join, and of the six all but one are killed, one by one; each death costs 25 ms."""
    ids = [f"{number:016x}" for number in range(1 + NUM_CYCLES * NUM_JOINED)]
    began, ended = {ids[0]: 0}, dict[str, int]()
    records: dict[str, list[Record]] = {each: [] for each in ids}
    members, new, at, view = ids[:1], ids[1:], 0, 1
    events: list[EventOutcome] = []
    for _ in range(NUM_CYCLES):
        at, joined, new = at + BETWEEN_MS, new[:NUM_JOINED], new[NUM_JOINED:]
        peers = [ids.index(each) for each in joined]
        events.append(event("join", at, number=len(events) + 1, peers=peers, who="5 join", at_step=at // STEP_MS))
        began |= dict.fromkeys(joined, at)
        members, view = [*members, *joined], view + 1
        for each in members:
            records[each].append(record(at + 100, Kind.INSTALLED, at // STEP_MS, view))
        for _ in joined:
            at, victim, members, view = at + BETWEEN_MS, members[0], members[1:], view + 1
            which = [ids.index(victim)]
            events.append(event("kill", at, victim, number=len(events) + 1, peers=which, who="kill", at_step=1))
            ended[victim] = at
            for each in members:
                records[each] += [
                    record(at + 5, Kind.GONE, peer=victim, how=How.KERNEL),
                    record(at + 15, Kind.INSTALLED, at // STEP_MS, view),
                    record(at + 15, Kind.OUT, view=view, peer=victim),
                    record(at + 16, Kind.ACTIVE, at // STEP_MS, view),
                ]
    ended[ids[-1]] = at + BETWEEN_MS
    receipts = {}
    for each in ids:
        first, last = began[each] // STEP_MS + 2, ended[each] // STEP_MS
        for step in range(first, last):
            records[each] += [
                record(STEP_MS * step + 20, Kind.SUBMITTED, step),
                record(STEP_MS * step + 25, Kind.COMMITTED, step),
            ]
        records[each].sort(key=lambda record: record.time_ns)
        receipts[each] = [receipt(step, [each], [(step, 1)]) for step in range(first, last)]
    whole = run(receipts, records, events)
    assert whole.log is not None
    lives = {each: (ns(began[each]), ns(ended[each])) for each in ids}
    processes = [
        replace(each, began_ns=lives[each.peer_id][0], ended_ns=lives[each.peer_id][1], code=-9)
        for each in whole.log.processes
    ]
    return replace(whole, log=replace(whole.log, processes=tuple(processes)))


@pytest.mark.long
def test_two_hundred_deaths_are_well_under_300_kb() -> None:
    text = page(About("long", "", {}), [evaluate(many_deaths())])
    found = checked(text)
    assert {"e1", "e240", "row240"} <= found.ids
    assert "peer 200: starting" in text, "each peer can be found"
    assert "Of 201 peers, those" in text and text.count("%</td></tr>") == MOST_SPLITS
    assert len(text.encode()) < 225_000


def test_few_peers_have_a_lane_each() -> None:
    rows = [Row(f"peer {index}", [("counting", index, index + 1.0)], "killed") for index in range(MANY)]
    picture = draw([], rows, [], 50.0)
    assert all(f">peer {index}</text>" in picture for index in range(MANY))
    assert "peers</text>" not in picture


times = st.tuples(st.floats(0, 90), st.floats(0, 10))


@given(st.lists(st.lists(times, min_size=1, max_size=3), max_size=60), st.floats(0, 1))
def test_no_two_peers_meet_on_a_lane_and_there_are_as_few_as_can_be(
    lives: list[list[tuple[float, float]]], apart_s: float
) -> None:
    rows = [Row(str(number), [("counting", a, a + b) for a, b in spans], "") for number, spans in enumerate(lives)]
    lanes = shared_rows(rows, apart_s)
    assert sorted(row.name for lane in lanes for row in lane) == sorted(row.name for row in rows)
    bounds = {row.name: (min(a for _, a, _ in row.spans), max(b for *_, b in row.spans)) for row in rows}
    for lane in lanes:
        for before, after in pairwise(lane):
            assert bounds[after.name][0] >= bounds[before.name][1] + apart_s
    at_once = [sum(a <= begin < b + apart_s for a, b in bounds.values()) for begin, _ in bounds.values()]
    assert len(lanes) <= max(at_once, default=0) + sum(a == b for a, b in bounds.values())

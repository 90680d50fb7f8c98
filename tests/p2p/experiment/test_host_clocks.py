"""Clocks and links of a lab's hosts, which share one clock: bounds of its offsets, and detection of a slow link."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from p2p.experiment.evaluation.report import evaluate, metrics
from p2p.experiment.folder import Run
from p2p.telemetry.records import Kind, Record
from tests.p2p.experiment.runs import A, B, C, event, ns, receipt, record, run
from tests.p2p.telemetry.pages import identity

PEERS = (A, B, C)
Delays = Mapping[tuple[str, str], float]


def on_hosts(num_steps: int, change_at: int, slow: Delays, *, shift_ms: float = 0.0, end_at: int = 1000) -> Run:
    """Peers of three hosts, 2 ms apart; from step `change_at` to before `end_at` some links take longer.

    The third clock is shifted.
    """
    records: dict[str, list[object]] = {peer: [] for peer in PEERS}
    now_ms, changed_ms, until_ns = 10.0, 0.0, 0
    for step in range(1, num_steps + 1):
        if step == change_at:
            changed_ms = now_ms + 0.1
        elif step == end_at:
            until_ns = ns(now_ms + 0.1)
        is_slow = change_at <= step < end_at
        delays = {(x, y): 2.0 + (slow.get((x, y), 0.0) if is_slow else 0.0) for x in PEERS for y in PEERS}
        submitted = {peer: now_ms + 20 + 7 * ((index + step) % 3) for index, peer in enumerate(PEERS)}
        finished = {y: max(submitted[x] + delays[x, y] * (x != y) for x in PEERS) for y in PEERS}
        committed = {y: max(finished[x] + delays[x, y] * (x != y) for x in PEERS) for y in PEERS}
        for peer in PEERS:
            ahead_ms = shift_ms if peer == C else 0.0
            records[peer] += [
                record(finished[peer] + ahead_ms, Kind.FINISHED, step),
                record(committed[peer] + ahead_ms, Kind.COMMITTED, step),
            ]
        now_ms = max(committed.values())
    receipts = [receipt(step, PEERS) for step in range(1, num_steps + 1)]
    who = "link of host 2: delay=52ms"
    link = event("link", changed_ms, who=who, at_step=change_at - 1, planned="step 30", until_ns=until_ns)
    found = run(dict.fromkeys(PEERS, receipts), records, [link])  # type: ignore[arg-type]
    tracks = {
        peer: replace(track, identity=identity(peer, host=peer[::-1][0] * 16)) for peer, track in found.tracks.items()
    }
    return replace(found, tracks=tracks)


def test_bounds_of_a_lab_hold_0_and_are_two_delays_wide() -> None:
    found = metrics([evaluate(on_hosts(250, 300, {}))])
    assert found["clock_off_ms_max"] == 0 and 3.9 <= found["clock_width_ms_max"] <= 2 * (2 + 1)


def test_a_clock_that_is_off_is_off_by_as_much_as_is_beyond_the_bounds() -> None:
    found = metrics([evaluate(on_hosts(250, 300, {}, shift_ms=10.0))])
    assert found["clock_off_ms_max"] == pytest.approx(8, abs=1)


def test_of_fewer_steps_or_one_host_nothing_is_said_of_clocks() -> None:
    assert not any("clock" in name for name in metrics([evaluate(on_hosts(199, 300, {}))]))
    one = on_hosts(250, 300, {})
    tracks = {peer: replace(track, identity=identity(peer)) for peer, track in one.tracks.items()}
    assert not any("clock" in name for name in metrics([evaluate(replace(one, tracks=tracks))]))


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({(C, A): 50.0, (C, B): 50.0}, "link host 2 -> the others +50 ms"),
        ({(A, C): 50.0, (B, C): 50.0}, "link the others -> host 2 +50 ms"),
        ({(A, B): 30.0}, "link host 0 -> host 1 +30 ms"),
    ],
)
def test_the_link_that_makes_steps_longer_is_named_with_what_its_delay_grew_by(slow: Delays, said: str) -> None:
    (cost,) = evaluate(on_hosts(80, 31, slow)).costs
    assert cost.why["longer"].endswith(said) and cost.why["longer"].startswith("step 38 -> ")


def test_steps_behind_the_end_of_a_change_do_not_hide_the_link() -> None:
    (cost,) = evaluate(on_hosts(80, 31, {(A, B): 30.0}, end_at=41)).costs
    assert cost.why["longer"].endswith("link host 0 -> host 1 +30 ms")


def test_a_step_that_began_before_an_earlier_change_tells_nothing_of_the_delays_behind_it() -> None:
    """Steps 1 to 40 are as before a first change, 41 to 70 have that, and then another link is slower, too."""
    parts = [on_hosts(40, 100, {}), on_hosts(30, 1, {(A, B): 30.0}), on_hosts(30, 1, {(A, B): 30.0, (B, A): 60.0})]
    records: dict[str, list[Record]] = {peer: [] for peer in PEERS}
    first_step, now_ns, changes = 0, 0, []
    for part in parts:
        last_ns = max(track.records[-1].time_ns for track in part.tracks.values())
        for peer in PEERS:
            records[peer] += [
                each._replace(time_ns=each.time_ns + now_ns, step=each.step + first_step)
                for each in part.tracks[peer].records
            ]
        first_step, now_ns = first_step + len(part.tracks[A].receipts), now_ns + last_ns - ns(10)
        changes.append(last_ns)
    base = parts[0]
    assert base.log is not None
    receipts = [receipt(step, PEERS) for step in range(1, first_step + 1)]
    tracks = {peer: replace(track, records=records[peer], receipts=receipts) for peer, track in base.tracks.items()}
    amid_ns = max(each.time_ns for each in records[A] if each.kind == Kind.FINISHED and each.step == 40) + 1
    then_ns = max(each.time_ns for own in records.values() for each in own if each.step == 70) + 1
    links = [replace(event("link", 0, number=number), time_ns=at) for number, at in enumerate((amid_ns, then_ns), 1)]
    found = evaluate(replace(base, tracks=tracks, log=replace(base.log, events=tuple(links))))
    assert found.costs[1].why["longer"].endswith("-> host 0 +60 ms"), "and not 78: then messages to host 0 waited less"


def test_a_change_that_makes_no_step_longer_is_no_cause() -> None:
    (cost,) = evaluate(on_hosts(80, 31, {})).costs
    assert "longer" not in cost.why


def test_events_of_a_step_are_off_if_they_came_more_than_two_steps_from_it() -> None:
    base = on_hosts(80, 31, {})
    assert base.log is not None
    near, late = event("heal", 100, planned="step 30", at_step=32), event("heal", 200, planned="step 30", at_step=33)
    waits = event("heal", 300, planned="step 30 + 2 s", at_step=60)
    never = replace(late, time_ns=0, why_not="the run was over")
    caught = event("heal", 400, who="kill rank 0 in its exchange", planned="step 30", at_step=50)
    shares = []
    for events in ([near, waits, never, caught], [near, late], [waits]):
        some = replace(base, log=replace(base.log, events=tuple(events)))
        shares.append(metrics([evaluate(some)]).get("at_step_off_share"))
    assert shares == [0, 0.5, None]

from collections.abc import Iterable
from dataclasses import replace

import pytest

from p2p.experiment.config import Bound
from p2p.experiment.evaluation.cost import Cost
from p2p.experiment.evaluation.costs import costs
from p2p.experiment.evaluation.receipt_check import check
from p2p.experiment.evaluation.report import evaluate, failures, metrics
from p2p.experiment.evaluation.suspicions import suspicions
from p2p.experiment.folder import PeerHistory, Run
from p2p.experiment.run_log import EventOutcome
from p2p.telemetry.records import How, Kind, Record
from tests.p2p.experiment.runs import A, B, C, account, event, killed, ns, receipt, record, run


def only(found: Run) -> Cost:
    (cost,) = costs(found, check(found))
    return cost


def test_a_kill_is_split_into_what_its_survivors_have_recorded() -> None:
    cost = only(killed())
    times = {"detected": 5.0, "detected_last": 8.0, "agreed": 15.0, "active": 16.0, "resumed": 25.0}
    assert cost.times_ms == times
    assert cost.phases_ms == {"detection": 5.0, "agreement": 10.0, "barrier": 1.0, "first step": 9.0}
    assert cost.by == "the kernel"
    assert cost.redone == [3]
    assert cost.gap_ms == 28.0  # from 100 to 128 ms: between steps that both have committed
    assert cost.recounted == 10  # 60 to 69 were those of A in step 3
    assert cost.lost == 0
    assert only(killed((130.0004, 130.0004))).gap_ms == 30.0, "times are in microseconds, commits are not"


def test_what_is_recounted_is_of_the_event_whose_victim_it_was_if_several_overlap() -> None:
    found = killed()
    assert found.log is not None
    others = [event("join", 90, number=2, peers=[2]), event("leave", 101, C, number=3)]
    both = replace(found.log, events=(*found.log.events, *others))
    assert [cost.recounted for cost in costs(replace(found, log=both), check(found))] == [10, 0, 0]


def test_what_a_kill_costs_beyond_a_step_is_less_the_steps_before_it() -> None:
    found = evaluate(killed())
    assert [cost.step_ms for cost in found.costs] == [50.0]
    assert metrics([found])["kill_beyond_ms_p50"] == -25.0


def test_steps_before_a_kill_are_those_of_the_members_that_there_were_right_before_it() -> None:
    """Earlier there were more members, with steps of 80 ms; then there are three, with 20."""
    many, few = [A, B, C, "d" * 16], [A, B, C]
    times = [80.0 * step for step in range(1, 11)] + [900.0, 920.0, 940.0, 960.0]
    before = [receipt(step, many) for step in range(1, 11)] + [receipt(step, few, view=2) for step in range(11, 15)]
    commits = [record(at, Kind.COMMITTED, step) for step, at in enumerate(times, 1)]
    left = [
        record(970, Kind.GONE, peer=A),
        record(975, Kind.INSTALLED, 14, 3),
        record(975, Kind.OUT, view=3, peer=A),
        record(976, Kind.ACTIVE, 14, 3),
        record(1000, Kind.COMMITTED, 15),
    ]
    after = [*before, receipt(15, [B, C], view=3)]
    found = run({A: before, B: after, C: after}, {A: commits, B: [*commits, *left], C: [*commits, *left]})
    found = replace(found, log=account([event("kill", 965, A)], [A, B, C]))
    assert only(found).step_ms == 20.0
    assert metrics([evaluate(found)])["kill_beyond_ms_max"] == 15.0
    (early,) = costs(replace(found, log=account([event("kill", 910, A)], [A, B, C])), check(found))
    assert early.step_ms is None, "one commit of these members is no step"


def test_who_leaves_is_gone_by_its_own_word_and_has_left_when_it_says_so() -> None:
    found = killed()
    asked = [*found.tracks[A].records, record(107, Kind.LEAVES, 2), record(123, Kind.LEFT)]
    tracks = {**found.tracks, A: replace(found.tracks[A], records=asked)}
    left = evaluate(replace(found, tracks=tracks, log=account([event("leave", 105, A)], sorted(tracks))))
    assert (left.costs[0].by, left.costs[0].times_ms["left"]) == ("its own word", 18.0)
    assert metrics([left])["leave_left_ms_max"] == 18.0


def test_phases_add_up_to_the_time_until_all_go_on() -> None:
    cost = only(killed())
    assert sum(cost.phases_ms.values()) == pytest.approx(cost.times_ms["resumed"], abs=0.01)


@pytest.mark.parametrize(
    ("peer_id", "kinds", "later_ms"),
    [
        (B, (Kind.GONE,), -10),
        (C, (Kind.INSTALLED, Kind.OUT), 10),
        (B, (Kind.ACTIVE,), 20),
        (C, (Kind.REDO,), 10),
        (C, (Kind.FINISHED,), 8),
        (B, (Kind.REDO,), -10),
        (C, (Kind.COMMITTED,), -8),
    ],
)
def test_one_record_at_a_wrong_time_and_what_a_kill_costs_does_not_add_up(
    peer_id: str, kinds: tuple[Kind, ...], later_ms: float
) -> None:
    found = killed()
    for each, at_ms in ((B, 126), (C, 127)):
        track = found.tracks[each]
        found.tracks[each] = replace(track, records=in_order([*track.records, record(at_ms, Kind.FINISHED, 3)]))
    assert metrics([evaluate(found)])["accounting_ms_max"] == 0.0
    track = found.tracks[peer_id]
    late = [
        each._replace(time_ns=each.time_ns + round(later_ms * 1e6))
        if each.kind in kinds and each.time_ns > ns(100)
        else each
        for each in track.records
    ]
    found.tracks[peer_id] = replace(track, records=in_order(late))
    (said,) = [each for each in failures([evaluate(found)], {}) if "accounting_ms_max" in each]
    assert said.startswith("accounting_ms_max is ") and "event 1 (" in said and said[-16:] in (B, C)


def in_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: each.time_ns)


def test_a_step_that_the_barrier_commits_has_no_time_of_its_own() -> None:
    found = killed()
    tracks = dict(found.tracks)
    for peer_id in (B, C):
        records = [each for each in tracks[peer_id].records if each.kind != Kind.REDO]
        late = [replace_time(each, 131) if each.kind == Kind.ACTIVE else each for each in records]
        tracks[peer_id] = replace(tracks[peer_id], records=sorted(late, key=lambda each: each.time_ns))
    cost = only(replace(found, tracks=tracks))
    assert "active" not in cost.times_ms
    assert cost.phases_ms == {"detection": 5.0, "agreement": 10.0, "first step": 10.0}
    assert "committed as the view became active" in cost.why["first step"]
    assert cost.off_ms == 0.0


def replace_time(each: Record, time_ms: float) -> Record:
    return each._replace(time_ns=ns(time_ms))


def test_without_anybody_saying_what_was_done_changes_are_read_from_receipts() -> None:
    known = killed()
    came = PeerHistory("d" * 16, [], [record(900, Kind.INSTALLED, 4, 3)], False)  # later: it never knew the victim
    tracks = {peer_id: replace(track, has_trace=False) for peer_id, track in known.tracks.items()}
    cost = only(Run({**tracks, came.peer_id: came}, None))
    assert cost.event.do == "gone"
    assert cost.event.victims == [A]
    assert cost.times_ms["detected"] == 0.0  # times begin with its first sign
    assert cost.times_ms["agreed"] == 10.0
    assert cost.times_ms["resumed"] == 20.0


def test_of_who_was_silent_and_came_back_receipts_tell_when_the_silence_and_the_return_began() -> None:
    both, alone = [A, B], [B]
    before, during, after = [receipt(1, both)], [receipt(2, alone, view=2)], [receipt(3, both, view=3)]
    own = [record(5, Kind.ASKED), record(20, Kind.ACTIVE, 0, 1), record(30, Kind.FOLLOWED, 0)]
    own += [record(50, Kind.COMMITTED, 1), record(6000, Kind.REMOVED, 1), record(6050, Kind.ASKED)]
    own += [record(6060, Kind.FOLLOWED, 2), record(6090, Kind.ACTIVE, 2, 3), record(6100, Kind.COMMITTED, 3)]
    theirs = [
        record(20, Kind.IN, view=1, peer=A),
        record(50, Kind.COMMITTED, 1),
        record(1100, Kind.SUSPECTED, peer=A),
        record(1200, Kind.CLEARED, peer=A),
        record(2300, Kind.SUSPECTED, peer=A),
        record(3000, Kind.INSTALLED, 1, 2),
        record(3000, Kind.OUT, view=2, peer=A, how=How.SILENCE)._replace(value=1.75),
        record(3001, Kind.ACTIVE, 1, 2),
        record(3010, Kind.COMMITTED, 2),
        record(6040, Kind.SUSPECTED, peer=A),
        record(6090, Kind.IN, view=3, peer=A),
        record(6100, Kind.COMMITTED, 3),
        record(9000, Kind.GONE, peer=A),
    ]
    found = run({A: [*before, *after], B: [*before, *during, *after]}, {A: own, B: theirs})
    assert [(each.end, each.lasted_s) for each in suspicions(found)][-1] == ("it had come back", 0.05)
    gone, came = costs(found, check(found))
    assert (gone.event.time_ns, gone.by) == (ns(1250), "silence")
    assert gone.phases_ms == {"detection": 1050.0, "agreement": 700.0, "barrier": 1.0, "first step": 9.0}
    assert (came.event.time_ns, came.times_ms["resumed"], came.followed) == (ns(6050), 50.0, 1)


def test_without_anybody_saying_what_was_done_who_leaves_is_gone_by_its_own_word() -> None:
    found = killed()
    asked = [*found.tracks[A].records, record(107, Kind.LEAVES, 2), record(123, Kind.LEFT)]
    cost = only(Run({**found.tracks, A: replace(found.tracks[A], records=asked)}, None))
    assert (cost.event.time_ns, cost.by, cost.times_ms["resumed"]) == (ns(107), "its own word", 23.0)


def test_a_pause_that_nobody_noticed_says_so_and_has_its_gap() -> None:
    members = [A, B]
    receipts = [receipt(step, members) for step in (1, 2, 3)]
    commits = [record(at, Kind.COMMITTED, step) for at, step in ((50, 1), (100, 2), (1105, 3))]
    late = [commits[0], record(1103, Kind.COMMITTED, 2), commits[2]]  # steps that B had committed before are no cost
    said = "peer 1: 1 of 2 members, no majority"
    pause = event("pause", 102, A, until_ns=ns(1102), said=[said])
    cost = only(run({A: receipts, B: receipts}, {A: late, B: commits}, [pause]))
    assert cost.why["detected"] == f"no peer removed it: {said}"
    assert "resumed" not in cost.times_ms
    assert cost.gap_ms == 1005.0
    assert cost.times_ms["back_after_it_went_on"] == 3.0


def test_who_is_taken_out_just_after_its_pause_was_taken_out_for_it_and_is_back_with_its_next_seat() -> None:
    both = [A, B]
    steps = [receipt(1, both), receipt(2, both), receipt(3, [B], view=2), receipt(4, both, view=3)]
    first = [record(50, Kind.COMMITTED, 1), record(3095, Kind.COMMITTED, 2)]
    theirs = [
        *first,
        record(3149, Kind.INSTALLED, 2, 2),
        record(3149, Kind.OUT, view=2, peer=A, how=How.SILENCE),
        record(3150, Kind.ACTIVE, 2, 2),
        record(3152, Kind.COMMITTED, 3),
        record(3740, Kind.COMMITTED, 4),
    ]
    own = [*first, record(3750, Kind.COMMITTED, 4)]
    pause = event("pause", 60, A, until_ns=ns(3073))
    cost = only(run({A: [*steps[:2], steps[3]], B: steps}, {A: own, B: theirs}, [pause]))
    assert (cost.times_ms["agreed"], cost.times_ms["back_after_it_went_on"]) == (3089.0, 677.0)
    assert not cost.why["detected"].startswith("no peer removed it")
    left = [each._replace(how=How.LEAVE) if each.kind == Kind.OUT else each for each in theirs]
    then_left = only(run({A: steps[:2], B: steps}, {A: own[:2], B: left}, [pause]))
    assert then_left.why["detected"].startswith("no peer removed it") and "back" not in then_left.why
    again = event("pause", 3100, A, until_ns=ns(3140), number=2)
    first_cost, _ = costs(found := run({A: steps[:2], B: steps}, {A: own, B: theirs}, [pause, again]), check(found))
    assert first_cost.why["detected"].startswith("no peer removed it"), "what comes then may be for the second one"


def test_a_pause_by_which_somebody_is_out_has_both_ends() -> None:
    both, alone = [A, B], [B]
    before = [receipt(step, both) for step in (1, 2)]
    during = [receipt(3, alone, view=2)]
    after = [receipt(4, both, view=3)]
    own = [record(50, Kind.COMMITTED, 1), record(100, Kind.COMMITTED, 2)]
    theirs = [
        *own,
        record(3000, Kind.INSTALLED, 2, 2),
        record(3000, Kind.OUT, view=2, peer=A),
        record(3001, Kind.ACTIVE, 2, 2),
        record(3010, Kind.COMMITTED, 3),
        record(6300, Kind.COMMITTED, 4),
    ]
    pause = event("pause", 110, A, until_ns=ns(6000))
    found = run(
        {A: [*before, *after], B: [*before, *during, *after]},
        {A: [*own, record(6010, Kind.COMMITTED, 2), record(6310, Kind.COMMITTED, 4)], B: theirs},
        [pause],
    )
    cost = only(found)
    assert cost.phases_ms == {"agreement": 2890.0, "barrier": 1.0, "first step": 9.0}
    assert "by silence" in cost.why["detected"]
    assert cost.times_ms["back_after_it_went_on"] == 310.0


def paused_for_good(*then: EventOutcome) -> Run:
    """A is paused from 60 to 4000 ms, is out meanwhile, and commits no step any more."""
    theirs = [
        record(50, Kind.COMMITTED, 1),
        record(3000, Kind.INSTALLED, 2, 2),
        record(3000, Kind.OUT, view=2, peer=A),
        record(3001, Kind.ACTIVE, 2, 2),
        record(3010, Kind.COMMITTED, 2),
        record(5010, Kind.COMMITTED, 3),
    ]
    steps = [receipt(1, [A, B]), receipt(2, [B], view=2), receipt(3, [B], view=2)]
    pause = event("pause", 60, A, until_ns=ns(4000))
    return run({A: steps[:1], B: steps}, {A: theirs[:1], B: theirs}, [pause, *then])


def test_who_is_not_back_after_a_pause_is_missed_unless_it_was_ended_before() -> None:
    found = evaluate(paused_for_good())
    assert found.costs[0].why["back"] == "it did not commit a step afterwards"
    assert failures([found], {}) == ["events_missed is 1, expected == 0"]
    killed_then = evaluate(paused_for_good(event("kill", 4500, A, number=2)))
    assert killed_then.costs[0].why["returned"].endswith("since it was ended before")
    assert failures([killed_then], {}) == []


def test_a_joiner_that_is_in_no_step_until_all_are_asked_to_leave_is_missed() -> None:
    steps = [receipt(1, [A]), receipt(2, [A])]
    records = {A: [record(50, Kind.COMMITTED, 1), record(70, Kind.COMMITTED, 2)], B: [record(20, Kind.ASKED)]}
    join = event("join", 10, peers=[1])
    found = run({A: steps, B: []}, records, [join])
    assert found.log is not None
    left = replace(found.log, processes=tuple(replace(each, ended_by_experiment=True) for each in found.log.processes))
    assert failures([evaluate(replace(found, log=left))], {}) == ["events_missed is 1, expected == 0"]
    killed_then = replace(left, events=(join, event("kill", 60, B, number=2, peers=[1])))
    assert failures([evaluate(replace(found, log=killed_then))], {}) == []


def test_a_silence_is_detected_by_the_first_suspicion_of_who_went_on() -> None:
    before, after = [receipt(1, [A, B, C])], [receipt(2, [B, C], view=2)]
    theirs = [
        record(50, Kind.COMMITTED, 1),
        record(3000, Kind.INSTALLED, 2, 2),
        record(3000, Kind.OUT, view=2, peer=A),
        record(3001, Kind.ACTIVE, 2, 2),
        record(3010, Kind.COMMITTED, 2),
    ]
    tracks = {
        A: theirs[:1],
        B: sorted([*theirs, record(1100, Kind.SUSPECTED, peer=A)], key=lambda each: each.time_ns),
        C: sorted([*theirs, record(1400, Kind.SUSPECTED, peer=A)], key=lambda each: each.time_ns),
    }
    found = run({A: before, B: [*before, *after], C: [*before, *after]}, tracks, [event("cut", 100, A)])
    cost = only(found)
    assert (cost.times_ms["detected"], cost.times_ms["detected_last"], cost.by) == (1000.0, 1300.0, "silence")
    assert "detected" not in cost.why
    assert [(each.by, each.end, each.lasted_s) for each in suspicions(found)] == [
        (B, "the others continued without it", 1.9),
        (C, "the others continued without it", 1.6),
    ]


def test_a_change_of_links_has_the_steps_before_and_after_it_until_something_else_is_done() -> None:
    times = [10, 20, 30, 40, 90, 140, 190, 200, 210, 220]
    commits = [record(at, Kind.COMMITTED, step) for step, at in enumerate(times, 1)]
    receipts = [receipt(step, [A, B]) for step in range(1, len(times) + 1)]
    events = [event("link", 41, number=1), event("heal", 191, number=2)]
    found = run({A: receipts, B: receipts}, {A: commits, B: commits}, events)
    link, heal = costs(found, check(found))
    assert link.times_ms == {"step_before": 10.0, "step_after": 50.0}
    assert heal.times_ms == {"step_before": 50.0, "step_after": 10.0}


def test_a_host_that_vanishes_takes_all_its_peers_along_and_is_known_by_silence() -> None:
    everybody = [A, B, C]
    before, after = [receipt(1, everybody)], [receipt(2, [C], view=2)]
    records = [
        record(50, Kind.COMMITTED, 1),
        record(2000, Kind.INSTALLED, 2, 2),
        record(2000, Kind.OUT, view=2, peer=A),
        record(2000, Kind.OUT, view=2, peer=B),
        record(2001, Kind.ACTIVE, 2, 2),
        record(2011, Kind.COMMITTED, 2),
    ]
    vanished = event("kill_host", 100, victims=[A, B])
    cost = only(run({A: before, B: before, C: [*before, *after]}, {A: records[:1], C: records}, [vanished]))
    assert cost.phases_ms == {"agreement": 1900.0, "barrier": 1.0, "first step": 10.0}
    assert "by silence" in cost.why["detected"]
    suspected = [records[0], record(1200, Kind.SUSPECTED, peer=B), record(1500, Kind.SUSPECTED, peer=A), *records[1:]]
    cost = only(run({A: before, B: before, C: [*before, *after]}, {A: records[:1], C: suspected}, [vanished]))
    assert cost.times_ms["detected"] == 1100.0, "by the first of its peers that is suspected"


def test_a_joiner_is_followed_from_its_start_until_it_counts() -> None:
    both = [A, B]
    receipts = {A: [receipt(1, [A]), receipt(2, both, view=2)], B: [receipt(2, both, view=2)]}
    kinds = [(20, Kind.ASKED), (30, Kind.STATE), (45, Kind.LOADED), (60, Kind.ACTIVE)]
    joiner = [*(record(at, kind) for at, kind in kinds), record(50, Kind.FOLLOWED, 1), record(70, Kind.COMMITTED, 2)]
    records = {A: [record(50, Kind.COMMITTED, 1), record(70, Kind.COMMITTED, 2)], B: joiner}
    cost = only(run(receipts, records, [event("join", 0, peers=[1])]))
    assert cost.phases_ms == {
        "process start": 1.0,
        "p2p.join": 19.0,
        "until a state came": 10.0,
        "state": 15.0,
        "catching up": 15.0,
        "first step": 10.0,
    }
    assert cost.followed == 1


def test_an_event_that_has_not_happened_fails_the_experiment() -> None:
    missed = event("kill", 0, A, why_not="the script ended at step 4, before that")
    missed.time_ns = 0
    found = replace(killed(), log=account([missed], [A, B, C]))
    assert failures([evaluate(found)], {}) == ["events_missed is 1, expected == 0"]


def test_expectations_are_held_against_the_figures() -> None:
    evaluated = [evaluate(killed())]
    assert metrics(evaluated)["kill_resume_ms_max"] == 25.0
    expect = {
        "kill_resume_ms_p99": Bound("<", 20.0),
        "steps_lost": Bound("==", 0.0),
        "join_resume_ms_p50": Bound("<", 1.0),
    }
    assert failures(evaluated, expect) == [
        "kill_resume_ms_p99 is 25, expected < 20",
        "join_resume_ms_p50 is not known: no event had one",
    ]


def test_a_removal_whose_records_were_overwritten_is_not_missed_and_its_time_is_unknown() -> None:
    whole = killed()
    tracks = {peer: replace(track, records=track.records[:2]) for peer, track in whole.tracks.items()}
    last = whole.tracks[B].records[-1]._replace(number=100)
    tracks[B] = replace(tracks[B], records=[*tracks[B].records, last])
    evaluated = evaluate(replace(whole, tracks=tracks))
    (cost,) = evaluated.costs
    assert cost.why["agreed"].startswith("receipts show that the others continued without it")
    assert "resumed" not in cost.times_ms and failures([evaluated], {}) == []

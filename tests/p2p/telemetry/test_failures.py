"""The first failure of a run, and its consequences."""

from dataclasses import replace

from p2p.telemetry.failures import ProcessTrace, consequences, failures, sentence, shortened
from p2p.telemetry.records import How, Kind, Record

A, B, C = "a" * 16, "b" * 16, "c" * 16


def record(time_ms: float, kind: Kind, step: int = -1, peer: str = "", how: int = How.UNKNOWN) -> Record:
    return Record(0, round(time_ms * 1e6), kind, how, 0, step, 0, peer, 0.0)


def steps(*times_ms: float) -> list[Record]:
    """Commits of steps 1, 2, ... at these times."""
    return [
        each
        for step, time_ms in enumerate(times_ms, 1)
        for each in (record(time_ms, Kind.COMMITTED, step), record(time_ms, Kind.RECEIVED, step))
    ]


KILLED = ProcessTrace(
    peer_id=A, name="0", records=steps(50, 100), code=-9, how="was killed by SIGKILL", has_failed=True
)
"""A peer killed in step 3, some time after 100 ms."""


def survivor(peer_id: str, name: str, gone_ms: float, how: int = How.KERNEL) -> ProcessTrace:
    """A peer that waits for step 3 from 110 ms on, and has redone it at 150 ms."""
    records = [
        *steps(50, 100),
        record(110, Kind.SUBMITTED, 3),
        record(gone_ms, Kind.GONE, peer=A, how=how),
        record(gone_ms + 5, Kind.OUT, peer=A),
        record(gone_ms + 6, Kind.REDO, 3),
        record(150, Kind.COMMITTED, 3),
    ]
    return ProcessTrace(peer_id=peer_id, name=name, records=records)


def test_a_kill_is_told_with_who_waited_who_knew_and_what_it_cost() -> None:
    computing = ProcessTrace(peer_id=C, name="2", records=[*steps(50, 100), record(160, Kind.COMMITTED, 3)])
    (failure,) = failures([KILLED, survivor(B, "1", 120), computing])
    assert sentence(failure) == "peer 0 failed first, in step 3: it was killed by SIGKILL while computing step 3"
    assert consequences(failure) == [
        "peer 1 waited for it, exchanging step 3 with the others, 10 ms already",
        "peer 2 was computing step 3",
        "known by the kernel; all that continued had a step after 40 ms, step 3 redone",
    ]


def test_a_death_of_which_nobody_has_seen_the_end_is_known_by_the_others() -> None:
    unseen = replace(KILLED, code=None, how="", has_failed=None)
    (dead,) = failures([unseen, survivor(B, "1", 120, How.LAUNCHER)])
    assert (dead.how, dead.known_by, dead.time_ns) == ("died", "its launcher", 120_000_000)
    silent = ProcessTrace(peer_id=B, name="1", records=[*steps(50, 100), record(3000, Kind.OUT, peer=A), *steps()])
    (failure,) = failures([unseen, silent])
    assert failure.how == "fell silent: the others continued without it"
    assert failure.others[0].went_on_s is None
    assert consequences(failure)[-1] == "peer 1 committed nothing after it"


def test_a_peer_that_was_out_for_a_while_and_one_that_left_have_not_failed() -> None:
    records = [*steps(50, 100), record(200, Kind.OUT, peer=A), record(300, Kind.IN, peer=A)]
    left = ProcessTrace(peer_id=C, name="2", records=[*steps(50), record(60, Kind.LEAVES), record(61, Kind.LEFT)])
    returned = ProcessTrace(peer_id=A, name="0", records=[record(150, Kind.REMOVED), record(400, Kind.COMMITTED, 9)])
    other = ProcessTrace(peer_id=B, name="1", records=[*records, record(310, Kind.OUT, peer=C)])
    assert failures([returned, other, left]) == []


def test_who_was_stopped_and_killed_later_fell_silent_first() -> None:
    stopped = replace(KILLED, ended_ns=5_000_000_000)
    other = ProcessTrace(peer_id=B, name="1", records=[*steps(50, 100), record(3000, Kind.OUT, peer=A), *steps(3010)])
    (failure,) = failures([stopped, other])
    assert failure.time_ns == 3_000_000_000
    assert failure.how == "fell silent: the others continued without it, and 2.0 s later it was killed by SIGKILL"


def test_who_was_stopped_until_its_launcher_ended_it_with_the_run_has_failed_when_it_fell_silent() -> None:
    stopped = replace(KILLED, ended_ns=5_000_000_000, how="was killed by SIGKILL (by its launcher)", has_failed=False)
    other = ProcessTrace(peer_id=B, name="1", records=[*steps(50, 100), record(3000, Kind.OUT, peer=A), *steps(3010)])
    (failure,) = failures([stopped, other])
    assert failure.how.endswith(
        "the others continued without it, and 2.0 s later it was killed by SIGKILL (by its launcher)"
    )
    assert failures([stopped, replace(other, records=steps(50, 100))]) == [], "nobody has gone on without it"


def test_who_ended_since_it_waited_comes_after_the_one_that_stood_still() -> None:
    """The first peer gives up waiting for the second, which hangs, and is killed only then."""
    waiter = ProcessTrace(
        peer_id=B,
        name="1",
        records=[*steps(50, 100), record(110, Kind.SUBMITTED, 3), record(9000, Kind.LEAVES)],
        ended_ns=9_100_000_000,
        code=1,
        how="ended with exit code 1",
        has_failed=True,
        last_words="StepTimeout",
    )
    hanging = replace(KILLED, ended_ns=20_000_000_000)
    first, then = failures([waiter, hanging])
    assert (first.name, then.name, then.after) == ("0", "1", "0")
    assert then.waited_for == ("0",)
    assert sentence(then, is_first=False) == (
        "peer 1 failed then, in step 3: it ended with exit code 1 while exchanging step 3 with the others (StepTimeout)"
    )
    killed_too = replace(waiter, code=-9, how="was killed by SIGKILL")
    assert [each.name for each in failures([killed_too, hanging])] == ["1", "0"]  # it was killed from outside


def test_a_peer_that_stands_still_and_has_not_failed_is_named_by_those_that_gave_up() -> None:
    """Its script is stuck; its loop receives the others' departures."""
    stuck = ProcessTrace(peer_id=A, name="0", records=[*steps(50, 100), record(9001, Kind.INSTALLED, 2)])
    waiter = ProcessTrace(
        peer_id=B,
        name="1",
        records=[*steps(50, 100), record(110, Kind.SUBMITTED, 3), record(9100, Kind.LEAVES)],
        ended_ns=9_200_000_000,
        code=1,
        how="ended with exit code 1",
        has_failed=True,
    )
    (failure,) = failures([stuck, waiter])
    assert failure.waited_for == ("0",)
    assert consequences(failure)[0] == "it waited for peer 0, which was computing step 3 for 9000 ms already"


def test_a_failure_after_which_steps_were_done_is_not_why_the_next_one_failed() -> None:
    later = replace(survivor(B, "1", 120), ended_ns=900_000_000, code=1, how="ended with exit code 1", has_failed=True)
    first, then = failures([replace(KILLED, ended_ns=119_000_000), later])
    assert (first.name, then.name, then.after) == ("0", "1", "")
    at_once = replace(later, ended_ns=130_000_000)
    assert [each.after for each in failures([replace(KILLED, ended_ns=119_000_000), at_once])] == ["", "0"]


def test_a_process_that_never_joined_has_failed_without_a_step() -> None:
    never = ProcessTrace(peer_id="", name="3", ended_ns=10, code=2, how="ended with exit code 2", has_failed=True)
    (failure,) = failures([never])
    assert sentence(failure) == "peer 3 failed first, before its first step: it ended with exit code 2"
    assert consequences(failure) == ["no other peer was there"]


def test_who_suspected_it_is_said_unless_it_has_denied_that() -> None:
    silent = ProcessTrace(peer_id=A, name="0", records=steps(50, 100))
    watching = [*steps(50, 100), record(900, Kind.SUSPECTED, peer=A), record(3000, Kind.OUT, peer=A)]
    told = [*steps(50, 100), record(950, Kind.SUSPECTED, peer=A), record(2000, Kind.LOST, peer=A)]
    fooled = [*steps(50, 100), record(120, Kind.SUSPECTED, peer=A), record(130, Kind.CLEARED, peer=A)]
    trails = [
        ProcessTrace(peer_id=peer_id, name=name, records=records)
        for peer_id, name, records in ((B, "1", watching), (C, "2", told), ("d" * 16, "3", fooled))
    ]
    (failure,) = failures([silent, *trails])
    assert failure.suspected == (("1", 2.1), ("2", 2.05))
    assert "suspected by peer 1 and 1 more, 2100 ms before" in consequences(failure)


def test_what_the_others_were_at_when_one_raised_is_of_before_they_went_on_without_it() -> None:
    """Their new view is what came of it. It says that it leaves at once, and is gone only when they have that view."""
    raised = ProcessTrace(
        peer_id=A,
        name="0",
        records=[*steps(50, 100), record(120, Kind.LEAVES), record(126, Kind.LEFT)],
        code=1,
        how="ended with exit code 1",
        has_failed=True,
        last_words="ValueError",
    )
    alone = [
        *steps(50, 100),
        record(110, Kind.SUBMITTED, 3),
        record(124, Kind.INSTALLED)._replace(view=3),
        record(124, Kind.OUT, peer=A)._replace(view=3),
        record(125, Kind.COMMITTED, 3),
    ]
    other = ProcessTrace(peer_id=B, name="1", records=alone)
    (failure,) = failures([raised, other])
    waited = "peer 1 waited for it, exchanging step 3 with the others, 10 ms already"
    assert consequences(failure) == [waited, "all that continued had a step after 5 ms"]
    unknown = replace(raised, records=raised.records[:-2])  # the first sign is the view without it
    (failure,) = failures([unknown, other])
    assert consequences(failure)[0] == waited.replace("10 ms", "14 ms")


def test_nobody_has_waited_for_an_observer() -> None:
    fed = [record(60, Kind.ASKED), record(61, Kind.LOADED, 1), record(101, Kind.FOLLOWED, 2)]
    observer = replace(KILLED, records=fed)
    waits = survivor(B, "1", 120)
    (failure,) = failures([observer, waits])
    assert consequences(failure)[0] == "peer 1 was exchanging step 3 with the others"
    (failure,) = failures([replace(observer, records=[*fed, record(102, Kind.ACTIVE, 2)]), waits])
    assert consequences(failure)[0].startswith("peer 1 waited for it")


def test_what_a_peer_wrote_last_is_cut_visibly_and_its_greeting_says_nothing_of_its_end() -> None:
    assert shortened("shoal: joined swarm train-1a2b3c4d at step 0, 4 members") == ""
    assert shortened("shoal: joined the wrong one") == "joined the wrong one"
    assert shortened("x" * 200) == "x" * 200
    assert shortened("x" * 201) == "x" * 199 + "…"

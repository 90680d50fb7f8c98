"""What a launcher says of its run, from what its peers report."""

import json
from dataclasses import asdict, replace

from p2p.launch.places import Place
from p2p.launch.progress import Progress
from p2p.launch.standing import Standing
from tests.p2p.launch.standings import standing

A, B, C, D = ("a" * 16, "b" * 16, "c" * 16, "d" * 16)


class Run:
    """Two places, taken by `A` and `B`; `C` is a peer of another launcher of this host, `D` of another host."""

    def __init__(self) -> None:
        self.places = [Place(0, "0"), Place(1, "1")]
        for place in self.places:
            place.child = object()  # type: ignore[assignment]  # one that runs
        self.here = {C: "7"}
        self.progress = Progress(self.places, self.here.get, 100.0)

    def report(self, index: int, now: float = 100.0, **changes: object) -> list[str]:
        return self.progress.take(self.places[index], replace(standing((A, B)[index]), **changes), now)  # type: ignore[arg-type]

    def members(self, view: int, *members: tuple[str, int], done: int = 5, reasons: tuple[str, ...] = ()) -> list[str]:
        return self.report(0, has_begun=True, done=done, view=view, members=members, reasons=reasons)


def test_a_report_is_read_as_it_was_written_and_another_version_is_none() -> None:
    one = standing()
    assert Standing.parse(json.dumps(asdict(one)).encode()) == one
    assert Standing.parse(b'{"pid": 1}') is None


def test_who_comes_goes_and_returns_is_one_line_each_with_its_name_and_the_reason() -> None:
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1), (B, 1)) == []
    assert run.members(3, (A, 1), (B, 1), (C, 1)) == ["peer 7 has joined at step 5; 3 members"]
    assert run.members(3, (A, 1), (B, 1), (C, 1)) == []
    assert run.members(4, (A, 1), (B, 1), (C, 2), (D, 1), done=6) == [
        "peer 7 is back at step 6; 4 members",
        "peer dddddddd has joined at step 6; 4 members",
    ]
    why = (f"{D} may be dead: nothing", f"{D} is dead: its process has ended", f"1 of 2: without {D}")
    assert run.members(5, (A, 1), (B, 1), (C, 2), reasons=why) == [
        "peer dddddddd is out at step 5; 3 members (dddddddd is dead: its process has ended)"
    ]


def test_a_name_outlives_the_entry_of_its_peer() -> None:
    run = Run()
    assert run.members(2, (A, 1), (C, 1)) == []
    run.here.clear()
    assert run.members(3, (A, 1)) == ["peer 7 is out at step 5; 1 member"]


def test_what_our_own_peers_and_their_launcher_say_is_not_said_again() -> None:
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1)) == []
    assert run.members(3, (A, 1), (B, 1)) == []
    run.places[1].end(-9, 101.0, 0)
    assert run.members(4, (A, 1)) == []


def test_one_of_ours_that_is_done_with_it_has_left() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    run.places[1].end(0, 101.0, 0)
    assert run.members(3, (A, 1)) == ["peer 1 is out at step 5; 1 member"]


def test_the_rate_is_that_of_the_last_30_seconds() -> None:
    run = Run()
    assert run.progress.look(130.0) == []
    run.members(2, (A, 1), (B, 1), done=0)
    run.members(2, (A, 1), (B, 1), done=300)
    assert run.progress.look(159.0) == []
    assert run.progress.look(160.0) == ["step 300, 5 steps/s, 2 members, 2 of them here"]
    run.members(2, (A, 1), (B, 1), done=330)
    assert run.progress.look(190.0) == ["step 330, 1 steps/s, 2 members, 2 of them here"]


def test_who_waits_is_named_every_5_seconds_by_one_of_them() -> None:
    run = Run()
    said: list[tuple[float, list[str]]] = []
    for second in range(100, 112):
        for index in (0, 1):
            lines = run.report(index, float(second), waits=f"waits for 1 of 3 peers; here are {A}, {C}")
            said += [(float(second), lines)] if lines else []
    text = "peer 0 waits for 1 of 3 peers; here are 0, 7"
    assert said == [(105.0, [f"{text} (for 5 s)"]), (110.0, [f"{text} (for 10 s)"])]


def test_who_goes_on_has_not_waited() -> None:
    run = Run()
    for second in range(100, 120):
        assert run.report(0, float(second), done=second // 3, waits="waits") == []


def test_it_is_certain_that_there_is_no_start_when_too_few_are_left_to_come() -> None:
    run = Run()
    run.places.append(Place(2, "2"))
    run.places[2].child = run.places[0].child
    run.progress = Progress(run.places, {C: "7"}.get, 100.0)
    assert run.progress.why_no_start(0) == ""  # nobody has reported
    run.report(0)
    assert run.progress.why_no_start(0) == ""
    run.places[1].end(1, 101.0, 1)
    assert run.progress.why_no_start(0) == ""  # it is started again
    run.places[1].end(1, 101.0, 0)
    run.places[1].restart_at = float("inf")
    assert run.progress.why_no_start(1) == ""  # somebody else is here
    assert run.progress.why_no_start(0) == (
        "the first step waits for 3 peers (--min-peers), and only 2 are left to come, since peer 1 has ended; "
        "start again, or say --min-peers 2"
    )
    run.report(0, needed=4)
    assert run.progress.why_no_start(0) == ""  # more than were started here are expected
    run.report(0, has_begun=True, done=0)
    assert run.progress.why_no_start(0) == ""  # it has begun

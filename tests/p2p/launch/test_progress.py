"""Messages of a launcher about its run, from the reports of its peers."""

from dataclasses import replace
from typing import Any

import pytest

from p2p.launch.peer_slots import PeerSlot
from p2p.launch.progress import Progress
from p2p.telemetry.snapshot import Change, Counted, Waiting
from tests.p2p.launch.standings import standing

A, B, C, D = ("a" * 16, "b" * 16, "c" * 16, "d" * 16)


class Run:
    """Two places, taken by `A` and `B`; `C` is a peer of another launcher of this host, `D` of another host."""

    def __init__(self) -> None:
        self.places = [PeerSlot(0, "0"), PeerSlot(1, "1")]
        for place in self.places:
            place.child = object()  # type: ignore[assignment]  # one that runs
        self.here = {C: "7"}
        self.events = [(0, "view 1")]
        self.progress = Progress(self.places, self.here.get, 100.0)

    def report(self, index: int, now: float = 100.0, **changes: object) -> list[str]:
        return self.progress.add_report(self.places[index], replace(standing((A, B)[index]), **changes), now)  # type: ignore[arg-type]

    def members(
        self,
        view: int,
        *members: tuple[str, int],
        step: int = 5,
        reasons: tuple[str, ...] = (),
        redone: int = -1,
        now: float = 100.0,
    ) -> list[str]:
        """Let all members continue in this view, for these new reasons."""
        self.events += [(len(self.events) + number, reason) for number, reason in enumerate(reasons, 1)]
        change = Change(view=view, step=step, waited_s=0.014, redone=redone)
        seen: Any = {"step": step, "view": view, "members": members, "events": tuple(self.events)}
        return self.report(0, now, has_begun=True, change=change, time_ns=len(self.events), **seen)


def test_who_comes_goes_and_returns_is_one_line_each_with_its_name_and_the_reason() -> None:
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1), (B, 1)) == []
    assert run.members(3, (A, 1), (B, 1), (C, 1)) == ["peer 7 has joined at step 5; 3 members; the others waited 14 ms"]
    assert run.members(3, (A, 1), (B, 1), (C, 1)) == []
    assert run.members(4, (A, 1), (B, 1), (C, 2), (D, 1), step=6) == [
        "peer 7 is back at step 6; 4 members; the others waited 14 ms",
        "peer dddddddd has joined at step 6; 4 members; the others waited 14 ms",
    ]
    why = (f"{D} may be dead: nothing", f"{D} is dead: its process has ended", f"1 of 2: without {D}")
    assert run.members(5, (A, 1), (B, 1), (C, 2), reasons=why) == [
        "peer dddddddd is out at step 5; 3 members (dddddddd is dead: its process has ended); "
        "resumed after 14 ms, no step lost"
    ]


def test_who_has_left_is_not_said_to_be_suspect_though_it_is_heard_no_more() -> None:
    """The next view begins with the next step of its members, which may take a while."""
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1), (D, 1)) == []
    why = (f"{D} leaves", f"1 of 2: without {D}", f"{D} may be dead: its link", f"{D} is suspect: {A} had no answer")
    line = "peer dddddddd is out at step 5; 1 member (dddddddd leaves); resumed after 14 ms, no step lost"
    assert run.members(3, (A, 1), reasons=why) == [line]


def test_that_a_peer_has_left_before_says_nothing_of_why_it_is_out_now() -> None:
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1), (D, 1)) == []
    assert len(run.members(3, (A, 1), reasons=(f"{D} leaves",))) == 1
    assert len(run.members(4, (A, 1), (D, 2))) == 1
    (line,) = run.members(5, (A, 1), reasons=(f"{D} is dead: its process has ended",))
    assert "(dddddddd is dead: its process has ended)" in line


def test_one_of_ours_that_was_out_for_a_while_is_back() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    assert run.members(3, (A, 1)) == []
    assert len(run.progress.tick(110.0)) == 1
    assert run.members(4, (A, 1), (B, 2), step=9) == ["peer 1 is back at step 9; 2 members; the others waited 14 ms"]


def test_that_a_peer_is_out_is_said_before_that_it_is_back_however_soon_that_is() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    assert run.members(3, (A, 1)) == []
    assert run.members(4, (A, 1), (B, 2), step=9) == [
        "peer 1 is out at step 5; 1 member; resumed after 14 ms, no step lost",
        "peer 1 is back at step 9; 2 members; the others waited 14 ms",
    ]
    assert run.progress.flush() == []


def test_a_name_outlives_the_entry_of_its_peer() -> None:
    run = Run()
    assert run.members(2, (A, 1), (C, 1)) == []
    run.here.clear()
    assert run.members(3, (A, 1)) == ["peer 7 is out at step 5; 1 member; resumed after 14 ms, no step lost"]


def test_what_our_own_peers_say_of_their_coming_is_not_said_again() -> None:
    run = Run()
    run.report(1)
    assert run.members(2, (A, 1)) == []
    assert run.members(3, (A, 1), (B, 1)) == []


@pytest.mark.parametrize("is_cost_first", [False, True])
def test_a_death_is_one_line_with_what_it_has_cost_whichever_is_known_first(is_cost_first: bool) -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    told = run.members(3, (A, 1), redone=6) if is_cost_first else []
    run.places[1].end(-9, 101.0, 0)
    told += run.progress.died(run.places[1], "peer 1 was killed", 101.0)
    told += [] if is_cost_first else run.members(3, (A, 1), redone=6)
    assert told == ["peer 1 was killed; resumed after 14 ms, no step lost, step 6 redone"]
    assert run.progress.flush() == []


def test_a_death_is_not_kept_back_for_long_and_not_where_nobody_is_left_to_say_what_it_cost() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    run.places[1].end(-9, 101.0, 0)
    assert run.progress.died(run.places[1], "peer 1 was killed", 101.0) == []
    assert (run.progress.deadline, run.progress.tick(102.4)) == (102.5, [])
    assert run.progress.tick(102.5) == ["peer 1 was killed"]
    run.places[0].end(-9, 103.0, 0)
    assert run.progress.died(run.places[0], "peer 0 was killed", 103.0) == ["peer 0 was killed"]


def test_what_a_death_has_cost_is_told_later_where_nobody_could_say_it_in_time() -> None:
    """All who are left were stopped, or somebody holds the interpreter; meanwhile another one has its place."""
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    run.places[1].end(-9, 101.0, 1)
    assert run.progress.died(run.places[1], "peer 1 was killed; started again in 1 s", 101.0) == []
    assert run.progress.tick(102.5) == ["peer 1 was killed; started again in 1 s"]
    run.places[1].begin(run.places[0].child, 103.0)  # type: ignore[arg-type]
    assert run.progress.add_report(run.places[1], standing(C), 104.0) == []
    why = f"{B} is dead: its process has ended"
    assert run.members(3, (A, 1), step=5, reasons=(why,), redone=6) == [
        "the others continued without peer 1 (pid 1) at step 5; 1 member; "
        "resumed after 14 ms, no step lost, step 6 redone"
    ]
    assert run.members(4, (A, 1), (C, 1)) == []
    assert run.progress.flush() == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_who_leaves_at_the_end_with_all_others_is_out_of_nothing(is_stopped: bool) -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    assert run.members(3, (A, 1), reasons=(f"{B} leaves",)) == []
    run.report(0, has_begun=True, left_cleanly=True, view=3, members=((A, 1),))
    if is_stopped:
        assert len(run.progress.tick(101.5)) == 1
    else:
        run.report(1, has_begun=True, left_cleanly=True, view=2)
        assert run.progress.tick(101.5) == run.progress.flush() == []
        run.places[0].end(1, 102.0, 0)  # its script has failed behind that
        assert run.progress.died(run.places[0], "peer 0 ended with exit code 1", 102.0) == []
        assert run.progress.flush() == ["peer 0 ended with exit code 1"]


def test_deaths_at_about_the_same_time_are_told_in_their_order_where_nobody_is_left() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    run.places[1].end(-9, 101.0, 0)
    assert run.progress.died(run.places[1], "peer 1 was killed; 1 left", 101.0) == []
    run.places[0].end(-9, 101.0, 0)
    said = run.progress.died(run.places[0], "peer 0 was killed; none left", 101.0)
    assert said == ["peer 1 was killed; 1 left", "peer 0 was killed; none left"]
    assert run.progress.flush() == []


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("is_one_alone", [False, True])
def test_deaths_at_about_the_same_time_are_told_in_their_order_by_who_is_left(first: int, is_one_alone: bool) -> None:
    run = Run()
    run.places.append(PeerSlot(2, "2"))
    run.places[2].child = run.places[0].child
    run.progress = Progress(run.places, run.here.get, 100.0)
    run.report(1)
    run.progress.add_report(run.places[2], standing(C), 100.0)
    ids = A, B, C
    run.members(2, *((each, 1) for each in ids))
    second = 3 - first
    for place, left in ((first, 2), (second, 1)):
        run.places[place].end(-9, 101.0, 0)
        assert run.progress.died(run.places[place], f"peer {place} was killed; {left} left", 101.0) == []
    cost = "; resumed after 14 ms, no step lost"
    said = run.members(3, (A, 1), (ids[first], 1)) if is_one_alone else run.members(3, (A, 1))
    assert said == [
        f"peer {first} was killed; 2 left{'' if is_one_alone else cost}",
        f"peer {second} was killed; 1 left{cost}",
    ]
    assert run.progress.flush() == []


def test_who_is_out_and_lives_is_said_to_be_out() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    why = (f"{B} is out: silent for 2.7 s", f"1 of 2 members of view 2 are here; without {B}", f"{B} is suspect")
    assert run.members(3, (A, 1), reasons=why) == []
    assert run.progress.tick(101.5) == [
        "peer 1 is out at step 5; 1 member (silent for 2.7 s); resumed after 14 ms, no step lost"
    ]


def test_who_is_out_was_silent_though_the_first_that_says_so_was_stopped_itself_and_has_heard_no_silence() -> None:
    run = Run()
    run.places.append(PeerSlot(2, "2"))
    run.places[2].child = run.places[0].child
    run.progress = Progress(run.places, run.here.get, 100.0)
    run.report(1)
    run.members(2, (A, 1), (B, 1), (C, 1))
    assert run.members(3, (A, 1), (C, 1), reasons=(f"{B} is out: it has left, or not all others could hear it",)) == []
    heard = ((2, f"{B} is out: silent for 2.7 s"), (3, f"{B} is suspect"))
    change: Any = {"view": 3, "members": ((A, 1), (C, 1)), "change": Change(view=3)}
    assert (
        run.progress.add_report(run.places[2], replace(standing(C), has_begun=True, events=heard, **change), 100.1)
        == []
    )
    assert run.progress.tick(101.5) == [
        "peer 1 is out at step 5; 2 members (silent for 2.7 s); resumed after 14 ms, no step lost"
    ]


def test_a_view_that_not_all_have_come_to_yet_is_not_told() -> None:
    run = Run()
    run.members(2, (A, 1), (B, 1))
    assert run.report(0, has_begun=True, step=5, view=3, members=((A, 1),), change=Change(view=2)) == []


def test_the_first_step_is_said_once_with_how_long_it_took() -> None:
    run = Run()
    run.places[0].started_s, run.places[1].started_s = 0.5, 0.75
    counted = Counted(steps=1, samples=4, since_ns=2_500_000_000)
    said = run.report(0, has_begun=True, step=1, counted=counted, members=((A, 1), (B, 1)))
    assert said == ["first step 2.0 s after the start, 1.5 s after the last p2p.join; 2 members"]
    assert run.report(1, has_begun=True, step=1, counted=counted) == []


def test_the_first_step_that_counts_a_joiner_is_said_with_how_long_it_took() -> None:
    run = Run()
    run.places[1].started_s = 0.75
    counted = Counted(steps=1, samples=4, since_ns=3_000_000_000)
    said = run.report(1, has_begun=True, step=90, counted=counted, members=((A, 1), (B, 1), (C, 1)))
    assert said == ["peer 1 counts, 2.2 s after its start, 2.0 s after p2p.join; 3 members"]


def test_what_scripts_have_logged_is_in_the_line_of_the_rate_as_a_mean() -> None:
    run = Run()
    run.report(0, has_begun=True, step=60)
    run.report(0, 129.0, has_begun=True, step=60, logged={"loss": 2.0, "lr": 0.1})
    run.report(1, 129.0, has_begun=True, step=60, logged={"loss": 3.0})
    assert run.progress.tick(130.0) == ["step 60, 0 steps/s, 0 members, 0 of them here, loss 2.5, lr 0.1"]


def test_one_of_ours_that_is_done_with_it_has_left() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (B, 1))
    run.places[1].end(0, 101.0, 0)
    assert run.members(3, (A, 1)) == ["peer 1 is out at step 5; 1 member; resumed after 14 ms, no step lost"]


def test_the_rate_is_that_of_the_last_30_seconds() -> None:
    run = Run()
    assert run.progress.tick(130.0) == []
    run.report(1, 140.0)
    run.members(2, (A, 1), (B, 1), step=0, now=140.0)
    run.members(2, (A, 1), (B, 1), step=300, now=168.0)
    assert run.progress.tick(169.0) == [], "what was before the first step, imports mostly, is no part of a rate"
    assert run.progress.tick(170.0) == ["step 300, 10 steps/s, 2 members, 2 of them here"]
    run.members(2, (A, 1), (B, 1), step=330, now=196.0)
    assert run.progress.tick(200.0) == ["step 330, 1 steps/s, 2 members, 2 of them here"]
    assert run.progress.tick(230.0) == [
        "step 330 is the last that a peer here reported, 34 s ago: each is stopped, or something holds its "
        "interpreter; `shoal status` says which"
    ]


def test_who_has_no_seat_yet_is_none_of_the_members_that_are_here() -> None:
    run = Run()
    run.report(1)
    run.members(2, (A, 1), (D, 1), step=0)
    run.members(2, (A, 1), (D, 1), step=300, now=129.0)
    assert run.progress.tick(130.0) == ["step 300, 10 steps/s, 2 members, 1 of them here"]


def test_where_all_have_died_what_is_said_is_of_those_who_began_anew() -> None:
    run = Run()
    first, second = "1" * 32, "2" * 32
    run.report(1, lineage=first)
    for step, now in ((0, 100.0), (300, 129.0)):
        run.report(
            0, now, has_begun=True, lineage=first, step=step, view=7, members=((A, 1), (B, 1)), change=Change(view=7)
        )
    assert run.progress.tick(130.0) == ["step 300, 10 steps/s, 2 members, 2 of them here"]
    for place in run.places:
        child = place.child
        place.end(-9, 131.0, 1)
        place.begin(child, 132.0)  # type: ignore[arg-type]
    anew: Any = {"has_begun": True, "lineage": second, "change": Change(view=1)}
    assert run.report(0, 135.0, step=0, view=1, members=((A, 2),), **anew) == []
    assert run.progress.done == 0
    change = {"view": 2, "members": ((A, 2), (D, 1)), "change": Change(view=2, step=60, waited_s=0.014)}
    joined = ["peer dddddddd has joined at step 60; 2 members; the others waited 14 ms"]
    assert run.report(0, 164.0, step=60, **{**anew, **change}) == joined
    assert run.progress.tick(160.0) == []
    assert run.progress.tick(165.0) == ["step 60, 2 steps/s, 2 members, 1 of them here"]


def test_a_peer_of_another_lineage_changes_nothing_as_long_as_one_of_ours_goes_on() -> None:
    run = Run()
    seen: Any = {"has_begun": True, "members": ((A, 1),), "change": Change(view=7)}
    run.report(0, lineage="1" * 32, step=300, view=7, **seen)
    run.report(1, lineage="2" * 32, step=0, view=1, **seen)
    assert run.progress.done == 300


def test_who_waits_is_named_every_5_seconds_by_one_of_them() -> None:
    run = Run()
    said: list[tuple[float, list[str]]] = []
    for second in range(100, 112):
        for index in (0, 1):
            lines = run.report(index, float(second), waiting=Waiting(text=f"waits for 1 of 3 peers; here are {A}, {C}"))
            said += [(float(second), lines)] if lines else []
    text = "peer 0 waits for 1 of 3 peers; here are 0, 7"
    assert said == [(105.0, [f"{text} (for 5 s)"]), (110.0, [f"{text} (for 10 s)"])]


def test_who_has_taken_the_place_of_a_peer_that_waited_hides_nobody_who_waits_now() -> None:
    run = Run()
    run.report(0, waiting=Waiting(text="waits"))
    run.places[0].end(-9, 101.0, 1)
    run.places[0].begin(run.places[1].child, 101.0)  # type: ignore[arg-type]
    said = [line for second in range(101, 108) for line in run.report(1, float(second), waiting=Waiting(text="waits"))]
    assert said == ["peer 1 waits (for 5 s)"]
    run.progress.add_report(run.places[0], replace(standing(C), waiting=Waiting(text="waits")), 112.0)
    assert run.report(1, 112.0, waiting=Waiting(text="waits")) == []  # named by the first, which has just begun to wait


def test_a_stopped_peer_whose_last_report_says_that_it_waited_hides_nobody_who_waits_now() -> None:
    run, waiting = Run(), Waiting(text="waits")
    run.report(0, waiting=waiting, time_ns=100 * 10**9)
    said = [line for at in range(100, 107) for line in run.report(1, at, waiting=waiting, time_ns=at * 10**9)]
    assert said == ["peer 1 waits (for 5 s)"]


def test_who_goes_on_has_not_waited() -> None:
    run = Run()
    for second in range(100, 120):
        assert run.report(0, float(second), step=second // 3, waiting=Waiting(text="waits")) == []


def test_it_is_certain_that_there_is_no_start_when_too_few_are_left_to_come() -> None:
    run = Run()
    run.places.append(PeerSlot(2, "2"))
    run.places[2].child = run.places[0].child
    run.progress = Progress(run.places, {C: "7"}.get, 100.0)
    assert run.progress.why_no_start(0) == ""  # no peer has reported
    run.report(0)
    assert run.progress.why_no_start(0) == ""
    run.places[1].end(1, 101.0, 1)
    assert run.progress.why_no_start(0) == ""  # the peer is restarted
    run.places[1].end(1, 101.0, 0)
    run.places[1].restart_at = float("inf")
    assert run.progress.why_no_start(1) == ""  # another peer exists here
    assert run.progress.why_no_start(0) == (
        "the first step waits for 3 peers (--min-peers), but only 2 can still join, since peer 1 has ended; "
        "start again, or pass --min-peers 2"
    )
    run.report(0, needed=4)
    assert run.progress.why_no_start(0) == ""  # more than were started here are expected
    run.report(0, has_begun=True, step=0)
    assert run.progress.why_no_start(0) == ""  # the run has begun

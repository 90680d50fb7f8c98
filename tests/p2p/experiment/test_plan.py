import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import ExperimentError
from p2p.experiment.config import Experiment
from p2p.experiment.events import Event
from p2p.experiment.run.plan import Plan, make_plan, most_living, timeline, to_toml

HEAD = '[run]\nscript = "train.py"\npeers = 3\nuntil_s = 120\n'
DRAWN = '[[event]]\nrandom = {per_minute = 20}\ndo = "kill"\n[[event]]\nrandom = {per_minute = 10}\ndo = "join"\n'


def parse(text: str) -> Experiment:
    return Experiment.parse(text, "x", Path("/tmp"))


def living(plan: Plan, num_peers: int) -> list[int]:
    """Number of living peers after each event."""
    numbers = []
    for event in plan.events:
        num_peers += {"join": event.number, "kill": -1, "leave": -1}.get(event.do, 0)
        numbers.append(num_peers)
    return numbers


@given(st.integers(0, 10**6))
def test_a_seed_draws_the_same_plan_again_and_it_always_leaves_somebody(seed: int) -> None:
    experiment = parse(HEAD + DRAWN)
    plan = make_plan(experiment, seed)
    assert plan == make_plan(experiment, seed)
    assert all(1 <= number <= 6 for number in living(plan, 3))
    times = [event.at_s or 0.0 for event in plan.events]
    assert times == sorted(times) and all(0 <= time < 120 for time in times)


def test_seeds_draw_different_plans() -> None:
    experiment = parse(HEAD + DRAWN)
    assert make_plan(experiment, 1) != make_plan(experiment, 2)


@given(st.integers(0, 10**6))
def test_a_plan_that_is_written_out_is_the_same_with_any_seed(seed: int) -> None:
    experiment = parse(HEAD + DRAWN + "[expect]\nsteps_lost = 0\n")
    plan = make_plan(experiment, seed)
    again = parse(to_toml(experiment, plan))
    assert [_deed(event) for event in make_plan(again, seed + 1).events] == [_deed(event) for event in plan.events]
    assert again.expect == experiment.expect
    assert (again.run.peers, again.run.until_s) == (3, 120)


def _deed(event: Event) -> tuple[object, ...]:
    return event.do, event.at_s, event.who, event.draw, event.number


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (["at_step = 9", "at_step = 8"], "line 9: at_step goes backwards, from 9 (line 5) to 8"),
        (["at_step = 1", "at_step = 2", "at_step = 3"], "line 13: this kill would leave no peer: of 3 peers"),
        (['at_step = 1\nwho = "rank 3"'], "line 5: there is no rank 3, with 3 peers at that time"),
        (["at_step = 1\nwho = 3"], "line 5: there is no peer 3: 3 have started by then, from 0 on"),
        (
            ["at_step = 1\nwho = 0", "at_step = 2\nwho = 0"],
            "line 10: there is no peer 0 any more for this kill",
        ),
        (['at_step = 1\nwho = "donor"'], "line 5: who is the donor, but there is none"),
        (['at_step = 1\nwho = "newest"\nduring = "state transfer"'], "line 5: no peer has joined before, so no state"),
        (["at_s = 120"], "line 5: at_s = 120 would be after the end, until_s = 120"),
        (["at_step = 1", "random = {per_minute = 3}"], "line 5: other events than random ones need at_s"),
    ],
)
def test_events_that_cannot_be_are_refused(events: list[str], says: str) -> None:
    text = HEAD + "".join(f'[[event]]\ndo = "kill"\n{event}\n\n' for event in events)
    with pytest.raises(ExperimentError, match=re.escape(says)):
        make_plan(parse(text), 0)


def test_hosts_that_were_killed_are_gone_and_one_is_left_for_who_comes() -> None:
    def kills(*hosts: int, last: str = "") -> Experiment:
        text = HEAD + "[network]\nhosts = 2\n"
        events = [
            f'[[event]]\nat_s = {at}\ndo = "kill_host"\nwho = "host {host}"\n' for at, host in enumerate(hosts, 1)
        ]
        return parse(text + "".join(events) + last)

    make_plan(kills(0), 0)
    with pytest.raises(ExperimentError, match="line 11: there is no host 1 any more for this kill_host"):
        make_plan(kills(1, 1), 0)
    with pytest.raises(
        ExperimentError, match="line 11: this kill_host would leave no host: of 2 all others are killed"
    ):
        make_plan(kills(1, 0), 0)
    with pytest.raises(ExperimentError, match="line 11: there is no host 1 any more for this cut"):
        make_plan(kills(1, last='[[event]]\nat_s = 2\ndo = "cut"\nwho = "host 0"\nto = "host 1"\n'), 0)
    with pytest.raises(ExperimentError, match="line 9: there is no peer 0 any more for this pause"):
        kill = '[[event]]\nat_s = 1\ndo = "kill"\nwho = 0\n'
        make_plan(parse(HEAD + kill + kill.replace("kill", "pause") + "for_s = 1\n"), 0)


def test_a_moment_within_a_step_is_said_and_written_out() -> None:
    experiment = parse(HEAD + '[[event]]\nat_step = 3\ndo = "kill"\nwho = "rank 0"\nduring = "exchange"\n')
    plan = make_plan(experiment, 0)
    assert "kill rank 0 in its exchange; 2 peers then" in timeline(experiment, plan)[1]
    assert [event.during for event in parse(to_toml(experiment, plan)).events] == ["exchange"]


def test_what_is_of_one_direction_alone_is_said_and_written_out() -> None:
    link = '[[event]]\nat_step = 0\ndo = "link"\nwho = "host 0"\nto = "host 1"\none_way = true\nnet = "delay=9ms"\n'
    experiment = parse(HEAD + "[network]\nhosts = 2\n" + link + link.replace("one_way = true\n", ""))
    plan = make_plan(experiment, 0)
    assert ["what it sends" in line for line in timeline(experiment, plan)[1:3]] == [True, False]
    again = parse(to_toml(experiment, plan)).events
    assert [(event.at_step, event.one_way) for event in again] == [(0, True), (0, False)]


CYCLE = '[[event]]\nat_step = 2\ndo = "join"\n[[event]]\nafter = "previous resumed"\njitter_s = 2\ndo = "kill"\n'


def test_cycles_repeat_all_events_each_at_moments_of_its_own() -> None:
    experiment = parse(HEAD + "cycles = 3\n" + CYCLE)
    plan = make_plan(experiment, 0)
    assert [(event.do, event.at_step, event.after) for event in plan.events] == [
        ("join", 2, ""),
        *[("kill", None, "previous resumed"), ("join", None, "previous resumed")] * 2,
        ("kill", None, "previous resumed"),
    ]
    waits = [event.wait_s for event in plan.events if event.do == "kill"]
    assert len({*waits}) == 3 and all(0 <= wait_s < 2 for wait_s in waits)
    again = make_plan(parse(to_toml(experiment, plan)), 7)
    assert [(event.do, event.wait_s) for event in again.events] == [(event.do, event.wait_s) for event in plan.events]
    assert most_living(plan, 3) == 4


@pytest.mark.parametrize(
    ("cycles", "num_events", "event"),
    [
        (10**8, 10**8, '[[event]]\nat_step = 2\ndo = "restart_all"\n'),
        (400, 25_600, '[[event]]\nat_step = 2\ndo = "pause"\nfor_s = 1\nnumber = 64\n'),
    ],
)
def test_a_plan_of_too_many_events_is_refused_before_it_is_made(cycles: int, num_events: int, event: str) -> None:
    says = f"line 5: cycles = {cycles} are {num_events} events, and a plan has 10000 at most"
    with pytest.raises(ExperimentError, match=re.escape(says)):
        make_plan(parse(HEAD + f"cycles = {cycles}\n" + event), 0)
    assert len(make_plan(parse(HEAD + "cycles = 150\n" + event), 0).events) in (150, 9600)


def test_events_draw_3000_at_most_all_together() -> None:
    drawn = '[[event]]\nrandom = {per_minute = 600}\ndo = "join"\n'
    make_plan(parse(HEAD + drawn), 0)
    with pytest.raises(ExperimentError, match="line 11: random draws more than 3000 events"):
        make_plan(parse(HEAD + 3 * drawn), 0)


def test_more_peers_than_there_may_be_at_a_time_are_refused() -> None:
    join = '[[event]]\nat_s = 1\ndo = "join"\nnumber = {}\n'
    make_plan(parse(HEAD + join.format(61)), 0)
    with pytest.raises(ExperimentError, match="line 9: this join makes 65 peers, and 64 is the most at a time"):
        make_plan(parse(HEAD + join.format(30) + join.format(32)), 0)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ("", "line 5: there are no events to repeat in 2 cycles"),
        (CYCLE + '[[event]]\nat_step = 3\ndo = "kill"\n', "line 13: with cycles all events but the first need after"),
        (DRAWN, "line 6: with cycles all events but the first need after"),
    ],
)
def test_events_that_can_only_be_once_have_no_cycles(events: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(says)):
        make_plan(parse(HEAD + "cycles = 2\n" + events), 0)


def test_random_events_need_an_end() -> None:
    with pytest.raises(ExperimentError, match="line 3: random needs until_s, or \\[run\\] does"):
        make_plan(parse('[run]\nscript = "a"\n[[event]]\nrandom = {per_minute = 3}\ndo = "join"\n'), 0)


def test_a_restart_leaves_as_many_as_there_were() -> None:
    text = HEAD + "".join(f'[[event]]\nat_s = {at}\ndo = "{do}"\n' for at, do in ((1, "kill"), (2, "restart_all")))
    make_plan(parse(text + '[[event]]\nat_s = 3\ndo = "kill"\nwho = 4\n'), 0)
    with pytest.raises(ExperimentError, match="there is no peer 5"):
        make_plan(parse(text + '[[event]]\nat_s = 3\ndo = "kill"\nwho = 5\n'), 0)


def test_the_timeline_says_when_whom_and_how_many_are_left() -> None:
    experiment = parse(HEAD + '[[event]]\nat_step = 5\ndo = "kill"\nwho = "rank 0"\n')
    lines = timeline(experiment, make_plan(experiment, 0))
    assert lines[1].split() == ["1", "step", "5", "kill", "rank", "0;", "2", "peers", "then"]
    assert lines[-1].strip() == "all leave at 120 s"
    experiment = parse(HEAD + "until_step = 50\n")
    (_, last) = timeline(experiment, make_plan(experiment, 0))
    assert last.strip() == "all leave at step 50 or 120 s, whichever is first"

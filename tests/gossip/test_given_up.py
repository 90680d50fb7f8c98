"""A step that a member gives up: the members that repeat it, void finishes, and the scripts that are told. R16."""

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip import Phase, Seat, View
from gossip.commit import StepMachine
from gossip.effects import Aborted, Activated, Committed, Diverged, Send
from gossip.given_up import LONGEST_REASON, Cause, GivenUp, GivingUp, graver
from gossip.progress import LAST_STEP, Beat, Finish, Progress, Ready

from .machines import (
    DIGEST_0,
    GENESIS,
    NOTHING,
    PAIR,
    TRIO,
    TRIO_LATER,
    ZERO,
    active,
    barrier,
    finish,
    finished,
    founder,
    given_up,
)
from .members import A, B, C, view_of
from .swarms import History, Swarm, histories

MISMATCH = given_up(Cause.MISMATCH, reason="shapes differ")
VOIDED = given_up(Cause.VOIDED)
WITHDRAWN = given_up(Cause.WITHDRAWN)
IN_USE = given_up(Cause.IN_USE)
LATER = view_of(4, A, B)


def saying(said: GivenUp | None, finished: Finish | None = None) -> Ready:
    return Ready(True, -1, GENESIS, finished, said)


def said_by(machine: StepMachine, view: View) -> Ready:
    """READY of `machine` for `view`."""
    (ready,) = {e.body for e in machine.install(view) if isinstance(e, Send) and isinstance(e.body, Ready)}
    return ready


# Scripts that are told


@pytest.mark.parametrize("said", [MISMATCH, VOIDED, IN_USE])
def test_a_step_that_another_gave_up_is_given_up_at_the_next_barrier(said: GivenUp) -> None:
    told = replace(said, void_until=TRIO.number)
    assert barrier(active(), saying(said)) == [Aborted(told), Activated(PAIR, -1)]


def test_what_is_said_again_is_told_once() -> None:
    machine = active()
    assert barrier(machine, saying(MISMATCH)) == [Aborted(MISMATCH), Activated(PAIR, -1)]
    assert barrier(machine, saying(MISMATCH), LATER) == [Activated(LATER, -1)]


def test_a_withdrawal_is_said_and_nobody_is_told() -> None:
    machine = active()
    assert barrier(machine, saying(WITHDRAWN)) == [Activated(PAIR, -1)]
    assert said_by(machine, LATER) == saying(WITHDRAWN)


@pytest.mark.parametrize("cause", [Cause.MISMATCH, Cause.VOIDED])
def test_whose_script_knows_already_is_not_told(cause: Cause) -> None:
    machine = active()
    machine.give_up(0, cause, "why", is_told=True)
    assert said_by(machine, PAIR) == saying(given_up(cause, reason="why"))
    assert machine.receive(B, saying(MISMATCH)) == [Activated(PAIR, -1)]


def test_whose_script_does_not_know_is_told_with_the_others() -> None:
    machine = active()
    machine.give_up(0, Cause.VOIDED, "", is_told=False)
    machine.install(PAIR)
    assert machine.receive(B, NOTHING) == [Aborted(VOIDED), Activated(PAIR, -1)]


def test_who_was_told_is_told_when_the_step_is_given_up_once_more() -> None:
    machine = active()
    machine.give_up(0, Cause.MISMATCH, "", is_told=True)
    barrier(machine, NOTHING)
    again = given_up(Cause.VOIDED, PAIR)
    assert barrier(machine, saying(again), LATER) == [Aborted(again), Activated(LATER, -1)]


def test_of_several_the_latest_view_and_there_the_gravest_cause_is_told() -> None:
    machine = active()
    machine.install(PAIR)
    machine.receive(B, saying(given_up(Cause.MISMATCH, PAIR, "older")))
    view = view_of(5, A, B, C)
    machine.install(view)
    machine.receive(B, saying(given_up(Cause.IN_USE, LATER)))
    newest = given_up(Cause.VOIDED, LATER, "newest")
    assert machine.receive(C, saying(newest)) == [Aborted(newest), Activated(view, -1)]


def test_a_newcomer_is_not_told_of_what_was_given_up_before_its_time() -> None:
    view = replace(PAIR, seats=(Seat(A, 1), Seat(B, 3)))
    machine = StepMachine(B)
    machine.install(view)
    assert machine.receive(A, saying(MISMATCH)) == []
    assert machine.wanted_state() == (-1, GENESIS, A)
    assert machine.loaded(-1, GENESIS)[-1] == Activated(view, -1)
    later = replace(LATER, seats=view.seats)
    assert said_by(machine, later) == saying(MISMATCH)
    assert machine.receive(A, saying(MISMATCH)) == [Activated(later, -1)]
    again = given_up(Cause.VOIDED, later)
    last = replace(later, number=5)
    machine.install(last)
    assert machine.receive(A, saying(again)) == [Aborted(again), Activated(last, -1)]


def test_who_had_no_seat_when_the_others_were_told_is_not_told_afterwards() -> None:
    seats = Seat(A, 1), Seat(B, 3)
    machine = StepMachine(B)
    machine.install(replace(PAIR, seats=seats))
    later, last = (replace(LATER, number=number, seats=seats) for number in (4, 5))
    said = saying(given_up(Cause.VOIDED, PAIR))
    machine.install(later)
    machine.receive(A, said)
    assert machine.loaded(-1, GENESIS)[-1] == Activated(later, -1)
    machine.install(last)
    assert machine.receive(A, said) == [Activated(last, -1)]


def test_r17_that_founders_differ_is_told_to_who_had_no_seat_then() -> None:
    seats = Seat(A, 1), Seat(B, 3)
    machine = StepMachine(B)
    machine.install(replace(LATER, seats=seats))
    said = given_up(Cause.DIVERGED, PAIR, reason="parameters differ")
    assert Diverged(0, "parameters differ") in machine.receive(A, saying(said))


# Void finishes


@pytest.mark.parametrize("said", [MISMATCH, VOIDED])
def test_what_was_finished_of_it_does_not_count_and_the_script_is_told_once(said: GivenUp) -> None:
    machine = finished()
    machine.hear(said)
    assert said_by(machine, PAIR) == saying(said, ZERO)
    assert machine.receive(B, saying(None, ZERO)) == [Aborted(said), Activated(PAIR, -1)]
    assert machine.finish is None
    assert said_by(machine, LATER) == saying(said)
    assert machine.receive(B, saying(said)) == [Activated(LATER, -1)]


def test_what_was_finished_of_a_step_that_was_taken_back_does_not_count_either() -> None:
    machine = finished()
    assert barrier(machine, saying(WITHDRAWN, ZERO)) == [Activated(PAIR, -1)]
    assert machine.finish is None


def test_who_says_so_may_die_before_the_barrier_is_complete() -> None:
    machine = finished()
    machine.install(TRIO_LATER)
    assert machine.receive(B, saying(MISMATCH)) == []
    view = view_of(4, A, C)
    assert said_by(machine, view) == saying(MISMATCH, ZERO)
    assert machine.receive(C, saying(None, ZERO)) == [Aborted(replace(MISMATCH, void_until=3)), Activated(view, -1)]


def test_what_was_finished_in_a_later_view_than_it_was_given_up_in_counts() -> None:
    machine = active()
    barrier(machine, saying(MISMATCH))
    machine.finished(0, b"bits", b"state")
    again = finish(0, PAIR)
    assert said_by(machine, LATER) == saying(MISMATCH, again)
    assert machine.receive(B, saying(MISMATCH, again)) == [Committed(again, PAIR), Activated(LATER, 0, founded_in=3)]


def test_results_in_use_do_not_void_what_all_have_finished() -> None:
    assert barrier(finished(), saying(IN_USE, ZERO)) == [Committed(ZERO, TRIO), Activated(PAIR, 0, founded_in=2)]


def test_what_scripts_were_told_of_is_void_also_where_the_barrier_was_not_complete() -> None:
    """C has finished the step, alone of the members present; B was told, and leaves before C hears of that."""
    told = replace(IN_USE, void_until=TRIO.number)
    machine = active()
    assert barrier(machine, saying(IN_USE), TRIO_LATER) == []
    assert machine.receive(C, saying(None, ZERO)) == [Aborted(told), Activated(TRIO_LATER, -1)]
    assert said_by(machine, LATER) == saying(told)
    behind = finished()
    behind.install(TRIO_LATER)
    behind.hear(told)
    assert said_by(behind, LATER) == saying(told, ZERO)
    assert behind.receive(B, saying(None, ZERO)) == [Aborted(replace(told, void_until=3)), Activated(LATER, -1)]


# Duration of the announcement


def test_it_is_said_until_a_step_commits() -> None:
    machine = active()
    machine.give_up(0, Cause.MISMATCH, "shapes differ", is_told=True)
    assert said_by(machine, TRIO_LATER) == saying(MISMATCH)
    assert said_by(machine, LATER) == saying(MISMATCH)
    machine.receive(B, NOTHING)
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    assert machine.receive(B, Progress(-1, GENESIS, finish(0, LATER))) == [Committed(finish(0, LATER), LATER)]
    assert said_by(machine, view_of(5, A, B)) == Ready(True, 0, machine.digest, None, founded_in=LATER.number)


def test_what_is_known_of_the_step_after_outlasts_the_commit() -> None:
    ahead = given_up(Cause.VOIDED, PAIR, step=1)
    machine = finished()
    machine.install(PAIR)
    machine.hear(ahead)
    machine.hear(MISMATCH)
    assert machine.receive(B, Ready(True, 0, DIGEST_0, None)) == [
        Committed(ZERO, TRIO),
        Activated(PAIR, 0, founded_in=2),
    ]
    assert said_by(machine, LATER) == Ready(True, 0, DIGEST_0, None, ahead, founded_in=2)


def test_what_ready_says_of_it_is_fixed_also_for_who_has_no_seat() -> None:
    """Otherwise some members would tell their scripts at this barrier, and some at the next."""
    machine = StepMachine(C)
    machine.install(TRIO_LATER)
    for member in (A, B):
        machine.receive(member, NOTHING)
    machine.hear(given_up(Cause.VOIDED, TRIO_LATER))
    mine = Ready(False, -1, GENESIS, None)
    assert machine.loaded(-1, GENESIS) == [Send(A, mine), Send(B, mine), Activated(TRIO_LATER, -1)]


# Invalid claims


@pytest.mark.parametrize(
    "said",
    [
        replace(MISMATCH, step=-1),
        replace(MISMATCH, step=2),
        replace(MISMATCH, step=2**63),
        replace(MISMATCH, view_number=TRIO.number + 1),
        replace(MISMATCH, void_until=2**63),
    ],
    ids=["done", "two ahead", "far ahead", "a later view", "void in later views"],
)
def test_what_no_member_of_the_view_can_know_is_not_heard(said: GivenUp) -> None:
    machine = active()
    machine.hear(said)
    assert machine.given_up is None


def test_a_ready_that_knows_of_the_view_which_it_is_for_means_nothing() -> None:
    machine = founder()
    machine.install(PAIR)
    for later in (replace(MISMATCH, view_number=PAIR.number), replace(MISMATCH, void_until=PAIR.number)):
        assert (
            machine.receive(B, saying(later))
            == machine.receive(B, Beat(saying(later), Progress(-1, GENESIS, None)))
            == []
        )
    assert machine.receive(B, NOTHING) == [Activated(PAIR, -1)]


def test_who_has_no_state_yet_keeps_what_concerns_the_step_that_is_open_then() -> None:
    for step, expected in ((5, given_up(Cause.VOIDED, step=5)), (6, None), (LAST_STEP, None)):
        machine = StepMachine(B)
        machine.install(PAIR)
        machine.hear(given_up(Cause.VOIDED, step=step))
        machine.receive(A, Ready(True, 4, b"digest", None))
        assert machine.loaded(4, b"digest")[-1] == Activated(PAIR, 4)
        assert machine.given_up == expected


def test_a_long_reason_is_cut_so_that_it_can_travel() -> None:
    machine = active()
    machine.give_up(0, Cause.MISMATCH, "x" * 5_000, is_told=True)
    assert machine.given_up == replace(MISMATCH, reason="x" * LONGEST_REASON)


def test_who_has_no_seat_has_nothing_to_give_up() -> None:
    """The others may have committed the step without it."""
    machine = StepMachine(B)
    machine.install(PAIR)
    with pytest.raises(AssertionError):
        machine.give_up(0, Cause.VOIDED, "", is_told=True)


# Combination of two claims

numbers = st.integers(0, 4)
anything = st.none() | st.builds(
    GivenUp, st.integers(0, 2), numbers, st.sampled_from(Cause), st.sampled_from("ab"), numbers
)


@given(anything, anything, anything)
def test_it_does_not_matter_in_which_order_it_is_heard_nor_how_often(
    one: GivenUp | None, two: GivenUp | None, three: GivenUp | None
) -> None:
    assert graver(one, one) == one
    assert graver(one, two) == graver(two, one)
    assert graver(graver(one, two), three) == graver(one, graver(two, three))


@given(st.lists(anything, min_size=1))
def test_nothing_is_lost_of_what_is_void_and_of_what_is_to_be_told(said: list[GivenUp | None]) -> None:
    joined = reduce(graver, said)
    known = [each for each in said if each is not None]
    of_last = [each for each in known if joined is not None and each.step == joined.step]
    assert (joined is None) == (not known)
    assert all(joined is not None and each.step <= joined.step for each in known)
    assert all(joined is not None and each.void_until <= joined.void_until for each in of_last)
    told = [(each.view_number, each.cause) for each in of_last if each.cause is not Cause.WITHDRAWN]
    assert joined is None or not told or (joined.view_number, joined.cause) == max(told)


def test_a_later_withdrawal_does_not_hide_that_results_are_in_use() -> None:
    machine = active()
    machine.mark_in_use()
    in_use = said_by(machine, PAIR).given_up
    assert in_use is not None and replace(in_use, reason="") == IN_USE
    machine.hear(given_up(Cause.WITHDRAWN, PAIR))
    last = view_of(4, A, B)
    both = replace(in_use, void_until=PAIR.number)
    assert said_by(machine, last) == saying(both)
    assert machine.receive(B, NOTHING) == [Aborted(both), Activated(last, -1)]


def test_results_that_are_in_use_later_do_not_make_count_what_was_void() -> None:
    machine = finished()
    machine.hear(MISMATCH)
    machine.mark_in_use()
    machine.install(TRIO_LATER)
    both = said_by(machine, LATER)
    assert both.finish == ZERO and both.given_up is not None
    assert (both.given_up.cause, both.given_up.view_number, both.given_up.void_until) == (Cause.IN_USE, 3, 2)
    effects = machine.receive(B, saying(None, ZERO))
    assert [type(effect) for effect in effects] == [Aborted, Activated]


# Laws

EVENTS = "view", "install", "install", "deliver", "deliver", "load", "finish", "beat", "hand out", "give up", "leave"


@given(histories(*EVENTS))
@settings(max_examples=100, deadline=None)
def test_s14_what_was_said_to_come_to_nothing_is_committed_by_nobody_and_steps_go_on(events: History) -> None:
    swarm = Swarm()
    swarm.live_through(events)
    swarm.come_to_rest()
    if not swarm.is_lost:
        swarm.go_on()
        swarm.go_on()
        last = [swarm.machines[member] for member in swarm.views[-1].members]
        assert {(machine.phase, machine.done, machine.given_up) for machine in last} == {
            (Phase.ACTIVE, last[0].done, None)
        }
    for _, said, view in swarm.commits:
        assert not swarm.is_void(said, view)


@pytest.mark.parametrize("cause", Cause)
def test_what_was_given_up_before_its_seat_is_told_no_script_unless_founders_differ(cause: Cause) -> None:
    said = GivenUp(5, 2, cause, void_until=2)
    assert GivingUp().news(5, 3, [said]) == (said if cause is Cause.DIVERGED else None)
    assert GivingUp().news(5, 2, [said]) == (None if cause is Cause.WITHDRAWN else said)

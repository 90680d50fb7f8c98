"""Observing: steps and states that a peer without a seat applies, loads and asks for. R6, R9, R18 of PROTOCOL.md."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gossip import CoreConfig, Member, Seat, State
from gossip.commit import StepMachine
from gossip.effects import Apply, DropState, DropStep, Effect, Load, Send
from gossip.fed_steps import MOST_FED
from gossip.messages import Head
from gossip.observing import MOST_LAG, NUM_PROVING, Observing
from gossip.progress import NOTHING_DONE, Ready, StateQuery
from gossip.state_fetch import PATIENCE_S
from gossip.swim import Swim
from gossip.swim_config import SwimConfig
from gossip.view import View, founding_view

from .members import LINEAGE, A, B, C, D, claim, view_of


def digest(step: int) -> bytes:
    return b"digest %d" % step


class Observer:
    """D, which follows A and B unless stated otherwise, and has taken over the steps up to `done`."""

    def __init__(self, done: int = 0, past: bytes | None = None, *, follows: bool = True) -> None:
        self.swim = Swim(claim(D), rng=Random(1), config=SwimConfig(), now=0.0)
        for member in (A, B):
            self.swim.apply_claim(0.0, claim(member))
        self.steps = StepMachine(D)
        self.steps.loaded(done, digest(done) if past is None else past)
        self.observing = Observing(self.swim, self.steps, config=CoreConfig())
        self.observing.follows = follows

    def fed(self, *steps: int) -> list[Effect]:
        past = [(step, digest(step - 1), digest(step)) for step in steps]
        return [effect for each in past for effect in self.observing.fed(*each, 1, is_own=False)]

    def loads(self, step: int, now: float = 0.0) -> list[Effect]:
        """The observer has loaded the state after that step, or has run it."""
        self.steps.loaded(step, digest(step))
        return self.observing.loaded(now, step, digest(step))

    def run(self) -> int:
        """Run due steps until none is left; returns the last."""
        while (due := self.observing.due) is not None:
            assert due == (self.steps.done + 1, digest(self.steps.done + 1))
            self.loads(due[0])
        return self.steps.done

    def hears(self, step: int, now: float = 0.0, source: Member = A) -> list[Effect]:
        return self.observing.hear_head(now, source, Head(step, digest(step)))

    def gets(self, *steps: int, source: Member = A, now: float = 0.0) -> list[Effect]:
        """The states after these steps arrive, each at once."""
        assert self.observing.segment_arrived(now, source, steps[-1] if steps else 3)
        return [effect for step in steps for effect in self.observing.state_arrived(step, digest(step), LINEAGE)]


def waits_at(done: int, *, fed: tuple[int, ...] = ()) -> Observer:
    """An observer whose script waits for an operation of its own, step `done` + 1; it is offered a state."""
    new = Observer(done)
    new.hears(done + 3, 0.0)
    new.hears(done + 3, 1.0)
    assert new.gets(done + 3, now=2.0) == [Load(done + 3, digest(done + 3))]
    new.fed(*fed)
    return new


def declines(new: Observer, step: int, now: float = 2.0) -> list[Effect]:
    return new.observing.declined(now, step, digest(step))


def query(step: int, donor: Member = A) -> list[Effect]:
    return [Send(donor, StateQuery(step))]


# Fed steps


def test_nothing_is_due_and_nothing_asked_at_first() -> None:
    new = Observer()
    assert new.observing.due is None
    assert new.observing.reconsider(0.0) == new.observing.beat(0.0) == []


def test_a_step_is_applied_upon_the_one_before() -> None:
    new = Observer()
    assert new.fed(1) == [Apply(1, digest(1))]
    assert new.observing.due == (1, digest(1))


def test_one_step_is_applied_at_a_time() -> None:
    new = Observer()
    assert new.fed(1, 2, 3) == [Apply(1, digest(1))]
    assert new.loads(1) == [Apply(2, digest(2))]


def test_steps_that_overtake_each_other_are_applied_in_order() -> None:
    new = Observer()
    new.fed(3, 1, 2)
    assert new.run() == 3


def test_a_step_that_comes_twice_is_applied_once() -> None:
    new = Observer()
    new.fed(1, 1)
    assert new.run() == 1
    assert new.fed(1) == []


def test_a_step_beyond_a_gap_waits() -> None:
    new = Observer()
    assert new.fed(2, 3) == []
    new.fed(1)
    assert new.run() == 3


def test_a_step_of_another_past_is_not_applied() -> None:
    assert Observer(0, b"another past").fed(1) == []


def test_what_a_loaded_state_has_overtaken_is_dropped() -> None:
    done = MOST_FED + 35
    new = Observer()
    new.fed(*range(2, MOST_FED + 2))
    assert new.loads(done) == [DropStep(step, digest(step)) for step in range(2, MOST_FED + 2)]
    assert new.fed(done + 1) == [Apply(done + 1, digest(done + 1))]


def test_a_loaded_state_lets_the_fed_steps_beyond_it_go_on() -> None:
    new = Observer(NOTHING_DONE, b"")
    assert new.fed(8) == []
    assert new.loads(7) == [Apply(8, digest(8))]


def test_who_is_seated_takes_nothing() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.steps.found(founding_view(Seat(D, 1), LINEAGE, 1))
    assert new.observing.fed(0, new.steps.digest, b"zero", 0, is_own=False) == []
    assert new.observing.loaded(0.0, 0, b"zero") == []
    assert new.observing.due is None


def test_what_is_due_is_not_any_more_when_the_seat_is_there() -> None:
    new = Observer()
    new.fed(1)
    new.steps.install(view_of(2, A, D))
    assert new.observing.due == (1, digest(1))
    new.steps.receive(A, Ready(True, 0, digest(0), None))
    assert new.steps.seated and new.observing.due is None


def test_an_observer_whose_view_is_being_installed_still_follows() -> None:
    new = Observer()
    new.steps.install(view_of(2, A, D))
    assert new.fed(1) == [Apply(1, digest(1))]


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(NOTHING_DONE, 6))
def test_whatever_is_fed_and_in_whatever_order_no_step_is_skipped(steps: list[int], done: int) -> None:
    new, start = Observer(done), done
    for step in steps:
        new.fed(step)
        done = new.run()
    assert {*range(start + 1, done + 1)} <= {*steps}
    assert done + 1 not in steps
    new.hears(12, 1.0)
    asked = new.hears(12, 2.0)
    assert asked == (query(12) if done < 12 else [])


@given(st.lists(st.tuples(st.integers(-1, 5), st.sampled_from([b"x", b"y"]), st.sampled_from([b"x", b"y"]))))
def test_nothing_is_applied_but_upon_its_own_past(told: list[tuple[int, bytes, bytes]]) -> None:
    new = Observer(NOTHING_DONE, b"x")
    for step, previous, after in told:
        for effect in new.observing.fed(step, previous, after, 0, is_own=False):
            if effect == DropStep(step, after):
                continue  # another step after the same chain is kept
            assert isinstance(effect, Apply) and effect.step == new.steps.done + 1
            assert (effect.step, new.steps.digest, effect.digest) in told
        if (due := new.observing.due) is not None:
            new.steps.loaded(*due)
            new.observing.loaded(0.0, *due)


# Gaps


def test_r9_who_has_nothing_asks_its_feeder_for_the_state_at_once() -> None:
    assert Observer(NOTHING_DONE, b"").hears(5) == query(5)
    assert Observer(NOTHING_DONE, b"").hears(NOTHING_DONE, source=B) == query(NOTHING_DONE, B)


def test_r9_a_state_that_does_not_come_is_asked_for_again_after_a_while() -> None:
    new = Observer(NOTHING_DONE, b"")
    asked = [new.hears(5, now) for now in (0.0, 0.5, 0.9, 1.0, 1.5, 2.0)]
    assert asked == [query(5), [], [], query(5), [], query(5)]


def test_r9_a_gap_must_last_since_what_was_fed_may_be_on_its_way() -> None:
    new = Observer(3)
    assert [new.hears(5, now) for now in (0.0, 0.5)] == [[], []]
    assert new.hears(6, 1.0) == query(6)


def test_r9_a_gap_that_was_closed_is_no_gap() -> None:
    new = Observer(3)
    assert new.hears(5, 0.0) == []
    assert new.fed(4) == [Apply(4, digest(4))]
    assert new.hears(5, 2.0) == [], "the next step is being run"
    new.loads(4)
    new.fed(6)
    assert new.hears(4, 3.0) == new.hears(4, 4.0) == [], "this is the last one"
    assert new.hears(3, 5.0) == new.hears(3, 6.0) == [], "the feeder is behind"
    assert new.hears(6, 7.0) == []
    assert new.hears(6, 8.0) == query(6)


def test_r9_a_gap_after_a_later_step_is_another_gap() -> None:
    new = Observer(3)
    assert new.hears(5, 0.0) == []
    new.loads(4)
    assert new.hears(6, 2.0) == []
    assert new.hears(6, 3.0) == query(6)


def test_r9_another_past_needs_the_state() -> None:
    new = Observer(0, b"another past")
    new.fed(1)
    assert (new.hears(1, 0.0), new.hears(1, 1.0)) == ([], query(1))
    same = Observer(1, b"another past")
    assert (same.hears(1, 0.0), same.hears(1, 1.0)) == ([], query(1))


def test_r9_a_step_that_is_here_and_waits_for_a_state_is_no_gap() -> None:
    new = Observer(3)
    new.hears(9, 0.0)
    assert new.hears(9, 1.0) == query(9)
    assert new.gets(9, now=1.0) == [Load(9, digest(9))]
    assert new.fed(4) == []
    assert new.hears(9, 2.0) == []


def test_who_does_not_follow_needs_no_state_before_its_barrier() -> None:
    new = Observer(NOTHING_DONE, b"", follows=False)
    assert [new.hears(5, now) for now in (0.0, 1.0, 2.0)] == [[], [], []]


# States


def test_a_state_is_loaded_that_was_asked_for() -> None:
    new = Observer(NOTHING_DONE, b"")
    assert not new.observing.segment_arrived(0.0, A, 3)
    new.hears(5)
    assert not new.observing.segment_arrived(0.0, B, 3)
    assert new.gets(6) == [Load(6, digest(6))]
    assert new.loads(6) == []
    assert not new.observing.segment_arrived(0.0, A, 3), "it needs no more"


def test_nobody_is_asked_while_a_state_comes_or_is_to_be_loaded() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(5)
    assert new.observing.segment_arrived(1.0, A, 3)
    assert new.hears(5, 1.0 + 0.9 * PATIENCE_S, B) == []
    assert new.hears(5, 2.0 + PATIENCE_S, B) == query(5, B), "the donor is slow, or dead"
    assert new.gets(5, now=2.0 + PATIENCE_S) == [Load(5, digest(5))]
    assert new.hears(9, 9.0 + PATIENCE_S, B) == []
    new.loads(5)
    assert new.hears(9, 10.0 + PATIENCE_S, B) == []
    assert new.hears(9, 11.0 + PATIENCE_S, B) == query(9, B)


def test_another_is_asked_when_the_donor_is_gone() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(5)
    assert new.observing.segment_arrived(0.9, A, 3)
    assert new.hears(5, 1.0, B) == []
    new.swim.declare_dead(1.0, A, State.DEAD)
    assert new.hears(5, 2.0, B) == query(5, B)


def test_a_later_state_waits_until_the_one_before_is_loaded() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(5)
    assert new.gets(5, 8, 7) == [Load(5, digest(5)), DropState(8, digest(8))]
    assert new.gets(7) == [], "the last that came, twice"
    assert new.loads(5) == [Load(7, digest(7))]
    assert new.loads(7) == []


def test_a_state_that_waits_is_dropped_if_it_is_of_no_use_then() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(5)
    new.gets(5, 4)
    assert new.loads(5) == [DropState(4, digest(4))]
    assert new.loads(6) == []


def test_an_older_state_is_dropped() -> None:
    new = Observer(5)
    new.hears(9, 0.0)
    new.hears(9, 1.0)
    assert new.gets(4, 5) == [DropState(4, digest(4)), DropState(5, digest(5))]


def test_no_step_is_due_while_a_state_is_to_be_loaded() -> None:
    new = Observer(5)
    new.hears(8, 0.0)
    new.hears(8, 1.0)
    assert new.fed(6) == [Apply(6, digest(6))]
    assert new.gets(8) == [Load(8, digest(8))]
    assert new.observing.due is None
    assert new.fed(7, 9) == []
    assert new.loads(8) == [*(DropStep(step, digest(step)) for step in (6, 7)), Apply(9, digest(9))]


def test_a_fed_step_that_is_run_ends_no_state_that_is_under_way() -> None:
    new = Observer(5)
    new.hears(8, 0.0)
    new.hears(8, 1.0)
    new.fed(6)
    new.loads(6)
    assert new.gets(8) == [Load(8, digest(8))]


def test_a_state_of_another_swarm_than_the_view_is_dropped() -> None:
    new = in_barrier(Observer(0, b"another past"))
    assert new.observing.reconsider(0.0) != []
    assert new.observing.state_arrived(5, digest(5), b"another") == [DropState(5, digest(5))]
    assert new.observing.state_arrived(5, digest(5), LINEAGE) == [Load(5, digest(5))]


# The barrier of the first view.


TRIO = view_of(2, A, B, D)


def in_barrier(new: Observer, view: View = TRIO, done: int = 5) -> Observer:
    new.steps.install(view)
    for member in view.members:
        if member != D:
            new.steps.receive(member, Ready(True, done, digest(done), None))
    return new


def test_r6_who_does_not_follow_asks_for_the_state_once_and_then_with_each_beat() -> None:
    new = in_barrier(Observer(NOTHING_DONE, b"", follows=False))
    assert new.observing.reconsider(0.0) == query(5)
    assert new.observing.reconsider(0.0) == []
    assert new.observing.beat(0.25) == query(5)


def test_r6_who_is_at_the_state_already_asks_for_nothing() -> None:
    new = in_barrier(Observer(5))
    assert new.steps.seated
    assert new.observing.reconsider(0.0) == new.observing.beat(0.25) == []


def test_r6_who_is_fed_asks_for_the_state_after_two_beats() -> None:
    new = Observer(4)
    new.hears(4)
    new.observing.reconsider(0.0)
    in_barrier(new)
    assert new.observing.reconsider(7.0) == []
    assert [new.observing.beat(7.0 + later) for later in (0.25, 0.5)] == [[], query(5)]


def test_r6_who_has_the_next_step_runs_that_and_asks_for_no_state() -> None:
    """A member that waits in an operation of its script may have no complete state to give."""
    new = Observer(3)
    new.hears(4)
    new.fed(4)
    in_barrier(new)
    assert [new.observing.beat(later) for later in (0.25, 0.5, 9.0)] == [[], [], []]
    new.loads(4)
    assert new.observing.beat(9.25) == query(5)


def test_r6_whose_feeder_has_no_seat_there_asks_at_once() -> None:
    new = Observer(4)
    new.hears(4, source=C)
    in_barrier(new)
    assert new.observing.reconsider(0.0) == query(5)


def test_r6_who_follows_and_has_no_state_asks_with_the_first_beat() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.observing.hear_head(0.0, A, Head(NOTHING_DONE, b"genesis"))
    in_barrier(new)
    assert new.observing.reconsider(0.0) == []
    assert new.observing.beat(0.25) == query(5)


def test_r6_each_barrier_is_asked_for_anew() -> None:
    new = in_barrier(Observer(NOTHING_DONE, b"", follows=False))
    assert new.observing.reconsider(0.0) == query(5)
    in_barrier(new, view_of(3, A, B, D), done=6)
    assert new.observing.reconsider(1.0) == query(6, B)


def test_r6_while_the_state_comes_nobody_is_asked_in_the_barrier_either() -> None:
    new = in_barrier(Observer(NOTHING_DONE, b"", follows=False))
    new.observing.reconsider(0.0)
    assert new.observing.segment_arrived(0.1, A, 3)
    assert new.observing.beat(0.25) == []


def test_r6_what_another_swarm_has_fed_is_not_run_in_a_barrier_that_wants_an_earlier_state() -> None:
    new = Observer(8)
    assert new.fed(9, 10) == [Apply(9, digest(9))]
    in_barrier(new)
    assert new.observing.reconsider(0.0) == query(5)
    assert new.observing.due is None
    assert new.fed(11) == []
    new.steps.install(view_of(3, A, B, D))
    assert new.observing.reconsider(1.0) == [Apply(9, digest(9))]
    assert new.observing.due == (9, digest(9))


def test_who_has_proven_that_it_keeps_step_and_falls_behind_all_the_same_asks_for_the_state() -> None:
    new = Observer()
    new.fed(*range(1, 400))
    assert new.hears(30) == [], "it has proven nothing yet"
    for step in range(1, NUM_PROVING + 1):
        new.loads(step)
    least = 4
    assert new.hears(NUM_PROVING + least) == []
    assert new.hears(NUM_PROVING + MOST_LAG, now=5.0) == [], "that is not much"
    assert new.hears(100, now=5.5) == new.hears(120, now=5.9) == []
    assert new.hears(150, now=6.0) == query(150)
    assert new.hears(200, now=6.1) == new.hears(250, now=6.9) == [], "it was asked"
    assert new.hears(199, now=7.0) == new.hears(198, now=7.9) == [], "it catches up"
    assert new.hears(198, now=8.9) == query(198), "and does no more"


def proven(took_s: float) -> Observer:
    """An observer that has run two steps on the state after step 15, whose transfer took 350 commits."""
    new = Observer(NOTHING_DONE, b"")
    assert new.hears(15, now=0.0) == query(15)
    assert new.observing.segment_arrived(10.0, A, 15) and new.observing.segment_arrived(10.0 + took_s, A, 15)
    new.gets(15, now=10.0 + took_s)
    new.loads(15)
    new.fed(*range(16, 400))
    now = 10.0 + took_s
    assert new.hears(365, now=now) == []
    for step in range(16, 16 + NUM_PROVING):
        new.loads(step)
    assert new.hears(367, now=now) == []
    return new


def test_who_has_loaded_a_state_has_as_long_to_begin_to_catch_up_as_another_one_would_take() -> None:
    new = proven(took_s=5.0)
    assert new.hears(380, now=19.9) == []
    assert new.hears(380, now=20.1) == query(380)
    new = proven(took_s=5.0)
    assert new.hears(380, now=19.9) == new.hears(360, now=19.95) == new.hears(361, now=24.9) == [], "it catches up"


def test_what_an_observer_lacked_before_another_state_is_no_measure_of_whether_it_catches_up() -> None:
    new = proven(took_s=0.5)
    assert new.hears(30, now=11.0) == []
    new.hears(40, now=12.0)
    new.observing.state_arrived(40, digest(40), LINEAGE)
    new.loads(40)
    assert new.hears(300, now=20.0) == new.hears(299, now=21.5) == new.hears(298, now=23.0) == []


# Knowledge of steps, and the reason to wait


def test_r18_a_head_a_fed_step_or_a_state_tells_of_a_committed_step() -> None:
    heard, fed, given, loaded = (Observer(NOTHING_DONE, b"") for _ in range(4))
    assert not any(new.observing.knows_steps for new in (heard, fed, given, loaded))
    heard.hears(0)
    fed.fed(7)
    given.observing.state_arrived(0, digest(0), LINEAGE)
    loaded.loads(0)
    assert all(new.observing.knows_steps for new in (heard, fed, given, loaded))


def test_r18_what_is_before_the_first_step_tells_of_none() -> None:
    new = Observer(NOTHING_DONE, b"")
    new.hears(NOTHING_DONE)
    new.observing.state_arrived(NOTHING_DONE, b"genesis", LINEAGE)
    new.loads(NOTHING_DONE)
    assert not new.observing.knows_steps


def test_it_says_what_it_waits_for_and_for_whom() -> None:
    new = Observer(NOTHING_DONE, b"")
    assert new.observing.waits_for == ""
    new.hears(3)
    assert new.observing.waits_for == f"{A} will give the state, once the next step begins there"
    new.observing.segment_arrived(0.0, A, 3)
    assert new.observing.waits_for == f"the state comes from {A}"
    new.gets(3)
    assert new.observing.waits_for == "the state after step 3 is here, and its script has yet to load it"
    new.loads(3)
    new.hears(5)
    assert new.observing.waits_for == f"it is at step 3, and fed by {A}, which was at step 5"
    other = waits_at(5)
    declines(other, 8)
    assert (
        other.observing.waits_for == "its script waits for the result of operation 6, which the members have committed"
    )


def test_what_an_observer_holds_is_what_it_has_done_or_is_about_to_load() -> None:
    new = Observer(done=NOTHING_DONE, past=b"")
    assert new.observing.held == NOTHING_DONE
    new.hears(5)
    new.gets(5)
    assert (new.steps.done, new.observing.held) == (NOTHING_DONE, 5)
    new.loads(5)
    new.fed(6)
    new.run()
    assert new.observing.held == 6

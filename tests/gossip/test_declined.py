"""A state that comes while an observer's script waits for an operation, or is within a batch: R9 of PROTOCOL.md."""

from dataclasses import replace

from gossip.effects import Apply, DropState, DropStep, Load, ResultUnavailable

from .cores import RUN, core
from .members import LINEAGE, A, B, claim
from .test_observing import Observer, declines, digest, in_barrier, query, waits_at


def test_r9_a_state_that_is_declined_is_offered_again_after_the_operation() -> None:
    new = waits_at(5, fed=(6, 7))
    assert declines(new, 8) == [Apply(6, digest(6))]
    assert new.observing.due == (6, digest(6))
    assert new.loads(6) == [Load(8, digest(8))]
    assert declines(new, 8) == [Apply(7, digest(7))], "there is another one"
    assert new.loads(7) == [Load(8, digest(8))]
    assert new.loads(8) == []


def test_r9_a_step_that_was_due_when_the_state_was_offered_is_due_again() -> None:
    new = Observer(5)
    new.hears(8, 0.0)
    new.hears(8, 1.0)
    new.fed(6)
    new.gets(8)
    assert declines(new, 8) == [Apply(6, digest(6))]


def test_r9_while_the_script_waits_the_last_state_that_came_is_kept() -> None:
    new = waits_at(5)
    assert declines(new, 8) == []
    assert new.gets(9) == [DropState(8, digest(8))]
    assert new.hears(12, now=2.5) == new.hears(14, now=2.9) == [], "there is one, so nobody is asked"
    assert new.fed(6) == [Apply(6, digest(6))]
    assert new.loads(6) == [Load(9, digest(9))]


def test_r9_a_state_that_is_declined_makes_room_for_a_later_one() -> None:
    new = waits_at(5)
    new.gets(9)
    assert declines(new, 8) == [DropState(8, digest(8))]
    new.fed(6)
    assert new.loads(6) == [Load(9, digest(9))]


def test_r9_only_the_state_that_is_offered_can_be_declined() -> None:
    new = waits_at(5, fed=(6,))
    assert declines(new, 7) == []
    assert Observer(5).observing.declined(0.0, 8, digest(8)) == []


def test_r9_an_operation_is_missed_if_it_has_not_come_so_long_after_the_state() -> None:
    new = waits_at(5)
    declines(new, 8, now=2.0)
    assert new.hears(9, now=2.9) == []
    assert new.hears(9, now=3.0) == [ResultUnavailable(6)]
    assert new.hears(9, now=3.5) == [], "it is said once"


def test_r9_an_operation_that_is_here_is_not_missed_however_long_it_takes() -> None:
    new = waits_at(5, fed=(6,))
    declines(new, 8, now=2.0)
    assert new.hears(9, now=9.0) == []


def test_r9_an_operation_whose_result_came_is_not_missed_where_another_swarm_comes_to_its_number() -> None:
    """Seed 70000040: a member of the second swarm ended, since it had waited for a step of that number in the first."""
    new = waits_at(5)
    declines(new, 8, now=2.0)
    new.fed(6)
    new.run()
    new.steps.done, new.steps.digest = 5, digest(5)
    assert new.hears(9, now=3.0) == []


def test_r9_a_member_misses_no_operation() -> None:
    new = waits_at(5)
    declines(new, 8, now=2.0)
    new.steps.seated = True
    assert new.observing.beat(3.0) == []


def test_r9_an_operation_is_missed_in_a_barrier_too() -> None:
    new = in_barrier(Observer(3))
    new.observing.reconsider(0.0)
    assert new.observing.beat(0.5) == query(5)
    new.gets(5)
    declines(new, 5, now=1.0)
    assert [new.observing.beat(now) for now in (1.9, 2.0, 2.1)] == [[], [ResultUnavailable(4)], []]


def test_r20_who_runs_the_step_of_a_state_that_it_has_declined_keeps_the_class_of_its_own_parameters() -> None:
    own, others = b"AVX2" + bytes(4), b"none" + bytes(4)
    peer = core(B)
    peer.meet(0.0, claim(A))
    peer.ask_for_seat(0.0, replace(RUN, numerics=own), follows=True)
    peer.state_arrived(5, digest(5), LINEAGE, own)
    peer.loaded(0.0, 5, digest(5))
    assert peer.state_arrived(6, digest(6), LINEAGE, others) == [Load(6, digest(6))]
    assert peer.declined(0.0, 6, digest(6)) == []
    assert peer.fed(6, digest(5), digest(6), 0, is_own=True) == [Apply(6, digest(6))]
    assert peer.loaded(0.0, 6, digest(6)) == [DropState(6, digest(6))]
    assert peer.numerics == own


# Within a batch


def test_r9_a_state_that_comes_in_the_middle_of_a_batch_is_put_off_where_the_next_step_is_here() -> None:
    new = waits_at(5, fed=(6, 7))
    assert new.observing.put_off(2.0, 8, digest(8)) == [Apply(6, digest(6))]
    assert new.loads(6) == [Load(8, digest(8))]
    assert new.loads(8) == [DropStep(7, digest(7))]


def test_r9_a_state_that_comes_in_the_middle_of_a_batch_is_needed_where_the_next_step_is_not_here() -> None:
    new = waits_at(5, fed=(7,))
    assert new.observing.put_off(2.0, 8, digest(8)) is None
    assert new.observing.put_off(2.0, 7, digest(7)) == [], "it is offered no more"

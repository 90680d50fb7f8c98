"""What an observer applies, and when it needs the state: R9 of PROTOCOL.md."""

from hypothesis import given
from hypothesis import strategies as st

from gossip.effects import Apply
from gossip.following import MOST_WAITING, Follower
from gossip.messages import NOTHING_DONE


def digest(step: int) -> bytes:
    return b"digest %d" % step


def fed(*steps: int, done: int = 0) -> Follower:
    """An observer that was fed these when it was at `done`."""
    new = Follower()
    for step in steps:
        new.fed(step, digest(step - 1), digest(step), done)
    return new


def run(new: Follower, done: int) -> int:
    """Apply what can be applied after `done`; the step it ends at."""
    while (following := new.next_step(done, digest(done))) is not None:
        assert following == Apply(done + 1, digest(done + 1))
        done = following.step
        new.applied()
    return done


def test_nothing_is_fed_and_nothing_missing_at_first() -> None:
    new = Follower()
    assert new.next_step(NOTHING_DONE, b"") is None
    assert new.missing(NOTHING_DONE, b"") is None


def test_a_step_is_applied_upon_the_one_before() -> None:
    assert fed(1).next_step(0, digest(0)) == Apply(1, digest(1))


def test_one_step_is_applied_at_a_time() -> None:
    new = fed(1, 2)
    assert new.next_step(0, digest(0)) == Apply(1, digest(1))
    assert new.next_step(0, digest(0)) is None
    new.applied()
    assert new.next_step(1, digest(1)) == Apply(2, digest(2))


def test_steps_that_overtake_each_other_are_applied_in_order() -> None:
    assert run(fed(3, 1, 2), 0) == 3


def test_a_step_that_comes_twice_is_applied_once() -> None:
    new = fed(1, 1)
    assert run(new, 0) == 1
    new.fed(1, digest(0), digest(1), done=1)
    assert new.next_step(1, digest(1)) is None


def test_a_step_beyond_a_gap_waits() -> None:
    new = fed(2, 3)
    assert new.next_step(0, digest(0)) is None
    new.fed(1, digest(0), digest(1), done=0)
    assert run(new, 0) == 3


def test_a_step_of_another_past_is_not_applied() -> None:
    assert fed(1).next_step(0, b"another past") is None


def test_the_queue_is_bounded_and_has_room_again_when_its_steps_are_done() -> None:
    new = fed(*range(2, MOST_WAITING + 2))
    new.fed(1, digest(0), digest(1), done=0)
    assert new.next_step(0, digest(0)) is None
    assert run(new, 1) == MOST_WAITING + 1
    new.fed(MOST_WAITING + 2, digest(MOST_WAITING + 1), digest(MOST_WAITING + 2), done=MOST_WAITING + 1)
    assert run(new, MOST_WAITING + 1) == MOST_WAITING + 2


def test_what_a_loaded_state_has_overtaken_is_dropped() -> None:
    done = MOST_WAITING + 35
    new = fed(*range(1, MOST_WAITING + 1))
    assert new.next_step(done, digest(done)) is None
    new.fed(done + 1, digest(done), digest(done + 1), done=done)
    assert new.next_step(done, digest(done)) == Apply(done + 1, digest(done + 1))


# What is missing.


def test_nothing_is_missing_at_the_head() -> None:
    new = Follower()
    new.heard(4, digest(4))
    assert new.missing(4, digest(4)) is None


def test_the_state_of_the_head_is_missing_where_no_fed_step_follows() -> None:
    new = fed(2, 3)
    new.heard(3, digest(3))
    assert new.missing(0, digest(0)) == 3


def test_nothing_is_missing_while_the_next_step_is_here_or_under_way() -> None:
    new = fed(1)
    new.heard(3, digest(3))
    assert new.missing(0, digest(0)) is None
    assert new.next_step(0, digest(0)) is not None
    assert new.missing(0, b"whatever") is None
    new.applied()
    assert new.missing(1, digest(1)) == 3


def test_nothing_is_missing_behind_an_older_head() -> None:
    new = Follower()
    new.heard(3, digest(3))
    assert new.missing(4, digest(4)) is None


def test_another_past_needs_the_state() -> None:
    new = fed(1)
    new.heard(1, digest(1))
    assert new.missing(0, b"another past") == 1
    assert new.missing(1, b"another past") == 1


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(NOTHING_DONE, 6))
def test_whatever_is_fed_and_in_whatever_order_no_step_is_skipped(steps: list[int], done: int) -> None:
    new, start = Follower(), done
    for step in steps:
        new.fed(step, digest(step - 1), digest(step), done)
        done = run(new, done)
    known = {*range(start + 1), *steps}
    assert {*range(start + 1, done + 1)} <= known
    assert done + 1 not in steps
    new.heard(12, digest(12))
    assert new.missing(done, digest(done)) == (12 if done < 12 else None)


@given(st.lists(st.tuples(st.integers(-1, 5), st.sampled_from([b"x", b"y"]), st.sampled_from([b"x", b"y"]))))
def test_nothing_is_applied_but_upon_its_own_past(told: list[tuple[int, bytes, bytes]]) -> None:
    new, done, past = Follower(), NOTHING_DONE, b"x"
    for step, previous, after in told:
        new.fed(step, previous, after, done)
        if (following := new.next_step(done, past)) is not None:
            assert following.step == done + 1
            assert (following.step, past, following.digest) in told
            done, past = following.step, following.digest
            new.applied()

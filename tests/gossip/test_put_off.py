"""A state that arrives while the script of an observer is within a batch: R9 of PROTOCOL.md."""

from gossip.effects import Apply, Discard, Load

from .test_observing import digest, waits_at


def test_r9_a_state_that_comes_in_the_middle_of_a_batch_is_put_off_where_the_next_step_is_here() -> None:
    new = waits_at(5, fed=(6, 7))
    assert new.observing.put_off(2.0, 8, digest(8)) == [Apply(6, digest(6))]
    assert new.loads(6) == [Load(8, digest(8))]
    assert new.loads(8) == [Discard(7, digest(7))]


def test_r9_a_state_that_comes_in_the_middle_of_a_batch_is_needed_where_the_next_step_is_not_here() -> None:
    new = waits_at(5, fed=(7,))
    assert new.observing.put_off(2.0, 8, digest(8)) is None
    assert new.observing.put_off(2.0, 7, digest(7)) == [], "it is offered no more"

"""Frozen parameters of an observer: what it says of them, and what follows if they have changed. R30 of PROTOCOL.md."""

from gossip.effects import DropState, Load, Send
from gossip.progress import NOTHING_DONE, StateQuery

from .members import A
from .test_observing import Observer, digest

DIGEST = b"f" * 16


def asks() -> Observer:
    """An observer that has received the state after step 5, without the frozen parameters that it said to have."""
    new = Observer(NOTHING_DONE, b"")
    new.observing.frozen = DIGEST
    assert new.hears(5) == [Send(A, StateQuery(5, DIGEST))]
    assert new.gets(5) == [Load(5, digest(5))]
    return new


def test_r30_who_has_no_more_what_it_said_to_have_asks_again_for_all() -> None:
    new = asks()
    assert new.observing.lacks(5, digest(5)) == [DropState(5, digest(5))]
    assert new.hears(7, 0.5) == []
    assert new.hears(8, 1.0) == [Send(A, StateQuery(8))]
    assert new.gets(8, now=1.5) == [Load(8, digest(8))]


def test_r30_a_state_that_has_come_meanwhile_is_offered() -> None:
    new = asks()
    assert new.gets(6) == []
    assert new.observing.lacks(5, digest(5)) == [DropState(5, digest(5)), Load(6, digest(6))]


def test_r30_what_is_said_of_a_state_that_is_offered_no_more_changes_nothing_of_the_one_that_is() -> None:
    new = asks()
    assert new.observing.lacks(4, digest(4)) == []
    assert new.observing.frozen == b"" and new.loads(5) == []

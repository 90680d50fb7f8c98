"""An observer that two swarms feed, or give a state, before it joins one of them: R6, R9 of PROTOCOL.md."""

from dataclasses import replace

from gossip.effects import DropState, DropStep, Load
from gossip.progress import NOTHING_DONE

from .members import A, D, view_of
from .test_observing import Observer, digest, query


def test_what_another_swarm_has_fed_keeps_nothing_and_puts_nobody_behind() -> None:
    new = Observer(5)
    assert new.observing.fed(10**6, b"another past", b"another one", 1, is_own=False) == []
    new.fed(7, 8)
    assert new.loads(8) == [DropStep(7, digest(7))], "and the host knows of the other one that it was run"
    assert not new.observing.waits(0.0, lambda: True)[0]


def test_a_state_of_another_swarm_than_the_view_lets_go_of_no_step() -> None:
    new = Observer(5)
    new.fed(*range(7, 12))
    view = view_of(2, A, D)
    new.observing.install(view)
    new.steps.install(view)
    new.observing._asked.members[A] = None
    assert new.observing.state_arrived(11, digest(11), b"another lineage") == [DropState(11, digest(11))]


def test_r6_a_view_of_another_swarm_than_the_state_that_is_to_be_loaded_begins_with_nothing() -> None:
    new = Observer(5)
    new.hears(8, 0.0)
    new.hears(8, 1.0)
    assert new.gets(8) == [Load(8, digest(8))]
    new.observing.install(view_of(2, A, D))
    assert (new.steps.done, new.steps.digest) == (5, digest(5)), "it is of this one"
    new.observing.install(replace(view_of(2, A, D), lineage=b"another lineage"))
    assert (new.steps.done, new.steps.digest) == (NOTHING_DONE, b"")


def test_a_swarm_that_is_behind_ends_no_gap_in_what_the_other_one_has_fed() -> None:
    new = Observer(5)
    assert [new.hears(step, now) for step, now in ((7, 0.0), (2, 0.4), (8, 0.8), (3, 0.9))] == [[], [], [], []]
    assert new.hears(9, 1.0) == query(9)

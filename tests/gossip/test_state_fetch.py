"""Requests of an observer for a state, and how long each takes."""

from gossip.effects import DropState
from gossip.state_fetch import StateFetch

from .members import A, B
from .test_observing import Observer, digest


def test_r9_a_state_takes_as_long_as_since_its_own_request() -> None:
    fetch = StateFetch()
    fetch.ask(0.0, A)
    assert fetch.segment_arrived(0.5, A, 5)
    fetch.state_arrived()  # and is of no use
    fetch.ask(100.0, A)
    assert fetch.segment_arrived(101.0, A, 900)
    assert fetch.segment_arrived(103.0, A, 900)
    fetch.state_arrived()
    assert (fetch.longest_s, fetch.took_s) == (3.0, 2.0)


def test_r9_a_state_that_is_asked_for_again_takes_as_long_as_since_the_first_time() -> None:
    fetch = StateFetch()
    fetch.ask(0.0, A)
    fetch.ask(1.0, B)
    assert fetch.segment_arrived(3.0, B, 5)
    assert (fetch.longest_s, fetch.took_s) == (float("inf"), 0.0)
    fetch.state_arrived()
    assert fetch.longest_s == 3.0


def test_r9_a_second_state_of_one_request_takes_as_long_as_it_comes() -> None:
    fetch = StateFetch()
    fetch.ask(0.0, A)
    fetch.ask(1.0, B)
    assert fetch.segment_arrived(2.0, A, 5)
    fetch.state_arrived()
    assert fetch.segment_arrived(3.0, B, 6)
    assert fetch.segment_arrived(4.0, B, 6)
    fetch.state_arrived()
    assert fetch.longest_s == 1.0


def test_r9_a_state_that_came_too_late_makes_the_next_one_no_slower() -> None:
    new = Observer(5)
    new.hears(8, 0.0)
    new.hears(8, 1.0)
    new.fed(6, 7, 8)
    assert new.run() == 8
    assert new.gets(7, now=1.5) == [DropState(7, digest(7))]
    new.hears(98, 100.0)
    new.hears(98, 101.0)
    new.gets(98, now=101.5)
    assert new.observing._asked.longest_s == 0.5

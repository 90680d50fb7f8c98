"""Members that have called different numbers of operations in a step."""

import pytest

from gossip.effects import AbortReceived, Send
from gossip.progress import NOT_CALLED, Abort, Beat, Progress

from .machines import GENESIS, NOTHING, PAIR, ZERO, active, barrier
from .members import B, C


def test_who_finishes_says_with_how_many_operations() -> None:
    machine = active()
    machine.submitted = 2
    said = Progress(-1, GENESIS, ZERO, 2)
    assert machine.finished(0, ZERO.digest, ZERO.state_digest) == [Send(B, said), Send(C, said)]


def test_an_operation_beyond_the_end_of_the_step_at_another_is_one_that_it_does_not_call() -> None:
    machine = active()
    said = Progress(-1, GENESIS, ZERO, 2)
    assert machine.receive(B, said) == []
    machine.submitted = 3
    expected = [AbortReceived(B, Abort(0, 2, NOT_CALLED))]
    assert machine.receive(B, said) == expected
    assert machine.receive(B, Beat(NOTHING, said)) == expected


@pytest.mark.parametrize("number", [0, 3, 4])
def test_who_has_called_as_many_or_more_or_does_not_say_is_let_alone(number: int) -> None:
    machine = active()
    machine.submitted = 3
    assert machine.receive(B, Progress(-1, GENESIS, ZERO, number)) == []


def test_another_step_and_another_view_are_not_compared() -> None:
    machine = active()
    machine.submitted = 3
    assert machine.receive(B, Progress(-1, GENESIS, None, 1)) == []
    assert barrier(machine, NOTHING) and machine.view == PAIR
    machine.submitted = 3
    assert machine.receive(B, Progress(-1, GENESIS, ZERO, 2)) == []  # finished in the view before
    machine = active()
    machine.submitted = 3
    machine.finished(0, ZERO.digest, ZERO.state_digest)
    assert machine.receive(B, Progress(-1, GENESIS, ZERO, 2)) == []  # the digests tell

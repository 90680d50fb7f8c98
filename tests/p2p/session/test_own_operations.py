"""Identification of a script's own operations among its training steps."""

import numpy as np

from p2p.data.sample_tracker import SampleTracker
from p2p.session.history import History
from p2p.session.own_operations import OwnOperations
from p2p.step.collective import AllGather, AllReduce, GenericCollective
from p2p.step.operation import Operation
from p2p.step.stragglers import StragglerDetector


def operation(collective: AllReduce | AllGather | GenericCollective) -> Operation:
    values = np.ones(3, np.int64)
    return Operation(collective, values, np.zeros_like(values), values.shape)


STEP = [operation(AllGather(is_counts=True)), operation(AllReduce())]
OWN = [operation(AllReduce())]


def history_of_none() -> History:
    return History(SampleTracker(), None, StragglerDetector(2.0))


def paths(own: OwnOperations, number: int) -> list[bytes]:
    """The paths of `number` successive operations that are called from one line."""
    found = []
    for _ in range(number):
        found.append(own.place().path)
        own.ended(OWN)
    return found


def test_a_path_is_of_all_that_was_called_since_the_last_training_step() -> None:
    own = OwnOperations(history_of_none())
    found = []
    for ends_step in (lambda: own.ended(STEP), own.took_step_back, lambda: None):
        found.append(paths(own, 3))
        ends_step()
    assert len(set(found[0])) == 3 and found[0] == found[1] == found[2]


def test_a_path_is_of_the_lines_of_the_script_that_have_called() -> None:
    """Two calls in one loop: a conditional call before another does not change the other's path."""
    own = OwnOperations(history_of_none())
    one, other = own.place(), own.place()
    again = [own.place() for _ in range(2)]
    assert one.path == other.path and again[0].path == again[1].path != one.path


def test_who_calls_it_again_in_another_incarnation_is_in_the_same_place() -> None:
    history, places = history_of_none(), []
    own = OwnOperations(history)
    for _ in range(2):
        places.append(own.place())
        history.lacks_state = True
    assert places[0].path == places[1].path
    assert [place.is_sought for place in places] == [False, True]


def test_results_are_only_for_the_script_until_a_state_is_loaded() -> None:
    history = history_of_none()
    own = OwnOperations(history)
    assert not own.ended(OWN)
    history.lacks_state = True
    assert own.ended(OWN) and not own.ended(STEP)
    history.loaded(7)
    assert not own.ended(OWN) and not own.place().is_sought
    own.took_step_back()
    assert own.ended(OWN)


def test_what_only_some_members_have_of_a_result_is_not_found() -> None:
    assert OwnOperations.may_be_found(OWN)
    assert not OwnOperations.may_be_found([*OWN, operation(GenericCollective("reduce-scatter"))])
    assert not OwnOperations.may_be_found(STEP), "a training step is taken back instead"

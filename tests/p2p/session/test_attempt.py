import numpy as np
import pytest

from p2p.errors import ShoalError
from p2p.session.attempt import MOST_EARLY, MOST_EARLY_BYTES, Attempt, OpenedBy
from tests.p2p.step.group import all_reduce


def test_who_opens_a_step_while_another_is_open_is_told_which() -> None:
    attempt = Attempt()
    attempt.begin(OpenedBy.BLOCK)
    with pytest.raises(ShoalError, match="block is open"):
        attempt.begin(OpenedBy.ALONE)
    operation = all_reduce(np.ones(3))
    attempt.add(operation)
    assert attempt.end() == [operation]
    attempt.begin(OpenedBy.ALONE)
    assert (attempt.number, attempt.operations) == (1, [])


def test_whatever_comes_next_goes_on_with_a_step_of_which_results_were_handed_out() -> None:
    attempt = Attempt()
    operations = [all_reduce(np.ones(3)) for _ in range(3)]
    for operation, by in zip(operations, (OpenedBy.EARLY, OpenedBy.EARLY, OpenedBy.ALONE), strict=True):
        attempt.begin(by)
        attempt.add(operation)
    with pytest.raises(ShoalError, match="an operation waits"):
        attempt.begin(OpenedBy.EARLY)
    assert attempt.end() == operations


def test_a_step_holds_a_number_of_early_operations_and_bytes_of_them() -> None:
    attempt = Attempt()
    for _ in range(MOST_EARLY):
        assert attempt.takes(all_reduce(np.ones(1)))
        attempt.add(all_reduce(np.ones(1)))
    assert not attempt.takes(all_reduce(np.ones(0)))
    attempt.end()
    attempt.add(all_reduce(np.ones(100)))
    rest = MOST_EARLY_BYTES - 800
    assert attempt.takes(all_reduce(np.ones(rest // 8))) and not attempt.takes(all_reduce(np.ones(rest // 8 + 1)))

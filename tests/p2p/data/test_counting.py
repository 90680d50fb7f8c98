"""Numbers of samples that a script may pass."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from p2p.data.counting import MOST_SAMPLES, whole_number

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("given", "number"),
    [(0, 0), (7, 7), (7.0, 7), (np.int32(3), 3), (torch.tensor(5), 5), (True, 1), (MOST_SAMPLES, MOST_SAMPLES)],
)
def test_a_whole_number_counts(given: Any, number: int) -> None:
    assert whole_number(given) == number
    assert type(whole_number(given)) is int


@pytest.mark.parametrize("given", [0.5, 1.5, math.nan, math.inf, "x", None, np.float32(2), torch.tensor([1, 2])])
def test_what_is_none_is_refused_and_named(given: Any) -> None:
    with pytest.raises(TypeError, match="the number of samples must be a whole number, is "):
        whole_number(given)


@pytest.mark.parametrize("given", [-1, MOST_SAMPLES + 1, 2**63])
def test_what_is_out_of_range_is_refused_and_named(given: int) -> None:
    with pytest.raises(ValueError, match=f"the number of samples must be at least 0 and at most .*, is {given}$"):
        whole_number(given)

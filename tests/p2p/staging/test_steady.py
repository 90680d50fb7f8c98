"""A steady step waits for its device once, where gradients have to be there."""

import pytest
import torch

from tests.cases import some_of
from tests.p2p.staging.steady import MODES, steady


@pytest.mark.parametrize("seed", some_of(range(3 * len(MODES)), *range(len(MODES))))
def test_a_steady_step_waits_for_its_device_at_the_end_of_backward_and_nowhere_else(seed: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steady(range(seed, seed + 1))
    finally:
        torch.set_num_threads(before)

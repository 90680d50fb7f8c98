"""A steady step waits for its device once, where gradients are needed."""

import pytest
import torch

from tests.cases import some_of
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.pair import Make
from tests.p2p.staging.steady import MODES, of_kinds, steady

SEEDS = some_of([(of_kinds, seed) for seed in range(3 * len(MODES))], *range(len(MODES)))
ON_GPU = [pytest.param(Gpu, seed, marks=pytest.mark.gpu) for seed in range(2 * len(MODES))]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize(("make", "seed"), [*SEEDS, *ON_GPU])
def test_a_steady_step_waits_for_its_device_at_the_end_of_backward_and_nowhere_else(make: Make, seed: int) -> None:
    make(seed)  # skips the test if there is no such device
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steady(range(seed, seed + 1), make)
    finally:
        torch.set_num_threads(before)

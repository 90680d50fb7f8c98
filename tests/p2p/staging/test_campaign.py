"""Late copies, in any order: all results are right."""

import pytest
import torch

from tests.p2p.staging.campaign import CAMPAIGNS, OF_STAND_INS
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.pair import Make
from tests.p2p.staging.standin import StandIn

NUM_SEEDS = 10
"""Seeds of each campaign; `make staging` runs a given number."""


ON_GPU = [pytest.param(name, Gpu, marks=pytest.mark.gpu) for name in CAMPAIGNS if name not in OF_STAND_INS]


@pytest.mark.parametrize(("name", "make"), [*((name, StandIn) for name in CAMPAIGNS), *ON_GPU])
def test_every_element_is_right_however_late_copies_are(name: str, make: Make) -> None:
    make(0)  # skips the test if there is no such device
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        CAMPAIGNS[name](range(NUM_SEEDS), make)
    finally:
        torch.set_num_threads(before)

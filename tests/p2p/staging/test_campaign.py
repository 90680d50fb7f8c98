"""Copies that are late, in any order: nothing of what comes out is wrong."""

import pytest
import torch

from tests.p2p.staging.campaign import CAMPAIGNS
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.pair import Make
from tests.p2p.staging.standin import StandIn

NUM_SEEDS = 30


@pytest.mark.parametrize("make", [StandIn, pytest.param(Gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_element_is_right_however_late_copies_are(name: str, make: Make) -> None:
    make(0)  # or the test is skipped
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        CAMPAIGNS[name](range(NUM_SEEDS), make)
    finally:
        torch.set_num_threads(before)

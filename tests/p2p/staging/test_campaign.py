"""Copies that are late, in any order: nothing of what comes out is wrong."""

import pytest
import torch

from tests.p2p.staging.campaign import CAMPAIGNS

NUM_SEEDS = 30


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_element_is_right_however_late_copies_are(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        CAMPAIGNS[name](range(NUM_SEEDS))
    finally:
        torch.set_num_threads(before)

"""A peer with tensors on a device, and one with tensors of the host, make the same calls."""

from typing import Any

import pytest
import torch

from p2p.device import HOST, Device
from tests.p2p.staging.campaign import CAMPAIGNS
from tests.p2p.staging.standin import StandIn

NUM_SEEDS = 10


class OnHost(StandIn):
    """A stand-in for the host: tensors are in its memory, and only the host computes sums."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.adder = None  # type: ignore[assignment]

    def device_of(self, tensor: Any) -> Device:
        return HOST


@pytest.mark.parametrize("name", ["calls", "calls in parts", "calls that a device adds up"])
def test_both_have_the_same_results(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        CAMPAIGNS[name](range(NUM_SEEDS), lambda seed: OnHost(seed) if seed else StandIn(seed))
    finally:
        torch.set_num_threads(before)

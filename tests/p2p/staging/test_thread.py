"""With parameters on a device, the backward pass runs in the thread that has called it."""

import pytest
import torch
from torch import nn

from p2p import DataParallel, Peer, ShoalError
from tests.p2p.staging.pair import play
from tests.p2p.staging.standin import StandIn


def test_backward_in_threads_of_autograd_is_refused_and_named() -> None:
    def script(peer: Peer, device: StandIn) -> None:
        model = nn.Linear(2, 1)
        parallel = DataParallel(peer, model, torch.optim.SGD(model.parameters(), lr=0.1))
        torch.autograd.set_multithreading_enabled(True)
        with pytest.raises(ShoalError, match=r"call `torch\.autograd\.set_multithreading_enabled\(False\)`"):
            parallel(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is None and device.num_copies == 0
        torch.autograd.set_multithreading_enabled(False)
        parallel(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not None and model.weight.grad.tolist() == [[1.0, 1.0]] and peer.last_step == 1

    play(script, seeds=[0])

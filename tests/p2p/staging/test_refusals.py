"""A refused registration does not affect later computations and copies."""

import mmap
import secrets

import numpy as np
import pytest
import torch
from torch import nn

from p2p import DataParallel, Peer
from p2p.device import PinRefused
from p2p.memory.arena import REGIONS_OFFSET, Arena
from p2p.memory.extents import Extents
from tests.p2p.staging.gpu import Gpu
from tests.p2p.staging.pair import Make, play
from tests.p2p.staging.standin import StandIn

EXTENT = 4 * mmap.PAGESIZE
MAKES = [StandIn, pytest.param(Gpu, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("make", MAKES)
def test_after_a_refusal_the_next_kernel_runs_and_copies_are_right(make: Make) -> None:
    device = make(0)
    arena = Arena(REGIONS_OFFSET + 2 * EXTENT, secrets.token_hex(8))
    region = arena.allocate(2 * EXTENT)
    assert region is not None
    memory = arena.array(region, np.uint8)
    device.refuses_every = 2
    device.pin(memory[:EXTENT])
    for turn in range(3):
        with pytest.raises(PinRefused):
            device.pin(memory[EXTENT:])
        tensor = torch.full((EXTENT,), turn, dtype=torch.uint8, device=device.where)
        assert (tensor + 1).sum().item() == EXTENT * (turn + 1)
        for into in (memory[:EXTENT], memory[EXTENT:]):
            device.fetch(tensor + 2, into, [device.mark()]).wait()
            device.store(into, tensor, [device.mark()]).wait()
            assert (into == turn + 2).all() and (tensor == turn + 2).all()
            tensor.fill_(turn)
        device.num_pins = 1
    device.wait_for_copies()
    device.unpin(memory[:EXTENT])
    arena.close()


@pytest.mark.parametrize("make", MAKES)
def test_a_step_is_computed_right_though_each_registration_before_it_was_refused(make: Make) -> None:
    def script(peer: Peer, device: StandIn) -> None:
        device.refuses_every = 1
        model = nn.Linear(2, 1, bias=False).to(device.where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        parallel = DataParallel(peer, model, optimizer)
        before = model.weight.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            parallel(torch.ones(1, 2, device=device.where)).sum().backward()
            optimizer.step()
        assert torch.equal(model.weight, ((before - 0.5) - 0.5) - 0.5) and peer.last_step == 3
        assert device.num_pins > 0 and not device.pinned

    make(0)  # skips the test if there is no such device
    play(script, make=make)


@pytest.mark.parametrize("make", MAKES)
def test_what_was_registered_before_a_refusal_stays_so_and_is_copied_right(make: Make) -> None:
    device = make(0)
    device.refuses_every = 3
    arena = Arena(REGIONS_OFFSET + 6 * EXTENT, secrets.token_hex(8))
    region = arena.allocate(6 * EXTENT)
    assert region is not None
    memory, extents = arena.array(region, np.uint8), Extents(arena, EXTENT)
    extents.pin(device, range(6))
    assert len(device.pinned) == 4
    tensor = torch.arange(6 * EXTENT, device=device.where).to(torch.uint8)
    for piece in extents.cut(memory):
        device.fetch(tensor[piece], memory[piece], [device.mark()]).wait()
    assert np.array_equal(memory, tensor.cpu().numpy())
    extents.unpin()
    assert not device.pinned
    arena.close()

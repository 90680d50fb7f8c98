"""The stand-in behaves as a device may, and refuses uses that a device may carry out wrongly."""

import numpy as np
import pytest
import torch

from tests.p2p.staging.standin import StandIn, Unordered


def test_a_copy_is_late_its_target_poisoned_and_its_source_read_at_its_end() -> None:
    device, source = StandIn(0), torch.ones(4)
    into, number = np.zeros(4, np.float32), np.zeros(4, np.int32)
    marks = [device.fetch(each, array, [device.mark()]) for each, array in ((source, into), (source.int(), number))]
    assert np.isnan(into).all() and (number.view(np.uint8) == 0xA5).all()
    source.fill_(2)
    for mark in marks:
        mark.wait()
    assert (into == 2).all() and (number == 1).all()


def test_what_is_held_is_seen_at_once_and_its_source_is_still_in_use() -> None:
    device, source, into = StandIn(1), np.ones(4, np.float32), torch.zeros(4)
    mark = device.store(source, into, [device.mark()])
    assert into.isnan().all()
    device.order_after(mark)
    assert into.tolist() == [1] * 4
    source[:] = 2
    with pytest.raises(Unordered, match="changed under it"):
        mark.wait()


def test_a_copy_that_comes_before_what_the_tensor_holds_is_refused() -> None:
    device, tensor, array = StandIn(2), torch.ones(4), np.zeros(4, np.float32)
    with pytest.raises(Unordered, match="after nothing"):
        device.fetch(tensor, array, [])
    early = device.mark()
    device.fetch(tensor, array, [device.mark()]).wait()
    tensor.fill_(2)
    with pytest.raises(Unordered, match="written last"):
        device.fetch(tensor, array, [early])


def test_copies_of_one_stream_keep_their_order_and_those_of_two_do_not() -> None:
    orders = set()
    for seed in range(20):
        device, tensors = StandIn(seed), [torch.ones(1) for _ in range(3)]
        arrays = [np.zeros(1, np.float32) for _ in tensors]
        marks = [device.fetch(tensors[0], arrays[0], [device.mark()])]
        marks += [device.store(each, into, [device.mark()]) for each, into in zip(arrays[1:], tensors[1:], strict=True)]
        while not marks[2].is_over():
            device.progress()
        assert marks[1].is_over()
        orders.add(marks[0].is_over())
    assert orders == {True, False}

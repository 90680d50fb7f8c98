from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from p2p.training.tensors.layouts import dense_strides, in_memory_order, is_overlapping, laid_out

shapes = st.lists(st.integers(0, 3), max_size=4)


@given(shapes, st.randoms())
def test_what_lies_in_any_order_of_dimensions_is_taken_apart_and_put_together(shape: list[int], random: Random) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    tensor = torch.arange(torch.Size(shape).numel()).view(shape).permute(order)
    flat = in_memory_order(tensor)
    assert flat.is_contiguous() and flat.tolist() == sorted(flat.tolist())
    assert flat.data_ptr() == tensor.data_ptr(), "nothing is copied"
    again = laid_out(flat.clone(), tensor.shape, dense_strides(tensor))
    assert torch.equal(again, tensor)
    assert not tensor.numel() or again.stride() == tensor.stride()
    assert not is_overlapping(tensor)


def test_what_has_gaps_lies_in_the_order_of_its_indices() -> None:
    for tensor in (torch.arange(12).view(3, 4)[:, ::2], torch.arange(12).view(3, 4).t()[:2]):
        assert dense_strides(tensor) is None and not is_overlapping(tensor)
        assert in_memory_order(tensor).tolist() == tensor.flatten().tolist()


def test_elements_that_share_memory_are_found() -> None:
    one = torch.arange(6)
    assert is_overlapping(one[:1].expand(3)) and is_overlapping(one.as_strided((2, 3), (2, 1)))
    assert is_overlapping(one.view(2, 3)[:, :1].expand(2, 3))
    assert not any(map(is_overlapping, (one, one.view(2, 3), one[:1].expand(1), one[::2], one[:0], one[0])))


def test_dimensions_of_one_element_keep_their_strides() -> None:
    weight = torch.zeros(8, 1, 3, 3).to(memory_format=torch.channels_last)
    strides = dense_strides(weight)
    assert strides == list(weight.stride()) and weight.is_contiguous()
    assert laid_out(torch.zeros(72), weight.shape, strides).stride() == weight.stride()

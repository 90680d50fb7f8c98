from operator import mul
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import BFLOAT16, Array, type_name
from p2p.session.tensors import NUM_BUFFERS, ResultBuffers, as_array, check_places, empty_tensor, note_written, type_of


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8],
)
def test_a_tensor_shares_its_memory(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype)[:, 1:3].T
    array = as_array(tensor)
    assert type_name(array.dtype) == str(dtype).removeprefix("torch.")
    array[...] = np.arange(6).reshape(2, 3)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_bfloat16_shares_its_memory_as_a_type_of_its_own() -> None:
    tensor = torch.arange(8).bfloat16()[::2]
    array = as_array(tensor)
    assert array.dtype == BFLOAT16
    array.view(np.uint16)[...] = 0x4040
    assert tensor.tolist() == [3.0] * 4


def test_parameters_scalars_and_nothing_at_all_are_tensors() -> None:
    assert as_array(torch.nn.Parameter(torch.ones(2))).tolist() == [1, 1]
    assert as_array(torch.ones((), dtype=torch.bfloat16)).shape == ()
    assert as_array(torch.zeros(0, 3, dtype=torch.bool)).shape == (0, 3)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ("text", "got str"),
        (1.0, "got float"),
        ([1.0], "got list"),
        (np.float32(1), "got float32"),
        (np.ma.masked_array([1.0]), "got MaskedArray"),
        (np.array(["text"]), "must be one of .* is <U4"),
        (np.ones(2, np.complex64), "must be one of .* is complex64"),
        (np.ones(2, np.uint16), "must be one of .* is uint16"),
        (np.ones(2, ">f4"), "must be one of .* is >f4"),
        (torch.ones(2, dtype=torch.complex64), "must be one of .* is complex64"),
        (torch.ones(2).to(torch.float8_e4m3fn), r"torch\.float8_e4m3fn cannot"),
        (torch.ones(2, device="meta"), "on meta"),
        (torch.ones(2).to_sparse(), "sparse_coo on cpu"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, "resolve_neg"),
    ],
    ids=str,
)
def test_what_cannot_be_reduced_is_refused_in_words(tensor: object, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        as_array(tensor)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="read-only"):
        as_array(np.broadcast_to(np.ones(1), (3,)))
    with pytest.raises(ValueError, match=r"several elements of the tensor share one place .* tensor\.clone\(\)"):
        as_array(torch.ones(2, 1).expand(2, 3))
    with pytest.raises(ValueError, match="as after `expand` or `unfold`"):
        as_array(torch.ones(6).unfold(0, 2, 1))
    with pytest.raises(ValueError, match="several elements of the tensor share one place"):
        as_array(np.lib.stride_tricks.as_strided(np.ones(3), (3,), (4,)))
    assert as_array(torch.ones(1).expand(1)).size == 1 and as_array(torch.ones(1).expand(0, 1)).size == 0


@pytest.mark.parametrize("shape", [(4,), (3, 2), (2, 0, 3), (2, 3, 4)], ids=str)
@given(st.data())
def test_elements_may_lie_in_any_order_but_none_in_the_place_of_another(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    strides = tuple(data.draw(st.integers(-7, 7)) for _ in shape)
    places = [sum(map(mul, index, strides)) for index in np.ndindex(shape)]
    if len({*places}) == len(places):
        check_places(shape, strides, 1)
    else:
        with pytest.raises(ValueError, match="several elements of the tensor share one place"):
            check_places(shape, strides, 1)


def test_buffers_are_handed_out_again_and_there_are_few() -> None:
    buffers = ResultBuffers(np.empty)
    first = buffers.like(np.ones(3, np.uint8))
    assert buffers.like(np.zeros(3, np.uint8)) is first
    assert buffers.like(np.ones(3, np.int8)) is not first
    for size in range(4, 4 + NUM_BUFFERS):
        buffers.like(np.ones(size))
    assert buffers.like(np.zeros(3, np.uint8)) is not first


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (np.int64(2), torch.tensor(3))], ids=str)
def test_an_empty_tensor_has_the_shape_that_was_asked_for(shape: tuple[int, ...]) -> None:
    tensor = empty_tensor(shape, torch.bfloat16, np.empty)
    assert (tuple(tensor.shape), tensor.dtype) == (shape, torch.bfloat16)


def test_memory_is_the_hosts_where_the_script_makes_its_tensors_elsewhere() -> None:
    with torch.device("meta"):
        assert empty_tensor((3,), None, np.empty).is_cpu
        assert type_of(torch.ones(2, dtype=torch.bfloat16)) == BFLOAT16


@pytest.mark.parametrize(
    ("shape", "error", "complaint"),
    [
        ((-1,), ValueError, r"negative, got \(-1,\)"),
        ((-2, -3), ValueError, "negative"),
        (((2, 3),), TypeError, r"an argument of its own, got \(\(2, 3\),\)"),
        ((2.5,), TypeError, "a whole number"),
    ],
    ids=str,
)
def test_a_shape_that_no_tensor_has_is_refused_before_memory_is_taken(
    shape: tuple[int, ...], error: type[Exception], complaint: str
) -> None:
    def empty(count: int, dtype: np.dtype[Any]) -> Array:
        raise AssertionError(f"{count} elements were taken")

    with pytest.raises(error, match=complaint):
        empty_tensor(shape, None, empty)


def test_a_backward_pass_through_the_result_of_an_operation_is_logged_and_that_of_a_loss_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden, constant = weight * 2, weight.detach().clone()
    loss = (weight + constant).sum()
    note_written(constant)
    note_written(loss)
    loss.backward()  # type: ignore[no-untyped-call]
    assert not caplog.messages
    note_written(hidden)
    (hidden + 1).sum().backward()  # type: ignore[no-untyped-call]
    (said,) = caplog.messages
    assert said.startswith("a backward pass went through a tensor that had become the result of an operation")

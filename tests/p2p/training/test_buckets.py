import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from collectives import BFLOAT16, as_bits
from p2p.staging import Staged
from p2p.training.tensors.buckets import DTYPES, Bucket, make_buckets
from p2p.training.tensors.staged_buckets import make_staged_bucket
from tests.p2p.staging.standin import StandIn

COUNT, VIEW = count(1), count(1)

Make = Callable[[list[nn.Parameter]], Bucket]

shapes = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), min_size=1, max_size=12)


@pytest.fixture(params=["host", "stand-in"])
def make(request: pytest.FixtureRequest) -> Make:
    """Creates a bucket in memory of the host, or on a device."""
    if request.param == "host":
        return lambda parameters: make_buckets(parameters, 1000, None)[0]
    return lambda parameters: make_staged_bucket(parameters, None, make_staged=lambda: Staged(StandIn(0)))


def run_alone(bucket: Bucket) -> None:
    """Carry a full bucket to its result, as a peer alone does."""
    bucket.set_used_flags()
    bucket.fetch()
    bucket.wait()
    bucket.operation.result[...] = bucket.operation.input
    if bucket.operation.on_complete is not None:
        bucket.operation.on_complete(next(VIEW).to_bytes(8))


def sent(bucket: Bucket) -> list[float]:
    """The values that others get of a full bucket, without marks."""
    bucket.fetch()
    bucket.wait()
    found: list[float] = as_bits(bucket.operation.input).tolist()
    return found[: -len(bucket.used_flags)]


def is_found_finite(bucket: Bucket) -> bool:
    bucket.fetch()
    bucket.wait()
    return bucket.is_finite()


def parameters_of(*shapes: tuple[torch.dtype, int]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for dtype, size in shapes]


@given(shapes, st.integers(1, 200))
def test_each_parameter_is_in_one_bucket_of_its_type_and_buckets_are_full_in_order(
    shapes: list[tuple[torch.dtype, int]], bucket_bytes: int
) -> None:
    parameters = parameters_of(*shapes)
    buckets = make_buckets(parameters, bucket_bytes, None)
    place = {id(parameter): index for index, parameter in enumerate(parameters)}
    places = [[place[id(parameter)] for parameter in bucket.parameters] for bucket in buckets]
    assert sorted(index for row in places for index in row) == list(range(len(parameters)))
    assert all(row == sorted(row) for row in places)
    assert [row[-1] for row in places] == sorted(row[-1] for row in places)
    for bucket in buckets:
        assert {parameter.dtype for parameter in bucket.parameters} == {bucket.flat.dtype}
        assert len(bucket.used_flags) == len(bucket.parameters)
        assert bucket.flat.nbytes - bucket.used_flags.nbytes <= bucket_bytes or len(bucket.parameters) == 1
        assert bucket.operation.input.nbytes == bucket.flat.nbytes


def test_the_size_of_each_parameter_is_asked_for_twice_however_many_there_are() -> None:
    asked = []

    class Counted(nn.Parameter):
        @property
        def nbytes(self) -> int:  # type: ignore[override]
            asked.append(self)
            return 4

    parameters = [Counted(torch.zeros(1)) for _ in range(200)]
    assert len(make_buckets(parameters, 10**6, None)) == 1
    assert len(asked) <= 2 * len(parameters)


def test_gradients_of_several_passes_are_added_by_their_fraction(make: Make) -> None:
    bucket = make(parameters_of((torch.float32, 2), (torch.float32, 1)))
    bucket.add(0, torch.tensor([1.0, 2.0]), 0.75)
    assert (bucket.missing, bucket.unused) == ({1}, {1})
    bucket.begin_pass()
    bucket.add(0, torch.tensor([4.0, 8.0]), 0.25)
    bucket.zero_empty()
    assert sent(bucket) == [1.75, 3.5, 0.0] and not bucket.missing
    bucket.begin_step()
    bucket.add(0, torch.tensor([5.0, 6.0]), 1.0)
    bucket.add(1, torch.tensor([7.0]), 1.0)
    assert sent(bucket) == [5.0, 6.0, 7.0]


def test_what_there_is_may_be_kept_in_part(make: Make) -> None:
    bucket = make(parameters_of((torch.float32, 1), (torch.float32, 1), (torch.float32, 1)))
    bucket.add(0, torch.tensor([8.0]), 1.0, 0.0)
    bucket.add(1, torch.tensor([4.0]), 1.0, 0.0)
    bucket.end_pass(0.0)
    bucket.begin_pass()
    bucket.add(0, torch.tensor([2.0]), 0.75, 0.25)
    bucket.end_pass(0.25)
    bucket.zero_empty()
    assert sent(bucket) == [3.5, 1.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_that_nobody_has_reached_has_no_gradient(dtype: torch.dtype, make: Make) -> None:
    bucket = make(parameters_of((dtype, 2), (dtype, 3), (dtype, 1)))
    for reached in ({0}, {0, 1, 2}, {0, 1, 2}, {1}, set(), {0, 2}):
        bucket.begin_step()
        for index in reached:
            bucket.add(index, torch.ones_like(bucket.inputs[index]), 1.0)
        bucket.zero_empty()
        run_alone(bucket)
        assert bucket.used_flags.tolist() == [index in reached for index in range(3)]
        gradients = bucket.result_views()
        assert {index for index in range(3) if gradients[index] is not None} == reached
        assert all(each is None or (each == 1).all() for each in gradients)


def test_gradients_lie_in_memory_as_their_parameters_do(make: Make) -> None:
    parameters = [
        nn.Parameter(torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.zeros(3, 5).t()),
        nn.Parameter(torch.zeros(4, 6)[:, ::2]),
    ]
    bucket = make(parameters)
    for index, parameter in enumerate(parameters):
        bucket.add(index, torch.full_like(parameter, index + 1.0), 1.0)
    run_alone(bucket)
    for parameter, values, gradient in zip(parameters, bucket.inputs, bucket.result_views(), strict=True):
        assert gradient is not None and torch.equal(gradient, values)
        for each in (values, gradient):
            assert each.stride() == parameter.stride() if parameter.shape[1] != 3 else True
    assert sent(bucket) == [1.0] * 48 + [2.0] * 15 + [3.0] * 12


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_found_and_large_numbers_are_not(dtype: torch.dtype, make: Make) -> None:
    bucket = make(parameters_of((dtype, 3), (dtype, 3)))

    def fill(*gradients: list[float], fraction: float = 1.0) -> None:
        for index, gradient in enumerate(gradients):
            bucket.add(index, torch.tensor(gradient, dtype=dtype), fraction)
            bucket.check(index)

    largest = torch.finfo(dtype).max
    fill([largest] * 3, [0.0] * 3)  # their sum is not finite
    assert is_found_finite(bucket)
    for value in (math.nan, math.inf, -math.inf):
        bucket.begin_step()
        fill([0.0] * 3, [-value, value, 0.0])
        assert not is_found_finite(bucket)
        assert bucket.first_not_finite() is bucket.parameters[1]
    bucket.begin_step()
    fill([0.0] * 3, [0.0] * 3)
    assert is_found_finite(bucket)


def test_what_one_of_several_passes_adds_is_found_if_it_is_not_finite(make: Make) -> None:
    bucket = make(parameters_of((torch.float16, 1), (torch.float16, 1)))
    for gradients in ((60000.0, math.nan), (60000.0, 0.0)):
        bucket.begin_step()
        for index, gradient in enumerate(gradients):
            bucket.add(index, torch.tensor([gradient]), 0.5)
            bucket.check(index)
        bucket.begin_pass()
        bucket.add(0, torch.tensor([50000.0]), 1.0)
        bucket.check(0)
        bucket.zero_empty()
        assert not is_found_finite(bucket)  # because of the pass before, or since the sum exceeds float16
        assert bucket.first_not_finite() is bucket.parameters[0]


def committed(bucket: Bucket) -> list[Tensor]:
    """The gradients that a step of one peer alone returns as `grad`."""
    bucket.reclaim_result()
    bucket.begin_step()
    for index, values in enumerate(bucket.inputs):
        bucket.add(index, torch.full_like(values, next(COUNT)), 1.0)
    run_alone(bucket)
    for parameter, gradient in zip(bucket.parameters, bucket.result_views(), strict=True):
        parameter.grad = gradient
    return [parameter.grad for parameter in bucket.parameters if parameter.grad is not None]


def drop(bucket: Bucket) -> None:
    for parameter in bucket.parameters:
        parameter.grad = None


def test_what_autograd_adds_is_told_from_what_the_script_writes(make: Make) -> None:
    bucket = make(parameters_of((torch.bfloat16, 2), (torch.bfloat16, 1)))
    assert bucket.operation.input.dtype == BFLOAT16
    assert not bucket.was_added_to(0)
    gradients = committed(bucket)
    assert not bucket.was_added_to(0)
    gradients[1].add_(1)
    assert bucket.was_added_to(0) and bucket.was_added_to(1)
    bucket.parameters[0].grad = None
    assert not bucket.was_added_to(0) and bucket.was_added_to(1)
    gradients[0].zero_()
    assert not bucket.was_added_to(1)
    committed(bucket)
    assert not bucket.was_added_to(1)


KEEP: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda gradient: gradient,
    "detached": lambda gradient: gradient.detach(),
    "part": lambda gradient: gradient.view(-1)[1:],
    "array": lambda gradient: gradient.numpy(),
    "storage": lambda gradient: gradient.untyped_storage(),
    "graph": lambda gradient: (gradient * torch.ones(3, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("keep", KEEP.values(), ids=list(KEEP))
def test_a_gradient_that_the_script_has_kept_stays_what_it_was(keep: Callable[[Tensor], Any], make: Make) -> None:
    bucket = make(parameters_of((torch.float32, 3), (torch.float32, 2)))
    for _ in range(3):
        gradient = committed(bucket)[0]
        place, value, kept = gradient.data_ptr(), gradient[0].item(), keep(gradient)
        del gradient
        drop(bucket)
        after = committed(bucket)[0]
        assert after.data_ptr() != place and (after == value + 2).all()
        if isinstance(kept, Tensor | np.ndarray) and kept.ndim:
            assert (kept == value).all()
        del kept, after
        drop(bucket)


def test_memory_is_taken_once_where_nothing_is_kept(make: Make) -> None:
    bucket = make(parameters_of((torch.float32, 3), (torch.float32, 2)))
    places = set()
    for turn in range(4):
        gradients = committed(bucket)
        places.add(gradients[0].data_ptr())
        torch.nn.utils.clip_grad_norm_(bucket.parameters, 1.0)
        if turn % 2:
            gradients[0].zero_()
        del gradients
        drop(bucket)
    assert len(places) == 1

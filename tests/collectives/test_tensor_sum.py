"""Sums with torch have the bits of those with numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Array, Reduction, reducer
from collectives.elements import FLOATS, as_bits, type_name
from collectives.tensor_sum import add_tensors, can_add, torch_type
from tests.devices import PLACES, need

NUM_CASES = {"cpu": 2000, "cuda:0": 10_000}
DTYPES = sorted(FLOATS, key=type_name)


def drawn(rng: np.random.Generator, dtype: np.dtype, size: int) -> Array:
    """Any bits at all: NaNs of all payloads, infinities, subnormals, and numbers that are near each other."""
    bits = rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(f"u{dtype.itemsize}")
    is_near = rng.random(size) < 0.6
    wide = rng.standard_normal(size).astype(np.float32)
    near = wide.view(np.uint32) >> 16 if dtype.itemsize == 2 else wide.astype(dtype).view(bits.dtype)
    bits[is_near] = near.astype(bits.dtype)[is_near]
    return bits.view(dtype)


def as_tensor(array: Array, where: str) -> torch.Tensor:
    return torch.from_numpy(array.copy().view(np.uint8)).view(torch_type(array.dtype)).to(where)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("where", PLACES)
def test_sums_and_means_have_the_bits_of_numpy_for_all_types_lengths_and_numbers(where: str) -> None:
    need(where)
    rng = np.random.default_rng(0)
    num_nans = 0
    for _ in range(NUM_CASES[where]):
        dtype, num_parts = DTYPES[rng.integers(len(DTYPES))], int(rng.integers(1, 7))
        reduction = Reduction(str(rng.choice(["sum", "mean"])), num_parts, has_one_nan=True)
        arrays = [drawn(rng, dtype, int(size)) for size in [rng.integers(0, 90)] * num_parts]
        expected = np.empty_like(as_bits(arrays[0]))
        reducer(reduction, dtype)([*map(as_bits, arrays)], expected)
        found = add_tensors((as_tensor(each, where) for each in arrays), reduction, completes=True)
        assert bytes_of(found) == expected.tobytes(), (dtype, reduction)
        num_nans += int(found.isnan().sum())
    assert num_nans > 1000


@pytest.mark.parametrize("where", PLACES)
@given(st.sampled_from(DTYPES), st.integers(2, 5), st.integers(0, 1 << 32))
@settings(deadline=None, max_examples=50)
def test_a_partial_sum_is_not_divided_and_rounded_as_one(
    where: str, dtype: np.dtype, num_parts: int, seed: int
) -> None:
    need(where)
    rng = np.random.default_rng(seed)
    reduction = Reduction("mean", num_parts, has_one_nan=True)
    arrays = [drawn(rng, dtype, 40) for _ in range(num_parts)]
    expected = np.empty_like(as_bits(arrays[0]))
    reducer(replace(reduction, op="sum"), dtype)([*map(as_bits, arrays)], expected)
    found = add_tensors((as_tensor(each, where) for each in arrays), reduction, completes=False)
    assert bytes_of(found) == expected.tobytes()


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", DTYPES, ids=type_name)
def test_one_alone_is_copied_whatever_its_bits(dtype: np.dtype, where: str) -> None:
    need(where)
    (array,) = (drawn(np.random.default_rng(1), dtype, 500),)
    assert (
        bytes_of(add_tensors(iter([as_tensor(array, where)]), Reduction("mean", 1), completes=True)) == array.tobytes()
    )


def test_what_is_not_added_with_torch_is_left_to_numpy() -> None:
    assert can_add(Reduction("sum"), np.dtype(np.float32)) and can_add(Reduction("mean"), DTYPES[0])
    assert not can_add(Reduction("max"), np.dtype(np.float32))
    assert not can_add(Reduction("sum"), np.dtype(np.int64))

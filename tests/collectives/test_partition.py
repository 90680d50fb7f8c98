import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import even_chunks, split_by_weight

lengths = st.integers(0, 10_000)
weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(lambda values: sum(values) > 0)


@given(lengths, weights)
def test_slices_cover_everything_in_order(length: int, weights: list[float]) -> None:
    slices = split_by_weight(length, weights)
    assert len(slices) == len(weights)
    assert (slices[0].start, slices[-1].stop) == (0, length)
    assert all(left.stop == right.start for left, right in pairwise(slices))


@given(lengths, weights)
def test_each_slice_is_within_one_element_of_its_share(length: int, weights: list[float]) -> None:
    total = math.fsum(weights)
    for part, weight in zip(split_by_weight(length, weights), weights, strict=True):
        assert abs(part.stop - part.start - length * weight / total) <= 1 + 1e-9


@given(lengths, weights)
def test_weight_zero_gets_nothing(length: int, weights: list[float]) -> None:
    *_, last = split_by_weight(length, [*weights, 0])
    assert last == slice(length, length)


@given(lengths, st.integers(1, 40))
def test_even_chunks_differ_by_one_element_at_most(length: int, num_chunks: int) -> None:
    sizes = [part.stop - part.start for part in split_by_weight(length, even_chunks(num_chunks))]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [2, -1], [1, math.inf], [math.nan], [1e308, 1e308]])
def test_weights_without_a_meaning_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        split_by_weight(10, weights)

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import ShoalError
from p2p.session.aliasing import Accesses, Unwritten, extent


def accesses_of(*calls: tuple[Any, Any, Any]) -> Accesses:
    accesses = Accesses()
    for reads, writes, kind in calls:
        accesses.add(reads, writes, kind)
    return accesses


def test_calls_of_other_tensors_and_of_parts_that_lie_apart_are_one_step() -> None:
    flat = np.zeros(12)
    accesses = accesses_of((flat[:4], flat[:4], None), (flat[4:8], flat[4:8], None))
    accesses.add(flat[9::2], flat[9::2], None)
    accesses.add(flat[8::2], flat[8::2], None)
    accesses.add(np.zeros(12), None, None)
    accesses.add(flat[:0], flat[:0], None)


def test_what_is_only_read_may_be_read_again_and_written_by_a_later_call() -> None:
    x = np.zeros(3)
    accesses_of((x, None, None), (x, np.zeros(3), None), (x, x, None))


@pytest.mark.parametrize(
    ("reads", "writes"),
    [(slice(2, 4), slice(2, 4)), (slice(3, 6), None), (slice(6, 8), slice(0, 2)), (slice(None, None, -3), None)],
)
def test_a_call_that_reads_or_writes_what_one_before_it_writes_is_refused(reads: slice, writes: slice | None) -> None:
    x = np.zeros(8)
    accesses = accesses_of((x[:4], x[:4], None), (np.zeros(9), np.zeros(9), None))
    with pytest.raises(ValueError, match="would not see it"):
        accesses.add(x[reads], None if writes is None else x[writes], None)


def test_the_same_call_again_is_no_other_one() -> None:
    """For example with tied weights, in a loop over a state_dict."""
    x = np.zeros((2, 3))
    accesses = accesses_of((x, x, "mean"), (x, x, "mean"))
    for reads, kind in ((x, "max"), (x.T, "mean"), (x[:1], "mean"), (x, None)):
        with pytest.raises(ValueError, match="would not see it"):
            accesses.add(reads, reads, kind)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 3)), max_size=12))
def test_a_call_is_refused_exactly_if_it_has_an_element_of_one_before(parts: list[tuple[int, int, int]]) -> None:
    flat = np.arange(120)
    accesses, taken = Accesses(), set[int]()
    for start, number, step in parts:
        part = flat[start : start + number * step : step]
        its = set(part.tolist())
        if its & taken:
            with pytest.raises(ValueError, match="would not see it"):
                accesses.add(part, part, None)
        else:
            accesses.add(part, part, None)
            taken |= its


def test_an_extent_goes_from_the_first_byte_to_behind_the_last() -> None:
    x = np.zeros((4, 5), np.float32)
    start, stop = extent(x)
    assert stop - start == x.nbytes
    assert extent(x[::-1, ::-2]) == (start, stop)
    assert extent(x[1:3, 1]) == (start + 6 * 4, start + 12 * 4)
    assert extent(x[:, :0].T)[0] == extent(x[:, :0].T)[1]


@pytest.mark.parametrize(
    "write",
    [torch.Tensor.zero_, lambda x: x[1:].add_(1), lambda x: x.view(-1).mul_(2), lambda x: x.detach().fill_(3)],
    ids=range(4),
)
def test_a_tensor_that_was_written_is_found(write: Any) -> None:
    x = torch.ones(2, 3)
    watched = Unwritten(x)
    watched.check(1, "a sum")
    write(x)
    with pytest.raises(ShoalError, match=r"operation 2 of this step \(a sum\) was written"):
        watched.check(2, "a sum")


def test_a_part_of_a_tensor_of_which_another_part_was_written_is_not() -> None:
    flat = torch.zeros(8)
    for watched in (Unwritten(flat[:4]), Unwritten(np.zeros(3))):
        flat[4:] = 1
        watched.check(1, "a sum")
    with torch.inference_mode():
        Unwritten(torch.zeros(2)).check(1, "a sum")

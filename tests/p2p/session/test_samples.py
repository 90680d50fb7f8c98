from collections.abc import Callable

import numpy as np
import pytest

from p2p.errors import ShoalError
from p2p.session.sampler import ElasticSampler
from p2p.session.samples import Share
from p2p.step.receipts import UNKNOWN_SAMPLE, Contribution, Receipt


def receipt(step: int, *contributions: tuple[str, int, int]) -> Receipt:
    return Receipt(
        lineage="",
        view_number=1,
        step=step,
        contributions=tuple(Contribution(name, 1, first, number, number) for name, first, number in contributions),
        algorithms=("",),
        digest="",
        state_digest="",
    )


def founded(*names: str) -> Share:
    """Of peer a, after step 0 of these members."""
    share = Share("a")
    share.count(receipt(0, *((name, UNKNOWN_SAMPLE, 0) for name in names)))
    return share


def sampler(num_samples: int = 12, global_batch: int = 6) -> ElasticSampler:
    return ElasticSampler(num_samples=num_samples, global_batch=global_batch, epochs=1, seed=0)


def counting() -> Callable[[], int]:
    """A step is committed between any two batches."""
    return iter(range(100)).__next__


def test_a_script_of_its_own_adds_its_number_in_each_pass() -> None:
    share = Share("a")
    assert share.slice == (UNKNOWN_SAMPLE, 1)
    share.set_number(3)
    share.accumulate()
    share.set_number(4)
    share.accumulate()
    assert share.slice == (UNKNOWN_SAMPLE, 11)
    share.spend()
    assert share.slice == (UNKNOWN_SAMPLE, 4)
    with pytest.raises(ValueError, match="at least 0, is -1"):
        share.set_number(-1)


def test_what_is_void_counts_for_nothing_until_the_step_is_committed() -> None:
    share = Share("a")
    share.set_number(3)
    share.void()
    assert share.slice == (UNKNOWN_SAMPLE, 0)
    share.spend()
    assert share.slice == (UNKNOWN_SAMPLE, 3)


def test_micro_batches_are_parts_of_one_slice() -> None:
    share = founded("a", "b")
    data = np.arange(12)
    parts = []
    for batch in share.batches(data, sampler(), counting(), max_local_batch=2):
        parts.append((len(batch), round(share.fraction, 3), share.is_last, share.slice))
        if share.is_last:
            share.count(receipt(len(parts), ("a", *share.slice), ("b", share.slice[0] + 3, 3)))
            share.spend()
        else:
            share.accumulate()
    assert parts == [
        (2, 0.667, False, (0, 3)),
        (1, 0.333, True, (0, 3)),
        (2, 0.667, False, (6, 3)),
        (1, 0.333, True, (6, 3)),
    ]


def test_a_loop_that_ends_early_leaves_no_micro_batch_behind() -> None:
    share = founded("a")
    for _ in share.batches(np.arange(12), sampler(), counting(), max_local_batch=4):
        assert (share.is_last, round(share.fraction, 3)) == (False, 0.5)
        break
    assert (share.is_last, share.fraction) == (True, 1.0)


def test_a_batch_without_a_backward_pass_raises() -> None:
    share = founded("a")
    batches = share.batches(np.arange(12), sampler(), counting(), max_local_batch=4)
    next(batches)
    with pytest.raises(ShoalError, match="a micro-batch had no backward pass"):
        next(batches)
    batches = share.batches(np.arange(12), sampler(), lambda: 7)
    next(batches)
    with pytest.raises(ShoalError, match="no step was committed between two batches"):
        next(batches)


def test_a_batch_that_is_counted_is_not_counted_again() -> None:
    share = founded("a")
    next(share.batches(np.arange(12), sampler(), counting()))
    assert share.slice == (0, 6)
    share.spend()
    with pytest.raises(ShoalError, match=r"counted already.*no_sync"):
        _ = share.slice


def test_who_withdrew_is_given_two_samples_that_do_not_count_for_the_same_step() -> None:
    share = founded("a", "b")
    batches = share.batches(np.arange(12), sampler(), lambda: 0, max_local_batch=1)
    next(batches)
    share.void()
    assert len(next(batches)) == 1, "the rest of the slice, which does not count either"
    next(batches)
    assert len(next(batches)) == 2
    assert (share.is_last, share.slice) == (True, (UNKNOWN_SAMPLE, 0))


def test_a_slice_weighs_what_the_script_says_and_its_samples_are_counted_as_before() -> None:
    share = founded("a", "b")
    batches = share.batches(np.arange(12), sampler(), counting())
    next(batches)
    assert share.counts == (0, 3, 3)
    share.set_number(100)
    assert share.counts == (0, 3, 100)
    share.accumulate()  # under no_sync
    share.set_number(20)
    share.end()
    assert share.counts == (0, 3, 120) and (share.fraction, share.is_last) == (1.0, True)
    share.count(receipt(1, ("a", 0, 3), ("b", 3, 3)))
    share.spend()
    next(batches)
    assert share.counts == (6, 3, 3), "the next one weighs its samples again"
    share.accumulate()
    with pytest.raises(ShoalError, match="call it before the first one"):
        share.set_number(7)


def test_micro_batches_are_averaged_by_the_weights_that_the_script_says() -> None:
    share = founded("a")
    batches = share.batches(np.arange(12), sampler(), counting(), max_local_batch=2)
    mean, weights = 0.0, [10, 0, 30]
    for value, weight in zip((1.0, 5.0, 2.0), weights, strict=True):
        next(batches)
        share.set_number(weight)
        if share.is_last:
            share.end()
        else:
            share.accumulate(is_joined=True)
        mean = mean * share.keep + value * share.fraction
    assert mean == pytest.approx((1.0 * 10 + 2.0 * 30) / 40) and share.counts == (0, 6, 40)


def test_who_has_no_slice_weighs_nothing_whatever_the_script_says() -> None:
    share = Share("c")
    share.count(receipt(0, ("a", UNKNOWN_SAMPLE, 0)))
    next(share.batches(np.arange(12), sampler(), counting()))
    share.set_number(50)
    assert share.counts == (UNKNOWN_SAMPLE, 0, 0)


def test_samples_that_are_skipped_are_used_up() -> None:
    share = founded("a")
    batches = share.batches(np.arange(12), sampler(), counting())
    next(batches)
    share.skip()
    assert share.counts == (0, 6, 0)
    share.count(receipt(1, ("a", 0, 6)))
    share.spend()
    next(batches)
    assert share.counts == (6, 6, 6)
    share.count(receipt(2, ("a", 6, 6)))
    share.spend()
    assert list(batches) == []
    share.set_number(4)
    assert share.counts == (UNKNOWN_SAMPLE, 4, 4), "behind the loop samples are the script's own"
    share.skip()
    assert share.counts == (UNKNOWN_SAMPLE, 0, 0)

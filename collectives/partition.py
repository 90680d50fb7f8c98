"""Cutting a bucket into chunks."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise


def split_by_weight(length: int, weights: Sequence[float]) -> list[slice]:
    """Cut `length` elements into one contiguous slice per weight.

    Bounds are the rounded cumulative shares, so equal arguments give equal bounds on every rank.

    Args:
        length: elements to distribute.
        weights: in any common unit. Weight 0 gets an empty slice.

    Returns:
        Slices that cover `range(length)` in order, each within one element of its exact share.

    Raises:
        ValueError: a weight is negative or not finite, or they sum up to 0 or to infinity.
    """
    ends = list(accumulate(weights, initial=0.0))
    total = ends[-1]
    if min(weights, default=0) < 0 or not 0 < total < math.inf:
        raise ValueError(f"weights must be finite, at least 0 and not all 0, got {list(weights)}")
    bounds = [round(length * (end / total)) for end in ends]
    return [slice(start, stop) for start, stop in pairwise(bounds)]

"""Random arrays of every type, and what messages make of them."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import BFLOAT16, OPS, Reduction
from collectives.elements import FLOATS
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution

Array = NDArray[Any]
DType = np.dtype[Any]


def ops_of(dtype: DType) -> list[str]:
    return [op for op in OPS if op != "mean" or dtype in FLOATS]


def rounded(values: Array, dtype: DType) -> Array:
    """To the nearest, of two to the even one; without torch, for numbers in range and NaN."""
    if dtype != BFLOAT16:
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), upper).astype(np.uint16).view(BFLOAT16)


def random_inputs(seed: int, world_size: int, length: int, dtype: DType) -> list[Array]:
    """Of very different magnitudes, so that the order of additions shows."""
    rng = np.random.default_rng(seed)
    if dtype in FLOATS:
        values = rng.standard_normal((world_size, length)) * 10.0 ** rng.integers(-3, 4, (world_size, length))
        return [rounded(each, dtype) for each in values]
    if dtype == np.bool_:
        return list(rng.random((world_size, length)) < 0.3)
    bounds = np.iinfo(dtype)
    return list(rng.integers(bounds.min, bounds.max, (world_size, length), dtype, endpoint=True))


def all_reduce(build: Any, inputs: Sequence[Array], op: str, seed: int = 0, segment_length: int = 100) -> Array:
    """The result, which all ranks have."""
    world_size, itemsize = len(inputs), inputs[0].itemsize
    results = [np.empty_like(each) for each in inputs]
    before = [each.tobytes() for each in inputs]
    executions = [
        Execution(
            build(rank, world_size),
            rank,
            inputs[rank],
            results[rank],
            segment_bytes=segment_length * itemsize,
            reduction=Reduction(op, world_size),
        )
        for rank in range(world_size)
    ]
    deliver(executions, random.Random(seed))
    assert all(execution.done and not execution.missing() for execution in executions)
    assert before == [each.tobytes() for each in inputs]
    assert len({each.tobytes() for each in results}) == 1
    return results[0]

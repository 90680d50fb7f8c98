"""What peers exchange as seeds draw it, and what that comes to: in plain numpy, without the product's sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from collectives import ALGORITHMS, BFLOAT16, Reduction, all_reduce_schedule, as_bits
from collectives.goals import COLLECTIVES, schedule_of
from tests.collectives.execution import Execution

Array = NDArray[Any]

NAMES: Final = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
KINDS: Final = {
    "all_reduce": "all-reduce",
    "broadcast": "broadcast",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}
CALLS: Final = (*["all_reduce"] * 5, "broadcast", "all_gather", "all_gather", "reduce_scatter")
SIZES: Final = (0, 1, 2, 3, 5, 17, 63, 255, 1000)
SPECIAL: Final = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-310, -1e-42, 6e-8, 1e308, -3e38, 65504.0)
IN_RANK_ORDER: Final = ("one-shot", "direct")


@dataclass(frozen=True)
class Drawn:
    """One call: the same at all peers."""

    what: str
    name: str
    shape: tuple[int, ...]
    op: str
    algorithm: str | None
    values: str
    is_weighted: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def draw(rng: Random, *, has_samples: bool) -> Drawn:
    what, name = rng.choice(CALLS), rng.choice(NAMES)
    is_float = "float" in name
    is_weighted = has_samples and is_float and what == "all_reduce" and rng.random() < 0.6
    shapes: list[tuple[int, ...]] = [
        (),
        (0, 3),
        *[(rng.choice(SIZES),)] * 4,
        *[(rng.randrange(1, 40), rng.randrange(1, 60))] * 2,
        (2, rng.randrange(1, 30), 3),
        (rng.randrange(1000, 70_000),),
        (rng.randrange(1000, 70_000),),
        (rng.randrange(70_000, 300_000),),
    ]
    op = "mean" if is_weighted else rng.choice(("sum", "sum", "min", "max", *["mean"] * 2 * is_float))
    algorithms = ALGORITHMS if what == "all_reduce" else COLLECTIVES[KINDS[what]]
    values = rng.choice(("whole", "normal", "special", "bits"))
    return Drawn(what, name, rng.choice(shapes), op, rng.choice((None, *algorithms)), values, is_weighted)


def type_of(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def values_of(call: Drawn, *key: object) -> Array:
    """Of the peer with this key, in one dimension: whoever knows the key can make them."""
    rng = np.random.default_rng(int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little"))
    dtype, size = type_of(call.name), call.size
    if dtype == np.bool_:
        return rng.integers(0, 2, size).astype(np.bool_)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, size, dtype=dtype, endpoint=True)
    if call.values == "bits":
        return rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)
    if call.values == "whole":
        return narrow(rng.integers(-8, 9, size).astype(np.float64), dtype)
    numbers = rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)
    if call.values == "special":
        is_special = rng.random(size) < 0.5
        numbers[is_special] = rng.choice(SPECIAL, is_special.sum())
    return narrow(numbers, dtype)


def widen(array: Array) -> Array:
    """Half types as float32; others copied."""
    if array.dtype == BFLOAT16:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array.copy()


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        if dtype != BFLOAT16:
            return array.astype(dtype)
        return torch.from_numpy(array.astype(np.float32)).bfloat16().view(torch.int16).numpy().view(BFLOAT16)


def combined(op: str, left: Array, right: Array) -> Array:
    if op in ("sum", "mean"):
        return np.asarray(left + right)
    chosen: Array = (np.minimum if op == "min" else np.maximum)(left, right)
    if chosen.dtype.kind != "f":
        return chosen
    signs = (np.signbit(left), np.signbit(right))
    is_negative = np.logical_or(*signs) if op == "min" else np.logical_and(*signs)
    return np.where((left == 0) & (right == 0), np.where(is_negative, -0.0, 0.0).astype(chosen.dtype), chosen)


def in_rank_order(op: str, inputs: Sequence[Array]) -> Array:
    """As `one-shot` and `direct` promise: half types in float32, rounded once."""
    if len(inputs) == 1:
        return inputs[0]
    with np.errstate(all="ignore"):
        total = widen(inputs[0])
        for each in inputs[1:]:
            total = combined(op, total, widen(each))
        if op == "mean":
            total = total / total.dtype.type(len(inputs))
    return narrow(total, inputs[0].dtype)


def by_schedule(kind: str, algorithm: str, op: str, inputs: Sequence[Array], rank: int) -> Array:
    """What the schedules of all ranks leave at one."""
    n = len(inputs)
    results = [np.zeros_like(each) for each in inputs]
    runs = []
    for each, own in enumerate(inputs):
        is_reduce = kind == "all-reduce"
        schedule = (
            all_reduce_schedule(algorithm, each, n, (0,) * n) if is_reduce else schedule_of(kind, algorithm, each, n, 0)
        )
        runs.append(Execution(schedule, each, own, results[each], segment_bytes=1 << 20, reduction=Reduction(op, n)))
    under_way = [(source, sent) for source, run in enumerate(runs) for sent in run.start()]
    for source, sent in under_way:  # grows meanwhile
        payload = sent.payload.copy()
        under_way += [(sent.peer, more) for more in runs[sent.peer].receive(source, *sent[1:3], payload)]
    assert all(run.done for run in runs)
    return results[rank]


def weighted(inputs: Sequence[Array], weights: Sequence[int]) -> list[Array]:
    """Each input times its share of the weights, rounded; zeros of any whose weight is 0."""
    made = []
    for array, weight in zip(inputs, weights, strict=True):
        wide = widen(array)
        with np.errstate(all="ignore"):
            share = wide.dtype.type(weight / max(sum(weights), 1))
            made.append(narrow(wide * share, array.dtype) if weight else np.zeros_like(array))
    return made


def expected(call: Drawn, algorithm: str, inputs: Sequence[Array], weights: Sequence[int], rank: int) -> Array:
    """Of a reduction, all of it; of a `reduce_scatter` only the share of `rank` counts."""
    op, is_in_order = call.op, algorithm in IN_RANK_ORDER
    if call.is_weighted and not (is_in_order and weights[0] > 0 and len(set(weights)) == 1):
        inputs, op = weighted(inputs, weights), "sum"
    if is_in_order or len(inputs) == 1:
        return in_rank_order(op, inputs)
    return by_schedule(KINDS[call.what], algorithm, op, inputs, rank)


def is_same(found: Array, wanted: Array) -> bool:
    """Bit by bit, but for which NaN it is."""
    assert (found.dtype, found.size) == (wanted.dtype, wanted.size)
    found, wanted = np.ascontiguousarray(found), np.ascontiguousarray(wanted)
    differs = as_bits(found).view(f"u{found.itemsize}") != as_bits(wanted).view(f"u{found.itemsize}")
    if found.dtype.kind in "fV":
        differs &= ~(np.isnan(widen(found)) & np.isnan(widen(wanted)))
    return not differs.any()

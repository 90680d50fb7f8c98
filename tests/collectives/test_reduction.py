import random
import subprocess
import sys
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    ALGORITHMS,
    BFLOAT16,
    OPS,
    MessageRun,
    Reduction,
    as_bits,
    check_reduction,
    is_half,
    one_shot_all_gather,
    reducer,
    scale,
    type_name,
)
from collectives.elements import FLOATS, TYPES
from tests.collectives.chain import chain_all_reduce
from tests.collectives.delivery import deliver
from tests.collectives.execution import Execution
from tests.collectives.inputs import Array, DType, all_reduce, ops_of, random_inputs, rounded

IN_RANK_ORDER = [ALGORITHMS["one-shot"], ALGORITHMS["direct"]]
EPS = {BFLOAT16: 2.0**-8} | {dtype: float(np.finfo(dtype).eps) for dtype in FLOATS if dtype != BFLOAT16}
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)

types = st.sampled_from(list(TYPES))
floats = st.sampled_from(list(FLOATS))
seeds = st.integers(0, 2**32 - 1)
world_sizes = st.integers(1, 9)
lengths = st.one_of(st.integers(0, 12), st.sampled_from([97, 1009]))


def widened(array: Array) -> Array:
    """Exact; bfloat16 is the upper half of a float32."""
    if array.dtype == BFLOAT16:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def in_rank_order(inputs: Sequence[Array], op: str) -> Array:
    """The bits that `one-shot` and `direct` promise: added up in order, rounded once."""
    if len(inputs) == 1:
        return inputs[0]
    wide = [widened(each) for each in inputs]
    with np.errstate(over="ignore", invalid="ignore"):
        if op in ("min", "max"):
            total = reduce(np.minimum if op == "min" else np.maximum, wide)
        else:
            total = reduce(np.add, wide)
        if op == "mean":
            total = total / total.dtype.type(len(inputs))
        return rounded(total, inputs[0].dtype)


@pytest.mark.parametrize("build", [*ALGORITHMS.values(), chain_all_reduce])
@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@given(world_size=world_sizes, length=lengths, seed=seeds, data=st.data())
@settings(deadline=None, max_examples=7)
def test_every_type_and_reduction_is_right_and_leaves_equal_bits(
    build: Any, dtype: DType, world_size: int, length: int, seed: int, data: st.DataObject
) -> None:
    op = data.draw(st.sampled_from(ops_of(dtype)))
    length = data.draw(st.sampled_from([length, world_size - 1]))
    inputs = random_inputs(seed, world_size, length, dtype)
    result = all_reduce(build, inputs, op, seed, segment_length=data.draw(st.integers(1, 500)))
    if dtype not in FLOATS or op in ("min", "max"):
        assert result.tobytes() == in_rank_order(inputs, op).tobytes()
        return
    wide = [widened(each).astype(np.float64) for each in inputs]
    divisor = world_size if op == "mean" else 1
    exact, magnitude = sum(wide) / divisor, sum(map(np.abs, wide)) / divisor
    smallest = 2.0**-24 if dtype == np.float16 else 0.0  # below 2**-14 there are fewer bits
    tolerance = (world_size + 1) * (EPS[dtype] * magnitude + smallest)
    assert np.all(np.abs(widened(result).astype(np.float64) - exact) <= tolerance)


@given(types, world_sizes, lengths, st.data(), seeds)
def test_in_rank_order_the_bits_depend_on_no_cut_and_no_algorithm(
    dtype: DType, world_size: int, length: int, data: st.DataObject, seed: int
) -> None:
    op = data.draw(st.sampled_from(ops_of(dtype)))
    inputs = random_inputs(seed, world_size, length, dtype)
    expected = in_rank_order(inputs, op).tobytes()
    for build in IN_RANK_ORDER:
        segment_length = data.draw(st.integers(1, 2000))
        assert all_reduce(build, inputs, op, seed, segment_length).tobytes() == expected


@given(floats, st.sampled_from(["min", "max"]), st.integers(2, 6), st.data(), seeds)
def test_min_and_max_are_the_same_bits_by_every_algorithm_whatever_the_values(
    dtype: DType, op: str, world_size: int, data: st.DataObject, seed: int
) -> None:
    rows = data.draw(st.lists(st.lists(st.sampled_from(SPECIAL), min_size=20, max_size=20), min_size=6, max_size=6))
    values = np.array(rows[:world_size])
    inputs = [rounded(each, dtype) for each in values]
    (bits,) = {all_reduce(build, inputs, op, seed, 7).tobytes() for build in (*ALGORITHMS.values(), chain_all_reduce)}
    result = widened(np.frombuffer(bits, dtype))
    assert np.array_equal(result, values.min(axis=0) if op == "min" else values.max(axis=0), equal_nan=True)
    negative = np.signbit(values) & (values == 0)
    expected = negative.any(axis=0) if op == "min" else (negative | (values != 0)).all(axis=0)
    zeros = result == 0
    assert (np.signbit(result)[zeros] == expected[zeros]).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=FLOATS.values())
@pytest.mark.parametrize("op", OPS)
def test_what_a_script_has_numpy_raise_does_not_reach_the_sums(op: str, dtype: DType) -> None:
    """Bits of every kind are valid values: signalling NaNs, the largest, and quotients that are subnormal."""
    bits = np.random.default_rng(3).integers(0, 256, (3, 20_000 * dtype.itemsize), np.uint8)
    ones = np.ones((3, 8 * dtype.itemsize), np.uint8) * np.arange(1, 4, dtype=np.uint8)[:, None]
    ones[:, dtype.itemsize - 1 :: dtype.itemsize] = 0  # so that the exponent is 0
    inputs = [row.view(dtype) for row in np.concatenate([ones, bits], axis=1)]
    with np.errstate(all="raise"):
        out = np.empty_like(inputs[0])
        scale(inputs[0], 1 / 3, out)
        for build in ALGORITHMS.values():
            all_reduce(build, inputs, op, segment_length=30_000)
        reduced(inputs, op)
        run = [
            MessageRun(
                ALGORITHMS["ring"](rank, 3),
                rank,
                own,
                np.empty_like(own),
                segment_bytes=1 << 20,
                reduction=Reduction(op, 3),
                weight=1 / 3 if op == "sum" else None,
            )
            for rank, own in enumerate(inputs)
        ]
        deliver(run, random.Random(1))
        assert all(each.done for each in run)


@given(floats, st.sampled_from(["sum", "mean"]), st.sampled_from(sorted(ALGORITHMS)), seeds)
@settings(deadline=None)
def test_a_nan_of_any_rank_makes_the_element_nan_and_nothing_else(
    dtype: DType, op: str, algorithm: str, seed: int
) -> None:
    inputs = random_inputs(seed, 3, 50, dtype)
    as_bits(inputs[seed % 3])[7:20] = as_bits(rounded(np.full(1, np.nan, np.float32), dtype))
    result = widened(all_reduce(ALGORITHMS[algorithm], inputs, op, seed, 8))
    assert np.isnan(result[7:20]).all()
    assert np.isfinite(result[:7]).all() and np.isfinite(result[20:]).all()


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=["bfloat16", "float16"])
def test_half_types_have_one_nan(dtype: DType) -> None:
    """Which torch alone would not give them: its vector and its scalar code make different ones."""
    nans = [np.full(101, value, np.uint16).view(dtype) for value in (0xFFFF, 0x7FFF, 0x7FE1)]
    for algorithm in ALGORITHMS.values():
        assert len(set(as_bits(all_reduce(algorithm, nans, "sum")).tolist())) == 1


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("length", [32767, 32768, 32769, 70_001])
def test_half_types_are_added_block_by_block(dtype: DType, length: int) -> None:
    inputs = random_inputs(length, 3, length, dtype)
    for build in IN_RANK_ORDER:
        result = all_reduce(build, inputs, "sum", segment_length=length)
        assert result.tobytes() == in_rank_order(inputs, "sum").tobytes()


def test_half_sums_are_not_lost_in_what_is_large() -> None:
    """One, and 256 times half of what it can tell apart: rounded at each step, nothing would be added."""
    inputs = [rounded(np.full(3, value, np.float32), BFLOAT16) for value in (256.0, *[0.5] * 8)]
    for build in IN_RANK_ORDER:
        assert widened(all_reduce(build, inputs, "sum")).tolist() == [260.0] * 3


def test_a_half_mean_does_not_overflow_in_rank_order() -> None:
    inputs = [np.full(5, 60_000, np.float16) for _ in range(4)]
    for build in IN_RANK_ORDER:
        assert (all_reduce(build, inputs, "mean") == 60_000).all()
        assert np.isposinf(all_reduce(build, inputs, "sum")).all()


def test_whole_numbers_wrap_around() -> None:
    for dtype, expected in ((np.uint8, 44), (np.int8, 44), (np.int16, 300)):
        inputs = [np.full(3, 100, dtype) for _ in range(3)]
        assert all((all_reduce(build, inputs, "sum") == expected).all() for build in ALGORITHMS.values())


def test_bools_are_or_and_and() -> None:
    inputs = [np.array(values) for values in ([False, False, True, True], [False, True, False, True])]
    for build in ALGORITHMS.values():
        assert all_reduce(build, inputs, "sum").tolist() == [False, True, True, True]
        assert all_reduce(build, inputs, "max").tolist() == [False, True, True, True]
        assert all_reduce(build, inputs, "min").tolist() == [False, False, False, True]


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
def test_every_type_can_be_gathered(dtype: DType) -> None:
    inputs = random_inputs(1, 3, 10, dtype)
    results = [np.empty(30, dtype) for _ in inputs]
    executions = [
        Execution(one_shot_all_gather(rank, 3), rank, own, results[rank], segment_bytes=24, own_chunk=rank)
        for rank, own in enumerate(inputs)
    ]
    deliver(executions, random.Random(1))
    assert {each.tobytes() for each in results} == {b"".join(each.tobytes() for each in inputs)}


@pytest.mark.parametrize("dtype", FLOATS, ids=FLOATS.values())
def test_scaling_rounds_once(dtype: DType) -> None:
    (values,) = random_inputs(5, 1, 40_000, dtype)
    out = np.empty_like(values)
    scale(values, 1 / 3, out)
    wide = widened(values)
    assert out.tobytes() == rounded(wide * wide.dtype.type(1 / 3), dtype).tobytes()


# All at once, as where the memory of all ranks can be read.


def reduced(inputs: Sequence[Array], op: str, cuts: Sequence[int] = ()) -> Array:
    """By `reducer`, cut there."""
    out = np.empty_like(inputs[0])
    reduce = reducer(Reduction(op, len(inputs)), out.dtype)
    before = [each.tobytes() for each in inputs]
    for start, stop in pairwise([0, *sorted(cuts), out.size]):
        reduce([as_bits(each)[start:stop] for each in inputs], as_bits(out)[start:stop])
    assert before == [each.tobytes() for each in inputs]
    return out


@given(types, world_sizes, lengths, st.data(), seeds)
def test_all_at_once_the_bits_are_those_of_an_execution_wherever_it_is_cut(
    dtype: DType, world_size: int, length: int, data: st.DataObject, seed: int
) -> None:
    op = data.draw(st.sampled_from(ops_of(dtype)))
    inputs = random_inputs(seed, world_size, length, dtype)
    cuts = data.draw(st.lists(st.integers(0, length), max_size=3))
    for build in IN_RANK_ORDER:
        assert reduced(inputs, op, cuts).tobytes() == all_reduce(build, inputs, op, seed).tobytes()


@given(floats, st.sampled_from(OPS), st.integers(1, 6), st.data(), seeds)
def test_all_at_once_special_values_become_what_they_do_in_an_execution(
    dtype: DType, op: str, world_size: int, data: st.DataObject, seed: int
) -> None:
    rows = data.draw(st.lists(st.lists(st.sampled_from(SPECIAL), min_size=20, max_size=20), min_size=6, max_size=6))
    inputs = [rounded(np.array(row), dtype) for row in rows[:world_size]]
    expected = all_reduce(IN_RANK_ORDER[seed % 2], inputs, op, seed, 7)
    if op in ("min", "max") or is_half(dtype) or world_size == 1:
        assert reduced(inputs, op).tobytes() == expected.tobytes()
    else:  # which NaN the sum of two is depends on the place
        assert np.array_equal(reduced(inputs, op), expected, equal_nan=True)
        is_number = ~np.isnan(expected)
        assert (np.signbit(reduced(inputs, op)) == np.signbit(expected))[is_number].all()


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=["bfloat16", "float16"])
def test_half_types_are_reduced_all_at_once_block_by_block(dtype: DType) -> None:
    inputs = random_inputs(9, 3, 70_001, dtype)
    assert reduced(inputs, "sum", [1, 40_000]).tobytes() == in_rank_order(inputs, "sum").tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
def test_one_array_is_copied_bit_by_bit(dtype: DType) -> None:
    """So a gather can use it, whatever the bits mean."""
    bits = np.arange(2**16).astype(np.uint16)
    array = bits.view(dtype) if dtype != np.bool_ else bits % 2 == 1
    for op in ops_of(dtype):
        assert reduced([array], op).tobytes() == array.tobytes()


def test_who_adds_half_types_up_in_inference_mode_first_does_so_outside_of_it_too() -> None:
    import torch

    ones: Array = np.ones(5, np.float16)
    out: Array = np.empty(5, np.float16)
    with torch.inference_mode():
        reduce = reducer(Reduction(), ones.dtype)
        reduce([as_bits(ones)] * 2, as_bits(out))
        assert (out == 2).all()
    reduce([as_bits(ones)] * 3, as_bits(out))
    assert (out == 3).all()


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_processors_differ_there_is_one_nan(op: str, dtype: type) -> None:
    odd = np.array([0x7FC00001, 0x7FC00002], np.uint32).view(np.float32)
    inputs: list[Array] = [np.array([each, 1], dtype) for each in odd]
    result: Array = np.empty(2, dtype)
    reducer(Reduction(op, 2, has_one_nan=True), np.dtype(dtype))(inputs, result)
    assert result.tobytes() == np.array([np.nan, 2 if op == "sum" else 1], dtype).tobytes()


# What is refused.


def test_types_have_names() -> None:
    assert type_name(np.dtype(np.longlong)) == "int64"
    assert {type_name(dtype) for dtype in TYPES if is_half(dtype)} == {"float16", "bfloat16"}


@pytest.mark.parametrize("name", ["complex64", "uint16", "uint64", "U3", "O", ">f4", "M8[s]", "f4,f4"])
def test_other_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=r"must be one of float64, .* bool, is "):
        check_reduction("sum", np.dtype(name))


def test_other_reductions_are_refused() -> None:
    with pytest.raises(ValueError, match="op must be one of sum, mean, min, max, is 'product'"):
        check_reduction("product", np.dtype(np.float32))


@pytest.mark.parametrize("dtype", [each for each in TYPES if each not in FLOATS], ids=str)
def test_the_mean_of_whole_numbers_is_refused(dtype: DType) -> None:
    name = type_name(dtype)
    with pytest.raises(TypeError, match=f"the mean of {name} is no {name}: take the sum"):
        check_reduction("mean", dtype)
    check_reduction("max", dtype)


@pytest.mark.long
def test_torch_is_imported_for_half_types_only() -> None:
    script = """
import random, sys
import numpy as np
from collectives import ALGORITHMS, MessageRun
for dtype, expected in ((np.float32, False), (np.float64, False), (np.int32, False), (bool, False), (np.float16, True)):
    build = ALGORITHMS["one-shot"]
    both = [MessageRun(build(rank, 2), rank, *np.zeros((2, 5), dtype), segment_bytes=8) for rank in (0, 1)]
    for segment in both[0].start():
        both[1].receive(0, segment.transfer, segment.segment, segment.payload)
    assert both[1].done and ("torch" in sys.modules) is expected, dtype
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_inputs", [1, 2, 3, 4, 6, 64])
def test_a_mean_has_the_bits_of_a_division(dtype: type, num_inputs: int) -> None:
    rng, least = np.random.default_rng(0), np.finfo(dtype).smallest_subnormal
    special: Array = np.array([np.inf, -np.inf, -0.0, np.finfo(dtype).max], dtype)
    values: Array = np.concatenate([rng.standard_normal(100).astype(dtype), special])
    values = np.concatenate([values, least * np.arange(-100, 100).astype(dtype)])
    expected = values / dtype(num_inputs)
    Reduction("mean", num_inputs).complete(values)
    assert values.tobytes() == expected.tobytes()

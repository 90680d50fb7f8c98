from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from collectives import CODECS, Codec, codec_of
from tests.collectives import plain_decoder

Array = NDArray[Any]

codecs = st.sampled_from(list(CODECS.values()))
seeds = st.integers(0, 2**32 - 1)
counts = st.one_of(st.integers(0, 700), st.sampled_from([4095, 4096, 4097, 8192, 9001]))
weights = st.sampled_from([1.0, -1.0, 1 / 3, 0.25, 1e-6])
INVALID = {"nan": np.nan, "infinity": np.inf, "negative": -1.0, "minus zero": -0.0}


def drawn(seed: int, count: int, scale: float = 1e-3) -> Array:
    """As deltas are: many small ones, few large ones, some zeros."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * rng.random(count) ** 4 * scale
    return np.where(rng.random(count) < 0.1, 0, values).astype(np.float32)


def any_bytes(seed: int, codec: Codec, count: int) -> Array:
    """A payload that somebody may send, or not quite."""
    rng = np.random.default_rng(seed)
    payload = rng.integers(0, 256, codec.num_bytes(count), np.uint8)
    if seed % 4 and codec.name != "float32":  # else hardly any block has scales that may be
        rows = payload.reshape(-1, codec.block_bytes)
        scales = np.sort(rng.integers(0, 0x7BFF if seed % 4 == 1 else 0x3C00, (len(rows), 2)), 1).astype("<u2")
        number = plain_decoder.SCALES[codec.name]
        rows[:, : 2 * number] = np.ascontiguousarray(scales[:, :number]).view(np.uint8)
    elif seed % 4:
        payload = drawn(seed, count, 10.0 ** rng.integers(-40, 38)).view(np.uint8)
    return payload


def decoded(codec: Codec, payload: Array, count: int) -> Array:
    out = np.zeros(count, np.float32)
    codec.add(payload, 1.0, out)
    return out


@given(codecs, counts, seeds, weights)
def test_any_bytes_mean_what_a_second_decoder_takes_them_for(
    codec: Codec, count: int, seed: int, weight: float
) -> None:
    payload = any_bytes(seed, codec, count)
    before = payload.tobytes()
    memory = drawn(seed, count + 8)
    out, guards = memory[4 : count + 4], memory[[*range(4), *range(-4, 0)]].copy()
    expected = out.tolist()

    codec.add(payload, weight, out)
    assert (codec.check(payload) is None) == plain_decoder.is_valid(codec.name, before)
    assert payload.tobytes() == before
    assert np.array_equal(memory[[*range(4), *range(-4, 0)]], guards)
    if codec.check(payload) is None:
        plain_decoder.add(codec.name, before, weight, expected)
        assert out.tobytes() == np.array(expected, np.float32).tobytes()


@given(codecs, counts, seeds, st.sampled_from([1e-45, 1e-30, 1e-7, 1e-3, 1e4, 1e37]))
def test_what_is_encoded_is_valid_and_leaves_less_than_there_was(
    codec: Codec, count: int, seed: int, scale: float
) -> None:
    values = drawn(seed, count, scale)
    before = values.tobytes()
    payload = codec.encode(values)
    assert payload.shape == (codec.num_bytes(count),)
    assert codec.check(payload) is None
    assert values.tobytes() == before
    assert codec.encode(values).tobytes() == payload.tobytes()
    left = values.copy()
    codec.add(payload, -1.0, left)
    for begin in range(0, count, codec.block_length):
        block = slice(begin, begin + codec.block_length)
        assert np.linalg.norm(left[block].astype(float)) <= np.linalg.norm(values[block].astype(float)) * 1.001


@given(codecs, st.integers(0, 20_000), st.integers(1, 3), seeds)
def test_a_payload_that_is_cut_between_blocks_is_the_payloads_of_the_pieces(
    codec: Codec, count: int, num_blocks: int, seed: int
) -> None:
    values = drawn(seed, count)
    whole, out, pieces = codec.encode(values), drawn(seed + 1, count), []
    expected = out.copy()
    codec.add(whole, 0.3, expected)
    for begin in range(0, count, num_blocks * codec.block_length):
        piece = slice(begin, begin + num_blocks * codec.block_length)
        pieces.append(codec.encode(values[piece]))
        codec.add(pieces[-1], 0.3, out[piece])
    assert b"".join(each.tobytes() for each in pieces) == whole.tobytes()
    assert out.tobytes() == expected.tobytes()


def test_the_rate_is_fixed() -> None:
    per_4096 = {name: codec.num_bytes(4096) for name, codec in CODECS.items()}
    assert per_4096 == {"float32": 16384, "int4": 2080, "sign": 544, "sparse16": 260, "sparse64": 68}
    assert {name: codec.num_bytes(137_216) for name, codec in CODECS.items()} == {
        "float32": 548_864,
        "int4": 69_680,
        "sign": 18_224,
        "sparse16": 8_840,
        "sparse64": 2_312,
    }
    assert [codec.num_bytes(0) for codec in CODECS.values()] == [0] * 5
    assert [name for name, codec in CODECS.items() if codec.keeps_residual] == ["sign", "sparse16", "sparse64"]


@pytest.mark.parametrize("name", CODECS)
def test_a_long_vector_is_that_of_its_parts(name: str) -> None:
    codec, values = CODECS[name], drawn(1, 200_000)
    payload, out = codec.encode(values), np.zeros(200_000, np.float32)
    cut = 8192
    for begin in range(0, values.size, cut):
        codec.add(codec.encode(values[begin : begin + cut]), 1.0, out[begin : begin + cut])
    assert out.tobytes() == decoded(codec, payload, values.size).tobytes()


@given(seeds, counts)
def test_float32_says_everything(seed: int, count: int) -> None:
    values = drawn(seed, count, 1e-42)
    payload = CODECS["float32"].encode(values)
    assert payload.tobytes() == values.tobytes()
    assert np.array_equal(decoded(CODECS["float32"], payload, count), values)


@given(seeds, st.integers(1, 700), st.integers(-20, 10))
def test_what_a_codec_can_say_it_says_exactly(seed: int, count: int, exponent: int) -> None:
    rng, scale = np.random.default_rng(seed), 2.0**exponent
    multiples = rng.integers(-7, 8, count)
    multiples[::256] = 7
    for name, values in {
        "int4": multiples * scale,
        "sign": rng.choice([-scale, scale], count),
        "sparse16": sparse(rng, 16, scale * np.arange(1, 9)),
        "sparse64": sparse(rng, 64, scale * np.array([1, 3])),
    }.items():
        wanted = values.astype(np.float32)
        assert np.array_equal(decoded(CODECS[name], CODECS[name].encode(wanted), wanted.size), wanted), name


def sparse(rng: np.random.Generator, group: int, sizes: Array) -> Array:
    """A block that has one of `sizes` in each group, with any sign, all of them as often."""
    groups = np.zeros((4096 // group, group))
    rows = rng.permutation(len(groups))
    groups[rows, rng.integers(0, group, len(groups))] = np.resize(sizes, len(groups)) * rng.choice([-1, 1], len(groups))
    return groups.ravel()


@given(seeds, st.integers(1, 5000), st.sampled_from([1e-30, 1e-8, 1e-7, 3e-7, 1e-6, 1e-5, 1e-3, 1.0]))
def test_int4_is_at_most_half_a_scale_off(seed: int, count: int, size: float) -> None:
    values = drawn(seed, count, size)
    payload = CODECS["int4"].encode(values)
    out = decoded(CODECS["int4"], payload, count)
    for begin, row in zip(range(0, count, 256), payload.reshape(-1, 130), strict=True):
        piece, scale = values[begin : begin + 256].astype(float), float(row[:2].view("<f2")[0])
        largest = np.abs(piece).max()
        assert np.abs(piece - out[begin : begin + 256]).max() <= scale / 2
        assert scale <= largest / 7 * 1.001 + 2**-24
        assert scale >= largest / 7 * (1 if scale < 2**-14 else 0.999)


@pytest.mark.parametrize("exponent", [-30, -25, -24, -20, -14, -10])
def test_int4_says_something_of_all_but_the_smallest_blocks(exponent: int) -> None:
    codec, bound = CODECS["int4"], np.float32(2.0**exponent)
    for value in (bound, np.nextafter(bound, np.float32(1)), -bound):
        out = decoded(codec, codec.encode(np.full(256, value)), 256)
        assert bool(out.all()) == bool(out.any()) == (abs(value) > codec.lost)
        assert not out.any() or (np.sign(out) == np.sign(value)).all()
    assert codec.lost == 2**-25


@given(seeds, st.integers(1, 5000))
def test_sign_sends_the_mean_magnitude_with_the_sign_of_each(seed: int, count: int) -> None:
    values = drawn(seed, count)
    out = decoded(CODECS["sign"], CODECS["sign"].encode(values), count)
    assert np.array_equal(out < 0, (values < 0) & (out != 0))
    for begin in range(0, count, 256):
        mean = np.abs(values[begin : begin + 256].astype(float)).mean()  # of the last block: of those that there are
        assert np.abs(out[begin : begin + 256]) == pytest.approx(mean, rel=1e-3, abs=2**-24)


@given(seeds, st.integers(1, 9000), st.sampled_from([16, 64]))
def test_sparse_sends_the_largest_of_each_group(seed: int, count: int, group: int) -> None:
    values = drawn(seed, count, 1.0)
    out = decoded(CODECS[f"sparse{group}"], CODECS[f"sparse{group}"].encode(values), count)
    for begin in range(0, count, group):
        sent, there = out[begin : begin + group], values[begin : begin + group]
        others = np.arange(len(there)) != np.abs(there).argmax()
        assert not sent[others].any()
        assert sent[~others] * there[~others] >= 0


@given(seeds, st.integers(1, 9000), st.booleans())
def test_scales_of_sparse64_are_of_the_groups_that_there_are(seed: int, count: int, are_equal: bool) -> None:
    values = drawn(seed, count)
    if are_equal:
        values[:] = values[0]
    scales = CODECS["sparse64"].encode(values).reshape(-1, 68)[:, :4].copy().view("<f2")
    for begin, (low, high) in zip(range(0, count, 4096), scales, strict=True):
        block = np.abs(values[begin : begin + 4096].astype(float))
        sizes = np.sort([block[first : first + 64].max() for first in range(0, block.size, 64)])
        smaller, larger = np.split(sizes, [sizes.size // 2])
        assert low == pytest.approx(smaller.mean() if smaller.size else 0, rel=1e-3, abs=2**-24)
        assert high == pytest.approx(larger.mean(), rel=1e-3, abs=2**-24)
        assert low <= high


def test_of_equals_the_first_is_sent_and_of_halves_the_even_one() -> None:
    values = np.zeros(16, np.float32)
    values[[3, 9]] = -1.0, 1.0
    assert np.flatnonzero(decoded(CODECS["sparse16"], CODECS["sparse16"].encode(values), 16)).tolist() == [3]
    halves = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert decoded(CODECS["int4"], CODECS["int4"].encode(halves), 6).tolist() == [7, 0, 2, 2, 0, -2]


def test_scales_end_where_float16_does() -> None:
    tiny, huge = np.full(256, 2**-26, np.float32), np.full(256, 3e38, np.float32)
    for name, most in {"int4": 7 * 65504.0, "sign": 65504.0, "sparse16": 65504.0, "sparse64": 65504.0}.items():
        codec = CODECS[name]
        assert not decoded(codec, codec.encode(tiny), 256).any()
        assert decoded(codec, codec.encode(huge), 256).max() == most


@pytest.mark.parametrize("name", CODECS)
def test_a_payload_of_zeros_says_zero(name: str) -> None:
    codec = CODECS[name]
    payload = np.zeros(codec.num_bytes(5000), np.uint8)
    assert codec.check(payload) is None
    assert not decoded(codec, payload, 5000).any()
    assert not decoded(codec, codec.encode(np.zeros(5000, np.float32)), 5000).any()


@pytest.mark.parametrize("name", ["sparse16", "sparse64"])
def test_a_place_behind_the_end_is_nowhere(name: str) -> None:
    codec = CODECS[name]
    payload = codec.encode(np.ones(4096 + 3, np.float32))
    payload[codec.block_bytes + 4] |= 5  # the sixth of the last group, which has three
    out = decoded(codec, payload, 4096 + 3)
    assert np.count_nonzero(out[:4096]) == 4096 // int(name.removeprefix("sparse"))
    assert not out[4096:].any()


@pytest.mark.parametrize("what", ["nan", "infinity"])
@pytest.mark.parametrize("name", CODECS)
def test_values_that_are_not_finite_are_refused(name: str, what: str) -> None:
    values = drawn(0, 70_000)
    values[65_540] = INVALID[what]
    with pytest.raises(ValueError, match=f"element 65540 of 70000 is {INVALID[what]}"):
        CODECS[name].encode(values)


@pytest.mark.parametrize("what", INVALID)
@pytest.mark.parametrize("name", ["int4", "sign", "sparse16", "sparse64"])
def test_a_scale_that_says_nothing_is_named(name: str, what: str) -> None:
    codec = CODECS[name]
    payload = codec.encode(drawn(0, 300_000))
    place = plain_decoder.SCALES[name] - 1
    number = 66_000 // codec.block_length
    scale = np.array([INVALID[what]], "<f2")
    begin = number * codec.block_bytes + 2 * place
    payload[begin : begin + 2] = scale.view(np.uint8)
    num_blocks = payload.size // codec.block_bytes
    assert codec.check(payload) == f"block {number} of {num_blocks}, {name}: scale {place} is {scale[0]}"


def test_scales_in_the_wrong_order_and_values_that_are_not_finite_are_named() -> None:
    payload = CODECS["sparse16"].encode(drawn(0, 300_000))
    payload[260 * 20 : 260 * 20 + 4] = np.array([2, 1], "<f2").view(np.uint8)
    assert CODECS["sparse16"].check(payload) == "block 20 of 74, sparse16: scale 0 is 2.0, above scale 1, 1.0"
    values = drawn(0, 70_000)
    values[66_000] = -np.inf
    assert CODECS["float32"].check(values.view(np.uint8)) == "block 66000 of 70000, float32: it is -inf"


@pytest.mark.parametrize("name", CODECS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    codec, out = CODECS[name], np.zeros(5000, np.float32)
    payload = codec.encode(out)
    for values in (out.astype(np.float64), out.reshape(2, -1), out[::2]):
        with pytest.raises(ValueError, match="a vector of float32 is needed"):
            codec.encode(values)
        with pytest.raises(ValueError, match="a vector of float32 is needed"):
            codec.add(payload, 1.0, values)
    for wrong in (payload[1:], payload.view(np.int8)):
        with pytest.raises(ValueError, match=f"a payload of 5000 elements of {name} is uint8"):
            codec.add(wrong, 1.0, out)
    with pytest.raises(ValueError, match=f"are not whole blocks of {name}, {codec.block_bytes} each"):
        codec.check(payload[1:])


def test_who_asks_for_another_codec_is_told_which_there_are() -> None:
    assert codec_of("int4") is CODECS["int4"]
    with pytest.raises(ValueError, match="codec must be one of float32, int4, sign, sparse16, sparse64, is 'int8'"):
        codec_of("int8")
    with pytest.raises(ValueError, match=r"codec must be one of .*, is \['int4'\]"):
        codec_of(["int4"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CODECS)
def test_what_a_script_has_told_numpy_of_errors_changes_nothing(name: str) -> None:
    codec, values = CODECS[name], np.concatenate([drawn(0, 5000, 1e-44), drawn(1, 5000, 1e37)])
    quiet, out = codec.encode(values), drawn(2, 10_000, 1e37)
    with np.errstate(all="raise"):
        assert codec.encode(values).tobytes() == quiet.tobytes()
        codec.add(quiet, 1e38, out)

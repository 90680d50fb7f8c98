"""Codecs on tensors: the bits of those on arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import CODECS, Codec
from collectives.tensor_codec import FORMS, TensorCodec
from tests.collectives.test_codecs import any_bytes, codecs, counts, drawn, seeds, weights
from tests.devices import PLACES, need


def test_each_codec_is_there() -> None:
    assert [*FORMS] == [*CODECS]


@pytest.mark.parametrize("where", PLACES)
@given(codecs, counts, seeds, weights)
def test_a_payload_adds_the_same_bits_to_a_tensor(
    where: str, codec: Codec, count: int, seed: int, weight: float
) -> None:
    need(where)
    payload = any_bytes(seed, codec, count)
    if codec.check(payload) is not None:
        payload = codec.encode(drawn(seed, count))
    out = drawn(seed + 1, count)
    found = torch.from_numpy(out.copy()).to(where)
    codec.add(payload, weight, out)
    TensorCodec(codec, 4096).add(torch.from_numpy(payload).to(where), weight, found)
    assert found.cpu().numpy().tobytes() == out.tobytes()


@pytest.mark.parametrize("where", PLACES)
@given(codecs, counts, seeds, st.sampled_from([0.0, 1e-45, 1e-30, 1e-7, 1e-3, 1e4, 1e37]))
def test_a_tensor_is_encoded_as_an_array_is(where: str, codec: Codec, count: int, seed: int, scale: float) -> None:
    need(where)
    values = drawn(seed, count, scale)
    if seed % 3 == 0:  # many are equally large
        values = (np.sign(values) * np.float32(scale)).astype(np.float32)
    before = values.tobytes()
    payload = TensorCodec(codec, 4096).encode(torch.from_numpy(values).to(where))
    assert payload.cpu().numpy().tobytes() == codec.encode(values).tobytes() and values.tobytes() == before

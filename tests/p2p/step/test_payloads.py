"""A member whose payload cannot be decoded has no samples, whatever its bytes are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import CODECS
from p2p.step.collective import AllGather
from p2p.step.operation import Operation
from p2p.step.payloads import accept
from p2p.step.receipts import NO_SAMPLES
from tests.gossip.members import A, B, C, view_of


def gathered(codec: str, rows: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Operation:
    row = rows[0].copy()
    operation = Operation(AllGather(label="deltas", codec=codec), row, row, row.shape, "one-shot")
    operation.result = rows.reshape(-1)
    return operation


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(min_size=1, max_size=64), st.integers(0, 2))
def test_who_has_sent_what_nobody_can_decode_has_no_samples(codec: str, raw: bytes, rank: int) -> None:
    size = CODECS[codec].num_bytes(300)
    rows = np.zeros((3, size), np.uint8)
    rows[rank] = np.resize(np.frombuffer(raw, np.uint8), size)
    counts = np.array([(0, 4, 4), (4, 4, 4), (8, 4, 4)], np.int64)
    before = counts.copy()
    accepted = accept(counts, [gathered(codec, rows)], view_of(1, A, B, C))
    is_refused = CODECS[codec].check(rows[rank]) is not None
    assert (counts == before).all(), "they lie in a result, whose digest is compared"
    assert [tuple(row) == NO_SAMPLES for row in accepted.tolist()] == [is_refused and each == rank for each in range(3)]


def test_what_is_no_payload_is_not_looked_at() -> None:
    counts = np.array([(0, 4, 4)], np.int64)
    row = np.full(8, 255, np.uint8)
    operation = Operation(AllGather(label="buffers"), row, row, row.shape, "one-shot")
    assert (accept(counts, [operation], view_of(1, A)) == counts).all()

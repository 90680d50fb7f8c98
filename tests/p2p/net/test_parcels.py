import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.errors import RemoteProtocolError
from p2p.net.parcels import Assembly, Parcel, ParcelSegment, StateRecord, StepRecord, cut
from tests.p2p.net.parcels import B, fed, state, view_of

contents = st.lists(st.binary(max_size=200), min_size=1, max_size=5)
parcels = st.one_of(
    contents.map(lambda parts: state(7, *parts)),
    contents.map(lambda parts: fed(7, *parts)),
)
segment_sizes = st.integers(20, 100)


def segments_of(parcel: Parcel, segment_bytes: int) -> list[ParcelSegment]:
    return [replace(segment, payload=bytes(segment.payload)) for segment in cut(parcel, segment_bytes)]


def assembly_of(parcel: Parcel) -> Assembly:
    return Assembly(parcel.step, is_state=isinstance(parcel.record, StateRecord))


def assemble(segments: list[ParcelSegment], assembly: Assembly) -> Parcel | None:
    """The parcel that the last segment completes; checks that the segments before complete none."""
    *first, last = segments
    assert [assembly.add(segment) for segment in first] == [None] * len(first)
    return assembly.add(last)


def same(left: Parcel | None, right: Parcel) -> bool:
    return left is not None and (left.step, left.record, [*left.parts]) == (right.step, right.record, [*right.parts])


@given(parcels, segment_sizes)
@settings(deadline=None)
def test_what_is_cut_is_put_together_again(parcel: Parcel, segment_bytes: int) -> None:
    segments = segments_of(parcel, segment_bytes)
    assert all(len(segment.payload) <= segment_bytes for segment in segments)
    assert [segment.is_final for segment in segments] == [False] * (len(segments) - 1) + [True]
    assert same(assemble(segments, assembly_of(parcel)), parcel)


def test_a_tensor_in_memory_of_any_type_is_sent_as_its_bytes() -> None:
    words = memoryview(bytes(range(16))).cast("I")
    parcel = Parcel(0, state(0).record, [b"", words])
    assert same(assemble(list(cut(parcel, 5)), assembly_of(parcel)), state(0, b"", bytes(range(16))))
    assert parcel.num_bytes == 16


def test_a_step_without_operations_has_a_record_only() -> None:
    assert same(assemble(segments_of(fed(0), 1000), Assembly(0, is_state=False)), fed(0))


@given(parcels, segment_sizes, st.data())
@settings(deadline=None)
def test_a_damaged_segment_is_refused_and_the_right_one_still_taken(
    parcel: Parcel, segment_bytes: int, data: st.DataObject
) -> None:
    segments = segments_of(parcel, segment_bytes)
    position = data.draw(st.integers(0, len(segments) - 1))
    good = segments[position]
    other = data.draw(st.binary(max_size=segment_bytes).filter(lambda payload: payload != good.payload))
    assembly = assembly_of(parcel)
    for segment in segments[:position]:
        assembly.add(segment)
    with pytest.raises(RemoteProtocolError, match=f"step 7: part {good.part} was damaged"):
        assembly.add(replace(good, payload=other))
    assert same(assemble(segments[position:], assembly), parcel)


@given(parcels, segment_sizes, st.data())
@settings(deadline=None)
def test_only_the_next_segment_is_taken(parcel: Parcel, segment_bytes: int, data: st.DataObject) -> None:
    segments = segments_of(parcel, segment_bytes)
    position = data.draw(st.integers(0, len(segments) - 1))
    assembly = assembly_of(parcel)
    for segment in segments[:position]:
        assembly.add(segment)
    others = [segment for segment in segments if segment is not segments[position]]
    others += [replace(segments[position], step=8), replace(segments[position], is_state=not assembly.is_state)]
    random.Random(position).shuffle(others)
    for segment in others:
        with pytest.raises(RemoteProtocolError, match=f"part {segment.part}, segment {segment.index} came instead of"):
            assembly.add(segment)
    assert same(assemble(segments[position:], assembly), parcel)


def misnamed(parcel: Parcel) -> Parcel:
    """The same parts with the record of the other kind of parcel."""
    return replace(parcel, record=fed(7, b"").record if isinstance(parcel.record, StateRecord) else state(7).record)


def with_a_view_too_large() -> Parcel:
    record = fed(7, b"").record
    assert isinstance(record, StepRecord)
    return Parcel(7, replace(record, view=view_of(B, replace(B, peer_id="c" * 16))), [b""])


@pytest.mark.parametrize(
    ("parcel", "is_state"),
    [
        (misnamed(state(7)), True),
        (misnamed(fed(7, b"")), False),
        (Parcel(7, state(7).record, ()), True),
        (Parcel(7, fed(7, b"", b"").record, [b""]), False),
        (replace(fed(6, b""), step=7), False),
        (with_a_view_too_large(), False),
    ],
    ids=["no state", "no step", "no tree", "too few results", "another step", "too few counts"],
)
def test_a_record_that_does_not_fit_its_parts_is_refused(parcel: Parcel, is_state: bool) -> None:
    segments = [replace(segment, is_state=is_state) for segment in cut(parcel, 1000)]
    assembly = Assembly(7, is_state=is_state)
    for segment in segments[:-1]:
        assembly.add(segment)
    with pytest.raises(RemoteProtocolError, match=f"a record that does not fit its {len(parcel.parts)} parts"):
        assembly.add(segments[-1])

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member
from p2p.errors import RemoteProtocolError
from p2p.handover import Assembly, Handover, PackedState, StateSegment, cut

states = st.builds(PackedState, st.binary(max_size=200), st.lists(st.binary(max_size=200), max_size=5))
segment_sizes = st.integers(1, 100)


def segments_of(state: PackedState, segment_bytes: int) -> list[StateSegment]:
    return [replace(segment, payload=bytes(segment.payload)) for segment in cut(state, segment_bytes)]


def assemble(segments: list[StateSegment], assembly: Assembly) -> PackedState | None:
    """What the last segment completes; the ones before complete nothing."""
    *first, last = segments
    assert [assembly.add(segment) for segment in first] == [None] * len(first)
    return assembly.add(last)


def same(left: PackedState | None, right: PackedState) -> bool:
    return left is not None and (left.tree, [*left.tensors]) == (right.tree, [*right.tensors])


@given(states, segment_sizes)
def test_what_is_cut_is_put_together_again(state: PackedState, segment_bytes: int) -> None:
    segments = segments_of(state, segment_bytes)
    assert all(len(segment.payload) <= segment_bytes for segment in segments)
    assert [segment.is_final for segment in segments] == [False] * (len(segments) - 1) + [True]
    assert same(assemble(segments, Assembly(7)), state)


def test_a_tensor_in_memory_of_any_type_is_sent_as_its_bytes() -> None:
    words = memoryview(bytes(range(16))).cast("I")
    assert same(assemble(list(cut(PackedState(b"", [words]), 5)), Assembly(0)), PackedState(b"", [bytes(range(16))]))


@given(states, segment_sizes, st.data())
def test_a_damaged_segment_is_refused_and_the_right_one_still_taken(
    state: PackedState, segment_bytes: int, data: st.DataObject
) -> None:
    segments = segments_of(state, segment_bytes)
    position = data.draw(st.integers(0, len(segments) - 1))
    good = segments[position]
    other = data.draw(st.binary(max_size=segment_bytes).filter(lambda payload: payload != good.payload))
    assembly = Assembly(7)
    for segment in segments[:position]:
        assembly.add(segment)
    with pytest.raises(RemoteProtocolError, match=f"state of step 7: part {good.part} was damaged"):
        assembly.add(replace(good, payload=other))
    assert same(assemble(segments[position:], assembly), state)


@given(states, segment_sizes, st.data())
def test_only_the_next_segment_is_taken(state: PackedState, segment_bytes: int, data: st.DataObject) -> None:
    segments = segments_of(state, segment_bytes)
    position = data.draw(st.integers(0, len(segments) - 1))
    assembly = Assembly(7)
    for segment in segments[:position]:
        assembly.add(segment)
    others = [segment for segment in segments if segment is not segments[position]]
    random.Random(position).shuffle(others)
    for segment in others:
        with pytest.raises(RemoteProtocolError, match=f"part {segment.part}, segment {segment.index} came instead of"):
            assembly.add(segment)
    assert same(assemble(segments[position:], assembly), state)


# Who is given a state.


def packed(text: bytes) -> PackedState:
    return PackedState(text, ())


A, B, C = (Member(name, 1) for name in "abc")


def given_to(donor: Handover, done: int) -> list[tuple[Member, PackedState]]:
    """Whom the state is sent to, and what."""
    sent: list[tuple[Member, PackedState]] = []
    assert list(donor.serve(done, lambda member, state: sent.append((member, state)))) == []
    return sent


def test_a_state_is_given_when_it_is_asked_for_and_complete() -> None:
    donor = Handover()
    donor.ask(A, 3)
    assert given_to(donor, 3) == []
    donor.complete(3, lambda: packed(b"3"))
    donor.ask(B, 3)
    donor.ask(C, 4)
    assert given_to(donor, 3) == [(A, packed(b"3")), (B, packed(b"3"))]


def test_a_state_that_a_later_step_has_changed_is_not_given() -> None:
    donor = Handover()
    donor.complete(3, lambda: packed(b"3"))
    donor.ask(A, 3)
    donor.ask(B, 4)
    assert given_to(donor, 4) == []
    donor.complete(4, lambda: packed(b"4"))
    assert given_to(donor, 4) == [(B, packed(b"4"))]


def test_a_state_is_given_once_in_a_view() -> None:
    donor = Handover()
    donor.complete(3, lambda: packed(b"3"))
    donor.ask(A, 3)
    assert len(given_to(donor, 3)) == 1
    donor.ask(A, 3)
    assert given_to(donor, 3) == []
    donor.install()
    assert given_to(donor, 3) == []
    donor.ask(A, 3)
    assert given_to(donor, 3) == [(A, packed(b"3"))]


def test_a_state_that_cannot_be_packed_is_named_with_the_reason() -> None:
    def pack() -> PackedState:
        raise TypeError("parts[0].when: datetime is not allowed")

    donor = Handover()
    donor.complete(3, pack)
    donor.ask(A, 3)
    reason = "the state cannot be sent to it: parts[0].when: datetime is not allowed"
    assert list(donor.serve(3, lambda member, state: None)) == [(A, reason)]


def test_nobody_waits_for_a_state_that_may_stay_incomplete() -> None:
    donor = Handover()
    donor.complete(2, lambda: packed(b"2"))
    donor.withhold(3)
    donor.ask(A, 3)
    ((member, reason),) = donor.serve(3, lambda member, state: None)
    assert (member, "between a backward pass and the next" in reason) == (A, True)
    donor.ask(B, 4)
    donor.complete(4, lambda: packed(b"4"))
    assert given_to(donor, 4) == [(B, packed(b"4"))]

"""Memory for copies is ready before the step that is copied, and no peer waits for it without success."""

import gc
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest

from gossip import Member
from p2p.catchup.donor import Donor
from p2p.catchup.rooms import LONGEST_S, UNUSED_S, Rooms
from p2p.host.prefaulted_memory import Bytes, room_of
from p2p.net.frames import Taken
from p2p.net.parcels import SOON, PackedState, ParcelSegment, ShareRequest, StateRecord
from p2p.step.notices import StateOffer
from tests.p2p.catchup.test_aside import Thread
from tests.p2p.catchup.test_observer import ME, Newcomer
from tests.p2p.catchup.test_several_donors import CHUNK_BYTES, REPLICATED, SIZES, STEP, TREE, memory
from tests.p2p.net.parcels import A, B, C, digest, view_of


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the size limits, so that they apply to the small tensors of tests."""
    for module in ("p2p.catchup.rooms", "p2p.catchup.observer"):
        monkeypatch.setattr(f"{module}.LEAST_BYTES", 1)


class Space:
    """A room that is ready when the test says so."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.is_ready = self.is_dropped = False
        self.taken: list[int] = []

    def take(self, num_bytes: int) -> Bytes:
        assert not self.is_dropped
        self.taken.append(num_bytes)
        return np.empty(num_bytes, np.uint8)

    reserve = take

    def reaches(self, piece: Bytes) -> bool:
        return self.is_ready

    def drop(self) -> None:
        self.is_dropped = True


@dataclass
class Peer:
    """A donor whose copies are made by a thread."""

    member: Member
    tensors: list[bytearray] = field(default_factory=memory)
    is_device: bool = False

    def __post_init__(self) -> None:
        self.thread = Thread()
        self.spaces: list[Space] = []
        self.sent: list[tuple[int, ParcelSegment]] = []
        self.wished: list[tuple[Member, ShareRequest]] = []
        self.num_packed = 0
        self.donor = Donor(
            lambda target, stream, segment: self.sent.append((stream, segment)),
            lambda donor, wish: self.wished.append((donor, wish)),
            segment_bytes=CHUNK_BYTES,
            least_shared_bytes=200_000,
            make_room=self.make,
        )

    def make(self, num_bytes: int) -> Space:
        self.spaces.append(Space(num_bytes))
        return self.spaces[-1]

    def pack(self, known: bytes) -> PackedState:
        self.num_packed += 1
        return PackedState(TREE, [memoryview(each) for each in self.tensors], None, REPLICATED, self.thread.aside)

    def commit(self, step: int, now: float = 0.0) -> None:
        """Make the next update, after which the state is complete."""
        self.thread.hold()
        for tensor in self.tensors:
            tensor[0] = step
        self.donor.complete(step, self.pack)
        self.serve(step, now)

    def serve(self, step: int, now: float = 0.0) -> None:
        record = StateRecord(digest(step), view_of(A, B, C))
        assert [*self.donor.serve(now, step, record, lambda joiner: (A, B, C))] == []

    def gives(self) -> list[int]:
        """Steps of the requested copies that have begun."""
        return sorted(step for step, _ in self.donor._copies)


def test_who_has_no_seat_waits_until_memory_is_ready_and_is_given_a_later_step() -> None:
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    (space,) = first.spaces
    assert space.num_bytes == room_of(SIZES) and first.thread.num_copies == 0
    first.commit(STEP + 1)
    assert first.gives() == [] and first.spaces == [space]
    assert not first.donor.expire(0.0), "not ready"
    space.is_ready = True
    assert first.donor.expire(0.0)
    first.serve(STEP + 1)
    assert first.gives() == [STEP + 1] and first.thread.num_copies == 1
    assert space.taken == [*SIZES] and space.is_dropped, "all that was not taken is given back"
    assert not first.donor.expire(0.0)
    first.thread.work()
    first.donor.resume_streams(0.0)
    assert first.sent


def test_others_hear_of_it_when_the_first_is_asked_and_copy_what_they_are_asked_for_later() -> None:
    first, other = Peer(A), Peer(B)
    for peer in (first, other):
        peer.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    assert first.wished == [
        (donor, ShareRequest(A, ME, SOON, number, 3, CHUNK_BYTES)) for number, donor in enumerate((B, C), 1)
    ]
    other.donor.request_share(first.wished[0][1])
    assert other.donor.is_asked
    other.serve(STEP)
    (share,) = other.spaces
    assert not other.donor.is_asked and other.sent == [] and other.thread.num_copies == 0
    first.commit(STEP + 1)
    share.is_ready = first.spaces[0].is_ready = True
    first.wished.clear()
    first.serve(STEP + 1)
    assert first.wished[0] == (B, ShareRequest(A, ME, STEP + 1, 1, 3, CHUNK_BYTES))
    other.donor.request_share(first.wished[0][1])
    other.commit(STEP + 1)
    assert other.thread.num_copies == 1 and share.is_dropped
    assert share.num_bytes == room_of(share.taken) and share.num_bytes < sum(SIZES) / 2


def test_memory_that_is_ready_while_a_step_is_exchanged_is_for_the_next() -> None:
    """Other donors may have committed that step before the request; a joiner with a seat needs exactly that step."""
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    first.donor.begin_exchange()
    first.spaces[0].is_ready = True
    assert not first.donor.expire(0.0)
    first.serve(STEP)
    assert first.gives() == []
    first.donor.end_exchange()
    first.commit(STEP + 1)
    assert first.gives() == [STEP + 1]


def test_a_state_that_is_complete_only_while_a_step_is_exchanged_is_given_then() -> None:
    """If forward passes change buffers, the state is complete after the last one."""
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    first.spaces[0].is_ready = True
    first.donor.end_exchange()
    first.donor.begin_exchange()
    first.commit(STEP + 1)
    assert first.gives() == [STEP + 1]


def test_who_has_a_seat_is_given_its_state_while_a_step_is_exchanged() -> None:
    first = Peer(A)
    first.commit(STEP)
    first.donor.begin_exchange()
    first.donor.ask(ME, STEP, has_seat=True)
    first.serve(STEP)
    assert first.gives() == [STEP]


def test_who_has_a_seat_is_given_the_step_that_its_view_needs_at_once() -> None:
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=True)
    first.serve(STEP)
    assert first.gives() == [STEP] and first.spaces == []


def test_an_observer_shares_the_copy_of_who_has_a_seat() -> None:
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    first.donor.ask(C, STEP, has_seat=True)
    first.serve(STEP)
    assert first.thread.num_copies == 1 and first.spaces[0].is_dropped
    first.serve(STEP)
    assert not first.donor.waiting and first.thread.num_copies == 1


def test_nobody_waits_for_memory_for_ever() -> None:
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    first.commit(STEP + 1, now=LONGEST_S - 0.1)
    assert first.gives() == []
    assert first.donor.expire(LONGEST_S)
    first.serve(STEP + 1, now=LONGEST_S)
    assert first.gives() == [STEP + 1]


def test_memory_that_nobody_waits_for_any_more_is_given_back() -> None:
    first, other = Peer(A), Peer(B)
    for peer in (first, other):
        peer.commit(STEP)
    for member in (ME, C):
        first.donor.ask(member, STEP, has_seat=False)
    first.serve(STEP)
    other.donor.request_share(ShareRequest(A, ME, SOON, 1, 2, CHUNK_BYTES))
    other.serve(STEP)
    first.donor.forget(ME)
    first.donor.expire(0.0)
    assert not first.spaces[0].is_dropped, "C still waits"
    first.donor.forget(C)
    first.donor.expire(0.0)
    assert first.spaces[0].is_dropped
    other.donor.expire(UNUSED_S)
    assert not other.spaces[0].is_dropped
    other.donor.expire(UNUSED_S + 1)
    assert other.spaces[0].is_dropped


@pytest.mark.parametrize("gone", [A, ME])
def test_memory_for_a_share_is_given_back_when_the_first_or_the_observer_is_gone(gone: Member) -> None:
    other = Peer(B)
    other.donor.request_share(ShareRequest(A, C, SOON, 1, 2, CHUNK_BYTES))
    other.donor.request_share(ShareRequest(A, ME, SOON, 1, 2, CHUNK_BYTES))
    other.commit(STEP)
    assert len(other.spaces) == 2
    other.donor.forget(gone)
    assert [space.is_dropped for space in other.spaces] == [gone == A, True]


def test_what_is_announced_again_is_for_the_last_who_says_so() -> None:
    other = Peer(B)
    other.donor.request_share(ShareRequest(A, ME, SOON, 1, 2, CHUNK_BYTES))
    other.commit(STEP)
    other.donor.request_share(ShareRequest(C, ME, SOON, 1, 3, CHUNK_BYTES))
    assert other.spaces[0].is_dropped
    other.serve(STEP)
    assert len(other.spaces) == 2 and other.spaces[1].num_bytes < other.spaces[0].num_bytes


def test_a_share_that_is_asked_for_in_too_many_chunks_needs_no_memory() -> None:
    other = Peer(B)
    other.donor.request_share(ShareRequest(A, ME, SOON, 1, 2, 1))
    other.commit(STEP)
    assert other.spaces == [] and not other.donor.is_asked


def test_a_state_of_a_device_is_not_fetched_to_learn_its_size() -> None:
    first = Peer(A)
    first.donor._lends = False
    first.commit(STEP)
    first.donor.request_share(ShareRequest(B, C, SOON, 1, 2, CHUNK_BYTES))
    first.donor.ask(ME, STEP, has_seat=False)
    first.serve(STEP)
    assert first.num_packed == 1 and first.gives() == [STEP] and first.spaces == []


def test_a_state_that_cannot_be_packed_is_no_reason_to_wait() -> None:
    def pack(known: bytes) -> PackedState:
        raise TypeError("a datetime is not allowed")

    first = Peer(A)
    first.donor.complete(STEP, pack)
    first.donor.ask(ME, STEP, has_seat=False)
    record = StateRecord(digest(STEP), view_of(A))
    ((member, why),) = first.donor.serve(0.0, STEP, record)
    assert member == ME and "datetime" in why and first.spaces == []


@pytest.mark.parametrize("left_bytes", [sum(SIZES) - 1, sum(SIZES)])
def test_a_state_for_which_a_donor_has_no_memory_is_declined_with_both_sizes(
    left_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the kernel would kill it, and then the next donor."""
    monkeypatch.setattr("p2p.catchup.rooms.memory_bytes", lambda: left_bytes)
    first = Peer(A)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=True)
    declined = [*first.donor.serve(0.0, STEP, StateRecord(digest(STEP), view_of(A)))]
    if left_bytes == sum(SIZES):
        assert declined == [] and first.gives() == [STEP]
        return
    ((member, why),) = declined
    assert member == ME and first.gives() == [] and first.thread.num_copies == 0
    assert why.startswith("the state cannot be sent to it: a copy of it takes ") and " MB left" in why


def test_no_room_is_made_where_there_is_no_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2p.catchup.rooms.memory_bytes", lambda: 1000)
    first = Peer(A)
    first.commit(STEP)
    first.donor.request_share(ShareRequest(B, C, SOON, 1, 2, CHUNK_BYTES))
    first.donor.ask(ME, STEP, has_seat=False)
    ((member, why),) = first.donor.serve(0.0, STEP, StateRecord(digest(STEP), view_of(A)))
    assert member == ME and "MB left" in why and first.spaces == []


def test_rooms_without_a_maker_make_none() -> None:
    none = Rooms()
    none.expect(ShareRequest(A, ME, SOON, 1, 2, CHUNK_BYTES))
    assert not none.may_begin and none.expected == [] and not none.is_held(0.0)
    with none.taken() as room:
        assert room is None


def test_copies_of_many_joins_leave_nothing_behind() -> None:
    first = Peer(A)
    copies = []
    for step in range(20):
        first.commit(step)
        first.donor.ask(ME, step, has_seat=False)
        first.serve(step)
        first.spaces[-1].is_ready = True
        first.serve(step)
        first.thread.work()
        first.donor.resume_streams(0.0)
        copies.append(weakref.ref(first.donor._copies[step, b""]))
        first.donor.ask_for_chunks(0.0, ME, step, ())
        first.donor.forget(ME)
    gc.collect()
    assert [copy() for copy in copies] == [None] * 20
    assert all(space.is_dropped for space in first.spaces) and len(first.spaces) == 20


# Receivers


class Guest(Newcomer):
    """An observer that prepares memory for the state that it asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.spaces: list[Space] = []
        self.observer._make_room = self.make
        self.observer._sizes = SIZES

    def make(self, num_bytes: int) -> Space:
        self.spaces.append(Space(num_bytes))
        return self.spaces[-1]


def give(new: Newcomer, first: Peer, most: int = 1 << 30) -> int:
    """Deliver segments of a state from one donor; returns their number."""
    num = 0
    while first.sent and num < most:
        stream, segment = first.sent.pop(0)
        new.take(segment, A, stream)
        _, number, count = new.taken[-1]
        first.donor.acked(0.0, Taken(ME, number, count))
        num += 1
    return num


@pytest.mark.parametrize("ready_after", [0, 6, 15, 1 << 20])
def test_a_state_is_whole_whenever_its_memory_is_ready(ready_after: int) -> None:
    new, first = Guest(), Peer(A)
    new.observer.expect()
    new.observer.expect()
    (space,) = new.spaces
    assert space.num_bytes == room_of(SIZES)
    new.hear_head(STEP)
    first.commit(STEP)
    first.donor.ask(ME, STEP, has_seat=True)
    first.serve(STEP)
    first.thread.work()
    first.donor.resume_streams(0.0)
    num_sent = give(new, first, ready_after)
    space.is_ready = True
    num_sent += give(new, first)
    asked = [chunk for _, _, chunks in new.asked_chunks for chunk in chunks]
    assert asked == [] and not new.told, "two other donors are waited for"
    for donor in (B, C):
        new.observer.forget(donor)
    new.carry_out(new.observer.advance(new.now))
    for member, step, chunks in new.asked_chunks:
        assert member == A
        first.donor.ask_for_chunks(0.0, ME, step, chunks)
    give(new, first)
    (offer,) = new.told
    assert isinstance(offer, StateOffer)
    assert [bytes(tensor) for tensor in offer.state.tensors] == [bytes(tensor) for tensor in first.tensors]
    shared = [SIZES[index] for index in REPLICATED]
    assert space.taken == shared, "the rest is small, and comes as it is"
    new.carry_out(new.observer.loaded(new.now, STEP, digest(STEP)))
    assert space.is_dropped


def test_memory_is_given_back_when_a_seat_came_without_a_state() -> None:
    new = Guest()
    new.observer.expect()
    new.observer.seated()
    assert new.spaces[0].is_dropped


def test_a_small_state_needs_no_memory_in_advance() -> None:
    new = Guest()
    new.observer._sizes = ()
    new.observer.expect()
    assert new.spaces == []


def test_memory_for_shares_is_kept_for_longer_than_anybody_waits() -> None:
    assert UNUSED_S > LONGEST_S

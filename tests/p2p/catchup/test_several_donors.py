"""A state from three donors to one observer, in one process."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from gossip import Member
from p2p.catchup.chunk_tracker import STALL_S
from p2p.catchup.donor import KEPT_S, Donor
from p2p.catchup.multi_donor_states import MultiDonorStates
from p2p.catchup.shares import pack_parts
from p2p.catchup.state_copy import StateCopy
from p2p.catchup.state_requests import StateRequest
from p2p.errors import RemoteProtocolError
from p2p.net.frames import Taken
from p2p.net.parcels import Chunk, PackedState, ParcelSegment, RunInBackground, ShareRequest, StateRecord
from p2p.net.trees import Slot, pack_tree
from p2p.step.notices import StateOffer
from p2p.telemetry.records import Kind
from tests.p2p.catchup.test_observer import ME, Newcomer
from tests.p2p.net.parcels import A, B, C, digest, view_of

CHUNK_BYTES = 16 << 10
STEP = 5
TREE = pack_tree({"tensors": {"table": Slot(0), "mean": Slot(1), "bias": Slot(2)}, "parts": [{"moment": Slot(3)}]})
SIZES = (300_000, 1000, 70_000, 100_000)
REPLICATED = (0, 2, 3)
"""Indices of replicated tensors; not the mean, which may differ between members."""


def memory() -> list[bytearray]:
    rng = np.random.default_rng(7)
    return [bytearray(rng.bytes(size)) for size in SIZES]


class Pond:
    """A was asked for the state, and knows of B and C. Messages arrive when `settle` is called."""

    def __init__(
        self, device: Callable[[], bool] | None = None, aside: Mapping[Member, RunInBackground] | None = None
    ) -> None:
        self.memory = {member: memory() for member in (A, B, C)}
        self.memory[B][1][:] = bytes(SIZES[1])
        self.new = Newcomer()
        self.num_sent = Counter[Member]()
        self.under_way: deque[tuple[Member, int, ParcelSegment]] = deque()
        self.wished: list[tuple[Member, ShareRequest]] = []
        self.donors = {member: self._donor(member) for member in (A, B, C)}
        self._num_asked = 0
        for member, donor in self.donors.items():
            own = self.memory[member], device, REPLICATED, (aside or {}).get(member)
            donor.complete(STEP, lambda known, own=own: PackedState(TREE, *own))  # type: ignore[misc]
        self.new.hear_head(STEP)
        self.donors[A].ask(ME, STEP, has_seat=False)
        self.serve(A)

    def _donor(self, member: Member) -> Donor:
        def send(target: Member, stream: int, segment: ParcelSegment) -> None:
            assert target == ME
            self.num_sent[member] += len(segment.payload)
            self.under_way.append((member, stream, segment))

        return Donor(
            send,
            lambda donor, wish: self.wished.append((donor, wish)),
            segment_bytes=CHUNK_BYTES,
            least_shared_bytes=200_000,
        )

    def serve(self, member: Member, done: int = STEP) -> None:
        record = StateRecord(digest(done), view_of(A, B, C))
        assert [*self.donors[member].serve(self.new.now, done, record, lambda joiner: (A, B, C))] == []

    def give_shares(self, *members: Member) -> None:
        """Deliver A's requests to these members."""
        for donor, wish in self.wished:
            if donor in members:
                self.donors[donor].request_share(wish)
                self.serve(donor)

    def settle(self, *silent: Member) -> None:
        """Deliver all messages, except those from `silent` members."""
        while True:
            ready = [item for item in self.under_way if item[0] not in silent]
            if not ready and self._num_asked == len(self.new.asked_chunks):
                return
            for first, step, chunks in self.new.asked_chunks[self._num_asked :]:
                self._num_asked += 1
                self.donors[first].ask_for_chunks(self.new.now, ME, step, chunks)
            for source, stream, segment in ready[:1]:
                self.under_way.remove((source, stream, segment))
                self.new.take(segment, source, stream)
                _, number, count = self.new.taken[-1]
                self.donors[source].acked(self.new.now, Taken(ME, number, count))

    def lose(self, member: Member) -> None:
        """Let a member die; its messages in flight are lost."""
        self.under_way = deque(item for item in self.under_way if item[0] != member)
        self.new.observer.forget(member)

    def wait(self, seconds: float) -> None:
        self.new.now += seconds
        self.new.carry_out(self.new.observer.advance(self.new.now))

    def offered(self) -> list[bytes]:
        """The tensors that the script is to load."""
        (offer,) = self.new.told
        assert isinstance(offer, StateOffer) and (offer.step, offer.chain) == (STEP, digest(STEP))
        assert offer.state.tree == TREE and offer.view == view_of(A, B, C)
        return [bytes(tensor) for tensor in offer.state.tensors]

    def expected(self) -> list[bytes]:
        return [bytes(tensor) for tensor in self.memory[A]]


def test_three_donors_send_a_third_each_and_the_first_what_is_its_own() -> None:
    pond = Pond()
    assert pond.wished == [
        (donor, ShareRequest(A, ME, STEP, number, 3, CHUNK_BYTES)) for number, donor in enumerate((B, C), 1)
    ]
    pond.give_shares(B, C)
    pond.settle()
    assert pond.offered() == pond.expected()
    shared = sum(SIZES[index] for index in REPLICATED)
    assert all(abs(pond.num_sent[donor] - shared / 3) < 3 * CHUNK_BYTES for donor in (A, B, C))
    assert sum(pond.num_sent.values()) < sum(SIZES) + 6000, "no chunk was sent twice"
    assert [note.kind for note in pond.new.noted] == [Kind.STATE, Kind.WHOLE]
    assert (pond.new.noted[1].size, pond.new.noted[1].value) == (3, sum(SIZES) + len(TREE))
    assert pond.donors[A]._kept == {} and len(pond.donors[A]._copies) == 0, "nothing is kept any more"


def test_what_came_before_the_first_has_said_anything_counts() -> None:
    pond = Pond()
    pond.give_shares(B, C)
    pond.settle(A)
    assert not pond.new.told
    pond.settle()
    assert pond.offered() == pond.expected()
    assert pond.num_sent[A] < sum(SIZES) / 2


def test_a_state_that_is_small_comes_from_one() -> None:
    pond = Pond()
    donor = pond.donors[B]
    donor._least_shared_bytes = 10**6
    pond.wished.clear()
    donor.ask(ME, STEP, has_seat=False)
    pond.serve(B)
    assert pond.wished == [] and ME not in donor._kept


def test_a_chunk_that_differs_is_named_and_taken_from_the_first(caplog: pytest.LogCaptureFixture) -> None:
    pond = Pond()
    pond.memory[B][0][20_000] ^= 1
    pond.give_shares(B, C)
    pond.settle()
    assert pond.offered() == pond.expected()
    named = [record.getMessage() for record in caplog.records if "is not the same" in record.getMessage()]
    assert len(named) == 1 and named[0].startswith(f"chunk 1 of tensors.table is not the same at {B} and {A} in")
    assert pond.new.asked_chunks == [(A, STEP, [Chunk(2, 1)]), (A, STEP, ())]


@pytest.mark.parametrize("num_came", [0, 3])
def test_what_a_dead_donor_has_not_sent_comes_from_the_first(num_came: int) -> None:
    pond = Pond()
    pond.give_shares(B, C)
    pond.settle(B)
    for _ in range(num_came):
        _, stream, segment = pond.under_way.popleft()
        pond.new.take(segment, B, stream)
    pond.lose(B)
    pond.wait(0.0)
    pond.settle()
    assert pond.offered() == pond.expected()
    first = [chunk for _, _, chunks in pond.new.asked_chunks for chunk in chunks]
    assert len(first) == len(set(first)) == 10 - max(num_came - 1, 0)


def test_a_donor_that_is_a_step_further_declines_and_nobody_waits() -> None:
    pond = Pond()
    pond.donors[B].complete(STEP + 1, lambda known: PackedState(TREE, [*map(bytes, memory())], None, REPLICATED))
    for donor, wish in pond.wished:
        pond.donors[donor].request_share(wish)
    pond.serve(B, STEP + 1)
    pond.serve(C)
    pond.settle()
    assert pond.offered() == pond.expected()
    assert pond.num_sent[B] < 200


def test_a_donor_whose_state_cannot_be_packed_declines() -> None:
    def pack(known: bytes) -> PackedState:
        raise TypeError("a datetime is not allowed")

    pond = Pond()
    pond.donors[B].complete(STEP, pack)
    pond.give_shares(B, C)
    pond.settle()
    assert pond.offered() == pond.expected()


def test_a_donor_that_says_nothing_is_not_waited_for() -> None:
    pond = Pond()
    pond.give_shares(B)
    pond.settle()
    assert not pond.new.told
    pond.wait(STALL_S)
    pond.settle()
    assert pond.offered() == pond.expected()


def test_shares_of_a_first_donor_that_is_gone_are_of_no_use_and_another_one_is_asked() -> None:
    pond = Pond()
    pond.give_shares(B, C)
    pond.settle(A)
    pond.lose(A)
    for donor in (B, C):
        pond.donors[donor].forget(A)
    pond.wait(0.0)
    assert not pond.new.told
    pond.new.carry_out(pond.new.core.declare_dead(pond.new.now, A, "gone"))
    pond.new.now += 3.0
    pond.new.hear_head(STEP, source=B)
    assert pond.new.asked[-1] == (B, STEP)


def test_another_first_drops_what_it_was_to_share_and_sends_its_own() -> None:
    """Otherwise the state would be delayed by an obsolete share."""
    pond = Pond()
    pond.give_shares(B)
    assert pond.donors[B]._streams[ME].parcels
    pond.donors[B].forget(A)
    assert not pond.donors[B]._streams[ME].parcels
    pond.donors[B].ask(ME, STEP, has_seat=False)
    assert pond.donors[B].waiting == {ME: StateRequest(STEP, False)}


def test_a_copy_is_kept_while_the_joiner_is_heard_and_not_for_ever() -> None:
    pond = Pond()
    pond.give_shares(C)
    pond.settle()
    donor = pond.donors[A]
    donor.expire(pond.new.now + KEPT_S)
    assert donor._kept
    donor.expire(pond.new.now + KEPT_S + 1)
    assert not donor._kept
    donor.ask_for_chunks(100.0, ME, STEP, (Chunk(2, 0),))
    assert pond.under_way == deque()


def test_chunks_that_there_are_not_are_left_out() -> None:
    pond = Pond()
    pond.settle()
    pond.donors[A].ask_for_chunks(0.0, ME, STEP, (Chunk(3, 0), Chunk(2, 99), Chunk(77, 0), Chunk(2, 1)))
    sent = [segment for source, _, segment in pond.under_way if segment.part]
    assert [(segment.part, segment.index, segment.is_final) for segment in sent] == [(2, 1, True)]


def test_two_joiners_at_once_share_one_copy() -> None:
    pond = Pond()
    sent: list[Member] = []
    pond.donors[A]._send = lambda target, stream, segment: sent.append(target)
    pond.donors[A].ask(C, STEP, has_seat=False)
    pond.serve(A)
    assert set(sent) == {C}
    kept = {id(copy) for copy, _, _ in pond.donors[A]._kept.values()}
    assert len(kept) == 1 and len(pond.donors[A]._kept) == 2
    assert [wish.observer for _, wish in pond.wished] == [ME, ME, C, C]


def test_a_state_of_a_device_is_sent_when_it_is_whole() -> None:
    is_there: list[bool] = []
    pond = Pond(lambda: bool(is_there))
    pond.give_shares(B, C)
    pond.settle()
    assert pond.num_sent.total() == 0
    is_there.append(True)
    for donor in pond.donors.values():
        donor.resume_streams(pond.new.now)
    pond.settle()
    assert pond.offered() == pond.expected()


def test_a_first_whose_chunks_are_of_another_size_than_it_says_gives_nothing() -> None:
    copy = StateCopy(
        STEP, PackedState(TREE, [bytes(each) for each in memory()], None, REPLICATED), CHUNK_BYTES, is_shared=True
    )
    base, _ = copy.shared(StateRecord(digest(STEP), view_of(A, B, C)), (A, B, C))
    payload = b"too short"
    wrong = xxhash.xxh3_128_digest(payload)
    assert base.seal is not None
    record = base.seal()
    assert isinstance(record, StateRecord)
    record = replace(record, chunk_digests=wrong * (len(record.chunk_digests) // 16))
    asked: list[object] = []
    shared = MultiDonorStates(lambda *words: asked.append(words))
    assert shared.begin(0.0, A, replace(base, record=record)) == []
    with pytest.raises(RemoteProtocolError, match="a chunk of 9 bytes came for 16384 of part 2"):
        shared.receive(0.0, B, A, ParcelSegment(STEP, True, 2, 1, True, False, wrong, payload, is_share=True))
    assert shared.look(100.0) == [] and asked == [], "nothing of it is of use"


@pytest.mark.parametrize("num_bytes", [1 << 60, (1 << 64) - 1])
def test_a_state_for_which_is_no_memory_is_refused_and_nothing_is_kept(num_bytes: int) -> None:
    copy = StateCopy(
        STEP, PackedState(TREE, [bytes(each) for each in memory()], None, REPLICATED), CHUNK_BYTES, is_shared=True
    )
    base, _ = copy.shared(StateRecord(digest(STEP), view_of(A, B, C)), (A, B, C))
    assert base.seal is not None
    record = base.seal()
    assert isinstance(record, StateRecord)
    liar = replace(record, shared=pack_parts([(2, num_bytes)]), chunk_bytes=num_bytes, chunk_digests=bytes(16))
    asked: list[object] = []
    shared = MultiDonorStates(lambda *words: asked.append(words))
    with pytest.raises(RemoteProtocolError, match=f"gives a state of {num_bytes} bytes"):
        shared.begin(0.0, A, replace(base, record=liar))
    assert shared.look(100.0) == [] and asked == []

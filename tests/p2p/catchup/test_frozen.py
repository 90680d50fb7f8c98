"""Frozen parameters that a joiner has are left out of its state, and all others are not (R30 of PROTOCOL.md)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from p2p.catchup.frozen import FrozenDiffer, digest_of
from p2p.catchup.shares import unpack_parts
from p2p.catchup.state_copy import StateCopy, chunk_bytes_of, chunks_for, share_of, shared_parts
from p2p.catchup.state_requests import StateRequest
from p2p.net.parcels import PackedState, ShareRequest, StateRecord
from p2p.training.state.module_state import frozen_of
from p2p.training.state.replica_state import flatten_state, frozen_digest, frozen_parts, lent, unpack_into
from tests.p2p.catchup.test_donor import Giver
from tests.p2p.net.parcels import A, B, C, digest, view_of

TREE, BACKBONE, HEAD = b"tree", b"b" * 900, b"h" * 50
OWN = digest_of([(0, len(BACKBONE))], [BACKBONE])
OTHER = digest_of([(0, len(BACKBONE))], [b"c" * 900])


def backbone(is_frozen: bool = True) -> Callable[[bytes], PackedState]:
    return lambda known: PackedState(
        TREE, [memoryview(BACKBONE), memoryview(HEAD)], frozen=[0] if is_frozen else [], known=known
    )


def sent(donor: Giver) -> list[tuple[bytes, bytes, bytes]]:
    """For all states, the record of left-out tensors, and the two tensors."""
    records = [parcel.record for _, parcel in donor.came]
    assert all(isinstance(record, StateRecord) for record in records)
    frozen = [record.frozen for record in records if isinstance(record, StateRecord)]
    return [
        (left_out, bytes(parcel.parts[1]), bytes(parcel.parts[2]))
        for left_out, (_, parcel) in zip(frozen, donor.came, strict=True)
    ]


@pytest.mark.parametrize("has_seat", [False, True])
def test_what_who_asks_has_is_not_sent(has_seat: bool) -> None:
    donor = Giver()
    donor.complete(3, backbone())
    donor.ask(B, 3, has_seat=has_seat, frozen=OWN)
    assert donor.give(3) == [(B, 3)]
    assert sent(donor) == [(OWN, b"", HEAD)]


@pytest.mark.parametrize("has_seat", [False, True])
def test_who_has_others_is_sent_all_after_one_look_and_is_not_believed_again(has_seat: bool) -> None:
    donor = Giver()
    donor.complete(3, backbone())
    donor.ask(B, 3, has_seat=has_seat, frozen=OTHER)
    assert donor.give(3) == [] and donor.waiting == {B: StateRequest(3, has_seat, b"")}
    donor.ask(B, 3, has_seat=has_seat, frozen=OTHER)
    assert donor.give(3) == [(B, 3)]
    assert sent(donor) == [(b"", BACKBONE, HEAD)]
    donor.forget(B)
    donor.install()
    donor.ask(B, 3, has_seat=has_seat, frozen=OWN)
    assert donor.give(3) == [(B, 3)] and sent(donor)[1:] == [(OWN, b"", HEAD)]


def test_who_has_a_seat_and_has_lost_what_it_said_to_have_is_given_all_in_the_same_view() -> None:
    donor = Giver()
    donor.complete(3, backbone())
    for frozen in (OWN, OWN, b"", b""):
        donor.ask(B, 3, has_seat=True, frozen=frozen)
        donor.give(3)
    assert sent(donor) == [(OWN, b"", HEAD), (b"", BACKBONE, HEAD)]


def test_two_who_have_something_else_are_each_given_their_own() -> None:
    donor = Giver()
    donor.complete(3, backbone())
    donor.ask(A, 3, has_seat=False)
    donor.ask(B, 3, has_seat=False, frozen=OWN)
    donor.ask(C, 3, has_seat=False, frozen=OTHER)
    assert sorted(donor.give(3)) == [(A, 3), (B, 3)] and donor.give(3) == [(C, 3)]
    whole, less = (b"", BACKBONE, HEAD), (OWN, b"", HEAD)
    given = dict(zip([member for member, _ in donor.came], sent(donor), strict=True))
    assert given == {A: whole, B: less, C: whole}


def test_who_says_to_have_what_is_trained_here_is_sent_it() -> None:
    donor = Giver()
    donor.complete(3, backbone(is_frozen=False))
    donor.ask(B, 3, has_seat=False, frozen=OWN)
    assert donor.give(3) == [(B, 3)]
    assert sent(donor) == [(b"", BACKBONE, HEAD)]


def test_what_changes_after_it_was_asked_for_is_looked_at_as_it_is_copied() -> None:
    """The tensor is an average of the weights, without gradients, that the script updates after each step."""
    donor, memory = Giver(), bytearray(BACKBONE)
    donor.ask(B, 3, has_seat=False, frozen=OWN)
    memory[0] ^= 1
    donor.complete(4, lambda known: PackedState(TREE, [memoryview(memory), HEAD], frozen=[0], known=known))
    assert donor.give(4) == [] and donor.give(4) == [(B, 4)]
    assert sent(donor) == [(b"", bytes(memory), HEAD)]


# Several donors

LARGE = 1 << 17


def shared_state(known: bytes) -> PackedState:
    return PackedState(TREE, [b"b" * LARGE, b"h" * LARGE], replicated=[0, 1], frozen=[0], known=known)


def test_what_who_asks_has_is_in_no_share() -> None:
    known = digest_of([(0, LARGE)], [b"b" * LARGE])
    wish = ShareRequest(A, B, 3, 1, 2, 1 << 14)
    assert shared_parts(shared_state(b"")) == [(2, LARGE), (3, LARGE)]
    assert {chunk.part for chunk in chunks_for(shared_state(b""), wish)} == {2, 3}
    assert share_of(shared_state(known), wish._replace(frozen=known)).chunks == chunks_for(shared_state(known), wish)
    assert {chunk.part for chunk in chunks_for(shared_state(known), wish)} == {3}
    copy = StateCopy(3, shared_state(known), 1 << 14, is_shared=True)
    base, share = copy.shared(StateRecord(digest(3), view_of(A, C)), (A, C))
    assert base.seal is not None and {chunk.part for chunk in share.chunks} == {3}
    record = base.seal()
    assert isinstance(record, StateRecord) and record.frozen == known and unpack_parts(record.shared) == [(3, LARGE)]
    assert [bytes(part) for part in base.parts] == [TREE, b""]


def test_chunks_are_as_long_whatever_is_left_out() -> None:
    """Chunks of a copy that was given up count for the next copy after the same step."""
    large = np.empty(1 << 28, np.uint8).data
    state = PackedState(TREE, [large, HEAD], replicated=[0, 1], frozen=[0])
    sizes = [chunk_bytes_of(replace(state, known=known), 1 << 10) for known in (b"", OWN)]
    assert sizes[0] == sizes[1] > 1 << 10


def test_another_donor_is_told_what_is_left_out() -> None:
    donor = Giver()
    donor._least_shared_bytes, known = 1000, digest_of([(0, LARGE)], [b"b" * LARGE])
    donor.complete(3, shared_state)
    donor.ask(B, 3, has_seat=False, frozen=known)
    assert not [*donor.serve(0.0, 3, StateRecord(digest(3), view_of(A, C)), lambda member: (A, C))]
    ((asked, wish),) = donor.wished
    assert asked == C and wish.frozen == known


# The joiner


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(200, 200).requires_grad_(False), nn.Linear(200, 3)

    @property
    def frozen(self) -> set[str]:
        return {name for name, each in self.named_parameters() if not each.requires_grad}

    @property
    def digest(self) -> bytes:
        return frozen_digest(self.state_dict(), self.frozen)


def arrived(donor: Model, known: bytes) -> PackedState:
    """The state of `donor` as received."""
    state = lent(flatten_state(dict(donor.state_dict()), (), "samples", (), donor.frozen))
    parcel = StateCopy(3, replace(state, known=known), 1 << 14, is_shared=False).whole(
        StateRecord(digest(3), view_of(A))
    )
    assert isinstance(parcel.record, StateRecord)
    tree, *tensors = parcel.parts
    return PackedState(bytes(tree), [bytes(each) for each in tensors], known=parcel.record.frozen)


def test_what_was_left_out_stays_as_it_is_and_all_else_is_taken_over() -> None:
    donor, joiner = Model(), Model()
    with torch.no_grad():
        for each in (donor.head.weight, donor.body.bias):  # small frozen parameters are always sent
            each += 1
    state = arrived(donor, joiner.digest)
    assert state.known == joiner.digest and sum(map(len, state.tensors)) < 4000
    assert unpack_into(state, joiner.state_dict(), (), joiner.frozen) == "samples"
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(joiner.parameters(), donor.parameters(), strict=True))


def test_who_has_changed_since_what_it_said_to_have_does_not_train_on_it() -> None:
    donor, joiner = Model(), Model()
    state = arrived(donor, joiner.digest)
    joiner.body.weight.data[3, 5] += 1
    before = joiner.head.weight.clone()
    nn.init.zeros_(donor.head.weight)
    with pytest.raises(FrozenDiffer):
        unpack_into(state, joiner.state_dict(), (), joiner.frozen)
    assert torch.equal(joiner.head.weight, before)


def test_quantised_weights_are_left_out_and_large_buffers_that_training_changes_are_not() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(30_000))
    for name, dtype in (("quantised", torch.int32), ("mask", torch.bool), ("queue", torch.float32)):
        model.register_buffer(name, torch.zeros(100_000, dtype=dtype))
    assert frozen_of(model) == {"quantised", "mask"}
    assert [*frozen_parts(model.state_dict(), frozen_of(model))] == ["quantised", "mask"]


def test_a_digest_says_which_parameters_are_frozen() -> None:
    twice = {"one": torch.ones(20_000), "other": torch.ones(20_000), "small": torch.ones(3)}
    digests = {frozen_digest(twice, names) for names in ({"one"}, {"other"}, {"one", "other"}, {"small"}, set())}
    assert len(digests) == 4 and frozen_digest(twice, {"small"}) == frozen_digest(twice, set()) == b""

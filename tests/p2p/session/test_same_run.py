"""A peer that has taken part in a run does not load the state of another run."""

from dataclasses import replace

import numpy as np
import pytest

from gossip import Policy, Seat, View
from p2p.catchup.replica import Replica
from p2p.data.counting import ONLY_COUNTS
from p2p.data.sample_tracker import SampleTracker
from p2p.errors import RemovedFromView, RunEnded, ShoalError
from p2p.net.parcels import PackedState
from p2p.net.trees import pack_tree
from p2p.session.description import without_model
from p2p.session.history import History
from p2p.session.same_run import SameRun
from p2p.step.notices import Commit, StateOffer
from p2p.step.operation import Operation
from p2p.step.receipts import NUM_COLUMNS, Continued, Contribution, Receipt
from p2p.step.stragglers import StragglerDetector
from p2p.training.state.replica_state import samples_in
from tests.p2p.net.parcels import A

FIRST, SECOND, THIRD = b"1" * 16, b"2" * 16, b"3" * 16
MODEL = Replica(traits={"model": b"layout"}, pack=lambda: PackedState(b"", []), load=lambda state: None, compare=str)


def view_of(lineage: bytes) -> View:
    return View(lineage, 1, 1, (Seat(A, 1),), b"", Policy.LIVE, A.peer_id)


class Peer:
    """A peer's history, and the states that it gives and receives."""

    def __init__(self) -> None:
        self.share = SampleTracker()
        self.history = History(self.share, None, StragglerDetector(2.0))
        self.reasons: list[ShoalError] = []
        self.has_checkpoints = False
        whose = "pond", self.history, self.share
        self.same_run = SameRun(*whose, self.reasons.append, lambda: self.has_checkpoints)

    def commit(self, lineage: bytes, *, is_training: bool = True) -> None:
        step = self.history.done + 1
        mine = Contribution(A.peer_id, A.incarnation, (), 4, 4, ())
        receipt = Receipt(
            lineage=lineage.hex(),
            view_number=1,
            step=step,
            contributions=(mine,),
            algorithms=(),
            digest="",
            state_digest="",
        )
        values = np.zeros(NUM_COLUMNS, np.int64)
        counts = Operation(ONLY_COUNTS, values, values, values.shape)
        self.history.add(Commit(receipt, view_of(lineage), [counts] if step and is_training else [], ()), A)

    def trains(self, lineage: bytes, num_steps: int = 3) -> "Peer":
        for _ in range(num_steps + 1):
            self.commit(lineage)
        return self

    def offer(self, lineage: bytes) -> StateOffer:
        """Its state, as offered by a member."""
        state = PackedState(pack_tree({"samples": self.share.pack()}), [])
        return StateOffer(self.history.done, bytes(16), view_of(lineage), state)

    def load(self, offer: StateOffer) -> None:
        self.same_run.check(REPLICA, offer)
        self.share.load(REPLICA.samples(offer.state))
        self.history.loaded(offer.step)


REPLICA = replace(MODEL, samples=samples_in)


def test_who_has_followed_a_run_does_not_load_the_state_of_another_one() -> None:
    one, other = Peer().trains(FIRST), Peer().trains(SECOND, 0)
    offer = other.offer(SECOND)
    assert one.same_run.is_other(REPLICA, offer.state, SECOND)
    with pytest.raises(
        RunEnded, match=r"run of this peer, after 3 steps of training, is over .* of swarm pond .*, after 0;"
    ) as over:
        one.load(offer)
    assert one.reasons == [over.value] and one.share.run == FIRST and over.value.exit_code == 0


def test_who_has_observed_a_run_does_not_either() -> None:
    member, one, other = Peer().trains(FIRST), Peer(), Peer().trains(SECOND)
    one.load(member.offer(FIRST))
    with pytest.raises(RunEnded, match=r"after 3 steps .*, after 5;"):
        one.load(other.trains(SECOND, 1).offer(SECOND))


def test_before_step_0_the_lineage_says_which_run_a_state_is_of() -> None:
    one, founder = Peer().trains(FIRST), Peer()
    with pytest.raises(RunEnded):
        one.load(founder.offer(SECOND))


def test_who_has_checkpoints_fails_where_others_begin_since_they_may_go_on_from_one() -> None:
    """Then the run is not over: after a restart this peer may be one of the founders."""
    one, founder = Peer().trains(FIRST), Peer()
    one.has_checkpoints = True
    with pytest.raises(RemovedFromView, match=r"after 3 steps .* may continue from a checkpoint") as why:
        one.load(founder.offer(SECOND))
    assert one.reasons == [why.value] and why.value.exit_code == 3 and why.value.is_final
    one, founder = Peer().trains(FIRST), Peer().trains(SECOND)
    one.has_checkpoints = True
    with pytest.raises(RunEnded):
        one.load(founder.offer(SECOND))


def test_who_has_followed_nothing_loads_any_state() -> None:
    one, other = Peer(), Peer().trains(SECOND)
    one.load(Peer().offer(FIRST))
    one.commit(FIRST)
    one.commit(FIRST, is_training=False)
    assert one.share.run == FIRST, "it was there as the run began, and no step of training was"
    one.load(other.offer(SECOND))
    assert one.share.run == SECOND and one.reasons == []


def test_a_lineage_that_goes_on_with_a_state_is_of_the_same_run() -> None:
    heir, returner = Peer().trains(FIRST), Peer().trains(FIRST)
    heir.history.begin_lineage(Continued(FIRST.hex(), 3, 3))
    early = heir.offer(SECOND)
    heir.trains(SECOND)
    assert heir.share.run == FIRST
    for offer in (early, heir.offer(SECOND)):
        returner.load(offer)
    assert returner.share.run == FIRST and returner.share.num_trained == 6
    other = Peer().trains(THIRD, 0)
    with pytest.raises(RunEnded):
        heir.load(other.offer(THIRD))


def test_who_goes_on_from_a_checkpoint_is_in_its_run() -> None:
    former = Peer().trains(FIRST)
    founder, by_hand = Peer().trains(SECOND, 0), Peer()
    with founder.share.resuming():
        founder.share.load(former.share.pack())
    by_hand.share.load_state_dict(former.share.state_dict())
    by_hand.commit(SECOND)
    assert founder.share.run == by_hand.share.run == FIRST
    for peer in (founder, by_hand):
        former.load(peer.trains(SECOND, 0).offer(SECOND))


def test_a_checkpoint_of_before_that_says_no_run_is_of_that_which_loads_it() -> None:
    *before, _ = Peer().trains(FIRST).share.pack()
    founder = Peer().trains(SECOND, 0)
    with founder.share.resuming():
        founder.share.load(before)
    assert (founder.share.run, founder.share.num_trained) == (SECOND, 3)


def test_nothing_is_compared_where_a_run_is_not_known_or_no_model_is_trained() -> None:
    unknown, one, other = Peer().trains(FIRST), Peer().trains(FIRST), Peer().trains(SECOND)
    unknown.share.run = b""
    unknown.load(other.offer(SECOND))
    offer = other.offer(SECOND)
    assert not one.same_run.is_other(without_model(one.share), offer.state, SECOND)
    assert not one.same_run.is_other(REPLICA, PackedState(pack_tree({}), []), SECOND), "who loads it says what is wrong"

"""The loop: effects are carried out in order, and steps commit by progress in shared memory."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collectives.programs import MOST_CHUNKS
from gossip import Claim, Contact, Member, Policy, Seat, State, View
from gossip import effects as fx
from gossip.given_up import Cause, GivenUp
from gossip.messages import AcceptorRecord, Ballot
from gossip.progress import NOT_CALLED, Progress
from p2p.errors import OperationInterrupted, OperationMismatch, ReplicasDiverged
from p2p.net.tcp import TcpOptions
from p2p.step import effects as sx
from p2p.step.notices import Commit, Uncommitted, Withdrawn
from p2p.step.operation import Operation
from p2p.telemetry.records import How, Kind, Why
from tests.p2p.loop.pair import STATE, Peer, alone, drive, pair
from tests.p2p.step.group import all_reduce


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        yield Path(folder) / "home"


@pytest.fixture
def lone(home: Path) -> Iterator[Peer]:
    peer = alone(home)
    yield peer
    peer.loop.close()


@pytest.fixture
def peers(home: Path) -> Iterator[tuple[Peer, Peer]]:
    both = pair(home)
    yield both
    for peer in both:
        peer.loop.close()


def test_a_part_that_cannot_be_released_keeps_no_other(home: Path) -> None:
    one = alone(home)
    folder = one.loop.resources.registry.folder
    entry = folder / f"{one.member.peer_id}.json"
    entry.unlink()
    entry.mkdir()
    with pytest.raises(IsADirectoryError):
        one.loop.close()
    assert {path.name for path in folder.iterdir()} == {"lock", entry.name}
    assert one.loop.resources.host_memory.doorbell is None


# Effects

GIVEN_UP = GivenUp(1, 1, Cause.IN_USE, "members have come")
RECORD = fx.WriteRecord(AcceptorRecord(None, Ballot(0, 0), None))


def test_what_an_effect_entails_is_carried_out_behind_those_that_wait(lone: Peer) -> None:
    lone.submit(all_reduce(np.ones(3)))
    lone.loop._carrier.carry_out([fx.Aborted(GIVEN_UP), sx.Tell(Withdrawn(7))])
    lone.listen()
    assert [type(notice) for notice in lone.told] == [Withdrawn, OperationInterrupted]


@pytest.mark.parametrize("entails", [False, True])
def test_nothing_is_carried_out_behind_an_effect_that_fails(lone: Peer, entails: bool) -> None:
    """For example an acceptor record that is not written: messages that depend on it must never be sent."""
    lone.submit(all_reduce(np.ones(3)))
    lone.loop.resources.record_page.close()
    behind = sx.Tell(Withdrawn(7))
    with pytest.raises(ValueError, match="closed file"):
        lone.loop._carrier.carry_out([fx.Aborted(GIVEN_UP), RECORD, behind] if entails else [RECORD, behind])
    lone.listen()
    assert lone.told == []
    lone.loop._carrier.carry_out([sx.Tell(Withdrawn(8))])
    lone.listen()
    assert lone.told == [Withdrawn(8)]


def test_what_comes_of_a_view_that_is_over_is_void(peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    one.submit(all_reduce(np.ones(3), early=True))
    before = one.loop.core.stamp.number - 1
    one.loop._carrier.carry_out([sx.DeliverEarly(0, before), sx.Finish(1, b"", b"", 1, before)])
    one.listen()
    assert one.told == [] and not one.loop.core.has_finished


def test_a_view_that_becomes_active_behind_an_error_is_none_for_memory(peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    view = one.loop.core.view
    assert view is not None
    one.loop._carrier.carry_out([fx.Diverged(1, "other bits"), fx.Activated(view, 0, maps_all=True)])
    assert one.loop.shared() is None and isinstance(one.loop.inbox.failure, ReplicasDiverged)


def test_a_peer_that_cannot_go_on_takes_no_commands(lone: Peer) -> None:
    lone.loop._carrier.carry_out([fx.Diverged(1, "bits differ")])
    lone.submit(all_reduce(np.ones(3)))
    lone.close_step()
    lone.loop.withdraw(1, 1)
    lone.loop.void(1, "goes on")
    lone.listen()
    assert [type(notice) for notice in lone.told] == [ReplicasDiverged]


def test_each_step_is_noted_as_it_comes_about(lone: Peer) -> None:
    assert [each for each in lone.records() if each[0] is not Kind.IN] == [
        (Kind.INSTALLED, 0, 1),
        (Kind.ACTIVE, -1, 1),
        (Kind.COMMITTED, 0, 0),
    ]
    lone.submit(all_reduce(np.ones(3)))
    lone.close_step()
    assert lone.records() == [(Kind.FINISHED, 1, 0), (Kind.COMMITTED, 1, 0)]


@pytest.mark.parametrize(("network", "algorithm"), [("lan", "direct"), ("wan", "ring")])
def test_where_links_are_slow_a_large_sum_goes_around_a_ring(home: Path, network: str, algorithm: str) -> None:
    peer = alone(home, TcpOptions(bind="127.0.0.1:0", insecure=True, network=network))
    try:
        peer.submit(all_reduce(np.zeros(1 << 20)))
        peer.close_step()
        drive(peer)
        (commit,) = peer.commits()
        assert commit.receipt.algorithms == (algorithm,)
    finally:
        peer.loop.close()


# Shared memory


def run_step(one: Peer, other: Peer, *operations: Operation) -> None:
    """Run a step until both have finished it, and `other` has seen that `one` has; without polling the sockets."""
    step = one.step
    for peer, operation in zip((one, other), operations, strict=True):
        peer.submit(operation)
        peer.close_step()
    while not other.told:
        one.advance()
        other.advance()
    assert other.loop.core.done == step


def sums(value: float) -> tuple[Operation, Operation]:
    return all_reduce(np.full(100, value)), all_reduce(np.full(100, value + 1))


def hears_of_a_step(peer: Peer, sender: Peer) -> bool:
    """Whether data frames come from `sender`, besides one without content."""
    sender.loop._frames.send_taken(peer.member, 1, 0)
    num_frames = 0
    while not num_frames:
        if peer.loop.poll(1.0).data:
            num_frames += len(list(peer.loop.resources.transport.receive_data()))
    return num_frames > 1


def test_a_step_commits_by_what_is_seen_without_a_word(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    for peer, sender in (peers, peers[::-1]):
        hears_of_a_step(peer, sender)  # discards frames in flight
    for step in range(1, 5):
        operations = sums(step)
        run_step(one, other, *operations)
        one.advance()
        assert (one.loop.core.done, other.loop.core.done) == (step, step)
        receipts = [commit.receipt for peer in peers for commit in peer.commits()]
        assert len(receipts) == 2 and receipts[0] == receipts[1] and receipts[0].step == step
        assert receipts[0].state_digest == STATE.hex()
        assert all((operation.result == 2 * step + 1).all() for operation in operations)
    assert not hears_of_a_step(one, other) and not hears_of_a_step(other, one)
    assert one.loop.core.digest == other.loop.core.digest


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_what_is_shown_of_a_step_that_was_heard_to_be_done_is_not_taken_for_the_next(
    peers: tuple[Peer, Peer], value: float
) -> None:
    """A beat arrives before the other's memory is read."""
    one, other = peers
    for values in (np.full(100, 1.0), np.full(100, value)):
        step = one.step
        for peer in (other, one):
            peer.submit(all_reduce(values, "one-shot"))
            peer.close_step()
            peer.advance()
        assert one.loop.core.has_finished and (one.loop.core.done, other.loop.core.done) == (step - 1, step - 1)
        while not other.told:
            other.advance()
        assert (one.loop.core.done, other.loop.core.done) == (step - 1, step)
        one.hear(other, Progress(step, other.loop.core.digest, None))
        assert one.loop.core.done == step
        one.advance()
        assert [len(peer.commits()) for peer in peers] == [1, 1]
    assert not one.told and not other.told


def test_what_was_called_differently_is_raised_by_both(peers: tuple[Peer, Peer]) -> None:
    for peer, length in zip(peers, (10, 11), strict=True):
        peer.submit(all_reduce(np.arange(length)))
        peer.close_step()
    drive(*peers)
    for peer in peers:
        (error,) = peer.errors()
        assert isinstance(error, OperationMismatch) and not error.is_alone
        for other, length in zip(peers, (10, 11), strict=True):
            assert f"all_reduce sum of int64 [{length}] by size at peer {other.member}" in str(error)
    after_an_error(peers)


def after_an_error(peers: tuple[Peer, Peer]) -> None:
    """Check that the next attempt succeeds."""
    for peer in peers:
        peer.told = []
        peer.submit(all_reduce(np.ones(4)))
        peer.close_step()
    drive(*peers)
    assert [[type(notice) for notice in peer.told] for peer in peers] == [[Commit], [Commit]]


def test_an_operation_beyond_the_end_at_the_other_is_raised_by_both_and_both_sides_are_named(
    peers: tuple[Peer, Peer],
) -> None:
    one, other = peers
    for peer in peers:
        peer.submit(all_reduce(np.arange(10)))
    one.close_step()
    other.submit(all_reduce(np.arange(11)))
    drive(*peers)
    sides = f"all_reduce sum of int64 [11] by size at peer {other.member}", f"{NOT_CALLED} at peer {one.member}"
    (error,) = other.errors()
    assert isinstance(error, OperationMismatch) and f"operation 1 of step 1 is {', '.join(sides)}" in str(error)
    (error,) = one.errors()
    assert isinstance(error, OperationMismatch) and all(side in str(error) for side in sides)
    other.attempt += 1
    after_an_error(peers)


def test_another_digest_of_the_parameters_is_loud(peers: tuple[Peer, Peer]) -> None:
    for peer, state in zip(peers, (STATE, STATE[::-1]), strict=True):
        peer.submit(all_reduce(np.arange(10)))
        peer.close_step(state)
    drive(*peers)
    assert [type(error) for peer in peers for error in peer.errors()] == [ReplicasDiverged] * 2
    assert [peer.loop.core.done for peer in peers] == [0, 0]


def test_a_result_that_is_wanted_early_is_told_before_the_step_is_closed(peers: tuple[Peer, Peer]) -> None:
    early = [all_reduce(np.full(9, float(rank)), early=True) for rank in range(2)]
    for peer, operation in zip(peers, early, strict=True):
        peer.submit(operation)
    while not all(peer.told for peer in peers):
        for peer in peers:
            peer.advance()
    for peer, operation in zip(peers, early, strict=True):
        assert peer.told == [Uncommitted(operation, operation.outcome)] and (operation.result == 1).all()
        assert not peer.loop.core.has_finished
        peer.told = []
    run_step(*peers, *sums(1.0))
    peers[0].advance()
    for peer, operation in zip(peers, early, strict=True):
        (commit,) = peer.commits()
        assert commit.operations[0] is operation and len(commit.operations) == 2


def test_more_members_than_have_room_for_digests_share_no_memory(lone: Peer) -> None:
    """So no program has more chunks than there is room for digests."""
    before = lone.loop.core.view
    assert before is not None
    strangers = tuple(Seat(Member(f"{n:016x}", 1), 2, before.seats[0].contact) for n in range(MOST_CHUNKS))
    view = View(before.lineage, 2, 1, (*before.seats, *strangers), before.hash, Policy.LIVE, before.founder)
    lone.loop._carrier.carry_out([fx.Installed(view), fx.Activated(view, 0, maps_all=True)])
    assert lone.loop.open_step.run is not None and lone.loop.shared() is None


def test_r11_who_has_lost_its_seat_is_sent_no_data_any_more(peers: tuple[Peer, Peer]) -> None:
    """Memory lent to it is overwritten as the next step commits, and it may still consider itself a member."""
    one, other = peers
    view = one.loop.core.view
    assert view is not None and one.loop.resources.transport.send_data(other.member.peer_id, b"header", b"payload")
    seats = tuple(seat for seat in view.seats if seat.member == one.member)
    fewer = View(view.lineage, view.number + 1, 1, seats, view.hash, view.policy, view.founder)
    one.loop._carrier.carry_out([fx.Installed(fewer, ((other.member, State.LOST),))])
    assert not one.loop.resources.transport.send_data(other.member.peer_id, b"header", b"payload")


# Flight recorder


def test_a_view_is_recorded_with_why_there_is_another_one_and_a_redo_with_all_since_it_began(lone: Peer) -> None:
    first = lone.loop.core.view
    assert first is not None
    other, third = (Member(name * 16, 1) for name in "bc")

    def following(view: View, *members: Member) -> View:
        seats = tuple(Seat(member, view.number + 1, first.seats[0].contact) for member in members)
        own = (first.seats[0], *seats)
        return View(view.lineage, view.number + 1, 1, own, view.hash, Policy.LIVE, view.founder)

    both = following(first, other, third)
    fewer = following(both)
    again = following(fewer)
    gone = (other, State.DEAD), (third, State.LEFT)
    lone.submit(all_reduce(np.ones(4, np.float32)))
    lone.loop._carrier.carry_out([fx.Proposed(both), fx.Installed(both), fx.Installed(fewer, gone)])
    lone.loop._carrier.carry_out([fx.Activated(fewer, 0), fx.Installed(again), fx.Activated(again, 0)])
    kinds = Kind.PROPOSED, Kind.INSTALLED, Kind.OUT, Kind.REDO
    records = [each for each in lone.loop.resources.telemetry_page.loop.latest() if each.kind in kinds]
    assert [(Kind(each.kind), each.how, each.view) for each in records] == [
        (Kind.INSTALLED, Why.FIRST, first.number),
        (Kind.PROPOSED, 0, both.number),
        (Kind.INSTALLED, Why.CAME, both.number),
        (Kind.INSTALLED, Why.DIED | Why.LEFT, fewer.number),
        (Kind.OUT, How.DEATH, fewer.number),
        (Kind.OUT, How.LEAVE, fewer.number),
        (Kind.REDO, Why.CAME | Why.DIED | Why.LEFT, fewer.number),
        (Kind.INSTALLED, Why.AGAIN, again.number),
        (Kind.REDO, Why.AGAIN, again.number),
    ]


@pytest.mark.parametrize(
    ("state", "kind"), [(State.SUSPECT, Kind.SUSPECTED), (State.ALIVE, Kind.CLEARED), (State.LOST, Kind.LOST)]
)
@pytest.mark.parametrize("is_own", [True, False])
def test_what_is_believed_of_another_is_recorded_with_who_says_so(
    lone: Peer, state: State, kind: Kind, is_own: bool
) -> None:
    third = Member("c" * 16, 1)
    accuser = lone.member.peer_id if is_own else "d" * 16
    claim = Claim(third, state, Contact("", "", 0, 0), accuser=accuser)
    lone.loop._carrier.carry_out([fx.Explain("c is not what it was", claim), fx.Explain("something else")])
    last = lone.loop.resources.telemetry_page.loop.latest()[-1]
    how = How.OWN_PROBE if is_own else How.HEARSAY
    assert (last.kind, last.how, last.peer_id) == (kind, how, third.peer_id)

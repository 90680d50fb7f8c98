"""The steps of two peers of one host, which read each other's memory; what is said is handed over by the test."""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collectives.programs import MOST_CHUNKS
from gossip import Core, Envelope, Member, View
from gossip.effects import Activated, Committed, Diverged, Effect, Overheard, Send
from gossip.messages import NOT_CALLED, Abort, Beat, Body, Decide, Progress, Ready, Report, ReportKind
from p2p.errors import OperationInterrupted, OperationMismatch
from p2p.memory.host_memory import HostMemory
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Frames
from p2p.net.transport import Transport
from p2p.step.notices import Admitted, Commit, Early, Notice
from p2p.step.operations import Operation
from p2p.step.steps import Steps
from tests.gossip.cores import after, first_view, member_of, only
from tests.p2p.memory.machine import SMALL_PIECES, SPACE
from tests.p2p.step.group import all_reduce

STATE = b"of the parameters"[:16]


class Peer:
    """Core, memory and steps of one peer."""

    def __init__(self, me: Member, view: View, folder: Path) -> None:
        control, data = (f"ipc://{folder}/{me.peer_id}.{name}" for name in ("control", "data"))
        self.transport = Transport(control, data)
        self.host_memory = HostMemory(me.peer_id, SPACE, SMALL_PIECES)
        self.core: Core = member_of(view, me)
        self.frames = Frames(me, self.transport)
        self.effects: list[Effect] = []
        self.told: list[Notice] = []
        self.steps = Steps(
            self.core,
            self.frames,
            segment_bytes=1 << 20,
            now=lambda: 0.0,
            carry_out=self.carry_out,
            tell=self.told.append,
            note=lambda event, detail: None,
            share=lambda view: self.host_memory.share(view, me),
        )

    def carry_out(self, effects: list[Effect]) -> None:
        self.effects += effects
        for effect in only(Committed, effects):
            self.told.append(self.steps.commit(effect.finish, effect.view))

    def enter(self, view: View) -> None:
        """Install and activate the view, whose members share memory."""
        (other,) = set(view.members) - {self.core.me}
        assert self.host_memory.map(other, os.getpid())
        self.host_memory.install(view)
        self.frames.install(view)
        self.steps.install()
        self.steps.activate(view, -1, shares=True)
        assert self.told == [Admitted(view, -1)] and self.steps.sharing is not None
        self.told.clear()

    def begin(self, other: "Peer", view: View) -> Ready:
        """Hear of the next view from `other`; what is said in it."""
        effects = self.core.receive(0.0, Envelope(other.core.me, self.core.stamp, Decide(view)))
        self.host_memory.install(view)
        self.frames.install(view)
        self.steps.install()
        return next(said.body for said in only(Send, effects) if isinstance(said.body, Ready))

    def complete(self, other: "Peer", ready: Ready) -> None:
        """The barrier, with what `other` says in it."""
        effects = self.core.receive(0.0, Envelope(other.core.me, self.core.stamp, ready))
        (activated,) = only(Activated, effects)
        self.steps.activate(activated.view, activated.done, shares=True)

    def submit(self, step: int, *operations: Operation) -> None:
        for operation in operations:
            self.steps.submit(step, 0, operation)
        self.steps.close(step, 0, STATE)

    def hear(self, sender: "Peer", body: Progress) -> None:
        self.carry_out(self.core.receive(0.0, Envelope(sender.core.me, self.core.stamp, body)))

    def said(self) -> list[tuple[Member, Body]]:
        """Since the last time."""
        sent: list[tuple[Member, Body]] = [(effect.target, effect.body) for effect in only(Send, self.effects)]
        self.effects.clear()
        return sent

    def close(self) -> None:
        self.host_memory.close()
        self.transport.close()


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    """Both active in a view of two that shares memory."""
    with ExitStack() as stack, TemporaryDirectory(prefix="shoal") as name:
        view = after(first_view(), *(Member(secrets.token_hex(8), 1) for _ in range(2)))
        one, other = (Peer(member, view, Path(name)) for member in view.members)
        for peer in (one, other):
            stack.callback(peer.close)
        for peer in (one, other):
            peer.enter(view)
        yield one, other


def run_step(one: Peer, other: Peer, step: int) -> None:
    """Until both have finished it, and `other` has seen that `one` has."""
    operations = [all_reduce(np.full(100, float(step + rank))) for rank in range(2)]
    one.submit(step, operations[0])
    assert one.steps.advance() is RunState.WAITING
    other.submit(step, operations[1])
    assert other.steps.advance() is RunState.BUSY
    assert other.core.has_finished and other.core.done == step - 1
    assert one.steps.advance() is RunState.BUSY
    other.steps.advance()
    assert all((operation.result == 2 * step + 1).all() for operation in operations)


def test_a_step_commits_by_what_is_seen_without_a_word(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    for step in range(4):
        run_step(one, other, step)
        assert (one.core.done, other.core.done) == (step, step)
        receipts = [arrival.receipt for peer in peers for arrival in peer.told if isinstance(arrival, Commit)]
        assert len(receipts) == 2 and receipts[0] == receipts[1] and receipts[0].step == step
        assert receipts[0].state_digest == STATE.hex()
        assert one.said() == other.said() == []
        one.told.clear()
        other.told.clear()
    assert one.core.digest == other.core.digest


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_what_is_shown_of_a_step_that_was_heard_to_be_done_is_not_taken_for_the_next(
    peers: tuple[Peer, Peer], value: float
) -> None:
    """A beat overtakes the look at the other's memory."""
    one, other = peers
    for step, values in enumerate((np.full(100, 1.0), np.full(100, value))):
        other.submit(step, all_reduce(values))
        other.steps.advance()
        one.submit(step, all_reduce(values))
        one.steps.advance()
        assert one.core.has_finished and (one.core.done, other.core.done) == (step - 1, step - 1)
        other.steps.advance()
        assert other.core.done == step
        one.hear(other, Progress(step, other.core.digest, None))
        assert one.core.done == step
        one.steps.advance()
    assert not only(Diverged, [*one.effects, *other.effects])


def test_what_was_called_differently_is_told_to_the_other(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    one.submit(0, all_reduce(np.arange(10)))
    one.steps.advance()
    other.submit(0, all_reduce(np.arange(11)))
    other.steps.advance()
    theirs = Abort(0, 0, "all_reduce sum of int64 [11] by size")
    assert other.said() == [(one.core.me, theirs)]


def test_another_digest_of_the_parameters_is_loud(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    for peer, state in ((one, STATE), (other, STATE[::-1])):
        peer.steps.submit(0, 0, all_reduce(np.arange(10)))
        peer.steps.close(0, 0, state)
    for peer in (one, other, one, other):
        peer.steps.advance()
    assert [len(only(Diverged, peer.effects)) for peer in (one, other)] == [1, 1]
    assert (one.core.done, other.core.done) == (-1, -1)


def test_a_result_that_is_wanted_early_is_told_before_the_step_is_closed(peers: tuple[Peer, Peer]) -> None:
    early, last = (tuple(all_reduce(np.full(9, float(rank))) for rank in range(2)) for _ in range(2))
    for peer, operation in zip(peers, early, strict=True):
        operation.is_early = True
        peer.steps.submit(0, 0, operation)
        peer.steps.advance()
    peers[0].steps.advance()
    for peer, operation in zip(peers, early, strict=True):
        assert peer.told == [Early(operation, operation.result)] and (operation.result == 1).all()
        assert not peer.core.has_finished
        peer.told.clear()
    for peer, operation in zip(peers, last, strict=True):
        peer.submit(0, operation)
    for peer in (*peers, *peers):
        peer.steps.advance()
    for peer, first, second in zip(peers, early, last, strict=True):
        (commit,) = peer.told
        assert isinstance(commit, Commit) and commit.operations == [first, second]


def test_a_step_that_is_interrupted_raises_once_what_was_submitted_and_the_next_attempt_runs(
    peers: tuple[Peer, Peer],
) -> None:
    one, _ = peers
    operation = all_reduce(np.ones(9))
    one.steps.submit(0, 5, operation)
    one.steps.give_up(0, "")
    one.steps.submit(0, 5, operation)  # it was on its way
    one.steps.close(0, 5, STATE)
    (error,) = one.told
    assert isinstance(error, OperationInterrupted) and error.goes_on
    assert "view 2 came before step 0 was committed" in str(error)
    one.steps.submit(0, 6, operation)
    assert len(one.told) == 1


def test_who_withdraws_from_a_step_in_a_barrier_runs_nothing_before_the_view_that_interrupts_it(
    peers: tuple[Peer, Peer],
) -> None:
    """Or the others would do over what they have used already, together with something else."""
    one, other = peers

    def early(peer: Peer, attempt: int, value: float) -> None:
        operation = all_reduce(np.full(4, value))
        operation.is_early = True
        peer.steps.submit(0, attempt, operation)

    def take_turns() -> int:
        """How many results are handed out."""
        for peer in (one, other, one, other):
            peer.steps.advance()
        return len([arrival for peer in peers for arrival in peer.told if isinstance(arrival, Early)])

    early(one, 0, 1.0)
    early(other, 0, 10.0)
    assert take_turns() == 2
    assert one.core.view is not None
    again = after(one.core.view, *one.core.view.members)
    readies = one.begin(other, again), other.begin(one, again)
    assert readies[0].aborted_in == readies[1].aborted_in == 0
    one.steps.withdraw(0, 0)
    one.complete(other, readies[1])
    other.complete(one, readies[0])
    early(one, 1, 100.0)
    assert take_turns() == 2
    assert (other.core.me, Report(ReportKind.WITHDRAWN, one.core.me, 0)) in one.said()
    assert one.begin(other, after(again, *again.members)).aborted_in == again.number


def test_a_step_that_is_interrupted_before_it_is_called_again_raises_then(peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    one.steps.give_up(0, "")
    assert not one.told
    one.steps.submit(0, 3, all_reduce(np.ones(9)))
    assert [type(arrival) for arrival in one.told] == [OperationInterrupted]


def test_an_operation_beyond_the_end_at_the_other_is_given_up_and_both_sides_are_named(
    peers: tuple[Peer, Peer],
) -> None:
    one, other = peers
    run_step(one, other, 0)
    for peer in peers:
        peer.told.clear()
        peer.effects.clear()
        peer.steps.submit(1, 0, all_reduce(np.arange(10)))
        peer.steps.advance()
    one.steps.advance()
    one.steps.close(1, 0, STATE)
    other.steps.submit(1, 0, all_reduce(np.arange(11)))
    other.steps.report()
    assert one.core.has_finished
    (beat,) = (said.body for said in only(Send, one.core.tick(1.0)) if isinstance(said.body, Beat))
    other.hear(one, beat.progress)
    (overheard,) = only(Overheard, other.effects)
    assert overheard == Overheard(one.core.me, Abort(1, 1, NOT_CALLED))
    other.steps.overhear(one.core.me, overheard.abort)
    (error,) = other.told
    assert isinstance(error, OperationMismatch) and not error.is_alone
    sides = f"all_reduce sum of int64 [11] by size at peer {other.core.me}, {NOT_CALLED} at peer {one.core.me}"
    assert f"operation 1 of step 1 is {sides}" in str(error)
    theirs = Abort(1, 1, "all_reduce sum of int64 [11] by size")
    assert (one.core.me, theirs) in other.said()
    one.steps.overhear(other.core.me, theirs)
    assert not one.told  # the barrier that follows tells it


def test_who_has_just_joined_and_ends_its_step_too_early_raises_alone(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    one.submit(0, all_reduce(np.arange(10)))
    one.steps.overhear(other.core.me, Abort(0, 1, "all_reduce sum of int64 [11] by size"))
    assert not one.told  # so has the other, as far as this one knows
    one.steps.loaded(-1, (other.core.me.peer_id,), None)
    one.steps.overhear(other.core.me, Abort(0, 1, "all_reduce sum of int64 [11] by size"))
    (error,) = one.told
    assert isinstance(error, OperationMismatch) and error.is_alone and one.core.leaving


def test_more_members_than_have_room_for_digests_share_no_memory(peers: tuple[Peer, Peer]) -> None:
    """So no program has more chunks than that."""
    one, _ = peers
    strangers = [Member(f"{number:016x}", 1) for number in range(MOST_CHUNKS)]
    view = after(first_view(), one.core.me, *strangers)
    one.steps.install()
    one.steps.activate(view, -1, shares=True)
    assert one.steps.sharing is None

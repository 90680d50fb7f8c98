"""Sessions of one host, with an empty model: production peers, each with a script in a thread."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import numpy as np
import pytest

from gossip import effects as fx
from p2p.catchup.replica import Replica
from p2p.config import PeerConfig
from p2p.data.sample_tracker import SampleTracker
from p2p.data.sampler import Sampler, SamplerState, Slice
from p2p.errors import ShoalError
from p2p.net.parcels import PackedState
from p2p.session.attempt import OpenedBy
from p2p.session.reporter import Reporter
from p2p.session.session import FED_WITHIN_S, Session
from p2p.step.notices import Notice, StateOffer
from p2p.telemetry.snapshot import MOST_BYTES, Snapshot
from tests.p2p.step.group import all_reduce

MODEL = Replica(traits={"model": b"layout"}, pack=lambda: PackedState(b"", []), load=lambda state: None, compare=str)


def run_step(session: Session) -> None:
    session.state_is_complete()
    session.open_step(OpenedBy.BACKWARD)
    session.submit(all_reduce(np.ones(3)))
    session.commit(lambda: bytes(16))


def in_thread(script: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=script, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    """Sessions of peers that all have a seat."""
    with TemporaryDirectory(prefix="shoal") as folder, ExitStack() as stack:  # tmp_path can be too long for a socket
        home = Path(folder) / "home"
        config = PeerConfig(swarm="pond", home=home, min_peers=3, step_timeout_s=20.0, leave_timeout_s=0.5)
        sessions = [Session(config) for _ in range(3)]
        for session in sessions:
            stack.callback(session.leave)
        for thread in [in_thread(partial(session.take_seat, MODEL)) for session in sessions]:
            thread.join()
        yield sessions


def test_who_was_removed_with_a_block_that_raised_has_nothing_to_give_up_when_it_is_back(
    sessions: list[Session],
) -> None:
    """The others have continued without it: its next block is the step that they are at."""
    one, *others = sessions
    is_over = threading.Event()

    def train(session: Session) -> None:
        while not is_over.is_set():
            run_step(session)
        session.leave()

    one.open_step(OpenedBy.BLOCK)
    one.submit(all_reduce(np.ones(3)))
    former = one.loop
    former.reactor.post(lambda: former._carrier.carry_out([fx.Removed("the others go on without it")]))
    one.withdraw("ValueError ended a block")
    assert one.loop is not former
    threads = [in_thread(partial(train, session)) for session in others]
    run_step(one)
    assert (receipt := one.history.receipt) is not None and one.done == receipt.step > 0
    is_over.set()
    one.leave()
    for thread in threads:
        thread.join()


class Alarm(Exception):
    """Of a handler of the script."""


@pytest.mark.parametrize("where", ["_begin_leaving", "end", "unpin", "post"])
def test_who_calls_leave_again_after_a_handler_has_raised_in_it_tells_the_others(
    sessions: list[Session], where: str
) -> None:
    one = sessions[0]

    def ring(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_name == where and "/p2p/" in frame.f_code.co_filename:
            sys.setprofile(None)
            raise Alarm

    sys.setprofile(ring)
    with pytest.raises(Alarm):
        one.leave()
    assert not one.membership.loop.core.leaving
    one.leave()
    assert one.membership.loop.core.leaving


def test_a_launcher_is_told_of_each_change_though_its_records_are_overwritten_before_the_next_report(
    sessions: list[Session],
) -> None:
    one, *others = sessions
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reporter = Reporter(one, "pond", theirs, print)
    reporter.start()
    one.history.begin()

    def train(until: int) -> None:
        threads = [in_thread(partial(run_steps, session, until)) for session in others]
        run_steps(one, until)
        for thread in threads:
            thread.join()

    def run_steps(session: Session, until: int) -> None:
        while session.done < until:
            run_step(session)
            session.history.announce()

    left = list[int]()
    with reporter._lock:  # the other thread holds the interpreter, or waits for a core
        for until in (300, 600):
            others.pop().leave()
            left.append(one.done)
            train(until)
    one.leave()
    with ours:
        told = [Snapshot.parse(packet) for packet in iter(partial(ours.recv, MOST_BYTES), b"")]
    changes = dict.fromkeys((each.change.step, len(each.members)) for each in told if each.view == each.change.view)
    assert list(changes)[-2:] == [(step, size) for step, size in zip(left, (2, 1), strict=True)]


@pytest.mark.parametrize(("num_updates", "is_past_request"), [(0, False), (1, False), (0, True)])
def test_a_joiner_in_a_barrier_does_not_wait_for_a_state_that_nobody_can_begin_with(
    sessions: list[Session], num_updates: int, is_past_request: bool
) -> None:
    """Between two updates of a batch, or after an operation since its request; the members would wait as long."""
    one, is_posted = sessions[0], threading.Event()
    one.share._num_updates = num_updates
    one.state_is_complete(is_over=not is_past_request)
    one.open_step(OpenedBy.BACKWARD)
    one.membership.post(is_posted.set)
    assert is_posted.wait(20.0)
    assert (one.loop._donor._withheld == (one.done, FED_WITHIN_S)) == (num_updates > 0 or is_past_request)
    one.withdraw("the test is over")


def test_a_peer_without_a_model_gives_no_state_between_an_operation_and_the_next_batch(tmp_path: Path) -> None:
    """A joiner begins with a batch, so it would call something else than the members that are in such an operation."""
    one = Session(PeerConfig(swarm="pond", home=tmp_path / "home", min_peers=1))
    one.take_seat()
    track = one.share.make(Sampler(12, 6, epochs=1), "twelve")
    gives = []
    for _ in range(2):
        one.begin_batch()
        one.share.begin_loader_batch(track, Slice(0, 6))
        for _ in range(2):
            is_posted = threading.Event()
            one.membership.post(one.membership.offer_or_withhold_state())
            one.membership.post(is_posted.set)
            assert is_posted.wait(20.0)
            gives.append(one.loop._donor._packer is not None)
            one.run_alone(all_reduce(np.ones(3)))
    assert gives == [True, False, True, False]
    one.leave()


def test_who_waits_for_a_seat_again_has_the_time_of_a_step_again_and_of_a_seat(sessions: list[Session]) -> None:
    one, *others = sessions
    is_over, is_removed = threading.Event(), threading.Event()

    def train(session: Session) -> None:
        while not is_over.is_set():
            run_step(session)
        session.leave()

    one.membership._incarnations._removals = [one.loop.now()] * 5  # so that it waits for 2 s before it asks
    one._limit_s = 1.5
    one.state_is_complete()
    one.open_step(OpenedBy.EXCHANGE)
    one.submit(all_reduce(np.ones(3)))
    former, view = one.loop, one.history.view
    assert view is not None
    former.inbox.tell(StateOffer(one.done, bytes(16), view, PackedState(b"", [])))  # of this incarnation
    former.reactor.post(lambda: former._carrier.carry_out([fx.Removed("the others go on without it")]))
    former.reactor.post(is_removed.set)
    assert is_removed.wait(20.0)
    threads = [in_thread(partial(train, session)) for session in others]
    assert not one.commit(lambda: bytes(16), is_round=True)
    assert one.loop is not former
    run_step(one)
    assert (receipt := one.history.receipt) is not None and one.done == receipt.step > 0
    is_over.set()
    one.leave()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("num_updates", [0, 1])
def test_a_state_of_another_model_is_loaded_behind_the_step_but_for_the_middle_of_a_batch(
    sessions: list[Session], num_updates: int
) -> None:
    """Between two updates of a batch it may be offered again, if the next step is available."""
    one, *_ = sessions
    one.membership.replica = replace(MODEL, is_of_other_model=lambda state: True)
    one.share._num_updates = num_updates
    assert one.membership.must_load_later(PackedState(b"", [])) == (num_updates == 0)


def test_r9_a_state_is_loaded_behind_a_step_whose_batch_was_asked_for_before_an_operation_of_the_script(
    sessions: list[Session],
) -> None:
    """The donor is where it asks for a batch, so the joiner would reach that operation again."""
    one, *_ = sessions
    share, state = one.share, PackedState(b"", [])
    one.membership.replica = replace(
        MODEL, samples=lambda state: SampleTracker().pack(), is_of_other_model=lambda state: False
    )
    share.begin_loader_batch(share.make(Sampler(12, 6), "twelve"), Slice(0, 6))
    one.membership.edge.settle()
    assert not one.membership.must_load_later(state)
    one.membership.edge.pass_request()
    assert one.membership.must_load_later(state)


def test_r9_a_state_is_loaded_behind_a_step_of_a_loader_that_is_used_up_in_it(sessions: list[Session]) -> None:
    one, *_ = sessions
    used_up = SampleTracker()
    track = used_up.make(Sampler(12, 6, epochs=1), "twelve")
    track.state = SamplerState(12)
    one.membership.replica = replace(MODEL, samples=lambda state: used_up.pack(), is_of_other_model=lambda state: False)
    one.share.begin_loader_batch(one.share.make(Sampler(12, 6, epochs=1), "twelve"), Slice(0, 6))
    one.membership.edge.settle()
    assert one.membership.must_load_later(PackedState(b"", []))


# A failed loop


def fail() -> None:
    raise ZeroDivisionError("of the loop")


def test_a_loop_that_failed_is_seen_by_every_later_call_and_says_why(sessions: list[Session]) -> None:
    one, *_ = sessions
    one.loop.reactor.post(fail)
    assert one.loop.reactor.ended.wait(20.0)
    for call in (
        lambda: one.open_step(OpenedBy.BLOCK),
        one.take_seat,
        lambda: one.run_alone(all_reduce(np.ones(3))),
    ) * 2:
        with pytest.raises(
            ShoalError, match=r"the loop of this peer failed: ZeroDivisionError\('of the loop'\)"
        ) as told:
            call()
        assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_a_loop_that_fails_ends_every_wait(sessions: list[Session]) -> None:
    one, *_ = sessions
    heard: list[Notice] = []

    def wait() -> None:
        while not isinstance(notice := one.loop.inbox.next(20.0), ShoalError):
            pass  # notices of the start
        heard.append(notice)

    waiters = [in_thread(wait) for _ in range(3)]
    one.loop.reactor.post(fail)
    for waiter in waiters:
        waiter.join()
    assert heard == [one.loop.inbox.crash] * 3


def test_what_a_step_changes_is_kept_where_the_script_asks_for_its_batch_or_else_in_its_first_forward_pass() -> None:
    kept: list[int] = []
    with TemporaryDirectory(prefix="shoal") as folder:
        session = Session(PeerConfig(swarm="pond", home=Path(folder), min_peers=1, leave_timeout_s=0.5))
        session.take_seat(replace(MODEL, keep=lambda: kept.append(session.done)))
        kept.clear()
        run_step(session)
        session.begin_batch()
        session.begin_batch()  # of the next epoch, before which the script may have changed the model
        assert kept == [0, 1, 1]
        for is_over in (False, False, True):
            session.state_is_complete(is_over=is_over)
        session.begin_batch()  # after a forward pass that raised
        assert kept == [0, 1, 1]
        run_step(session)
        run_step(session)
        assert kept == [0, 1, 1, 2]
        session.leave()


def test_who_is_to_go_on_from_a_checkpoint_gets_no_seat_without_somebody_who_loads_it() -> None:
    with TemporaryDirectory(prefix="shoal") as folder:
        resume = Path(folder) / "00000010"
        session = Session(PeerConfig(swarm="pond", home=Path(folder), leave_timeout_s=0.5, resume=resume))
        says = f"--resume {resume}: this script asks for its seat without checkpoints, so it would begin anew"
        with pytest.raises(ShoalError, match=says):
            session.wait_view()
        with pytest.raises(ShoalError, match=says):
            session.take_seat(MODEL)
        session.take_seat(MODEL, loads=True)
        assert session.wait_view() is session.history.view
        session.leave()

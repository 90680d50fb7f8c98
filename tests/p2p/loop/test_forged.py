"""Well-formed but wrong frames of a holder of the key, or of the same user: none of them ends a loop."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from gossip import NO_VIEW, Contact, Envelope, Member, Seat, Stamp, View
from gossip.messages import Decide
from gossip.view import LAST_VIEW
from p2p.catchup.replica import Replica
from p2p.errors import QuorumLost
from p2p.net.parcels import PackedState
from p2p.net.wire import Codec
from tests.p2p.loop.pair import MOST_TURNS, NO_RUN, Peer, drive, pair
from tests.p2p.net.forged import Forger

MODEL = Replica(traits={"model": b"digest"}, pack=lambda: PackedState(b"", []), load=lambda state: None, compare=str)
NUM_FRAMES = 300


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal") as folder:  # tmp_path can be too long for a socket
        yield Path(folder) / "home"


def joining(home: Path, ask: Callable[[Peer], None]) -> tuple[Peer, Peer]:
    """A founder, and a joiner that asks for a seat."""
    founder, joiner = Peer(home), Peer(home)
    founder.ask_for_seat(1)
    drive(founder)
    ask(joiner)
    return joiner, founder


def observe(peer: Peer) -> None:
    peer.loop.begin()
    peer.loop.ask_for_seat(2, NO_RUN, MODEL)


STARTS: dict[str, Callable[[Path], tuple[Peer, Peer]]] = {
    "member": pair,
    "joiner": lambda home: joining(home, lambda peer: peer.ask_for_seat(2)),
    "observer": lambda home: joining(home, observe),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", list(STARTS))
def test_no_frame_that_only_a_liar_would_send_ends_a_loop(home: Path, start: str, seed: int) -> None:
    peer, other = STARTS[start](home)
    random, core = Random(seed), peer.loop.core
    view = other.loop.core.view
    forger = Forger(random, view, other.loop.core.done + 1)
    assert view is not None
    try:
        for _ in range(NUM_FRAMES):
            sender = random.choice((other.member, other.member, Member("f" * 16, 1)))
            if random.random() < 0.3:
                header, payload = forger.data_frame(sender)
                peer.loop._take_data(memoryview(header), memoryview(payload))
                continue
            elsewhere = Stamp(view.lineage, random.choice((1, 99, 2**24 - 1)), b"h" * 16)
            peer.loop._take_control(forger.frame(sender, random.choice((core.stamp, core.stamp, NO_VIEW, elsewhere))))
            peer.listen()
            if random.random() < 0.1:
                peer.turn()
        assert peer.loop.dropped_frames["invalid"]
    finally:
        for each in (peer, other):
            each.loop.close()


UNBOUNDED = Codec([Envelope], is_bounded=False)


def say(peer: Peer, sender: Peer, view: View) -> None:
    """Deliver a DECIDE without the production encoder, which would refuse it."""
    core = peer.loop.core
    peer.loop._take_control(UNBOUNDED.encode(Envelope(sender.member, core.stamp, Decide(view))))
    peer.listen()


def crowded(view: View, peer: Peer) -> View:
    """A view of `peer` and 500 others, with addresses of the maximal length."""
    contact = Contact(
        "ipc:///" + "x" * 290, "ipc:///" + "x" * 290, 1, 1, "", "tcp://" + "x" * 290, "tcp://" + "x" * 290
    )
    others = (Seat(Member(f"{i:016x}", 1), 1, contact) for i in range(500))
    return replace(view, number=view.number + 1, seats=(Seat(peer.member, 1), *others), parent=view.hash)


@pytest.mark.parametrize(
    "forge",
    [
        lambda view, peer: replace(view, lineage=b"other", number=view.number + 1, seats=(Seat(peer.member, 1),)),
        lambda view, peer: replace(view, number=2**24, seats=(*view.seats, Seat(peer.member, 1))),
        crowded,
    ],
    ids=["lineage", "number", "crowd"],
)
def test_a_view_for_which_there_is_no_room_is_dropped(home: Path, forge: Callable[[View, Peer], View]) -> None:
    joiner, founder = STARTS["joiner"](home)
    try:
        view = founder.loop.core.view
        assert view is not None
        say(joiner, founder, forge(view, joiner))
        assert joiner.loop.dropped_frames == {"invalid": 1} and joiner.loop.core.view is None
    finally:
        for each in (joiner, founder):
            each.loop.close()


def test_after_the_last_view_that_has_a_number_nobody_waits_for_another_one(home: Path) -> None:
    peer, other = pair(home)
    try:
        view = peer.loop.core.view
        assert view is not None
        say(peer, other, replace(view, number=LAST_VIEW - 1))
        peer.loop._carrier.declare_dead(other.member, "the test says so")
        for _ in range(MOST_TURNS):
            if peer.errors():
                break
            peer.turn()
        (error,) = peer.errors()
        assert isinstance(error, QuorumLost) and "no view has a greater number" in str(error)
    finally:
        for each in (peer, other):
            each.loop.close()

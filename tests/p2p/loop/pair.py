"""Two loops of one host in one thread, driven by hand: production peers, with real sockets and memory."""

from pathlib import Path

from gossip import Envelope, Member, Run, RunDescription
from gossip.messages import Body
from p2p.catchup.replica import Replica
from p2p.config import PeerConfig
from p2p.errors import ShoalError
from p2p.host.registry import Registry
from p2p.loop.loop import Loop
from p2p.memory.shared_runner import RunState
from p2p.net.parcels import PackedState
from p2p.net.tcp import TcpOptions
from p2p.step.notices import Admitted, Commit, Notice, StateOffer
from p2p.step.operation import Operation
from p2p.telemetry.records import Kind

STATE = b"of the parameters"[:16]
NO_MODEL = Replica(traits={}, pack=lambda: PackedState(b"", []), load=lambda state: None, compare=str)
NO_RUN = Run(RunDescription(), {})
NO_TCP = TcpOptions()
MOST_TURNS = 20_000
"""More turns than any test needs; an idle turn waits for a millisecond."""


class Peer:
    """A loop without a thread of its own, and the notices to its script.

    Attributes:
        told: notices, except those about seats.
        attempt: of the script, at any step.
    """

    def __init__(self, home: Path, tcp: TcpOptions = NO_TCP) -> None:
        config = PeerConfig(swarm="pair", home=home, receipts=home, arena_bytes=32 << 20, tcp=tcp).for_loop()
        self.loop = Loop(Registry(home, "pair"), config)
        self.told: list[Notice] = []
        self.attempt = self._num_read = 0
        self.loop.state_complete(-1, lambda known: PackedState(b"", []))

    @property
    def member(self) -> Member:
        return self.loop.core.me

    @property
    def step(self) -> int:
        return self.loop.core.done + 1

    def ask_for_seat(self, founding_size: int) -> None:
        self.loop.begin()
        self.loop.ask_for_seat(founding_size, NO_RUN, NO_MODEL)

    def turn(self) -> None:
        """Drive one turn, as the reactor does."""
        self.loop.next_deadline()
        polled = self.loop.poll(0.001)
        self.loop.take_deaths(polled)
        self.loop.take(polled)
        self.advance()

    def advance(self) -> RunState:
        """Advance without polling the sockets."""
        state = self.loop.advance()
        self.listen()
        return state

    def listen(self) -> None:
        while not self.loop.inbox.notices.empty():
            match self.loop.inbox.notices.get_nowait():
                case StateOffer() as offer:
                    self.loop.loaded(offer, None)
                case Admitted():
                    pass
                case notice:
                    self.told.append(notice)

    def submit(self, *operations: Operation) -> None:
        for operation in operations:
            self.loop.submit(self.step, self.attempt, operation)
        self.listen()

    def close_step(self, state_digest: bytes = STATE) -> None:
        self.loop.close_step(self.attempt, state_digest)
        self.attempt += 1
        self.listen()

    def hear(self, sender: "Peer", body: Body) -> None:
        """Deliver a message as if it had come in a frame."""
        core = self.loop.core
        self.loop._carrier.carry_out(core.receive(self.loop.now(), Envelope(sender.member, core.stamp, body)))
        self.listen()

    def commits(self) -> list[Commit]:
        """Commits since the last call."""
        commits = [notice for notice in self.told if isinstance(notice, Commit)]
        self.told = [notice for notice in self.told if not isinstance(notice, Commit)]
        return commits

    def errors(self) -> list[ShoalError]:
        return [notice for notice in self.told if isinstance(notice, ShoalError)]

    def records(self) -> list[tuple[Kind, int, int]]:
        """Kinds, steps and views of the records since the last call."""
        new = [record for record in self.loop.resources.telemetry_page.loop.latest() if record.number > self._num_read]
        self._num_read += len(new)
        return [(Kind(record.kind), record.step, record.view) for record in new]


def alone(home: Path, tcp: TcpOptions = NO_TCP) -> Peer:
    """A swarm of one, after step 0."""
    peer = Peer(home, tcp)
    peer.ask_for_seat(1)
    drive(peer)
    (commit,) = peer.commits()
    assert commit.receipt.step == 0
    return peer


def pair(home: Path) -> tuple[Peer, Peer]:
    """Two peers in a view over shared memory, after step 0."""
    one, other = Peer(home), Peer(home)
    for peer in (one, other):
        peer.ask_for_seat(2)
    drive(one, other)
    while one.loop.shared() is None or other.loop.shared() is None:  # the view came before all memory was mapped
        one.turn()
        other.turn()
    for peer in (one, other):
        (commit,) = peer.commits()
        assert commit.receipt.step == 0
    return one, other


def drive(*peers: Peer) -> None:
    """Drive the peers by turns, until each has a notice."""
    for _ in range(MOST_TURNS):
        if all(peer.told for peer in peers):
            return
        for peer in peers:
            peer.turn()
    raise AssertionError([peer.loop.explain() for peer in peers])

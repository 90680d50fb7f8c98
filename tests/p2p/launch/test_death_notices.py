"""Death notices: the launcher identifies a dead child, and tells the members that cannot observe it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gossip import NO_VIEW, Contact, Envelope, Member, Seat, View
from gossip.messages import AcceptorRecord, Ballot, Died, Vote
from p2p.host.acceptor_page import RecordPage
from p2p.host.processes import process_start
from p2p.host.registry import Registry
from p2p.launch.death_notices import LOOK_S, DeathNotices
from p2p.net.addresses import Endpoint
from p2p.net.frames import RECORD_CODEC
from p2p.net.listener import TcpListeners
from p2p.net.one_way import LATE_S as GIVEN_UP_S
from p2p.net.one_way import PATIENCE_S
from p2p.net.tcp import Network, TcpConfig
from p2p.net.transport import Transport
from p2p.net.wire import Codec
from p2p.telemetry.snapshot import Other
from tests.p2p.net.test_listener import two_free_ports
from tests.p2p.telemetry.pages import identity, page, snapshot

DEAD, ELSEWHERE, BESIDE, VOTED_FOR, HIDDEN = (Member(letter * 16, 1) for letter in "abcde")
CONFIG = TcpConfig(swarm="pond", bind=Endpoint("127.0.0.1", 0), secret=bytes(32))
LATE_S = PATIENCE_S[Network.LAN]
ME = os.getpid(), process_start(os.getpid())


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A registry with an entry of `DEAD` that names this process, and a living peer `BESIDE`."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.stack, self.clock = home, stack, Clock()
        self.registry = Registry(home, "pond")
        for member in (BESIDE, DEAD):
            self.registry.enter(member.peer_id, member.incarnation)
        self.death_notices = DeathNotices(self.registry, CONFIG, self.clock)
        self.page = RecordPage(self.registry.folder, DEAD, RECORD_CODEC.encode)
        stack.callback(self.page.close)

    def listener(self, member: Member) -> tuple[Transport, Contact]:
        """A peer of another host."""
        listeners = TcpListeners(CONFIG, member.peer_id)
        path = f"ipc://{self.home}/{member.peer_id[:4]}"
        transport = Transport(f"{path}-control", f"{path}-data", listeners)
        self.stack.callback(transport.close)
        return transport, Contact("", "", 1, 1, "another", listeners.control_address, listeners.data_address)

    def write(self, seats: dict[Member, Contact], candidates: dict[Member, Contact]) -> AcceptorRecord:
        """Write a record: a view of `seats`, and a vote for one that adds `candidates`."""
        view = View(b"l" * 16, 1, 1, tuple(Seat(member, 1, contact) for member, contact in seats.items()), b"")
        later = (*view.seats, *(Seat(member, 2, contact) for member, contact in candidates.items()))
        vote = Vote(Ballot(1, 0), View(b"l" * 16, 2, 1, later, view.hash))
        record = AcceptorRecord(view, Ballot(1, 0), vote)
        self.page.write(record)
        return record


@pytest.fixture
def host() -> Iterator[Host]:
    with TemporaryDirectory(prefix="shoal-", dir="/tmp") as home, ExitStack() as stack:
        yield Host(Path(home), stack)


def received(transport: Transport) -> list[object]:
    """The first messages that arrive; empty after a timeout."""
    for _ in range(50):  # the connection has to be admitted first
        if transport.poll(5.0).control:
            return [Codec([Envelope]).decode(frame) for frame in transport.receive_control()]
    return []


def at(remote: str, host: str = "another") -> Contact:
    return Contact("", "", 1, 1, host, remote, remote)


def test_all_seats_that_cannot_see_the_process_are_told_in_its_name(host: Host) -> None:
    told, seat = host.listener(ELSEWHERE)
    voted, candidate = host.listener(VOTED_FOR)
    nobody = at("tcp://127.0.0.1:1", host.registry.host)  # peers of this folder watch its process themselves
    record = host.write({DEAD: seat, BESIDE: nobody, HIDDEN: at(""), ELSEWHERE: seat}, {VOTED_FOR: candidate})
    assert host.death_notices.announce(*ME) == ""
    for transport in (told, voted):
        assert received(transport) == [Envelope(DEAD, NO_VIEW, Died(record))]
    assert host.death_notices.close() == ""


def test_whom_the_dead_knew_by_its_page_is_told_too(host: Host) -> None:
    told, contact = host.listener(ELSEWHERE)
    record = AcceptorRecord(None, Ballot(0, -1), None)
    host.page.write(record)
    others = (
        Other(peer_id=ELSEWHERE.peer_id, view=0, step=7, steps_per_s=1.0, address=contact.remote_control),
        Other(peer_id=BESIDE.peer_id, view=0, step=7, steps_per_s=1.0, address="tcp://127.0.0.1:1"),
        Other(peer_id=HIDDEN.peer_id, view=0, step=7, steps_per_s=1.0),
    )
    who = identity(DEAD.peer_id)
    page(host.registry.folder, who).show(snapshot(who, others=others))
    assert host.death_notices.announce(*ME) == ""
    assert received(told) == [Envelope(DEAD, NO_VIEW, Died(record))]
    assert host.death_notices.close() == "", "nobody else was"


def test_who_is_not_reached_in_time_is_named_once_and_in_the_end_given_up(host: Host) -> None:
    host.write({DEAD: at(""), ELSEWHERE: at("tcp://127.0.0.1:1")}, {})
    assert host.death_notices.announce(*ME) == ""
    assert host.death_notices.deadline == LATE_S
    assert host.death_notices.poll() == ""
    host.clock.now = LATE_S
    assert host.death_notices.poll().startswith("could not tell tcp://127.0.0.1:1 of a death here")
    assert LATE_S < host.death_notices.deadline < LATE_S + 5.0
    host.clock.now = LATE_S + GIVEN_UP_S
    assert host.death_notices.poll() == ""
    assert host.death_notices.deadline == float("inf")
    host.death_notices.announce(*ME)
    host.clock.now += LATE_S
    assert host.death_notices.close().startswith("could not tell tcp://127.0.0.1:1 ")


def test_who_is_reached_again_after_a_while_is_told_then(host: Host) -> None:
    """The network to the member was cut when the peer died."""
    port = two_free_ports()
    host.write({DEAD: at(""), ELSEWHERE: at(f"tcp://127.0.0.1:{port}")}, {})
    assert host.death_notices.announce(*ME) == ""
    host.clock.now = 2 * LATE_S
    assert host.death_notices.poll().startswith(f"could not tell tcp://127.0.0.1:{port} ")
    listeners = TcpListeners(replace(CONFIG, bind=Endpoint("127.0.0.1", port)), ELSEWHERE.peer_id)
    told = Transport(f"ipc://{host.home}/control", f"ipc://{host.home}/data", listeners)
    host.stack.callback(told.close)
    (envelope,) = received(told)
    assert isinstance(envelope, Envelope) and envelope.sender == DEAD
    while host.death_notices.deadline < float("inf"):
        host.clock.now = host.death_notices.deadline
        assert host.death_notices.poll() == ""
    assert host.death_notices.close() == ""


def test_a_process_without_an_entry_is_nobody(host: Host) -> None:
    host.write({ELSEWHERE: at("tcp://127.0.0.1:1")}, {})
    pid, start = ME
    assert start is not None
    for process in ((pid, start + 1), (pid, None), (1, start)):
        assert host.death_notices.announce(*process) == ""
    assert host.death_notices.deadline == float("inf")


def test_without_a_record_nothing_is_told(host: Host) -> None:
    said = host.death_notices.announce(*ME)
    assert said.startswith(
        f"could not tell all peers of other hosts that process {os.getpid()} ended: the acceptor record"
    )


def test_addresses_that_are_none_are_an_error_in_words(host: Host) -> None:
    host.write({ELSEWHERE: at("tcp://:0")}, {})
    assert "expected host:port" in host.death_notices.announce(*ME)


def test_without_tcp_nothing_happens(host: Host) -> None:
    host.write({ELSEWHERE: at("tcp://127.0.0.1:1")}, {})
    alone = DeathNotices(host.registry, None, host.clock)
    assert (alone.announce(*ME), alone.deadline, alone.poll(), alone.close()) == ("", float("inf"), "", "")


def test_a_child_that_is_seen_to_exit_is_told_of_once(host: Host) -> None:
    told, seat = host.listener(ELSEWHERE)
    record = host.write({DEAD: seat, ELSEWHERE: seat}, {})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = process_start(child.pid)
        entry = json.loads((host.registry.folder / f"{DEAD.peer_id}.json").read_text())
        (host.registry.folder / f"{DEAD.peer_id}.json").write_text(
            json.dumps({**entry, "pid": child.pid, "process_start": start})
        )
        host.death_notices.watch(child.pid, start)
        host.clock.now = host.death_notices.deadline
        assert host.death_notices.poll() == "" and not told.poll(0.0).control
        child.kill()
        while host.death_notices.deadline <= host.clock.now + LOOK_S:
            host.clock.now = host.death_notices.deadline
            assert host.death_notices.poll() == ""
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert host.death_notices.announce(child.pid, start) == ""
    assert received(told) == [Envelope(DEAD, NO_VIEW, Died(record))]
    assert host.death_notices.close() == ""


def test_the_launcher_remembers_which_other_hosts_had_members_of_the_run(host: Host) -> None:
    own, folder = host.registry.host, host.registry.folder
    here = Contact(f"ipc://{folder}/0123", "", 1, 1, own, "tcp://127.0.0.1:2", "tcp://127.0.0.1:3")
    neighbour = Contact("ipc:///elsewhere/0123", "", 1, 1, own, "tcp://127.0.0.1:4", "tcp://127.0.0.1:5")
    far, voted_for = at("tcp://127.0.0.1:6"), at("tcp://127.0.0.1:7", "third")
    host.write({DEAD: here, BESIDE: here, ELSEWHERE: far, HIDDEN: neighbour}, {VOTED_FOR: voted_for})
    host.death_notices.announce(*ME)
    expected = {"another": far.seed, "": neighbour.seed, "third": voted_for.seed}
    assert host.death_notices.remote_hosts == expected
    host.page.write(AcceptorRecord(None, Ballot(0, -1), None))
    host.death_notices.announce(*ME)
    assert host.death_notices.remote_hosts == expected, "who was in no view says nothing of the run"
    later = View(b"l" * 16, 2, 1, (Seat(DEAD, 1, here),), b"")
    host.page.write(AcceptorRecord(later, Ballot(0, -1), None))
    host.death_notices.announce(*ME)
    assert host.death_notices.remote_hosts == {}, "at its end all were here"
    host.write({DEAD: here, ELSEWHERE: far}, {})
    host.death_notices.announce(*ME)
    assert host.death_notices.remote_hosts == {}, "who died later knew no later view"
    host.clock.now += 2 * LATE_S
    host.death_notices.close()

"""Bad input to a peer: one clear message about it, and no other effect."""

import json
import re
import socket
from collections.abc import Sequence

import msgpack
import pytest
import zmq

from gossip import Claim, Contact, Envelope, Member, RunDescription, State, View
from gossip import messages as m
from gossip.given_up import Cause, GivenUp
from gossip.progress import Abort, Beat, Finish, Progress, Ready, StateQuery
from gossip.view import NO_VIEW, Change, propose_view
from p2p.host.processes import read_host
from p2p.net.headers import FinishedHeader, ParcelHeader, SegmentHeader, TakenHeader
from p2p.net.wire import Codec
from p2p.version import VERSION
from tests.cases import some_of
from tests.live.swarm import STREAM, Process, Swarm, name, stop

STRANGER = Member("f" * 16, 1)
ENVELOPES = Codec([Envelope], is_bounded=False)  # an intruder's

MISMATCH = """
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for turn in range(20):
        try:
            peer.all_reduce(np.ones((2, 5) if peer.rank == turn % 2 else (11,), np.float32))
        except p2p.OperationMismatch as error:
            print("mismatch", error)
        good = np.ones(7, np.float32)
        peer.all_reduce(good)
        assert (good == 2).all()
    print("steps", peer.last_step)
"""


def test_mismatched_shapes_raise_on_both_founders_and_the_next_operation_works(swarm: Swarm) -> None:
    peers = swarm.start_all(2, MISMATCH)
    assert [peer.end() for peer in peers] == [0, 0], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        errors = [line for line in peer.stdout if line.startswith("mismatch")]
        assert len(errors) == 20
        assert all("float32 [2, 5]" in error and "float32 [11]" in error for error in errors)
        assert peer.stdout[-1] == "steps 20"
        assert not peer.stderr, peer.report()


CALLS_MORE = """
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for turn in range(5):
        with peer.step(samples=4):
            peer.all_reduce(np.full(4, float(turn)))
    try:
        with peer.step(samples=4):
            peer.all_reduce(np.ones(2))
            if peer.rank:
                peer.all_reduce(np.ones(2))
    finally:
        print("steps", peer.last_step)
"""


def test_a_step_of_which_one_founder_calls_more_is_committed_by_neither_also_if_both_end(swarm: Swarm) -> None:
    peers = swarm.start_all(2, CALLS_MORE)
    assert [peer.end() for peer in peers] == [1, 1], "\n".join(peer.report() for peer in peers)
    for peer in peers:
        assert peer.stdout[-1] == "steps 5", peer.report()
        assert "ends before it, at peer" in peer.report() and "nothing was summed" in peer.report()


def test_who_calls_less_than_most_goes_alone_and_its_samples_are_on_no_receipt_of_that_step(swarm: Swarm) -> None:
    peers = swarm.start_all(3, CALLS_MORE)
    odd, *others = peers
    assert [peer.end() for peer in peers] == [1, 0, 0], "\n".join(peer.report() for peer in peers)
    assert "ends before it, at peer" in odd.report() and "; this peer has left, the run continues" in odd.report()
    assert [peer.stdout[-1] for peer in peers] == ["steps 5", "steps 6", "steps 6"]
    files = swarm.receipt_files()
    for peer in others:
        last = json.loads(files[name(peer)].splitlines()[-1])
        assert last["step"] == 6 and name(odd) not in {each["peer_id"] for each in last["contributions"]}


SKIPS = """
import numpy as np
import p2p

lost = []
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    for turn in range(10):
        try:
            with peer.step(samples=4):
                total = np.full(4, float(turn))
                peer.all_reduce(total)
                if turn == 5 and peer.rank == 1:
                    raise KeyError("a bad batch")
        except KeyError:
            lost.append(turn)
        except p2p.OperationInterrupted as error:
            lost.append(turn)
            print("interrupted", error)
        else:
            assert (total == 3 * turn).all(), (total, turn)
    print("lost", lost, "steps", peer.last_step)
"""


def test_a_script_that_skips_a_bad_batch_stays_in_lockstep_with_the_others(swarm: Swarm) -> None:
    peers = swarm.start_all(3, SKIPS)
    assert [peer.end() for peer in peers] == [0, 0, 0], "\n".join(peer.report() for peer in peers)
    assert [peer.stdout[-1] for peer in peers] == ["lost [5] steps 9"] * 3, "\n".join(peer.report() for peer in peers)
    reasons = [line for peer in peers for line in peer.stdout if line.startswith("interrupted")]
    assert len(reasons) == 2 and all("KeyError" in reason for reason in reasons), reasons


# Sockets


class Intruder:
    """A process that may open the sockets of a peer, but is none."""

    def __init__(self, swarm: Swarm, peer: Process) -> None:
        entry = json.loads((swarm.home / "default" / f"{name(peer)}.json").read_text())
        self._addresses = {"control": entry["control_address"], "data": entry["data_address"]}
        self.member = Member(entry["peer_id"], entry["incarnation"])

    def send(self, where: str, messages: Sequence[Sequence[bytes]]) -> None:
        """Send to `control` or `data`; returns when libzmq has passed everything to the kernel."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 10_000
            dealer.connect(self._addresses[where])
            for parts in messages:
                dealer.send_multipart(list(parts))

    def send_raw(self, where: str, content: bytes) -> None:
        """Send without ZeroMQ, until the peer closes the connection."""
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(self._addresses[where].removeprefix("ipc://"))
            raw.sendall(content)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass


VIEW, DIGEST = b"v" * 40, b"d" * 16
HEADER = SegmentHeader(1, VIEW, 0, 0, 0, DIGEST)
HEADERS = (
    HEADER,
    FinishedHeader(1, 1, VIEW, 0, DIGEST, DIGEST, DIGEST),
    ParcelHeader(True, True, True, 0, b"f" * 8, 1, 1, 0, 0, False, DIGEST),
    TakenHeader(b"f" * 8, 1, 1, 1),
)
WITH_PAYLOAD = SegmentHeader, ParcelHeader


def test_garbage_on_a_live_socket_is_dropped_and_counted_and_named_once(swarm: Swarm) -> None:
    peers = swarm.start_all(2, STREAM)
    intruder = Intruder(swarm, peers[0])
    peers[0].expect_step(5)
    useless_control = [
        [b""],
        [b"garbage"],
        [bytes(range(256)) * 100],
        [msgpack.packb([VERSION, 0, [["f" * 16, 1], [b"", 0, b""]]])],
        [msgpack.packb([VERSION, 0, ["f" * 16, "one"], [b"", 0, b""], [0, 1, []]])],
        [msgpack.packb([VERSION, 0, ["f" * 16, 1], [b"", 0, b""], [99]])],
        [msgpack.packb({"version": 1})],
        [b"two", b"parts"],
    ]
    useless_data = [
        [b"header only"],
        [b"", b""],
        [bytes(112), b"payload"],
        [HEADER.pack()[:-1], b"payload"],
        [HEADER.pack(), b"payload", b"more"],
        [HEADER.pack()[:8] + b"\xff" + HEADER.pack()[9:], b"payload"],
    ]
    intruder.send("control", useless_control)
    peers[0].expect(f"dropped {len(useless_control)}")
    intruder.send("data", useless_data)
    peers[0].expect(f"dropped {len(useless_control) + len(useless_data)}")
    for where in ("control", "data"):
        intruder.send_raw(where, b"GET / HTTP/1.1\r\n\r\n" * 100)
    stop(peers)
    assert len([line for line in peers[0].stderr if "dropped a frame" in line]) == len(peers[0].stderr) == 1
    assert not peers[1].stderr


def test_a_peer_of_another_version_is_refused_at_its_first_frame_with_both_versions(swarm: Swarm) -> None:
    peer = swarm.start(STREAM)
    intruder = Intruder(swarm, peer)
    peer.expect_step(3)
    hello = msgpack.packb([1, 0, [STRANGER.peer_id, 1], [b"", 0, b""], [0, 7, []]])
    later = b"SHOL" + (VERSION + 1).to_bytes(4, "little")
    intruder.send("control", [[hello]] * 3)
    intruder.send("data", [[later + bytes(64)], [later + bytes(200), b"payload"]])
    intruder.send("control", [[b"the last"]])
    peer.expect("dropped 1")
    stop([peer])
    named = [line for line in peer.stderr if "refused a frame" in line]
    for version in (1, VERSION + 1):
        said = (
            f"version {version} of the wire, and this one version {VERSION}: run the same version of shoal everywhere"
        )
        assert [said in line for line in named].count(True) == 1, peer.report()
    assert len(named) == 2


def test_what_is_well_formed_but_of_no_member_and_no_view_changes_nothing(swarm: Swarm) -> None:
    peers = swarm.start_all(2, STREAM)
    intruder = Intruder(swarm, peers[1])
    peers[1].expect_step(5)
    finish = Finish(10**6, b"d" * 16, b"", 2)
    ready = Ready(True, 10**6, b"d" * 16, finish, GivenUp(10**6 + 1, 2, Cause.MISMATCH, "because", 2))
    bodies: list[m.Body] = [
        m.Ping(7, ()),
        m.Ack(7, ()),
        m.Join(RunDescription()),
        m.Refuse(True, (m.Difference("model", b"layout"),)),
        m.Leave(),
        m.ViewQuery(),
        m.Prepare(m.Ballot(9, 1)),
        m.Nack(m.Ballot(2**40, 1)),
        Progress(10**6, b"d" * 16, finish),
        ready,
        Beat(ready, Progress(10**6, b"d" * 16, finish)),
        StateQuery(3),
        Abort(6, 0, "barrier"),
    ]
    intruder.send("control", [[ENVELOPES.encode(Envelope(STRANGER, NO_VIEW, body))] for body in bodies])
    for header in HEADERS:
        intruder.send("data", [[header.pack(), b"payload" if isinstance(header, WITH_PAYLOAD) else b""]])
    intruder.send("control", [[b"the last"]])
    peers[1].expect("dropped")
    stop(peers)
    for peer in peers:
        assert not [line for line in peer.stdout if line.startswith("view of")]


@pytest.mark.parametrize(
    "contact",
    [
        Contact("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 1, 1, read_host()),
        Contact("ipc:///nowhere/" + "x" * 200, "ipc:///nowhere/y", 1, 1, read_host()),
        Contact("ipc:///nowhere/x", "ipc:///nowhere/y", 0, 1, read_host()),
        Contact("ipc:///nowhere/x", "ipc:///nowhere/y", -1, 1, read_host()),
        Contact("ipc:///nowhere/x", "ipc:///nowhere/y", 2**40, 1, read_host()),
        Contact("ipc:///nowhere/\0", "ipc:///nowhere/y", 1, 1, read_host()),
        Contact("ipc:///nowhere/x", "ipc:///nowhere/y", 1, 1, "elsewhere"),
        Contact("ipc:///nowhere/x", "ipc:///nowhere/y", 1, 1, "elsewhere", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
    ],
    ids=["tcp", "long", "pid-0", "pid-negative", "pid-huge", "null", "elsewhere", "remote"],
)
def test_news_of_a_peer_that_cannot_be_harms_nobody(swarm: Swarm, contact: Contact) -> None:
    peer = swarm.start(STREAM)
    peer.expect_step(3)
    news = m.Ping(7, (Claim(STRANGER, State.ALIVE, contact),))
    intruder = Intruder(swarm, peer)
    intruder.send("control", [[ENVELOPES.encode(Envelope(STRANGER, NO_VIEW, news))], [b"the last"]])
    peer.expect("dropped")
    stop([peer])


@pytest.mark.parametrize("peer_id", ["f" * 1000, "../../etc/passwd", ""], ids=["long", "path", "empty"])
def test_a_peer_whose_name_is_none_is_not_looked_for(swarm: Swarm, peer_id: str) -> None:
    peer = swarm.start(STREAM)
    peer.expect_step(3)
    claim = Claim(STRANGER, State.ALIVE, Contact("ipc:///nowhere/x", "ipc:///nowhere/y", 1, 1, read_host()))
    news = ENVELOPES.encode(Envelope(Member("e" * 16, 1), NO_VIEW, m.Ping(7, (claim,))))
    named = news.replace(msgpack.packb(STRANGER.peer_id), msgpack.packb(peer_id))
    Intruder(swarm, peer).send("control", [[named]])
    peer.expect("dropped 1")
    stop([peer])
    assert [line for line in peer.stderr if "Member.peer_id is not 16 hex digits" in line] == peer.stderr


SHOW_VIEW = """
import sys
from gossip import View
from p2p.net.wire import Codec
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    print("view", Codec([View]).encode(peer.view).hex())
    while peer.world_size == 2:
        peer.all_reduce(np.ones(10, np.float32))
"""


def test_a_removed_peer_ends_with_exit_code_3_and_says_why(swarm: Swarm) -> None:
    """Only a living peer with a broken link is removed, so the test itself sends the others' message."""
    first, removed = swarm.start_all(2, SHOW_VIEW)
    view = Codec([View]).decode(bytes.fromhex(removed.expect("view").split()[1]))
    assert isinstance(view, View)
    intruder = Intruder(swarm, removed)
    successor = propose_view(view, Change(leaving=[intruder.member])).successor
    assert successor is not None
    decided = Envelope(view.members[0], view.stamp, m.Decide(successor))
    intruder.send("control", [[ENVELOPES.encode(decided)]])
    assert removed.end() == 3, removed.report()
    (line,) = removed.stderr
    assert re.fullmatch(
        rf"shoal: the others have continued without this peer: view 3 consists of {name(first)}; "
        "start this peer again .*",
        line,
    )
    assert first.end() == 0, first.report()


# Scripts and folders

RAISE = """
import os, sys
import numpy as np
import p2p

with p2p.join() as peer:
    while peer.last_step < 30:
        peer.all_reduce(np.ones(100_000, np.float32))
        if peer.last_step == 5 and os.environ["SHOAL_LAUNCH_INDEX"] in {guilty}:
            raise ValueError("what now")
    print("end", peer.world_size)
"""


@pytest.mark.parametrize(("guilty", "num_others"), some_of([(("1",), 2), (("0", "1", "2"), 0)], 0), ids=["one", "all"])
def test_a_script_that_raises_fails_the_run_and_the_others_go_on(
    swarm: Swarm, guilty: tuple[str, ...], num_others: int
) -> None:
    run = swarm.launch(3, RAISE.replace("{guilty}", repr(guilty)))
    assert run.end() == 1, run.report()
    assert sorted(line[4:] for line in run.stdout) == [f"end {num_others}"] * num_others, run.report()
    assert len([line for line in run.stderr if line.endswith("ValueError: what now")]) == len(guilty)


JOIN = """
import p2p
p2p.join()
"""


def test_a_folder_that_others_may_use_is_refused_in_one_clear_line(swarm: Swarm) -> None:
    swarm.home.chmod(0o777)
    peer = swarm.start(JOIN)
    assert peer.end() == 1
    assert re.fullmatch(
        rf"shoal: the registry folder {swarm.home} has mode 0777, .* run: chmod 700 {swarm.home}",
        peer.stderr[-1],
    )
    assert swarm.left_behind() == []


def test_two_swarms_of_one_home_do_not_meet(swarm: Swarm) -> None:
    peers = swarm.start_all(2, STREAM)
    stranger = swarm.start(STREAM, name="pond")
    for peer in (*peers, stranger):
        peer.expect_step(10)
    stop([stranger])
    stop(peers)
    assert {line.split()[3] for line in stranger.stdout if line.startswith("step")} == {"1"}
    assert {line.split()[3] for peer in peers for line in peer.stdout if line.startswith("step")} == {"2"}


STRAGGLE = """
import sys
import numpy as np
import p2p

with p2p.join(step_timeout_s=0.3) as peer:
    print("here", peer.peer_id)
    peer.wait_view()
    if peer.rank == 1:
        sys.stdin.readline()
    else:
        try:
            peer.all_reduce(np.ones(1000, np.float32))
        except p2p.StepTimeout as error:
            print("timeout", error)
"""


def test_who_waits_too_long_for_a_straggler_hears_its_name(swarm: Swarm) -> None:
    waiting, straggler = swarm.start_all(2, STRAGGLE)
    error = waiting.expect("timeout")
    assert re.fullmatch(
        rf"timeout step 1 did not commit in 0.3 s: "
        rf"peer {name(straggler)} \(last heard \d\.\d s ago\) has called no operation of step 1 yet; "
        r"`shoal status` shows what each peer is doing; if a step takes this long, raise --step-timeout",
        error,
    )
    straggler.tell("go on")
    assert [waiting.end(), straggler.end()] == [0, 0], waiting.report() + straggler.report()


CALL_AFTERWARDS = """
import numpy as np
import p2p

ones = np.ones(3, np.float32)
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.all_reduce(ones)
    handle = peer.all_reduce(ones, async_op=True)
calls = peer.barrier, lambda: peer.all_reduce(ones), peer.step().__enter__, handle.wait, peer.wait, peer.wait_view
for call in calls:
    try:
        call()
    except p2p.ShoalError as error:
        print(type(error).__name__, error)
print("end", peer.last_step, peer.world_size, ones.tolist())
"""


def test_who_calls_an_operation_after_leaving_hears_that_it_has_left(swarm: Swarm) -> None:
    peer = swarm.start(CALL_AFTERWARDS)
    assert peer.end() == 0, peer.report()
    told = "ShoalError this peer has left its swarm: call `p2p.join` to join as another peer"
    assert peer.stdout[1:] == [told] * 6 + ["end 1 1 [1.0, 1.0, 1.0]"]

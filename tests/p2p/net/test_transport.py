"""Real sockets: two transports in one process, strangers, and a peer that is killed."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
import pytest
import zmq

from p2p.errors import RemoteProtocolError
from p2p.net.links import MAX_DATA_BYTES
from p2p.net.transport import ZERO_COPY_BYTES, Polled, Transport
from p2p.net.wire import MAX_CONTROL_BYTES
from p2p.version import VERSION, OtherVersion

Data = tuple[bytes, bytes]
Open = Callable[[str], Transport]

WAIT_S = 20.0
"""Timeout of polls that are asserted to end earlier."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal") as name:  # tmp_path can be too long for a socket
        yield Path(name)


@pytest.fixture
def open_transport(folder: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_named(name: str) -> Transport:
            transport = Transport(*addresses(folder, name))
            stack.callback(transport.close)
            return transport

        yield open_named


def addresses(folder: Path, name: str) -> tuple[str, str]:
    return f"ipc://{folder}/{name}.control", f"ipc://{folder}/{name}.data"


def receive(transport: Transport, num_control: int = 0, num_data: int = 0) -> tuple[list[bytes], list[Data]]:
    """Receive until there are that many frames."""
    control: list[bytes] = []
    data: list[Data] = []
    while len(control) < num_control or len(data) < num_data:
        assert transport.poll(WAIT_S) != Polled(False, False, ()), "nothing came in time"
        control += transport.receive_control()
        data += [(bytes(header), bytes(payload)) for header, payload in transport.receive_data()]
    return control, data


def poll_until(transport: Transport, is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if is_so():
            return
        transport.poll(0.01)
    raise AssertionError(f"it did not become so within {WAIT_S:g} s")


# Between peers


def test_two_peers_exchange_control_frames_in_order(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    b.connect("a", *addresses(folder, "a"))
    frames = [b"%d" % i for i in range(600)] + [b"", bytes(MAX_CONTROL_BYTES)]
    for frame in frames:
        assert a.send_control("b", frame)
    assert b.send_control("a", b"back")
    assert receive(b, num_control=len(frames)) == (frames, [])
    assert receive(a, num_control=1) == ([b"back"], [])


def test_data_alone_can_be_waited_for(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    a.send_control("b", b"control")
    assert b.poll(WAIT_S).control
    assert not b.wait_for_data(0.0)
    b.wake()
    assert not b.wait_for_data(WAIT_S) and not b.has_data()
    assert b.poll(WAIT_S).control  # this poll also sees the wake
    assert not b.wait_for_data(0.0)
    a.send_data("b", b"header", b"")
    assert b.wait_for_data(WAIT_S) and b.has_data()


@pytest.mark.parametrize("size", [0, 1, 4096, ZERO_COPY_BYTES - 8, ZERO_COPY_BYTES, 1 << 20, MAX_DATA_BYTES])
def test_a_payload_of_any_size_arrives_whole(open_transport: Open, folder: Path, size: int) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for wrapped in (payload, bytearray(payload), memoryview(payload), np.frombuffer(payload, np.uint8)):
        assert a.send_data("b", b"header", wrapped)
    assert receive(b, num_data=4) == ([], [(b"header", payload)] * 4)


def test_a_payload_arrives_whole_from_who_can_start_no_thread(open_transport: Open, folder: Path) -> None:
    script = f"""
import resource
import sys
from p2p.net.transport import Transport

transport = Transport(*{addresses(folder, "a")!r})
transport.connect("b", *{addresses(folder, "b")!r})
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (6 << 20), -1))  # less than the stack of a thread
transport.send_data("b", b"header", bytes({ZERO_COPY_BYTES}))
sys.stdin.read()
transport.close()
"""
    b = open_transport("b")
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        assert receive(b, num_data=1)[1] == [(b"header", bytes(ZERO_COPY_BYTES))]
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_a_payload_counts_in_bytes_whatever_its_type(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    small, large = np.ones(10, np.float32), np.ones((100, 1000), np.float64)
    a.send_data("b", b"small", small)
    a.send_data("b", b"large", large)
    assert receive(b, num_data=2)[1] == [(b"small", small.tobytes()), (b"large", large.tobytes())]


def test_frames_queue_until_the_peer_is_there(open_transport: Open, folder: Path) -> None:
    a = open_transport("a")
    a.connect("b", *addresses(folder, "b"))
    assert a.send_control("b", b"early")
    assert a.send_data("b", b"early", b"bird")
    assert receive(open_transport("b"), 1, 1) == ([b"early"], [(b"early", b"bird")])


def test_the_data_queue_has_no_limit_and_the_control_queue_has_one(open_transport: Open, folder: Path) -> None:
    a = open_transport("a")
    a.connect("b", *addresses(folder, "b"))
    assert all(a.send_data("b", b"", b"") for _ in range(3000))
    sent = [a.send_control("b", b"") for _ in range(3000)]
    assert 1000 <= sum(sent) < 3000 and not sent[-1]
    assert a.dropped == {"queue full": 3000 - sum(sent)}


def test_frames_to_nobody_are_dropped_and_counted(open_transport: Open, folder: Path) -> None:
    a = open_transport("a")
    assert not a.send_control("b", b"frame")
    a.connect("b", *addresses(folder, "b"))
    a.disconnect("b")
    a.disconnect("b")
    assert not a.send_data("b", b"header", b"payload")
    assert a.dropped == {"no link": 2}


def test_r11_what_was_lent_to_who_is_sent_no_data_any_more_never_reaches_it(open_transport: Open, folder: Path) -> None:
    a = open_transport("a")
    payload = np.zeros(ZERO_COPY_BYTES, np.uint8)
    for name in "bc":
        a.connect(name, *addresses(folder, name))
        assert a.send_data(name, b"header", payload)
    a.stop_data(["b"])
    payload[:] = 1  # although c has not received it yet
    b, c = open_transport("b"), open_transport("c")
    assert receive(c, num_data=1)[1] == [(b"header", payload.tobytes())], "what is lent is read as it leaves"
    assert not a.send_data("b", b"header", b"payload") and a.dropped == {"no link": 1}
    assert a.send_control("b", b"frame")
    assert receive(b, num_control=1) == ([b"frame"], []) and not b.has_data()


def test_a_link_can_be_opened_again(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    for i in range(50):
        a.connect("b", *addresses(folder, "b"))
        a.send_control("b", b"%d" % i)
        assert receive(b, num_control=1)[0] == [b"%d" % i]
        a.disconnect("b")


def test_what_no_peer_would_accept_is_the_callers_mistake(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    with pytest.raises(ValueError, match="at most"):
        a.send_control("b", bytes(MAX_CONTROL_BYTES + 1))
    for payload in (bytes(MAX_DATA_BYTES + 1), np.ones((4, 4))[:, 1]):
        with pytest.raises(ValueError, match="at most"):
            a.send_data("b", b"header", payload)
    with pytest.raises(ValueError, match="disconnect it first"):
        a.connect("b", *addresses(folder, "b"))
    a.send_data("b", b"header", b"still whole")
    assert receive(b, num_data=1)[1] == [(b"header", b"still whole")]


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "ipc://@abstract", "ipc://*", "inproc://x", "", "/x", "ipc://"]
)
def test_only_ipc_addresses_are_used(open_transport: Open, folder: Path, address: str) -> None:
    good, _ = addresses(folder, "b")
    for pair in ((address, good), (good, address)):
        with pytest.raises(ValueError, match="ipc:// and an absolute path"):
            Transport(*pair)
        with pytest.raises(ValueError, match=r"ipc:// and an absolute path|neither --bind nor --seeds"):
            open_transport("a").connect("b", *pair)


def test_too_long_a_path_is_refused_with_its_length(folder: Path) -> None:
    with pytest.raises(ValueError, match="has 108"):
        Transport("ipc:///" + "x" * 107, addresses(folder, "a")[1])


def test_an_address_that_cannot_be_bound_is_named(folder: Path) -> None:
    control, _ = addresses(folder, "a")
    with pytest.raises(OSError, match="nowhere"):
        Transport(control, f"ipc://{folder}/nowhere/socket")
    assert not list(folder.iterdir())


# Strangers


def test_a_wrong_number_of_parts_is_dropped_and_counted(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    control, data = addresses(folder, "b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(control)
        stranger.send_multipart([b"two", b"parts"])
        stranger.send_multipart([b""] * 2000)
        poll_until(b, lambda: list(b.receive_control()) == [] and b.dropped["invalid"] == 2)
        stranger.connect(data)
        stranger.disconnect(control)
        stranger.send_multipart([b"1", b"2", b"3"])
        stranger.send_multipart([b""] * 2000)
        poll_until(b, lambda: list(b.receive_data()) == [] and b.dropped["invalid"] == 4)
    a.send_control("b", b"fine")
    a.send_data("b", b"also", b"fine")
    assert receive(b, 1, 1) == ([b"fine"], [(b"also", b"fine")])


def test_a_message_that_is_too_short_for_a_header_is_left_to_who_reads_it(open_transport: Open, folder: Path) -> None:
    b = open_transport("b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(addresses(folder, "b")[1])
        stranger.send(b"one part")
        assert receive(b, num_data=1)[1] == [(b"one part", b"")]


def test_frames_of_other_versions_are_counted_and_each_version_is_named_once(
    open_transport: Open, caplog: pytest.LogCaptureFixture
) -> None:
    transport = open_transport("a")
    for version in (1, 3, 1, 1, 3, *range(100, 200)):
        transport.count_invalid(OtherVersion(version))
    transport.count_invalid(RemoteProtocolError("garbage"))
    assert transport.dropped == {"other version": 105, "invalid": 1}
    named = [record.getMessage() for record in caplog.records]
    for version in (1, 3):
        said = f"a peer speaks version {version} of the wire, and this one version {VERSION}: run the same version"
        assert len([line for line in named if said in line]) == 1
    assert len(named) < 12, "whoever has the key may make up any number"


def test_a_stranger_with_a_peers_routing_id_takes_nothing_over(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    with zmq.Context() as context, context.socket(zmq.DEALER) as first, context.socket(zmq.DEALER) as second:
        for stranger in (first, second):
            stranger.routing_id = b"same"
            stranger.linger = 0
            stranger.connect(addresses(folder, "b")[0])
            stranger.send(b"stranger")
        a.send_control("b", b"peer")
        assert b"peer" in receive(b, num_control=2)[0]


def test_an_oversized_frame_is_never_delivered(open_transport: Open, folder: Path) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    control, _ = addresses(folder, "b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.connect(control)
        stranger.send(bytes(MAX_CONTROL_BYTES + 1))
        assert monitor.poll(10_000), "not disconnected"
        stranger.disable_monitor()
        monitor.close()
    a.send_control("b", b"fine")
    assert receive(b, num_control=1)[0] == [b"fine"]


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, bytes(100_000)])
def test_garbage_on_the_socket_does_no_harm(open_transport: Open, folder: Path, garbage: bytes) -> None:
    a, b = open_transport("a"), open_transport("b")
    a.connect("b", *addresses(folder, "b"))
    for address in addresses(folder, "b"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(address.removeprefix("ipc://"))
            with suppress(BrokenPipeError, ConnectionResetError):  # already refused
                stranger.sendall(garbage)
    a.send_control("b", b"fine")
    a.send_data("b", b"also", b"fine")
    assert receive(b, 1, 1) == ([b"fine"], [(b"also", b"fine")])


# Peers that are gone

PEER = """
import math
import sys
sys.path[:] = {path!r}
from p2p.net.transport import Transport
transport = Transport({control!r}, {data!r})
transport.connect("parent", {parent_control!r}, {parent_data!r})
transport.send_control("parent", b"here")
while True:
    transport.poll(math.inf)
    list(transport.receive_control())
"""


def test_a_killed_peer_is_a_lost_link_and_a_living_one_is_not(open_transport: Open, folder: Path) -> None:
    parent, living = open_transport("parent"), open_transport("living")
    living.connect("parent", *addresses(folder, "parent"))
    (control, data), (parent_control, parent_data) = addresses(folder, "killed"), addresses(folder, "parent")
    script = PEER.format(
        path=sys.path, control=control, data=data, parent_control=parent_control, parent_data=parent_data
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            assert receive(parent, num_control=1)[0] == [b"here"]
            for name in ("killed", "living", "not there yet"):
                parent.connect(name, *addresses(folder, name))
                parent.send_control(name, b"hello")
            assert receive(living, num_control=1)[0] == [b"hello"]
            assert parent.lost_links() == []
            pidfd = os.pidfd_open(process.pid)
            parent.watch(pidfd)
            process.send_signal(signal.SIGKILL)
            assert parent.poll(WAIT_S) == Polled(False, False, (pidfd,))
            parent.unwatch(pidfd)
            os.close(pidfd)
            poll_until(parent, lambda: parent.lost_links() == ["killed"])
        finally:
            process.kill()
    open_transport("killed")
    poll_until(parent, lambda: parent.lost_links() == [])


# Waiting and closing


def test_a_wake_up_ends_the_poll_of_another_thread(open_transport: Open) -> None:
    transport = open_transport("a")
    for _ in range(3):
        thread = Thread(target=transport.wake)
        thread.start()
        assert transport.poll(math.inf) == Polled(False, False, ())
        thread.join()
    transport.wake()
    transport.wake()
    assert transport.poll(math.inf) == Polled(False, False, ())


def test_poll_returns_when_its_time_is_over(open_transport: Open) -> None:
    transport = open_transport("a")
    for timeout_s in (-1.0, 0.0, 0.0001):
        assert transport.poll(timeout_s) == Polled(False, False, ())


def test_watched_descriptors_are_reported_while_they_are_readable(open_transport: Open) -> None:
    transport = open_transport("a")
    fds = [os.eventfd(0) for _ in range(3)]
    for fd in fds:
        transport.watch(fd)
    os.eventfd_write(fds[0], 1)
    os.eventfd_write(fds[2], 1)
    assert transport.poll(WAIT_S) == transport.poll(WAIT_S) == Polled(False, False, (fds[0], fds[2]))
    transport.unwatch(fds[0])
    assert transport.poll(WAIT_S).fds == (fds[2],)
    for fd in fds:
        os.close(fd)


def test_closing_removes_the_socket_files_and_may_be_repeated(folder: Path) -> None:
    transport = Transport(*addresses(folder, "a"))
    assert len(list(folder.iterdir())) == 2
    transport.connect("b", *addresses(folder, "b"))
    transport.send_control("b", b"never read")
    transport.close()
    transport.close()
    transport.wake()
    assert not list(folder.iterdir())


def test_last_words_are_delivered(open_transport: Open, folder: Path) -> None:
    b = open_transport("b")
    for i in range(20):
        a = Transport(*addresses(folder, "a"))
        a.connect("b", *addresses(folder, "b"))
        a.send_control("b", b"bye %d" % i)
        a.close()
        assert receive(b, num_control=1)[0] == [b"bye %d" % i]


def test_who_asks_on_a_connection_of_its_own_is_answered_there(open_transport: Open, folder: Path) -> None:
    one, other = open_transport("a"), open_transport("b")
    other.connect("a", *addresses(folder, "a"))
    other.send_control("a", b"no question")
    context = zmq.Context()
    with context.socket(zmq.DEALER) as asker:
        asker.connect(addresses(folder, "a")[0])
        asker.send(b"question")
        heard: list[bytes] = []
        while len(heard) < 2:
            assert one.poll(WAIT_S).control, "nothing came in time"
            for frame in one.receive_control():
                heard.append(frame)
                if frame == b"question":
                    one.answer(b"answer")
            one.answer(b"to nobody")
        assert asker.poll(int(1000 * WAIT_S)) and asker.recv() == b"answer"
        assert not asker.poll(0)
    context.term()

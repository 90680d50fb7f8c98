"""Strangers that connect to a running swarm without a key, and peers with false messages: no step is lost."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]
import pytest

from gossip import NO_VIEW, Member, Stamp
from p2p.net.half_open import MOST
from tests.live.conftest import NewHost
from tests.live.swarm import STREAM, Process, Swarm, stop
from tests.live.test_bad_input import Intruder
from tests.live.test_tcp import COUNT, joined, secured
from tests.p2p.net.forged import Forger

NUM_IDLE, LIMIT = 3000, 1024
BURST = 400
"""Connections at the same time. libzmq aborts a peer that gets as many connections as it may have files before it has
polled once (docs/decisions.md, 68)."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raises this process's limit of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < NUM_IDLE + 500:
        pytest.skip(f"{NUM_IDLE} connections need a hard limit of more files than {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def last_step(peer: Process) -> int:
    return int(next(line for line in reversed(peer.stdout) if line.startswith("step")).split()[1])


def wait_for_refused(peer: Process, number: int) -> None:
    """Wait until the peer, which prints the number after each step, has refused `number` connections."""
    said = peer.stdout
    while int(next((line.split()[1] for line in reversed(said) if line.startswith("refused")), "0")) < number:
        peer.expect_step(last_step(peer) + 1)


@pytest.mark.long
def test_three_thousand_connections_that_say_nothing_end_nobody_and_keep_nobody_out(
    new_host: NewHost, key: Path, many_files: None
) -> None:
    hosts = [new_host(), new_host()]
    peers, port = joined(hosts, key, COUNT)
    processes = [psutil.Process(peer.pid) for peer in peers]
    for peer, process in zip(peers, processes, strict=True):
        peer.expect_step(20)
        process.rlimit(psutil.RLIMIT_NOFILE, (LIMIT, LIMIT))
    before_bytes = [process.memory_info().rss for process in processes]
    with ExitStack() as stack:
        for index in range(NUM_IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port + index % 2), timeout=5.0))
            if index == NUM_IDLE // 2:  # to the same host: through a socket at which libzmq must have room for a file
                hosts[0].environ = {"SHOAL_SEEDS": f"127.0.0.1:{port}", "SHOAL_BIND": "127.0.0.1:0", **secured(key)}
                peers.append(hosts[0].start(COUNT))
            if index % BURST == BURST - 1:
                wait_for_refused(peers[0], index - 2 * MOST)  # the peer listens at both ports
        peers[2].expect("step")
        for peer in peers:
            peer.expect_step(last_step(peer) + 50)
        peers[0].expect_line(r"refused \d{4}")
        assert processes[0].num_fds() < LIMIT // 2, "although all of them are still open at the other end"
    for process, before in zip(processes, before_bytes, strict=True):
        assert process.memory_info().rss < before + (32 << 20)
    stop(peers)
    warning, *others = peers[0].stderr
    assert all(line.endswith("can be reached now") for line in others)
    assert warning.startswith("refused a connection to tcp") and "more than 64 connections say nothing" in warning
    (of_joiner,) = peers[2].stderr  # which adds up numbers, and was given none
    assert not peers[1].stderr and of_joiner.startswith("this peer joined at step ")
    assert [line for line in peers[1].stdout if line.startswith("view of")] == ["view of 3"]


def test_frames_that_only_a_liar_would_send_cost_a_living_swarm_no_step(swarm: Swarm) -> None:
    peers = swarm.start_all(2, STREAM)
    intruder = Intruder(swarm, peers[0])
    peers[0].expect_step(20)
    forger = Forger(Random(7), None)
    liars = [Member(f"{i:016x}", i + 1) for i in range(20)]
    elsewhere = NO_VIEW, Stamp(b"l" * 16, 2, b"h" * 16), Stamp(b"l" * 16, 2**24 - 1, b"h" * 16)
    for _ in range(4):
        intruder.send("control", [[frame] for frame in forger.frames(1000, liars, elsewhere)])
        intruder.send("data", [forger.data_frame(liars[0]) for _ in range(250)])
    for peer in peers:
        peer.expect_step(last_step(peer) + 20)
    stop(peers)
    assert max(int(line.split()[1]) for line in peers[0].stdout if line.startswith("dropped")) > 1000
    assert len([line for line in peers[0].stderr if "dropped a frame" in line]) == 1
    assert not [line for line in peers[1].stdout if line.startswith("view of")]

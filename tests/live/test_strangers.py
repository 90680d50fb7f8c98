"""Strangers that connect to a living swarm over TCP, without a key: they cost it nothing."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.live.conftest import NewHost
from tests.live.swarm import Process, stop
from tests.live.test_tcp import COUNT, joined, secured

NUM_IDLE, LIMIT = 3000, 1024


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many connections as it wants."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < NUM_IDLE + 500:
        pytest.skip(f"{NUM_IDLE} connections need a hard limit of more files than {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def last_step(peer: Process) -> int:
    return int(next(line for line in reversed(peer.stdout) if line.startswith("step")).split()[1])


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
        assert processes[0].num_fds() < LIMIT // 2
        peers[2].expect("step")
        for peer in peers:
            peer.expect_step(last_step(peer) + 50)
        peers[0].expect_line(r"refused \d{4}")
    for process, before in zip(processes, before_bytes, strict=True):
        assert process.memory_info().rss < before + (32 << 20)
    stop(peers)
    (warning,) = peers[0].stderr
    assert warning.startswith("refused a connection to tcp") and "more than 64 connections say nothing" in warning
    assert not peers[1].stderr and not peers[2].stderr
    assert [line for line in peers[1].stdout if line.startswith("view of")] == ["view of 3"]

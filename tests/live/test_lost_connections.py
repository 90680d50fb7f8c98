"""Connections that a device between two hosts has dropped without notice to either end."""

import json
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.conftest import NewHost, has_namespaces, ip
from tests.live.swarm import STREAM, Process, stop
from tests.live.test_tcp import free_ports, secured

pytestmark = pytest.mark.light

SOON = STREAM.replace(
    "with p2p.join() as peer:",
    """
import os
from gossip import CoreConfig
from p2p.config import LoopConfig, PeerConfig

loop = LoopConfig(core=CoreConfig(stall_s=1.0))
with p2p.Peer(PeerConfig.from_environment(os.environ, loop=loop)) as peer:""",
)
"""Stalled steps are redone after a second."""


OUT_OF_SIGHT = "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"
"""Prefix that hides a peer's process from others, so that they share no memory."""


class Forwarder(threading.Thread):
    """A proxy in front of a port: it acknowledges data, even on connections on which it forwards nothing any more."""

    def __init__(self, port: int, target: int) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server(("127.0.0.1", port))
        self._target = target
        self._others: dict[socket.socket, socket.socket] = {}
        self._forgotten: set[socket.socket] = set()
        self._all: list[socket.socket] = []
        self._ends, self._end = socket.socketpair()
        self.num_accepted = 0
        self.start()

    def run(self) -> None:
        while True:
            readable, _, _ = select.select([self._server, self._ends, *self._others], [], [])
            if self._ends in readable:
                return
            for each in readable:
                self._accept() if each is self._server else self._pass_on(each)

    def _accept(self) -> None:
        caller, _ = self._server.accept()
        try:
            called = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # no process listens yet, or any more
            caller.close()
            return
        self._others |= {caller: called, called: caller}
        self._all += [caller, called]
        self.num_accepted += 1

    def _pass_on(self, source: socket.socket) -> None:
        with suppress(OSError):
            content = source.recv(1 << 16)
            if source not in self._forgotten and content:
                self._others[source].sendall(content)
            if content:
                return
        other = self._others.pop(source)
        if source not in self._forgotten:
            with suppress(OSError):
                other.shutdown(socket.SHUT_WR)

    def forget(self) -> None:
        """Drop all further data of the existing connections."""
        self._forgotten |= {*self._others}

    def close(self) -> None:
        self._end.close()
        self.join()
        for each in (self._server, self._ends, *self._all):
            each.close()


@pytest.fixture
def ports() -> Iterator[tuple[int, Forwarder]]:
    """The first of four ports, of which the last two are behind the first two; and the data port's forwarder."""
    if not has_namespaces():
        pytest.skip("processes that cannot see each other need root and iproute2")
    first = free_ports()
    forwarders = [Forwarder(first + index, first + 2 + index) for index in range(2)]
    yield first, forwarders[1]
    for each in forwarders:
        each.close()


def test_training_goes_on_where_a_proxy_has_forgotten_the_connections_for_data(
    new_host: NewHost, key: Path, ports: tuple[int, Forwarder]
) -> None:
    first, data = ports
    hosts = [new_host(), new_host()]
    hosts[1].prefix = OUT_OF_SIGHT
    for host in hosts:
        host.environ = {"SHOAL_SEEDS": f"127.0.0.1:{first}", **secured(key)}
    hosts[0].environ |= {"SHOAL_BIND": f"127.0.0.1:{first + 2}", "SHOAL_ADVERTISE": f"127.0.0.1:{first}"}
    peers = [host.start(SOON, min_peers=2) for host in hosts]
    for peer in peers:
        peer.expect_step(20)
    before = data.num_accepted
    data.forget()
    last = last_step(peers[0])
    for peer in peers:
        peer.expect_step(last + 20)
    stop(peers)
    assert data.num_accepted > before
    for peer in peers:
        assert not [line for line in peer.stdout if line.startswith("view of 1")], peer.report()
    (warning,) = peers[1].complaints()
    assert "stalled twice" in warning and "Does a proxy, a NAT or a firewall between hosts" in warning


def last_step(peer: Process) -> int:
    return int(next(line for line in reversed(peer.stdout) if line.startswith("step")).split()[1])


def apart(new_host: NewHost, key: Path, wires: list[str]) -> list[Process]:
    """Three peers in training: two on the first of two hosts that are connected by a cable, and one on the other."""
    hosts = [new_host(), new_host()]
    for namespace, host in zip(wires, hosts, strict=True):
        host.prefix = ("ip", "netns", "exec", namespace, *OUT_OF_SIGHT)
        host.environ = {"SHOAL_SEEDS": "10.77.0.1:7700", **secured(key)}
    hosts[1].leaves_files = True
    peers = []
    for host, port in zip((hosts[0], hosts[0], hosts[1]), (7700, 7702, 7700), strict=True):
        host.environ["SHOAL_BIND"] = f"*:{port}"
        peers.append(host.start(STREAM, min_peers=3))
    for peer in peers:
        peer.expect_step(20)
    return peers


def connections(namespace: str) -> set[tuple[int, int]]:
    """Local and remote ports of the open connections to the other host."""
    command = ["ip", "netns", "exec", namespace, "ss", "-tnH", "state", "established", "dst", "10.77.0.2"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(int(end.rpartition(":")[2]) for end in line.split()[-2:]) for line in lines}  # type: ignore[misc]


def test_a_connection_that_a_firewall_has_forgotten_is_opened_anew_within_seconds(
    new_host: NewHost, key: Path, wires: list[str]
) -> None:
    peers = apart(new_host, key, wires)
    port = min(here for here, there in connections(wires[0]) if there == 7701)  # for data
    ip("-n", wires[0], "rule", "add", "pref", "1", "ipproto", "tcp", "sport", str(port), "blackhole")
    last = last_step(peers[0])
    for peer in peers:
        peer.expect_step(last + 50)
    assert port not in [here for here, _ in connections(wires[0])]
    stop(peers)
    for peer in peers:
        assert not [line for line in peer.stdout if line.startswith("view of 2")], peer.report()
        assert not peer.complaints(), "the kernel has found it out before the step stalled once more"


def test_connections_of_a_host_that_has_vanished_are_closed_by_who_only_receives(
    new_host: NewHost, key: Path, wires: list[str]
) -> None:
    peers = apart(new_host, key, wires)
    assert {here for here, _ in connections(wires[0])} >= {7700, 7701, 7702, 7703}
    (cable,) = cables(wires[0])
    ip("-n", wires[0], "link", "set", cable, "down")
    for peer in peers[:2]:
        peer.expect("view of 2")
    while connections(wires[0]):
        peers[0].expect_step(last_step(peers[0]) + 10)  # pytest-timeout ends it
    peers[2].kill()
    stop(peers[:2])


def cables(namespace: str) -> list[str]:
    """Network devices of a namespace, except the loopback."""
    found = subprocess.run(["ip", "-n", namespace, "-j", "link"], check=True, capture_output=True, text=True).stdout
    return [each["ifname"] for each in json.loads(found) if each["ifname"] != "lo"]

"""Peers as on several hosts: each has a registry folder of its own, so that they meet over TCP."""

import json
import os
import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.host.keys import read_key, write_key
from p2p.net.listener import Credentials
from p2p.net.wire import MAX_CONTROL_BYTES
from tests.live.conftest import NewHost
from tests.live.swarm import STREAM, Process, Swarm, name, stop


def free_ports() -> int:
    """The first of four unused ports."""
    for start in range(20_000 + os.getpid() % 1000 * 8, 65_000, 8):
        with ExitStack() as stack, suppress(OSError):
            for port in range(start, start + 4):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return start
    raise AssertionError("no four free ports")


def secured(key: Path | None) -> dict[str, str]:
    return {"SHOAL_INSECURE": "1"} if key is None else {"SHOAL_KEY": str(key)}


def joined(hosts: Sequence[Swarm], key: Path | None, script: str = STREAM) -> tuple[list[Process], int]:
    """Start one peer on each host, the first of which is the seed and rank 0; returns them and the seed's port."""
    port = free_ports()
    peers: list[Process] = []
    for host in hosts:
        host.environ = {"SHOAL_SEEDS": f"127.0.0.1:{port}", **secured(key)}
        if not peers:
            host.environ["SHOAL_BIND"] = f"127.0.0.1:{port}"
        peers.append(host.start(script, min_peers=len(hosts)))
        peers[-1].expect("here")
    return peers, port


def quiet(peers: list[Process]) -> bool:
    return not any(peer.stderr for peer in peers)


@pytest.mark.parametrize("insecure", [False, True], ids=["key", "insecure"])
def test_peers_of_three_hosts_train_and_go_on_without_one_that_is_killed(
    new_host: NewHost, key: Path, insecure: bool
) -> None:
    hosts = [new_host() for _ in range(3)]
    peers, _ = joined(hosts, None if insecure else key)
    for peer in peers:
        peer.expect_step(20)
    hosts[1].leaves_files = True
    peers[1].kill()
    for peer in (peers[0], peers[2]):
        peer.expect("view of 2")
    stop([peers[0], peers[2]])
    assert quiet(peers), "\n".join(peer.report() for peer in peers)


def test_peers_of_one_host_talk_past_the_network(new_host: NewHost, key: Path) -> None:
    here, there = new_host(), new_host()
    port = free_ports()
    there.environ = {"SHOAL_SEEDS": f"127.0.0.1:{port}", **secured(key)}
    here.environ = {**there.environ, "SHOAL_BIND": f"127.0.0.1:{port}"}
    first = here.start(STREAM, min_peers=3)
    here.environ = {**there.environ, "SHOAL_BIND": f"127.0.0.1:{port + 2}"}
    second = here.start(STREAM, min_peers=3)
    other = there.start(STREAM, min_peers=3)
    for peer in (first, second, other):
        peer.expect_step(10)
    assert not {port, port + 1} & called_ports(second), "it has connections to its neighbour's ports"
    assert {port, port + 1, port + 2, port + 3} <= called_ports(other)
    second.kill()
    for peer in (first, other):
        peer.expect("view of 2")
    stop([first, other])


def called_ports(peer: Process) -> set[int]:
    """Remote ports of a peer's connections."""
    return {connection.raddr.port for connection in psutil.Process(peer.pid).net_connections("tcp") if connection.raddr}


def test_the_first_seed_founds_however_late_it_comes_and_joins_when_it_comes_again(
    new_host: NewHost, key: Path
) -> None:
    port = free_ports()
    seeds = f"127.0.0.1:{port},127.0.0.1:{port + 2}"
    first_host, second_host, third_host = new_host(), new_host(), new_host()
    for host, bind in ((first_host, f"127.0.0.1:{port}"), (second_host, f"127.0.0.1:{port + 2}"), (third_host, "")):
        host.environ = {"SHOAL_SEEDS": seeds, "SHOAL_BIND": bind, **secured(key)}
    second, third = second_host.start(STREAM, min_peers=3), third_host.start(STREAM, min_peers=3)
    second.expect("here")
    third.expect("here")
    first = first_host.start(STREAM, min_peers=3)
    for peer, rank in ((first, {"0"}), (second, {"1", "2"}), (third, {"1", "2"})):
        assert peer.expect("step").split()[2] in rank
    first.kill()
    first.end()
    second.expect("view of 2")
    again = first_host.start(STREAM, min_peers=1)
    assert again.expect("step").split()[3] == "3", again.report()
    stop([second, third, again])


OTHER_VERSION = """
import p2p
import p2p.net.wire

p2p.net.wire.VERSION += 1
with p2p.join() as peer:
    peer.wait_view(timeout_s=15.0)
"""


@pytest.mark.long
def test_the_first_seed_founds_nothing_where_another_version_is_spoken(new_host: NewHost, key: Path) -> None:
    port = free_ports()
    hosts = [new_host() for _ in range(3)]
    for host, bind in zip(hosts, (f"127.0.0.1:{port}", f"127.0.0.1:{port + 2}", ""), strict=True):
        host.environ = {
            "SHOAL_SEEDS": f"127.0.0.1:{port},127.0.0.1:{port + 2}",
            "SHOAL_BIND": bind,
            **secured(key),
        }
    first, *others = [host.start(STREAM, min_peers=3) for host in hosts]
    for peer in (first, *others):
        peer.expect_step(20)
    first.kill()
    first.end()
    for peer in others:
        peer.expect("view of 2")
    again = hosts[0].start(OTHER_VERSION, min_peers=1)
    assert again.end() == 1, again.report()
    assert "run the same version of shoal everywhere" in again.stderr[-1], again.report()
    stop(others)


# Failures

WAIT = """
import p2p
with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.wait_view(timeout_s=6.0)
"""


@pytest.mark.light
def test_a_port_in_use_is_one_line(new_host: NewHost, key: Path) -> None:
    host = new_host()
    port = free_ports()
    host.environ = {"SHOAL_BIND": f"127.0.0.1:{port}", **secured(key)}
    with socket.create_server(("127.0.0.1", port)):
        peer = host.start(WAIT)
        assert peer.end() == 1
    (line,) = peer.stderr
    assert re.fullmatch(rf"shoal: cannot listen on 127.0.0.1:{port}: Address already in use; .*", line)


@pytest.mark.light
def test_tcp_without_a_key_is_one_line(new_host: NewHost) -> None:
    host = new_host()
    host.environ = {"SHOAL_BIND": "127.0.0.1:0"}
    peer = host.start(WAIT)
    assert peer.end() == 1
    (line,) = peer.stderr
    assert re.fullmatch(r"shoal: TCP needs a key: .*shoal key new.*--insecure.*", line)


@pytest.mark.light
def test_a_silent_seed_is_named(new_host: NewHost, key: Path) -> None:
    host = new_host()
    port = free_ports()
    host.environ = {"SHOAL_SEEDS": f"127.0.0.1:{port}", **secured(key)}
    peer = host.start(WAIT)
    assert peer.end() == 1, peer.report()
    warning, error = peer.stderr
    said = rf"seed tcp://127.0.0.1:{port} is silent: is a peer running there.*"
    assert re.fullmatch(said, warning), peer.report()
    assert re.fullmatch(
        rf"shoal: no seat after 6 s: waiting for a seat; seed tcp://127.0.0.1:{port} founds; {said}", error
    )


class Stranger:
    """A peer that calls the seed of a swarm to which it does not belong; and that swarm, which continues."""

    def __init__(self, new_host: NewHost, keys: tuple[Path, Path | None], swarm: str, said: str) -> None:
        own, strangers = keys
        self._peers, self._port = joined([new_host(), new_host()], own)
        host = new_host()
        host.environ = {"SHOAL_SEEDS": f"127.0.0.1:{self._port}", **secured(strangers)}
        self._stranger, self._said = host.start(WAIT, name=swarm), said

    def check(self) -> None:
        """Check that the stranger ends, and says why; and that the others train, and say whom they refused."""
        stranger, peers = self._stranger, self._peers
        assert stranger.end() == 1, stranger.report()
        warnings = [line for line in stranger.stderr if not line.startswith("shoal: no seat")]
        expected = rf"seed tcp://127.0.0.1:{self._port} {self._said}"
        assert warnings and all(re.fullmatch(expected, line) for line in warnings), stranger.report()
        stop(peers)
        assert [line for line in peers[0].stderr if "refused a connection" in line] == peers[0].stderr
        assert len(peers[0].stderr) == 1
        assert {line.split()[3] for peer in peers for line in peer.stdout if line.startswith("step")} == {"2"}


@pytest.mark.long
def test_a_seed_that_is_not_for_us_is_named_and_goes_on(new_host: NewHost, key: Path, tmp_path: Path) -> None:
    """All cases run at the same time, since each stranger tries for six seconds."""
    other = tmp_path / "other.key"
    write_key(other)
    of_another_swarm = "belongs to another swarm, or to another --network: .* the same --swarm and --network"
    hangs_up = "hangs up: it has another key, or one side runs without a key .*"
    strangers = [
        Stranger(new_host, (key, key), "lake", of_another_swarm),
        Stranger(new_host, (key, other), "default", hangs_up),
        Stranger(new_host, (key, None), "default", hangs_up),
    ]
    for stranger in strangers:
        stranger.check()


COUNT = STREAM.replace(
    "word = word or command()",
    """
        refused = peer.status()["dropped_frames"].get("refused", 0)
        if refused:
            print("refused", refused)
        word = word or command()""",
)

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\3\1" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
CURVE = GREETING.replace(b"NULL\0", b"CURVE")
garbage = (
    st.binary(max_size=2000)
    | st.sampled_from([GREETING, CURVE]).flatmap(lambda g: st.integers(0, len(g)).map(lambda n: g[:n]))
    | st.binary(max_size=200).map(lambda tail: GREETING + b"\4\x19\5READY\x0bSocket-Type\0\0\0\6DEALER" + tail)
    | st.binary(max_size=200).map(lambda tail: CURVE + b"\4\xc8\5HELLO\1\0" + tail)
)


def test_garbage_at_the_live_port_costs_no_step_and_no_memory(new_host: NewHost, key: Path) -> None:
    peers, port = joined([new_host(), new_host()], key, COUNT)
    for peer in peers:
        peer.expect_step(20)
    process = psutil.Process(peers[0].pid)
    before_bytes = process.memory_info().rss

    @settings(max_examples=200, deadline=None, database=None)
    @given(garbage, st.sampled_from([port, port + 1]))
    def throw(content: bytes, to: int) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", to), timeout=5) as raw:
            raw.sendall(content)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass

    throw()
    flood(Credentials("default", "f" * 16, read_key(key)), name(peers[0]), port)
    peers[0].expect("refused")
    peers[0].expect("dropped")
    last = int(next(line for line in reversed(peers[0].stdout) if line.startswith("step")).split()[1])
    peers[0].expect_step(last + 50)
    assert process.memory_info().rss < before_bytes + (64 << 20)
    stop(peers)
    for peer in peers:
        assert not [line for line in peer.stdout if line.startswith("view of")], peer.report()
    said = [line.split(":")[0] for line in peers[0].stderr]
    assert sorted(said) == ["dropped a frame", "refused a connection to tcp"]


def flood(credentials: Credentials, peer_id: str, port: int) -> None:
    """Send as a holder of the key that ignores the protocol."""
    with zmq.Context() as context:
        for to in (port, port + 1):
            for messages in ([[b"x"] * 20_000] * 3, [[os.urandom(1000)] * 2] * 500, [[bytes(MAX_CONTROL_BYTES * 3)]]):
                with context.socket(zmq.DEALER) as holder:
                    holder.linger = 5000
                    credentials.introduce(holder, peer_id)
                    holder.connect(f"tcp://127.0.0.1:{to}")
                    for parts in messages:
                        holder.send_multipart(parts)


# Two hosts, simulated by namespaces


def test_two_network_namespaces_are_two_hosts(new_host: NewHost, key: Path, wires: list[str]) -> None:
    """Each also has its own pid namespace, so no peer can watch the others' processes, even if two share a folder."""
    hosts = [new_host(), new_host()]
    for namespace, host in zip(wires, hosts, strict=True):
        host.prefix = ("ip", "netns", "exec", namespace, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        host.environ = {"SHOAL_SEEDS": "10.77.0.1:7700", **secured(key)}
    hosts[0].environ["SHOAL_BIND"] = "*:7700"
    first = hosts[0].start(STREAM, min_peers=3)
    hosts[0].environ["SHOAL_BIND"] = "*:7702"
    second, other = hosts[0].start(STREAM, min_peers=3), hosts[1].start(STREAM, min_peers=3)
    for peer in (first, second, other):
        peer.expect_step(20)
    assert len(list(hosts[0].home.glob("default/*.json"))) == len(list(hosts[0].home.glob("default/*.page"))) == 2
    entries = [json.loads(path.read_text()) for path in hosts[1].home.glob("default/*.json")]
    assert [entry["remote_control_address"].rpartition(":")[0] for entry in entries] == ["tcp://10.77.0.2"]
    hosts[1].leaves_files = True
    other.kill()
    for peer in (first, second):
        peer.expect("view of 2")
    stop([first, second])


def test_the_only_seed_joins_those_who_go_on_when_it_is_started_again(
    new_host: NewHost, key: Path, wires: list[str]
) -> None:
    """The others have no proof of its death, and no other peer is on its host."""
    hosts = [new_host(), new_host()]
    for namespace, host in zip(wires, hosts, strict=True):
        host.prefix = ("ip", "netns", "exec", namespace, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        host.environ = {"SHOAL_SEEDS": "10.77.0.1:7700", **secured(key)}
        host.leaves_files = True
    hosts[0].environ["SHOAL_BIND"] = "*:7700"
    seed, *others = [host.start(STREAM, min_peers=3) for host in (hosts[0], hosts[1], hosts[1])]
    for peer in (seed, *others):
        peer.expect_step(20)
    seed.kill()
    seed.end()
    for peer in others:
        peer.expect("view of 2")
    again = hosts[0].start(STREAM, min_peers=1)
    assert again.expect("step").split()[3] == "3", again.report()
    stop([*others, again])

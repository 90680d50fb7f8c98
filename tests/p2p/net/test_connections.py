"""What the kernel does with connections of libzmq: by which congestion control, and what it counts."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from p2p.net.flows import copy_of, ends_of
from p2p.net.links import Link
from p2p.net.tcp import Network
from tests.p2p.net.pond import Pond, open_pond, poll_until

B = "b" * 16


@pytest.fixture
def pond() -> Iterator[Pond]:
    with open_pond() as private:
        yield private


@pytest.mark.parametrize(("network", "wanted"), [(Network.LAN, ""), (Network.WAN, "bbr")])
def test_far_hosts_data_go_by_a_congestion_control_that_keeps_what_it_knows(
    pond: Pond, network: Network, wanted: str
) -> None:
    b = pond.open(B, network=network)
    gate = pond.gates[B]
    assert gate.congestion_control == wanted
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    another = "cubic" if default == "reno" else "reno"
    control, data = pond.addresses(B)
    with zmq.Context() as context:
        link = Link(context, B, control, data, gate.credentials.introduce, congestion_control=another)
        poll_until(lambda: not link.unopened() and congestion_controls(data) == {another}, b)
        assert congestion_controls(control) == {default}
        link.close(linger_ms=0)


def test_what_has_arrived_over_one_connection_is_nothing_of_what_was_sent_over_the_one_before(pond: Pond) -> None:
    b = pond.open(B)
    with zmq.Context() as context:
        link = Link(context, B, *pond.addresses(B), pond.gates[B].credentials.introduce)
        poll_until(lambda: not link.unopened(), b)
        before = link.acked()
        assert before is not None
        for connection in connections_to(pond.addresses(B)[1]):
            connection.shutdown(socket.SHUT_RDWR)
        poll_until(lambda: not link.unopened() and (link.acked() or 0) > before + (1 << 40), b)
        link.close(linger_ms=0)


def congestion_controls(address: str) -> set[str]:
    """By which this process sends to there; a connection that libzmq has just opened anew goes by the default."""
    options = socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16
    return {each.getsockopt(*options).rstrip(b"\0").decode() for each in connections_to(address)}


def connections_to(address: str) -> Iterator[socket.socket]:
    """Copies of what this process has connected to there."""
    for name in os.listdir("/proc/self/fd"):
        if (copy := copy_of(int(name))) is not None:
            with closing(copy):
                ends = ends_of(copy) if copy.family in (socket.AF_INET, socket.AF_INET6) else None
                if ends is not None and address.endswith(f":{ends[1][1]}"):
                    yield copy

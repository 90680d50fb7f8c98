"""A step that stalls repeatedly: connections to other hosts are reopened, which is logged once."""

import logging
import socket

import pytest

from gossip import Member
from p2p.loop.stalls import Stalls
from p2p.net.links import Link
from p2p.net.transport import Transport
from tests.p2p.net.test_connections import connections_to
from tests.p2p.net.transport_harness import open_pond, poll_until

A, B = "a" * 16, "b" * 16
MEMBERS = [Member(A, 1), Member(B, 1)]


def until_opened(least: int, a: Transport, link: Link, b: Transport) -> int:
    """Wait for at least `least` data connections, of which one is open; returns the number so far."""
    poll_until(lambda: not link.unopened() and (link.acked() or 0) >> 48 >= least, a, b)
    return (link.acked() or 0) >> 48


def test_from_the_second_time_on_that_a_step_stalls_connections_are_opened_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with open_pond() as pond:
        a, b = pond.open(A), pond.open(B)
        a.connect(B, *pond.addresses(B))
        stalls, link = Stalls(a), a._links[B]
        seen = []
        for step, least in ((7, 1), (7, 2), (7, 3), (8, 3), (9, 3), (9, 4)):
            stalls.redone(step, MEMBERS)
            seen.append(until_opened(least, a, link, b))
    assert seen == [1, 2, 3, 3, 3, 4]
    said = [record.getMessage() for record in caplog.records]
    said = [line for line in said if not line.startswith("refused a connection")]  # reopened during a handshake
    assert [line.partition(":")[0] for line in said] == ["step 7 has stalled twice", "step 9 has stalled twice"]
    assert "Does a proxy, a NAT or a firewall between hosts" in said[0]
    assert "large packets (net.ipv4.tcp_mtu_probing=2)" in said[0]


def test_data_do_not_get_through_if_connections_break_in_two_attempts_in_a_row_behind_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_pond() as pond:
        a, b = pond.open(A), pond.open(B)
        a.connect(B, *pond.addresses(B))
        stalls, link = Stalls(a), a._links[B]
        seen: list[tuple[int, bool, list[Member]]] = []
        num_opened = until_opened(1, a, link, b)
        for step, breaks in ((7, True), (7, True), (7, False), (7, True), (7, True), (8, True), (8, True), (8, True)):
            if breaks:
                before = a.num_broken(B)
                for connection in connections_to(pond.addresses(B)[1]):
                    connection.shutdown(socket.SHUT_RDWR)
                poll_until(lambda before=before: a.num_broken(B) != before, a, b)  # type: ignore[misc]
            num_opened = until_opened(num_opened + breaks, a, link, b)
            is_again = bool(seen) and seen[-1][0] == step
            stalls.redone(step, MEMBERS)
            num_opened = until_opened(num_opened + is_again, a, link, b)
            seen.append((step, stalls.undelivered(step) == [Member(B, 1)], stalls.undelivered(step + 1)))
    assert stalls.has_stalled(8) and not stalls.has_stalled(9)
    stalls.redone(9, MEMBERS)
    assert not stalls.has_stalled(9), "it may have been one frame"
    assert [is_lost for _, is_lost, _ in seen] == [False, False, False, False, True, False, False, True]
    assert not any(other for _, _, other in seen)
    assert sum("new data connections to it break" in record.getMessage() for record in caplog.records) == 2


def test_where_all_are_on_one_host_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with open_pond() as pond:
        stalls = Stalls(pond.open(A))
        for _ in range(3):
            stalls.redone(7, MEMBERS)
    assert not caplog.records
